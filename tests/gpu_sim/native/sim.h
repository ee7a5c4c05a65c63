/* What the two simulated libraries share: the flat form of the scenario, hanging, counting.
 *
 * The scenario is read from usr/share/gpu-sim/cuda.conf under the folder that the library lies in: lines
 * "key=value", a key may come several times. Without the marker scenario.json beside it nothing is simulated
 * and everything fails, so that nobody takes a simulated GPU for a real one. */
#ifndef GPU_SIM_H
#define GPU_SIM_H

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_FAULTS 32
#define NAME_LENGTH 96

struct sim_gpu {
    int index; /* as nvidia-smi counts */
    char name[NAME_LENGTH];
    char uuid[NAME_LENGTH];
    char mig[NAME_LENGTH]; /* UUID of the MIG instance that CUDA shows instead; empty: none */
    char pci[16]; /* 0000:43:00.0 */
    unsigned domain, bus, device;
    unsigned pci_device_id, pci_subsystem_id;
    unsigned long long memory, reserved; /* bytes */
    int major, minor;
    int nvml_error; /* of its handle; 0: none */
    unsigned long long free_at_most; /* bytes; ~0: no limit */
};

struct sim_miscompare {
    int gpu; /* as CUDA counts */
    unsigned long long offset;
    unsigned mask;
    char path[8];
};

struct sim_error {
    char function[NAME_LENGTH];
    int code, gpu, times; /* gpu -1: on any, times -1: always */
};

struct sim {
    int present; /* the marker is there and the scenario could be read */
    char driver[32], nvml[32];
    int cuda_version; /* 13000 */
    int gpus; /* that NVML knows */
    struct sim_gpu gpu[MAX_GPUS];
    int cuda_gpus, cuda_gpu[MAX_GPUS]; /* indices into gpu */
    int init_code, nvml_code;          /* 0: works */
    int flaky_code, flaky_times, flaky_sticky;
    double flaky_probability;
    unsigned flaky_seed;
    double slow; /* seconds */
    int hangs, hang_ignores;
    char hang_blocks_on[512];
    int fabric_waits; /* cuInit fails with 802 */
    double fabric_seconds; /* < 0: for ever */
    int miscompares;
    struct sim_miscompare miscompare[MAX_FAULTS];
    int errors;
    struct sim_error error[MAX_FAULTS];
};

extern struct sim sim;

/* Reads the scenario, once. */
void sim_load(void);
/* Waits or hangs if the scenario says so; hanging never returns. */
void sim_begin(void);
/* How often this has been called on this machine with this name, this call included. */
long sim_count(const char *name);
/* Seconds since the first call on this machine with this name, on the clock that starts at boot. */
double sim_since(const char *name);

#endif
