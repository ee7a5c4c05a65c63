/* What the two halves of the simulated libcuda share: types of cuda.h, and how a call begins. */
#ifndef GPU_SIM_CUDA_H
#define GPU_SIM_CUDA_H

#include "sim.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, SYSTEM_NOT_READY = 802, UNKNOWN = 999,
};

extern int sim_initialized;

static inline struct sim_gpu *sim_gpu_of(CUdevice device)
{
    return &sim.gpu[sim.cuda_gpu[device]];
}

static inline int sim_valid(CUdevice device)
{
    return device >= 0 && device < sim.cuda_gpus;
}

static inline unsigned long long sim_total_of(CUdevice device)
{
    return sim_gpu_of(device)->memory - sim_gpu_of(device)->reserved;
}

CUresult sim_injected(const char *function, CUdevice device);
/* The device of this thread's context; -1: there is none. */
CUdevice sim_current_device(void);

#define NEED_INIT(function, device)                          \
    do {                                                     \
        if (!sim_initialized)                                    \
            return NOT_INITIALIZED;                          \
        CUresult wanted = sim_injected(function, device);        \
        if (wanted != SUCCESS)                               \
            return wanted;                                   \
    } while (0)

#define NEED_CONTEXT(function)                               \
    do {                                                     \
        NEED_INIT(function, sim_current_device()); \
        if (sim_current_device() < 0)                                      \
            return INVALID_CONTEXT;                          \
    } while (0)

#endif
