/* libnvidia-ml.so.1: NVML as far as it takes to count GPUs and to say who they are.
 *
 * Structures and codes are those of nvml.h 13.0 (docs.nvidia.com/deploy/nvml-api). */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef int nvmlReturn_t;
typedef struct sim_gpu *nvmlDevice_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

static int users;

EXPORT const char *gpu_sim_version(void)
{
    return "gpu-sim libnvidia-ml 1";
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 5: return "Already Initialized";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "GPU access blocked by the operating system";
    case 18: return "Driver/library version mismatch";
    case 19: return "In use by another client";
    default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    sim_load();
    if (!sim.present)
        return UNKNOWN;
    if (sim.nvml_code)
        return sim.nvml_code;
    users++;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInit_v2();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

static nvmlReturn_t text(char *to, unsigned length, const char *from)
{
    if (!users)
        return UNINITIALIZED;
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(from) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return text(version, length, sim.driver);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return text(version, length, sim.nvml);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!users)
        return UNINITIALIZED;
    if (!version)
        return INVALID_ARGUMENT;
    *version = sim.cuda_version;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!users)
        return UNINITIALIZED;
    if (!count)
        return INVALID_ARGUMENT;
    *count = (unsigned)sim.gpus;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (!users)
        return UNINITIALIZED;
    if (!device || index >= (unsigned)sim.gpus)
        return INVALID_ARGUMENT;
    *device = &sim.gpu[index];
    return (*device)->nvml_error;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    if (!users)
        return UNINITIALIZED;
    if (!bus || !device)
        return INVALID_ARGUMENT;
    for (int index = 0; index < sim.gpus; index++) {
        const char *pci = sim.gpu[index].pci;
        size_t extra = strlen(bus) > strlen(pci) ? strlen(bus) - strlen(pci) : 0; /* a domain of eight digits */
        if (!strcasecmp(bus + extra, pci)) {
            *device = &sim.gpu[index];
            return (*device)->nvml_error;
        }
    }
    return NOT_FOUND;
}

static nvmlReturn_t check(nvmlDevice_t device, const void *result)
{
    if (!users)
        return UNINITIALIZED;
    if (!device || !result)
        return INVALID_ARGUMENT;
    return device->nvml_error;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    nvmlReturn_t result = check(device, index);
    if (result == SUCCESS)
        *index = (unsigned)device->index;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    nvmlReturn_t result = check(device, name);
    return result == SUCCESS ? text(name, length, device->name) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    nvmlReturn_t result = check(device, uuid);
    return result == SUCCESS ? text(uuid, length, device->uuid) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlReturn_t result = check(device, pci);
    if (result != SUCCESS)
        return result;
    memset(pci, 0, sizeof *pci);
    pci->domain = device->domain;
    pci->bus = device->bus;
    pci->device = device->device;
    pci->pciDeviceId = device->pci_device_id << 16 | 0x10DE;
    pci->pciSubSystemId = device->pci_subsystem_id << 16 | 0x10DE;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", device->domain & 0xFFFF,
             device->bus & 0xFF, device->device & 0xFF);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", device->domain, device->bus, device->device);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result = check(device, memory);
    if (result != SUCCESS)
        return result;
    memory->total = device->memory;
    memory->used = device->reserved; /* the first version counts what the driver keeps as used */
    memory->free = device->memory - device->reserved;
    return SUCCESS;
}
