/* libcuda.so.1: the CUDA driver API as far as a memory check uses it.
 *
 * Signatures and codes are those of cuda.h 13.0 (docs.nvidia.com/cuda/cuda-driver-api); this half starts and
 * says what there is, memory.c has contexts and memory. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { CUresult code; const char *name, *text; } RESULTS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int sim_initialized;

/* The error that the scenario wants of this function, if any. */
CUresult sim_injected(const char *function, CUdevice device)
{
    for (int place = 0; place < sim.errors; place++) {
        struct sim_error *error = &sim.error[place];
        if (strcmp(error->function, function) || (error->gpu >= 0 && error->gpu != device) || !error->times)
            continue;
        if (error->times > 0)
            error->times--;
        return error->code;
    }
    return SUCCESS;
}

static CUresult init(void)
{
    static CUresult stuck;
    sim_load();
    if (!sim.present)
        return UNKNOWN;
    sim_begin();
    if (stuck)
        return stuck;
    if (sim.init_code)
        return sim.init_code;
    if (sim.flaky_code) {
        long attempt = sim_count("cuinit");
        unsigned chance = sim.flaky_seed + (unsigned)attempt * 2654435761u;
        int fails = sim.flaky_probability > 0 ? rand_r(&chance) < sim.flaky_probability * RAND_MAX
                                              : attempt <= sim.flaky_times;
        if (fails && sim.flaky_sticky)
            stuck = sim.flaky_code;
        if (fails)
            return sim.flaky_code;
    }
    if (sim.fabric_waits && (sim.fabric_seconds < 0 || sim_since("fabric") < sim.fabric_seconds))
        return SYSTEM_NOT_READY;
    return sim.cuda_gpus ? SUCCESS : NO_DEVICE;
}

EXPORT const char *gpu_sim_version(void)
{
    return "gpu-sim libcuda 1";
}

EXPORT CUresult cuInit(unsigned flags)
{
    CUresult result = flags ? INVALID_VALUE : init();
    if (result == SUCCESS)
        sim_initialized = 1;
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    sim_load();
    if (!version)
        return INVALID_VALUE;
    *version = sim.cuda_version;
    return SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
    for (size_t place = 0; name && place < sizeof RESULTS / sizeof *RESULTS; place++)
        if (RESULTS[place].code == code)
            return *name = RESULTS[place].name, SUCCESS;
    if (name)
        *name = NULL;
    return INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    for (size_t place = 0; text && place < sizeof RESULTS / sizeof *RESULTS; place++)
        if (RESULTS[place].code == code)
            return *text = RESULTS[place].text, SUCCESS;
    if (text)
        *text = NULL;
    return INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    NEED_INIT("cuDeviceGetCount", -1);
    if (!count)
        return INVALID_VALUE;
    *count = sim.cuda_gpus;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    NEED_INIT("cuDeviceGet", ordinal);
    if (!device)
        return INVALID_VALUE;
    if (!sim_valid(ordinal))
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    NEED_INIT("cuDeviceGetName", device);
    if (!name || length <= 0)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    struct sim_gpu *gpu = sim_gpu_of(device);
    snprintf(name, (size_t)length, "%s%s", gpu->name, gpu->mig[0] ? " MIG 1g.10gb" : "");
    return SUCCESS;
}

static void uuid_of(CUuuid *uuid, const char *text)
{
    text += strlen("GPU-");
    for (int place = 0; place < 16; place++, text += 2) {
        unsigned byte = 0;
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        uuid->bytes[place] = (unsigned char)byte;
    }
}

/* The first version knows no MIG instance: it returns the UUID of the GPU. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    NEED_INIT("cuDeviceGetUuid", device);
    if (!uuid)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    uuid_of(uuid, sim_gpu_of(device)->uuid);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    NEED_INIT("cuDeviceGetUuid_v2", device);
    if (!uuid)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    struct sim_gpu *gpu = sim_gpu_of(device);
    uuid_of(uuid, gpu->mig[0] ? gpu->mig : gpu->uuid);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    NEED_INIT("cuDeviceGetPCIBusId", device);
    if (!text || length < 13)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    struct sim_gpu *gpu = sim_gpu_of(device);
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->device);
    return SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    NEED_INIT("cuDeviceTotalMem_v2", device);
    if (!bytes)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    *bytes = sim_total_of(device);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    NEED_INIT("cuDeviceGetAttribute", device);
    if (!value || attribute < 1 || attribute > 200)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    struct sim_gpu *gpu = sim_gpu_of(device);
    switch (attribute) { /* CU_DEVICE_ATTRIBUTE_* */
    case 1: *value = 1024; break; /* MAX_THREADS_PER_BLOCK */
    case 10: *value = 32; break; /* WARP_SIZE */
    case 32: *value = 1; break; /* ECC_ENABLED */
    case 33: *value = (int)gpu->bus; break; /* PCI_BUS_ID */
    case 34: *value = (int)gpu->device; break; /* PCI_DEVICE_ID */
    case 50: *value = (int)gpu->domain; break; /* PCI_DOMAIN_ID */
    case 75: *value = gpu->major; break; /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = gpu->minor; break; /* COMPUTE_CAPABILITY_MINOR */
    default: *value = 0;
    }
    return SUCCESS;
}
