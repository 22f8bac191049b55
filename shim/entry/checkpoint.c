/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of checkpoints (drivers since 570). A process locks another one or itself,
 * takes its memory off the GPU, and puts it back later. Without the library what the program has
 * freed would be free.
 * 1. So before the lock the process to be locked gives its idle memory back. The checkpoint of a
 *    process with 20 GiB idle took 17 s, and 0.4 s bare (H100). A process of ours is asked through
 *    its page, with a bounded wait. Behind the lock it could not: each of its driver calls blocks.
 *    The process that locks may have taken no memory yet, so the lock starts the library.
 * 2. A restore that finds too little memory is the last one: it fails with 2, and each later one
 *    with 304. An unlock is refused (401), and the process never uses the GPU again (H100, H200).
 *    The call is not made again after a 2, so what can go goes before it (steps 3 to 5). A process
 *    that restores itself gives nothing: each of its calls waits for its unlock.
 * 3. All that is idle in this process goes, also while a capture is open. Our calls break none
 *    (call_scope.h), and those that a capture forbids are not made (capture.h).
 * 4. So does what the program freed behind GPU work, where a device has less free than the restore
 *    is known to need (step 5), or nothing is known: without the library each of its frees would
 *    have waited for that work. The wait is that of POOL_RELEASE_PENDING. It ends after some 10 s
 *    for a context, and none begins after PENDING_WAIT_NS.
 *    What is freed while a capture is open goes if the capture is another thread's and ends within
 *    that wait. Else it stays, because nothing tells that its work is done.
 * 5. Neighbours are asked for memory where a device has less free than the restore is known to
 *    need. That is what the page of the process says that it holds there, and CONTEXT_BYTES for
 *    what no page tells. It is a guess: what the process has of other kinds counts too little, and
 *    a page may be 10 s old. Too small a one is as if nobody had asked, and too large a one costs
 *    idle memory. Nothing is known of a process without a page, or where this one has no context:
 *    the driver tells neither what a restore needs, nor what is free. Then all would have to give
 *    all they have, before each restore. So who shares the GPU is to flush first
 *    (scripts/recipes/checkpoints.md). The questions end after GPUCACHE_SHARE.
 * 6. No unlock was seen to lack memory. One that does is made again, as other calls are
 *    (shim/entry/retry.h): nothing says that the process is lost. A process that unlocks itself has
 *    nothing to give, for the reason of step 2.
 * 7. A process that this one has locked costs requests one wait in a minute, until it is unlocked
 *    or replies: another tool may unlock it. One that others have locked costs one wait in ten
 *    seconds, as any that does not reply (shim/share/neighbour.h). The driver is not asked for its
 *    state, because it may wait for a process that is frozen.
 * No lock.
 */
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/driver/capture.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"
#include "shim/share/lend.h"
#include "shim/share/neighbour.h"
#include "shim/share/neighbour_use.h"

#include <errno.h>
#include <unistd.h>

/* For a flush of another process, with the waits of its frameworks and GPU work; and for one of
 * this process. */
#define OTHER_WAIT_NS (5 * SEC_NS)
#define OWN_WAIT_NS (200 * MS_NS)
#define PENDING_WAIT_NS (10 * SEC_NS)
#define CONTEXT_BYTES (UINT64_C(512) << 20)

enum { HOLDERS_READ = 32 };

/* A flush may not be made while a capture is open. */
static void release_idle_memory(const char *why)
{
    static const struct empty_cache all = {.device = -1};
    int saved_errno = errno, cancel = cancel_forbid();
    if (capture_open())
        context_release(DEVICES_ALL, POOL_RELEASE_IDLE);
    else
        flush_pools(&all, OWN_WAIT_NS, why);
    cancel_allow(cancel);
    errno = saved_errno;
}

/* What the restore of the process needs of the context's device: step 5. 0: not known. */
static __attribute__((noinline)) uint64_t needs_of(const struct context *c, int pid)
{
    struct neighbour_held holders[HOLDERS_READ];
    size_t count = lend_list(&c->uuid, holders, HOLDERS_READ, NULL);
    for (size_t i = 0; i < count; i++)
        if (holders[i].pid == pid)
            return holders[i].bytes + CONTEXT_BYTES;
    return 0;
}

static bool lacks(struct context *c, uint64_t needs_bytes)
{
    uint64_t free_bytes = UINT64_MAX, total_bytes;
    struct backend *b = &c->backend.base;
    if (!context_pin(c))
        return false;
    int code = b->ops->mem_info(b, &free_bytes, &total_bytes);
    context_unpin(c);
    return code == 0 && free_bytes < needs_bytes;
}

/* Step 4. */
static void release_pending_memory(int pid)
{
    uint64_t start_ns = clock_now_ns(), asked = 0;
    int saved_errno = errno, cancel = cancel_forbid();
    FOR_EACH_CONTEXT(c) {
        uint64_t needs_bytes = needs_of(c, pid), device = device_bit(c->device);
        if (asked & device || (needs_bytes && !lacks(c, needs_bytes)) ||
            clock_now_ns() - start_ns >= PENDING_WAIT_NS)
            continue;
        asked |= device;
        context_release(device, POOL_RELEASE_PENDING);
    }
    cancel_allow(cancel);
    errno = saved_errno;
}

static void ask_neighbours(int pid)
{
    if (!lend_is_on())
        return;
    int saved_errno = errno;
    FOR_EACH_CONTEXT(c) {
        struct lend_attempt attempt = {0};
        uint64_t needs_bytes = needs_of(c, pid);
        while (lacks(c, needs_bytes) && lend_ask(device_bit(c->device), needs_bytes, &attempt))
            ;
    }
    errno = saved_errno;
}

static bool is_in(int pid, CUprocessState wanted, CUprocessState unknown)
{
    CUprocessState state;
    if (!real.cuCheckpointProcessGetState ||
        real.cuCheckpointProcessGetState(pid, &state) != CUDA_SUCCESS)
        state = unknown;
    return state == wanted;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *lock)
{
    if (pid != getpid()) {
        /* One that is locked already would not answer. */
        if (hooks_init() && library_is_started() &&
            is_in(pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_RUNNING))
            lend_flush(pid, OTHER_WAIT_NS);
    } else if (state_is_on()) {
        release_idle_memory("lock");
    }
    CUresult rc = real.cuCheckpointProcessLock(pid, lock);
    if (rc == CUDA_SUCCESS)
        neighbour_set_locked(pid, true);
    return rc;
}

/* Not in a signal handler that interrupted an allocation (state_lock in pool/state.h). */
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *restore)
{
    if (pid != getpid() && state_is_on() &&
        is_in(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_FAILED)) {
        release_idle_memory("restore");
        release_pending_memory(pid);
        ask_neighbours(pid);
    }
    return real.cuCheckpointProcessRestore(pid, restore);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *unlock)
{
    CUresult rc = pid == getpid() ? real.cuCheckpointProcessUnlock(pid, unlock)
                                  : retry_cuCheckpointProcessUnlock(pid, unlock);
    if (rc == CUDA_SUCCESS)
        neighbour_set_locked(pid, false);
    return rc;
}
