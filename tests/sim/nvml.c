/* SPDX-License-Identifier: BSD-2-Clause */
/* libnvidia-ml.so.1 for the simulated devices: how much of each is free for all processes, if
 * SIM_SHARED names a common capacity. While the process is locked or checkpointed each call waits,
 * but in a link namespace without the driver (H200, 580.159); with SIM_CHECKPOINTED=abort it ends
 * a process that is checkpointed. There the C library serves the thread that loaded it alone: to
 * others its isdigit is a fault (glibc before 2.42), and it never gives their memory back. So a
 * call by another thread ends the process, and so does an exit beside a call. SIM_NVML_CODE: the
 * questions fail with that code. SIM_NVML_MS: how long its start takes. SIM_NVML_LOSES: after so
 * many questions they fail until it starts anew. SIM_NVML_STARTS: so many starts succeed.
 * SIM_NVML_EMPTY=1: it says that all is free, whatever is. SIM_NVML_LISTS=0: it lists no
 * processes, as in many containers. SIM_NVML_LIST_MS: how long a list takes. It has less of a
 * process than its checkpoint frees (H200). The types are those of NVIDIA's
 * documentation of NVML, written here anew. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/config.h"
#include "tests/sim/shared.h"

#define NVML_EXPORT __attribute__((visibility("default")))

enum { LISTED_LESS = 5832704 };
enum { OK, BAD_ARGUMENT = 2, NOT_FOUND = 6, TOO_SHORT = 7, UNKNOWN = 999 };

struct memory {
    unsigned long long total, free, used;
};

NVML_EXPORT int nvmlInit_v2(void);
NVML_EXPORT int nvmlShutdown(void);
NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
NVML_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);

/* nvmlProcessInfo_v2_t */
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

NVML_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                        struct process *out);

static char devices[100];
static int questions; /* since the start */
static int num_starts;

static __thread bool has_loaded;
static bool has_driver; /* in this link namespace; a call does not take the loader's lock for it */
static atomic_bool starts;

__attribute__((constructor)) static void note_loader(void)
{
    has_loaded = true;
    has_driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

__attribute__((destructor)) static void look_at_end(void)
{
    if (atomic_load(&starts))
        abort();
}

static void wait_for_driver(void)
{
    if (!has_driver) {
        if (!has_loaded)
            abort();
        return;
    }
    for (int row = shared_find(getpid()); row >= 0 && shared_state(row) != 0;) {
        if (shared_state(row) == CU_PROCESS_STATE_CHECKPOINTED && config.checkpointed != NULL &&
            strcmp(config.checkpointed, "abort") == 0)
            abort();
        usleep(1000);
    }
}

int nvmlInit_v2(void)
{
    const char *ms = getenv("SIM_NVML_MS"), *most = getenv("SIM_NVML_STARTS");
    config_read();
    shared_look();
    wait_for_driver();
    atomic_store(&starts, true);
    if (ms != NULL)
        nanosleep(&(struct timespec){.tv_sec = atoi(ms) / 1000}, NULL);
    atomic_store(&starts, false);
    if (most != NULL && ++num_starts > atoi(most))
        return UNKNOWN;
    questions = 0;
    return OK;
}

int nvmlShutdown(void)
{
    wait_for_driver();
    return OK;
}

/* The UUID ends in the two digits of the device, as hexadecimal numbers of their characters. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    size_t length = strlen(uuid);
    if (strncmp(uuid, "GPU-", 4) != 0 || length < 8 || uuid[length - 4] != '3')
        return NOT_FOUND;
    wait_for_driver();
    *device = devices + 10 * (uuid[length - 3] - '0') + (uuid[length - 1] - '0');
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    const char *code = getenv("SIM_NVML_CODE"), *loses = getenv("SIM_NVML_LOSES");
    wait_for_driver();
    uint64_t used = shared_others((int)((char *)device - devices));
    if (code != NULL)
        return atoi(code);
    if (loses != NULL && ++questions > atoi(loses))
        return UNKNOWN;
    if (getenv("SIM_NVML_EMPTY") != NULL)
        used = 0;
    memory->total = config.capacity_bytes;
    memory->used = used;
    memory->free = used < memory->total ? memory->total - used : 0;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out)
{
    const char *lists = getenv("SIM_NVML_LISTS"), *ms = getenv("SIM_NVML_LIST_MS");
    int number = (int)((char *)device - devices), process;
    unsigned most = *count;
    uint64_t bytes;
    wait_for_driver();
    if (ms != NULL)
        nanosleep(
            &(struct timespec){.tv_sec = atoi(ms) / 1000, .tv_nsec = atoi(ms) % 1000 * 1000000L},
            NULL);
    *count = 0;
    if (lists != NULL && atoi(lists) == 0)
        return OK;
    for (int row = 0; (row = shared_next(row, number, &process, &bytes)) >= 0; row++) {
        if (*count < most)
            out[*count] = (struct process){
                .pid = (unsigned)process,
                .used = bytes > LISTED_LESS ? bytes - LISTED_LESS : bytes,
            };
        ++*count;
    }
    return *count <= most ? OK : TOO_SHORT;
}
