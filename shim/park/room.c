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
 *  3. That C library has set itself up for the thread that loaded it alone. On another thread its
 *     isdigit and sscanf read through a null pointer (glibc before 2.42), and it does not learn of
 *     the thread's end, and keeps its memory. So one thread loads it and makes all calls.
 *  4. Before 2.34 the thread library was an object of its own, and its start in a second namespace
 *     put the calling thread into a list of its own: at that thread's end the first one's list
 *     would have been wrong. So this wants 2.34.
 *  5. A thread of the program's may hold the loader's lock for long, and the first call of NVML
 *     looks at all GPUs. So the park thread waits for a call for CALL_NS at most. A late one goes
 *     on, and no other begins before its end. room_close leaves NVML on then, for the next
 *     room_open: a use may wait for the park thread already.
 *  6. At exit NVML takes itself down. So the exit waits for the call under way, as long as in 5,
 *     and none begins after it.
 *  7. A forked child that ends by exit takes its copy of NVML down, which has this process's
 *     descriptors. So no child is forked during a call, whose locks it would find taken
 *     (fork_gate.h), and a question that fails is asked once more of an NVML that has started anew.
 *     While a call hangs, each fork waits for FORK_GATE_PATIENCE_NS. No function here that is in
 *     the gate calls another one that enters it.
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
#include <unistd.h>

/* musl lacks both. A strong reference would end every program there at its start. */
extern __typeof__(dlmopen) dlmopen __attribute__((weak));
extern __typeof__(gnu_get_libc_version) gnu_get_libc_version __attribute__((weak));

#define CALL_NS (5 * SEC_NS)
#define STACK_BYTES (512 * 1024)

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

enum { PROCESSES_MAX = 256 };
/* A first list that takes longer is the last: each later one would come behind the closed gate. */
#define LIST_NS (50 * MS_NS)
#define NOT_KNOWN UINT64_MAX /* of nvml_process.used */

/* The NVML thread's. */
static struct {
    bool is_loaded, is_on;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
    int (*processes)(void *device, unsigned *count, struct nvml_process *out); /* NULL before 510 */
} nvml;
static void *devices[DEVICES_MAX];
static enum { LISTS_UNTRIED, LISTS_SOON, LISTS_NEVER } lists;

/* What it is to do. The park thread writes and reads this while calls_due is 0. */
static struct {
    void (*run)(void);
    int count, device;
    struct device_uuid uuids[DEVICES_MAX];
    struct nvml_memory memory;
    uint64_t own_bytes, list_ns;
    const char *why; /* NULL: it worked */
} call;
static _Atomic uint32_t calls_due; /* 1: a call is due or under way */
static atomic_bool has_left;       /* step 6 */

static int num_devices; /* 0: closed */

static void run_calls(void)
{
    for (;;) {
        while (!atomic_load(&calls_due))
            futex_wait(&calls_due, 0, FUTEX_FOREVER, FUTEX_OF_PROCESS);
        if (!atomic_load(&has_left))
            call.run();
        atomic_store(&calls_due, 0);
        futex_wake_all(&calls_due, FUTEX_OF_PROCESS);
    }
}

/* False: it is not over in time, and `call` is not to be touched; or there is no thread for it. */
static bool call_nvml(void (*run)(void))
{
    static const struct own_thread thread = {"gpucache-nvml", STACK_BYTES, run_calls};
    static bool started;
    uint64_t end_ns = clock_now_ns() + CALL_NS;

    futex_await_zero(&calls_due, end_ns, FUTEX_OF_PROCESS);
    if (atomic_load(&calls_due) || !(started = started || own_thread_start(&thread)))
        return false;
    call.run = run;
    call.why = "the process leaves";
    atomic_store(&calls_due, 1);
    futex_wake_all(&calls_due, FUTEX_OF_PROCESS);
    futex_await_zero(&calls_due, end_ns, FUTEX_OF_PROCESS);
    return !atomic_load(&calls_due);
}

/* --- on the NVML thread */

/* ISO C has no cast from an object pointer to a function pointer. */
static bool find(void *library, const char *name, void *slot)
{
    void *address = symbol_lookup(library, name);

    memcpy(slot, &address, sizeof address);
    return address;
}

/* Once: a process has few namespaces. All is bound at once: a name that is missing later would end
 * the process. */
static bool load_nvml(void)
{
    symbol_lookup(RTLD_DEFAULT, "nvmlInit_v2"); /* waits for the loader's lock, and forks go on */
    fork_gate_enter();                          /* a child would find that lock taken */
    void *library = dlmopen(LM_ID_NEWLM, "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    bool found = library && find(library, "nvmlInit_v2", &nvml.init) &&
                 find(library, "nvmlShutdown", &nvml.shutdown) &&
                 find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
                 find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory);

    if (library && !found)
        symbol_close(library);
    if (found)
        find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes);
    fork_gate_leave();
    return found;
}

