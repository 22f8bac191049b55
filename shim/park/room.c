/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See room.h. The types are those of NVIDIA's documentation of NVML, written here anew.
 *
 *  1. While a process is locked or checkpointed, the driver holds up each call of NVML in it until
 *     the unlock, its start and its end among them (H200, 580.159). It knows the NVML of the link
 *     namespace that it was loaded into. One that is loaded into another (dlmopen) answers: loaded
 *     in 0.7 ms, started in 15, asked in 0.02.
 *  2. That NVML brings a C library of its own, with which no object of the program has to do. It
 *     makes no thread, and takes no memory of the program's C library.
 *  3. Before 2.34 the thread library was an object of its own, and its start in a second namespace
 *     put the calling thread into a list of its own: at that thread's end the first one's list
 *     would have been wrong. So this wants 2.34.
 */
#include "shim/park/room.h"

#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/driver/hooks.h"
#include "shim/loader/symbol.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/futex.h"
#include "shim/process/own_thread.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdatomic.h>
#include <string.h>

#define START_NS (5 * SEC_NS)
#define STACK_BYTES (512 * 1024)

struct nvml_memory {
    unsigned long long total, free, used;
};

static struct {
    bool is_loaded, is_on;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
} nvml;

static void *devices[DEVICES_MAX];
static int num_devices; /* 0: closed */
static _Atomic uint32_t starting;

/* ISO C has no cast from an object pointer to a function pointer. */
static bool find(void *library, const char *name, void *slot)
{
    void *address = symbol_lookup(library, name);

    memcpy(slot, &address, sizeof address);
    return address;
}

/* Once: a process has few namespaces. */
static bool load_nvml(void)
{
    fork_gate_enter(); /* a child would find the loader's lock taken */
    void *library = dlmopen(LM_ID_NEWLM, "libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    bool found = library && find(library, "nvmlInit_v2", &nvml.init) &&
                 find(library, "nvmlShutdown", &nvml.shutdown) &&
                 find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
                 find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory);

    if (library && !found)
        symbol_close(library);
    fork_gate_leave();
    return found;
}

/* On a thread of its own: a thread of the program's may hold the loader's lock for long, and the
 * first call of NVML looks at all GPUs. */
static void start_nvml(void)
{
    nvml.is_loaded = nvml.is_loaded || load_nvml();
    nvml.is_on = nvml.is_loaded && !nvml.init();
    atomic_store(&starting, 0);
    futex_wake_all(&starting, FUTEX_OF_PROCESS);
}

static void find_devices(void *arg)
{
    const char **why = arg;
    int count = 0;

    *why = NULL;
    if (real.cuDeviceGetCount(&count) != CUDA_SUCCESS || count <= 0 || count > DEVICES_MAX)
        *why = "the driver does not tell its devices";
    for (int device = 0; device < count && !*why; device++) {
        struct nvml_memory memory;
        struct device_uuid uuid;

        device_uuid(device, &uuid);
        if (!strncmp(uuid.text, "MIG", 3))
            *why = "the device is a part of a GPU (MIG)";
        else if (nvml.by_uuid(uuid.text, &devices[device]))
            *why = "libnvidia-ml.so.1 does not know the device";
        else if (nvml.memory(devices[device], &memory))
            *why = "libnvidia-ml.so.1 does not tell what is free";
    }
    num_devices = *why ? 0 : count;
}

static void stop_nvml(void)
{
    nvml.is_on = false;
    nvml.shutdown();
}

const char *room_open(void)
{
    static const char lacks[] =
        "libnvidia-ml.so.1 is missing, which tells when there is room again";
    static const struct own_thread thread = {"gpucache-nvml", STACK_BYTES, start_nvml};

    if (num_devices)
        return NULL;
    if (strverscmp(gnu_get_libc_version(), "2.34") < 0) /* step 3 */
        return "the C library is older than 2.34, and would not bear a second one";
    if (!nvml.is_on && !atomic_load(&starting)) {
        atomic_store(&starting, 1);
        if (!own_thread_start(&thread))
            atomic_store(&starting, 0);
    }
    futex_await_zero(&starting, clock_now_ns() + START_NS, FUTEX_OF_PROCESS);
    if (atomic_load(&starting))
        return "libnvidia-ml.so.1 does not answer yet";
    if (!nvml.is_on)
        return lacks;
    const char *why = "the process leaves";
    call_scope_run(NULL, find_devices, &why);
    if (why)
        stop_nvml();
    return why;
}

uint64_t room_free_bytes(int device)
{
    struct nvml_memory memory = {0};

    if (device >= num_devices)
        return UINT64_MAX;
    return nvml.memory(devices[device], &memory) ? 0 : memory.free;
}

void room_close(void)
{
    if (num_devices)
        stop_nvml();
    num_devices = 0;
}
