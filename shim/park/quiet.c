/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See quiet.h. No lock. The park thread alone calls quiet_await and quiet_look.
 */
#include "shim/park/quiet.h"

#include "pool/bits.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/context/stream_watch.h"
#include "shim/context/submitter.h"
#include "shim/driver/backing.h"
#include "shim/driver/capture.h"
#include "shim/driver/device.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/error.h"
#include "shim/park/gate.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/process/state.h"
#include "shim/share/peer.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST_PAUSE_NS 10000

enum { ACCESSORS_MAX = 512, ENTRIES_BYTES = 1024, NAME_BYTES = 64 };

static const char CAPTURES[] = "a capture is open";
static const char ENDS[] = "a context is ending";
static const char LOST[] = "a context is lost";
static const char NO_EVENTS[] = "the driver has no events of contexts (CUDA 12.5)";
static const char PEERS[] = "more contexts have access to each other than the library knows";
static const char REGISTERED[] = "memory may be registered with a network card";
static const char RUNS[] = "GPU work still runs";
static const char UNSEEN[] = "the library cannot see which files the process has open";
static const char UNTOLD[] = "the driver does not say whether GPU work runs";

/* Files of drivers that reach device memory without CUDA. Who has registered memory there has such
 * a file open. */
static const char *const devices[] = {"/dev/infiniband/uverbs", "/dev/nvidia-fs", "/dev/gdrdrv"};

static bool is_device(int folder, const char *name)
{
    char path[NAME_BYTES] = "";
    if (readlinkat(folder, name, path, sizeof path - 1) <= 0)
        return false;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        if (strncmp(path, devices[i], strlen(devices[i])) == 0)
            return true;
    return false;
}

static bool any_device_in(int folder)
{
    _Alignas(8) char entries[ENTRIES_BYTES];
    long got;
    while ((got = kernel_getdents(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            unsigned short length;
            if (is_device(folder, kernel_entry(entries + at, &length)))
                return true;
            at += length;
        }
    return got < 0;
}

static const char *refusal_of_files(void)
{
    struct stat opened;
    char path[PROC_TEXT_PATH_BYTES];
    proc_text_own_path(path, "fd");
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || kernel_fstat(folder, &opened))
        return UNSEEN;
    bool any = any_device_in(folder);
    kernel_close_own(folder, &opened);
    return any ? REGISTERED : NULL;
}

static const char *refusal_of(const struct context *c)
{
    if (atomic_load(&c->lost_code))
        return LOST;
    if (!device_fence_has_events())
        return NO_EVENTS;
    return c->redzone_bytes ? "GPUCACHE_REDZONE is on" : NULL;
}

static const char *refusal_of_contexts(void)
{
    bool any = false, arena = false;
    FOR_EACH_CONTEXT(c) {
        const char *why = refusal_of(c);
        if (why)
            return why;
        any = true;
        arena = arena || c->config.backing == BACKING_ARENA;
    }
    if (!any)
        return "the process has no pool";
    return arena ? NULL : "the memory is not in arenas";
}

static const char *refusal_of_libraries(void)
{
    fork_gate_enter(); /* a child would find the loader's lock taken */
    bool sees_all = stream_watch_sees_all(), registers = backing_library_is_loaded();
    fork_gate_leave();
    if (!sees_all)
        return "the program submits work unseen";
    return registers ? REGISTERED : refusal_of_files();
}

const char *quiet_refusal(void)
{
    const char *why = refusal_of_contexts();
    if (!why && capture_open())
        why = CAPTURES;
    if (!why && submitters_are_missed())
        why = "more threads use the GPU than the library follows";
    return why ? why : refusal_of_libraries();
}

/* By an event of its own. */
static const char *look_at_context(CUcontext ctx)
{
    CUresult rc = device_fence_ask(ctx);
    switch (rc) {
    case CUDA_SUCCESS:
        return NULL;
    case CUDA_ERROR_NOT_READY:
        return RUNS;
    case CUDA_ERROR_DEINITIALIZED:
        return ENDS;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        return CAPTURES;
    default:
        return error_is_loss(rc) ? LOST : UNTOLD;
    }
}

/* By the events of the pool. One that could not be recorded ended those (device_fence.c). */
static const char *look_at_pool(struct context *c)
{
    const char *why = NULL;
    if (!context_pin(c))
        return ENDS;
    if (!pool_is_idle(c->pool))
        why = RUNS;
    else if (!atomic_load(&c->backend.base.has_order)) /* then the pool does not know */
        why = look_at_context(atomic_load(&c->ctx));
    context_unpin(c);
    return atomic_load(&c->lost_code) ? LOST : why;
}

/* A primary context without a pool, on the device of another context's pool. */
static const char *look_at_primary(CUdevice device)
{
    CUcontext primary = device_primary(device);
    if (!primary || !device_primary_is_active(device))
        return NULL;
    FOR_EACH_CONTEXT(c) {
        if (atomic_load(&c->ctx) == primary)
            return NULL;
    }
    return look_at_context(primary);
}

static atomic_uint enders; /* quiet.h: 7 */
static atomic_bool asks;

void quiet_ender_begins(void)
{
    atomic_fetch_add(&enders, 1);
    for (unsigned turn = 0; atomic_load(&asks) && turn < CONTEXT_AWAIT_TURNS && state_is_on();
         turn++)
        spin_pause(turn);
}

void quiet_ender_ends(void)
{
    atomic_fetch_sub(&enders, 1);
}

bool quiet_has_enders(void)
{
    return atomic_load(&enders);
}

/* Of a context that may have no record. */
static const char *look_at_accessor(CUcontext ctx)
{
    atomic_store(&asks, true);
    const char *why = quiet_has_enders() ? ENDS : look_at_context(ctx);
    atomic_store(&asks, false);
    return why;
}

const char *quiet_look(void)
{
    static CUcontext accessors[ACCESSORS_MAX];
    size_t count;
    const char *why = capture_open() ? CAPTURES : NULL;
    FOR_EACH_CONTEXT(c) {
        why = why ? why : look_at_pool(c);
        why = why ? why : look_at_primary(c->device);
    }
    if (!peer_accessors(accessors, ACCESSORS_MAX, &count))
        return PEERS;
    for (size_t i = 0; i < count && !why; i++)
        why = look_at_accessor(accessors[i]);
    return why;
}

const char *quiet_await(uint64_t end_ns)
{
    const char *why;
    uint64_t pause_ns = FIRST_PAUSE_NS;
    while ((why = quiet_look()) == RUNS) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= end_ns)
            return RUNS;
        if (!gate_pause(min_u64(pause_ns, end_ns - now_ns)))
            break;
        pause_ns = min_u64(2 * pause_ns, MS_NS);
    }
    return gate_is_closing() ? why : "the program used the GPU meanwhile";
}
