#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct sim sim;

static char root[PATH_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_root(void)
{
    Dl_info info;
    /* ROOT/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05: four names to take away. /lib may be a link to
     * /usr/lib, which realpath undoes. */
    if (!dladdr((void *)find_root, &info) || !realpath(info.dli_fname, root))
        root[0] = '\0';
    for (int level = 0; level < 4; level++) {
        char *slash = strrchr(root, '/');
        if (slash)
            *slash = '\0';
    }
}

static void path_of(char *path, const char *folder, const char *name)
{
    size_t size = PATH_MAX;
    size_t used = (size_t)snprintf(path, size, "%s", root);
    if (used < size)
        snprintf(path + used, size - used, "/%s/%s", folder, name);
}

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static void set_gpu(const char *key, const char *value)
{
    char name[64];
    int index;
    if (sscanf(key, "gpu.%d.%63s", &index, name) != 2 || index < 0 || index >= MAX_GPUS)
        return;
    struct sim_gpu *gpu = &sim.gpu[index];
    if (index >= sim.gpus) {
        sim.gpus = index + 1;
        gpu->index = index;
        gpu->free_at_most = ~0ULL;
    }
    if (!strcmp(name, "name"))
        copy(gpu->name, sizeof gpu->name, value);
    else if (!strcmp(name, "uuid"))
        copy(gpu->uuid, sizeof gpu->uuid, value);
    else if (!strcmp(name, "mig"))
        copy(gpu->mig, sizeof gpu->mig, value);
    else if (!strcmp(name, "pci")) {
        copy(gpu->pci, sizeof gpu->pci, value);
        sscanf(value, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device);
    } else if (!strcmp(name, "ids"))
        sscanf(value, "%x %x", &gpu->pci_device_id, &gpu->pci_subsystem_id);
    else if (!strcmp(name, "memory"))
        sscanf(value, "%llu %llu", &gpu->memory, &gpu->reserved);
    else if (!strcmp(name, "compute"))
        sscanf(value, "%d.%d", &gpu->major, &gpu->minor);
    else if (!strcmp(name, "nvml_error"))
        gpu->nvml_error = atoi(value);
    else if (!strcmp(name, "free_at_most"))
        gpu->free_at_most = strtoull(value, NULL, 10);
}

static void set(const char *key, const char *value)
{
    if (!strncmp(key, "gpu.", 4))
        set_gpu(key, value);
    else if (!strcmp(key, "driver"))
        copy(sim.driver, sizeof sim.driver, value);
    else if (!strcmp(key, "nvml"))
        copy(sim.nvml, sizeof sim.nvml, value);
    else if (!strcmp(key, "cuda_version"))
        sim.cuda_version = atoi(value);
    else if (!strcmp(key, "cuda_gpu") && sim.cuda_gpus < MAX_GPUS)
        sim.cuda_gpu[sim.cuda_gpus++] = atoi(value);
    else if (!strcmp(key, "init_code"))
        sim.init_code = atoi(value);
    else if (!strcmp(key, "nvml_code"))
        sim.nvml_code = atoi(value);
    else if (!strcmp(key, "flaky"))
        sscanf(value, "%d %d %lf %u %d", &sim.flaky_code, &sim.flaky_times, &sim.flaky_probability,
               &sim.flaky_seed, &sim.flaky_sticky);
    else if (!strcmp(key, "slow"))
        sim.slow = atof(value);
    else if (!strcmp(key, "hangs"))
        sscanf(value, "%d %d", &sim.hangs, &sim.hang_ignores);
    else if (!strcmp(key, "hang_blocks_on"))
        copy(sim.hang_blocks_on, sizeof sim.hang_blocks_on, value);
    else if (!strcmp(key, "fabric")) {
        sim.fabric_waits = 1;
        sim.fabric_seconds = atof(value);
    } else if (!strcmp(key, "miscompare") && sim.miscompares < MAX_FAULTS) {
        struct sim_miscompare *fault = &sim.miscompare[sim.miscompares++];
        sscanf(value, "%d %llu %x %7s", &fault->gpu, &fault->offset, &fault->mask, fault->path);
    } else if (!strcmp(key, "error") && sim.errors < MAX_FAULTS) {
        struct sim_error *fault = &sim.error[sim.errors++];
        sscanf(value, "%95s %d %d %d", fault->function, &fault->code, &fault->gpu, &fault->times);
    }
}

static void load(void)
{
    char path[PATH_MAX], line[1024];
    find_root();
    path_of(path, "usr/share/gpu-sim", "scenario.json");
    if (access(path, R_OK))
        return;
    path_of(path, "usr/share/gpu-sim", "cuda.conf");
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        if (line[0] == '#' || !value)
            continue;
        *value++ = '\0';
        set(line, value);
    }
    fclose(file);
    sim.present = 1;
}

void sim_load(void)
{
    pthread_once(&once, load);
}

/* A state file, as the simulated programs keep them. */
static int open_state(const char *name, int flags)
{
    char path[PATH_MAX];
    path_of(path, "run", "");
    mkdir(path, 0755);
    path_of(path, "run/gpu-sim", "");
    mkdir(path, 0755);
    path_of(path, "run/gpu-sim", name);
    return open(path, flags | O_CLOEXEC, 0644);
}

long sim_count(const char *name)
{
    struct stat status;
    int file = open_state(name, O_WRONLY | O_CREAT | O_APPEND);
    long count = 1;
    if (file < 0)
        return count;
    if (write(file, ".", 1) == 1 && !fstat(file, &status))
        count = (long)status.st_size;
    close(file);
    return count;
}

double sim_since(const char *name)
{
    struct timespec time;
    char text[32] = "";
    clock_gettime(CLOCK_BOOTTIME, &time);
    long long now = time.tv_sec * 1000000000LL + time.tv_nsec;
    int file = open_state(name, O_WRONLY | O_CREAT | O_EXCL);
    if (file >= 0) {
        int length = snprintf(text, sizeof text, "%lld", now);
        if (write(file, text, (size_t)length) != length)
            now = 0; /* a full disk: the next one reads nothing, and takes it for just now */
        close(file);
        return 0;
    }
    file = open_state(name, O_RDONLY);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? (double)(now - atoll(text)) / 1e9 : 0;
}

void sim_begin(void)
{
    struct timespec wait = {(time_t)sim.slow, (long)((sim.slow - (double)(time_t)sim.slow) * 1e9)};
    while (sim.slow > 0 && nanosleep(&wait, &wait) && errno == EINTR)
        ;
    if (!sim.hangs)
        return;
    if (sim.hang_ignores) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    int hung = open_state("hung", O_WRONLY | O_CREAT | O_APPEND); /* tests wait for this line */
    if (hung >= 0) {
        dprintf(hung, "cuInit %d\n", (int)getpid());
        close(hung);
    }
    if (sim.hang_blocks_on[0]) {
        /* On a frozen file system or a suspended device the kernel holds us in D state. */
        int file = open(sim.hang_blocks_on, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file >= 0 && write(file, "!", 1) == 1)
            fsync(file);
    }
    for (;;)
        pause();
}
