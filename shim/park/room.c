/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See room.h. The types are those of NVIDIA's documentation of NVML, written here anew.
 */
#include "shim/park/room.h"

#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/driver/hooks.h"
#include "shim/loader/symbol.h"
#include "shim/process/fork_gate.h"

#include <dlfcn.h>
#include <string.h>

struct nvml_memory {
    unsigned long long total, free, used;
};

static struct {
    bool is_there;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
} nvml;

static void *devices[DEVICES_MAX];
static int num_devices; /* 0: closed */

/* ISO C has no cast from an object pointer to a function pointer. */
static bool find(void *library, const char *name, void *slot)
{
    void *address = symbol_lookup(library, name);

    memcpy(slot, &address, sizeof address);
    return address;
}

static bool load_nvml(void)
{
    if (nvml.is_there)
        return true;
    fork_gate_enter(); /* a child would find the loader's lock taken */
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    nvml.is_there = library && find(library, "nvmlInit_v2", &nvml.init) &&
                    find(library, "nvmlShutdown", &nvml.shutdown) &&
                    find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
                    find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory);
    fork_gate_leave();
    return nvml.is_there;
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

const char *room_open(void)
{
    static const char lacks[] =
        "libnvidia-ml.so.1 is missing, which tells when there is room again";

    if (num_devices)
        return NULL;
    if (!load_nvml() || nvml.init())
        return lacks;
    const char *why = "the process leaves";
    call_scope_run(NULL, find_devices, &why);
    if (why)
        nvml.shutdown();
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
        nvml.shutdown();
    num_devices = 0;
}
