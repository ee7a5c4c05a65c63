/* Contexts and memory of the simulated libcuda.
 *
 * Memory is the host's, taken only when it is written; device addresses are not addresses of this process. */
#define _GNU_SOURCE
#include "cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct allocation {
    CUdeviceptr address;
    size_t size;
    unsigned char *memory;
    struct context *context;
    struct allocation *next;
};

struct context {
    CUdevice device;
    int primary, references;
    struct context *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;
static struct context *primaries[MAX_GPUS];
static struct allocation *allocations;
static CUdeviceptr next_address[MAX_GPUS];
static unsigned long long used[MAX_GPUS];
static __thread struct context *stack[64];
static __thread int depth;

static const unsigned long long OF_A_CONTEXT = 480ULL << 20; /* about what a context of a real driver takes */

static int known(struct context *context)
{
    for (struct context *one = contexts; one; one = one->next)
        if (one == context)
            return 1;
    return 0;
}

/* The context of this thread; another thread may have destroyed it meanwhile. */
static struct context *current(void)
{
    return depth && known(stack[depth - 1]) ? stack[depth - 1] : NULL;
}

CUdevice sim_current_device(void)
{
    struct context *context = current();
    return context ? context->device : -1;
}

static unsigned long long free_of(CUdevice device)
{
    unsigned long long overhead = 0, total = sim_total_of(device), left;
    for (struct context *context = contexts; context; context = context->next)
        if (context->device == device)
            overhead += OF_A_CONTEXT < total / 16 ? OF_A_CONTEXT : total / 16;
    left = total > used[device] + overhead ? total - used[device] - overhead : 0;
    return left < sim_gpu_of(device)->free_at_most ? left : sim_gpu_of(device)->free_at_most;
}

/* How many allocations have not been freed. */
EXPORT long gpu_sim_outstanding(void)
{
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct allocation *allocation = allocations; allocation; allocation = allocation->next)
        count++;
    pthread_mutex_unlock(&lock);
    return count;
}

static struct context *new_context(CUdevice device, int primary)
{
    struct context *context = calloc(1, sizeof *context);
    if (context) {
        context->device = device;
        context->primary = primary;
        context->references = 1;
        context->next = contexts;
        contexts = context;
    }
    return context;
}

static void release(struct allocation *allocation)
{
    for (struct allocation **link = &allocations; *link; link = &(*link)->next)
        if (*link == allocation) {
            *link = allocation->next;
            break;
        }
    used[allocation->context->device] -= allocation->size;
    munmap(allocation->memory, allocation->size);
    free(allocation);
}