static void start_nvml(void)
{
    nvml.is_loaded = nvml.is_loaded || load_nvml();
    if (nvml.is_loaded && !nvml.is_on) {
        fork_gate_enter();
        nvml.is_on = !nvml.init();
        fork_gate_leave();
    }
    call.why = nvml.is_on ? NULL
               : nvml.is_loaded
                   ? "libnvidia-ml.so.1, which tells when there is room again, does not start"
                   : "libnvidia-ml.so.1, which tells when there is room again, cannot be loaded";
}

static void stop_nvml(void)
{
    fork_gate_enter();
    if (nvml.is_on)
        nvml.shutdown();
    nvml.is_on = false;
    fork_gate_leave();
}

static void find_devices(void)
{
    call.why = NULL;
    fork_gate_enter();
    for (int device = 0; device < call.count && !call.why; device++) {
        if (nvml.by_uuid(call.uuids[device].text, &devices[device]))
            call.why = "libnvidia-ml.so.1 does not know the device";
        else if (nvml.memory(devices[device], &call.memory))
            call.why = "libnvidia-ml.so.1 does not tell what is free";
    }
    fork_gate_leave();
}

static void find_own(void)
{
    static struct nvml_process listed[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;

    call.why = NULL;
    call.own_bytes = 0;
    fork_gate_enter();
    uint64_t start_ns = clock_now_ns();
    bool answered =
        nvml.is_on && nvml.processes && !nvml.processes(devices[call.device], &count, listed);
    call.list_ns = clock_now_ns() - start_ns;
    fork_gate_leave();
    for (unsigned i = 0; answered && i < count && i < PROCESSES_MAX; i++)
        if (listed[i].pid == (unsigned)getpid() && listed[i].used != NOT_KNOWN)
            call.own_bytes = listed[i].used;
}

static void try_list(void)
{
    lists = LISTS_NEVER; /* until it is over */
    find_own();
    if (call.list_ns <= LIST_NS)
        lists = LISTS_SOON;
}

static bool memory_is_told(void)
{
    fork_gate_enter();
    bool answered = nvml.is_on && !nvml.memory(devices[call.device], &call.memory);
    fork_gate_leave();
    return answered;
}

static void ask(void)
{
    call.why = NULL;
    if (memory_is_told())
        return;
    stop_nvml(); /* step 7 */
    start_nvml();
    if (!call.why)
        find_devices();
    if (!call.why && !memory_is_told())
        call.why = "it fails";
}

/* --- on the park thread */

static void list_devices(void *arg)
{
    const char **why = arg;

    call.count = 0;
    *why = NULL;
    if (real.cuDeviceGetCount(&call.count) != CUDA_SUCCESS || call.count <= 0 ||
        call.count > DEVICES_MAX)
        *why = "the driver does not tell its devices";
    for (int device = 0; device < call.count && !*why; device++) {
        device_uuid(device, &call.uuids[device]);
        if (!strncmp(call.uuids[device].text, "MIG", 3))
            *why = "the device is a part of a GPU (MIG)";
    }
}

static const char *find_all(void)
{
    static const char late[] = "libnvidia-ml.so.1 does not answer yet";
    const char *why = "the process leaves";

    if (!call_nvml(start_nvml))
        return late;
    if (call.why)
        return call.why;
    call_scope_run(NULL, list_devices, &why);
    if (!why)
        why = call_nvml(find_devices) ? call.why : late;
    if (!why && lists == LISTS_UNTRIED) {
        call.device = 0;
        why = call_nvml(try_list) ? NULL : late;
    }
    if (why)
        call_nvml(stop_nvml);
    return why;
}

const char *room_open(void)
{
    if (num_devices)
        return NULL;
    /* Step 4. */
    if (!dlmopen || !gnu_get_libc_version || strverscmp(gnu_get_libc_version(), "2.34") < 0)
        return "the C library is older than 2.34, and would not bear a second one";
    const char *why = find_all();
    num_devices = why ? 0 : call.count;
    return why;
}

bool room_tell(int device, uint64_t *free_bytes)
{
    *free_bytes = device < num_devices ? 0 : UINT64_MAX;
    if (device >= num_devices)
        return true;
    if (atomic_load(&calls_due)) /* a late one */
        return false;
    call.device = device;
    if (!call_nvml(ask) || call.why)
        return false;
    *free_bytes = call.memory.free;
    return true;
}

uint64_t room_own_bytes(int device)
{
    if (device >= num_devices || atomic_load(&calls_due) || lists != LISTS_SOON)
        return 0;
    call.device = device;
    return call_nvml(find_own) && !call.why ? call.own_bytes : 0;
}

void room_close(void)
{
    if (num_devices && !atomic_load(&calls_due))
        call_nvml(stop_nvml);
    num_devices = 0;
}

void room_at_exit(void)
{
    atomic_store(&has_left, true);
    futex_await_zero(&calls_due, clock_now_ns() + CALL_NS, FUTEX_OF_PROCESS);
}
