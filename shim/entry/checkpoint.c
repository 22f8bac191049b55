/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions of checkpoints (drivers since 570). A process locks another one or itself,
 * takes its memory off the GPU, and puts it back later. Without the library what the program has
 * freed would be free.
 * 1. So before the lock the process to be locked gives its idle memory back. The checkpoint of a
 *    process with 20 GiB idle took 17 s, and 0.4 s bare (H100). A process of ours is asked through
 *    its page, with a bounded wait. Behind the lock it could not: each of its driver calls blocks.
 *    The process that locks may have taken no memory yet, so the lock starts the library.
 * 2. Before a restore this process gives its idle memory back. The driver needs as much as it
 *    saved. A restore that finds less fails with 2, and an unlock is refused (401) after it (H100).
 *    Where memory is still missing for a restore or an unlock, the call is made again after
 *    neighbours gave theirs (shim/entry/retry.h).
 * 3. A process that this one has locked costs requests one wait in a minute, until it is unlocked
 *    or replies: another tool may unlock it. One that others have locked costs one wait in ten
 *    seconds, as any that does not reply (shim/share/neighbour.h). The driver is not asked for its
 *    state, because it may wait for a process that is frozen.
 * No lock.
 */
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

#include <errno.h>
#include <unistd.h>

/* For a flush of another process, with the waits of its frameworks and GPU work; and for one of
 * this process. */
#define OTHER_WAIT_NS (5 * SEC_NS)
#define OWN_WAIT_NS (200 * MS_NS)

/* While a capture is open a wait would break it. */
static void release_idle_memory(const char *why)
{
    static const struct empty_cache all = {.device = -1};
    if (!state_is_on() || capture_open())
        return;
    int saved_errno = errno, cancel = cancel_forbid();
    flush_pools(&all, OWN_WAIT_NS, why);
    cancel_allow(cancel);
    errno = saved_errno;
}

/* One that is locked already would not answer. */
static bool is_running(int pid)
{
    CUprocessState state = CU_PROCESS_STATE_RUNNING;
    return !real.cuCheckpointProcessGetState ||
           real.cuCheckpointProcessGetState(pid, &state) != CUDA_SUCCESS ||
           state == CU_PROCESS_STATE_RUNNING;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *lock)
{
    if (pid == getpid())
        release_idle_memory("lock");
    else if (hooks_init() && library_is_started() && is_running(pid))
        lend_flush(pid, OTHER_WAIT_NS);
    CUresult rc = real.cuCheckpointProcessLock(pid, lock);
    if (rc == CUDA_SUCCESS)
        neighbour_set_locked(pid, true);
    return rc;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *restore)
{
    if (pid != getpid())
        release_idle_memory("restore");
    return retry_cuCheckpointProcessRestore(pid, restore);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *unlock)
{
    CUresult rc = retry_cuCheckpointProcessUnlock(pid, unlock);
    if (rc == CUDA_SUCCESS)
        neighbour_set_locked(pid, false);
    return rc;
}