/* With a context goes all memory that it has. */
static void end_context(struct context *context)
{
    for (struct allocation *allocation = allocations, *next; allocation; allocation = next) {
        next = allocation->next;
        if (allocation->context == context)
            release(allocation);
    }
    for (struct context **link = &contexts; *link; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
    if (depth && stack[depth - 1] == context)
        depth--;
    free(context);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    NEED_INIT("cuCtxCreate_v2", device);
    if (!context)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    if (depth == (int)(sizeof stack / sizeof *stack))
        return UNKNOWN;
    pthread_mutex_lock(&lock);
    struct context *made = new_context(device, 0);
    pthread_mutex_unlock(&lock);
    if (!made)
        return OUT_OF_MEMORY;
    stack[depth++] = *context = made;
    return SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    NEED_INIT("cuCtxDestroy_v2", -1);
    pthread_mutex_lock(&lock);
    CUresult result = context && known(context) && !context->primary ? SUCCESS : INVALID_CONTEXT;
    if (result == SUCCESS)
        end_context(context);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    NEED_INIT("cuCtxSetCurrent", context ? context->device : -1);
    if (!context) {
        depth -= depth > 0;
        return SUCCESS;
    }
    pthread_mutex_lock(&lock);
    int there = known(context);
    pthread_mutex_unlock(&lock);
    if (!there)
        return INVALID_CONTEXT;
    depth += !depth;
    stack[depth - 1] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    NEED_INIT("cuCtxGetCurrent", -1);
    if (!context)
        return INVALID_VALUE;
    *context = current();
    return SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    NEED_INIT("cuCtxPushCurrent_v2", -1);
    pthread_mutex_lock(&lock);
    int there = context && known(context);
    pthread_mutex_unlock(&lock);
    if (!there || depth == (int)(sizeof stack / sizeof *stack))
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    NEED_CONTEXT("cuCtxPopCurrent_v2");
    if (context)
        *context = current();
    depth--;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    NEED_CONTEXT("cuCtxGetDevice");
    if (!device)
        return INVALID_VALUE;
    *device = current()->device;
    return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    NEED_CONTEXT("cuCtxSynchronize");
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    NEED_INIT("cuDevicePrimaryCtxRetain", device);
    if (!context)
        return INVALID_VALUE;
    if (!sim_valid(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (primaries[device])
        primaries[device]->references++;
    else
        primaries[device] = new_context(device, 1);
    *context = primaries[device];
    pthread_mutex_unlock(&lock);
    return *context ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    NEED_INIT("cuDevicePrimaryCtxRelease_v2", device);
    if (!sim_valid(device))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    struct context *primary = primaries[device];
    if (primary && --primary->references == 0) {
        primaries[device] = NULL;
        end_context(primary);
    }
    pthread_mutex_unlock(&lock);
    return primary ? SUCCESS : INVALID_CONTEXT;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    NEED_CONTEXT("cuMemGetInfo_v2");
    if (!left || !total)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *left = free_of(current()->device);
    *total = sim_total_of(current()->device);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    NEED_CONTEXT("cuMemAlloc_v2");
    if (!pointer || !size)
        return INVALID_VALUE;
    CUdevice device = current()->device;
    CUresult result = OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct allocation *made = size <= free_of(device) ? calloc(1, sizeof *made) : NULL;
    void *memory = made ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                        : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(made);
    } else {
        if (!next_address[device])
            next_address[device] = 0x700000000000ULL + ((CUdeviceptr)device << 40);
        made->address = next_address[device];
        next_address[device] += (size + (2ULL << 20) - 1) & ~((2ULL << 20) - 1);
        made->size = size;
        made->memory = memory;
        made->context = current();
        made->next = allocations;
        allocations = made;
        used[device] += size;
        *pointer = made->address;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static struct allocation *find(CUdeviceptr address, size_t size)
{
    for (struct allocation *one = allocations; one; one = one->next)
        if (address >= one->address && address - one->address <= one->size && size <= one->size - (address - one->address))
            return one;
    return NULL;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    NEED_CONTEXT("cuMemFree_v2");
    pthread_mutex_lock(&lock);
    struct allocation *allocation = find(pointer, 1);
    CUresult result = allocation && allocation->address == pointer ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS)
        release(allocation);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Flips the bits that the scenario says are flipped on this way: those of a byte at an offset of the
 * allocation, when that byte is among the ones copied. */
static void flip(const char *path, struct allocation *allocation, CUdeviceptr first, size_t size, unsigned char *copied)
{
    unsigned long long start = first - allocation->address;
    for (int place = 0; place < sim.miscompares; place++) {
        struct sim_miscompare *fault = &sim.miscompare[place];
        if (strcmp(fault->path, path) || fault->gpu != allocation->context->device)
            continue;
        if (fault->offset >= start && fault->offset - start < size)
            copied[fault->offset - start] ^= (unsigned char)fault->mask;
    }
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    NEED_CONTEXT("cuMemcpyHtoD_v2");
    pthread_mutex_lock(&lock);
    struct allocation *target = find(to, size);
    CUresult result = target && (from || !size) ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS && size) {
        memcpy(target->memory + (to - target->address), from, size);
        flip("HtoD", target, to, size, target->memory + (to - target->address));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    NEED_CONTEXT("cuMemcpyDtoH_v2");
    pthread_mutex_lock(&lock);
    struct allocation *source = find(from, size);
    CUresult result = source && (to || !size) ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS && size) {
        memcpy(to, source->memory + (from - source->address), size);
        flip("DtoH", source, from, size, to);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    NEED_CONTEXT("cuMemcpyDtoD_v2");
    pthread_mutex_lock(&lock);
    struct allocation *source = find(from, size), *target = find(to, size);
    CUresult result = source && target ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS && size) {
        memmove(target->memory + (to - target->address), source->memory + (from - source->address), size);
        flip("DtoD", target, to, size, target->memory + (to - target->address));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Without streams, an asynchronous copy is done when it returns. */
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream)
{
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, size);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream)
{
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, size);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream)
{
    (void)stream;
    return cuMemcpyDtoD_v2(to, from, size);
}

static CUresult fill(CUdeviceptr to, const void *value, size_t width, size_t count)
{
    pthread_mutex_lock(&lock);
    struct allocation *target = count <= (size_t)-1 / width ? find(to, count * width) : NULL;
    CUresult result = target && to % width == 0 ? SUCCESS : INVALID_VALUE;
    for (size_t place = 0; result == SUCCESS && place < count; place++)
        memcpy(target->memory + (to - target->address) + place * width, value, width);
    if (result == SUCCESS && count)
        flip("HtoD", target, to, count * width, target->memory + (to - target->address));
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    NEED_CONTEXT("cuMemsetD8_v2");
    return fill(to, &value, sizeof value, count);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    NEED_CONTEXT("cuMemsetD32_v2");
    return fill(to, &value, sizeof value, count);
}

/* Adds a line to the file of $GPU_SIM_LEAKS: what this process has not freed. */
__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("GPU_SIM_LEAKS");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    if (!file)
        return;
    long count = 0, open = 0;
    unsigned long long bytes = 0;
    for (struct allocation *one = allocations; one; one = one->next, count++)
        bytes += one->size;
    for (struct context *one = contexts; one; one = one->next)
        open++;
    fprintf(file, "pid=%d allocations=%ld bytes=%llu contexts=%ld\n", (int)getpid(), count, bytes, open);
    fclose(file);
}
