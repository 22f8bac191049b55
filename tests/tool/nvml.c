/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A stand-in for the driver's libnvidia-ml.so.1, with the calls that the tool makes by ctypes. The
 * types are those of NVIDIA's documentation of NVML, written here anew. What it tells comes from
 * the environment:
 *   NVML_GPUS=N            how many GPUs (2); each has 24 GiB, and 1 GiB more in use than the last
 *   NVML_PROCESSES=G:PID:BYTES,...  processes that compute on GPU G; BYTES "-": not known
 *   NVML_DRAWS=G:PID:BYTES,...      processes that draw
 *   NVML_SLOW_MS=N         each call of a list of processes takes so long
 *   NVML_CODE=N            nvmlInit fails with this code
 *   NVML_GROWS=1           each call of a list finds one more process than the call before said
 * Built with OLD it has the symbols of old drivers alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK, BAD_ARGUMENT = 2, NOT_FOUND = 6, TOO_SMALL = 7, PROCESSES_MAX = 4096 };

struct memory {
    unsigned long long total, free, used;
};

struct process {
    unsigned pid;
    unsigned long long used;
#ifndef OLD
    unsigned gpu_instance, compute_instance;
#endif
};

#ifdef OLD
#define NEWEST(name, old, new) name##old
#else
#define NEWEST(name, old, new) name##new
#endif

static char devices[64];

static unsigned number(const char *name, unsigned otherwise)
{
    const char *value = getenv(name);
    return value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

static unsigned index_of(void *device)
{
    return (unsigned)((char *)device - devices);
}

int NEWEST(nvmlInit, , _v2)(void)
{
    return (int)number("NVML_CODE", OK);
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int code)
{
    return code == 9 ? "Driver Not Loaded" : "Unknown Error";
}

int NEWEST(nvmlDeviceGetCount, , _v2)(unsigned *count)
{
    *count = number("NVML_GPUS", 2);
    return OK;
}

int NEWEST(nvmlDeviceGetHandleByIndex, , _v2)(unsigned index, void **device)
{
    *device = devices + index;
    return index < sizeof devices ? OK : BAD_ARGUMENT;
}

static int words(char *room, unsigned size, const char *form, unsigned value)
{
    return snprintf(room, size, form, value) < (int)size ? OK : TOO_SMALL;
}

int nvmlDeviceGetUUID(void *device, char *room, unsigned size)
{
    return words(room, size, "GPU-73696d75-6c61-7465-642d-6770752d%04x", 0x3030 + index_of(device));
}

int nvmlDeviceGetName(void *device, char *room, unsigned size)
{
    return words(room, size, "NVIDIA Stand-in %u", index_of(device));
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    memory->total = 24ull << 30;
    memory->used = (index_of(device) + 1ull) << 30;
    memory->free = memory->total - memory->used;
    return OK;
}

/* Writes the processes of a device while there is room; *count: how many there are. */
static int list(const char *name, void *device, unsigned *count, struct process *room)
{
    static unsigned more;
    unsigned found = 0, size = *count, ms = number("NVML_SLOW_MS", 0);
    const char *at = getenv(name);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        unsigned gpu, pid;
        unsigned long long used = ~0ull;
        if (sscanf(at, "%u:%u:%llu", &gpu, &pid, &used) >= 2 && gpu == index_of(device)) {
            if (found < size)
                room[found] = (struct process){.pid = pid, .used = used};
            found++;
        }
    }
    if (number("NVML_GROWS", 0))
        found += more++;
    *count = found;
    return found > size ? TOO_SMALL : OK;
}

int NEWEST(nvmlDeviceGetComputeRunningProcesses, , _v3)(void *device, unsigned *count,
                                                        struct process *room)
{
    return list("NVML_PROCESSES", device, count, room);
}

int NEWEST(nvmlDeviceGetGraphicsRunningProcesses, , _v3)(void *device, unsigned *count,
                                                         struct process *room)
{
    return list("NVML_DRAWS", device, count, room);
}
