/* SPDX-License-Identifier: BSD-2-Clause */
/* The checkpoint of one process by another, or by itself: lock, checkpoint, restore, unlock. It
 * needs SIM_SHARED. A locked process waits in its next call; SIM_CHECKPOINTED says what a call of a
 * checkpointed one does. A restore wants as much memory as was saved. Where there is less, the
 * process is lost: later restores fail with another code, and it never goes on (H100, 580). */
#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/shared.h"

#include <time.h>

static CUresult lock(int row, const CUcheckpointLockArgs *args)
{
    unsigned left_ms = args != NULL ? args->timeoutMs : 0;
    REFUSE(!shared_change(row, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED), ILLEGAL_STATE);
    while (!shared_is_quiet(row)) {
        if (left_ms != 0 && --left_ms == 0) {
            shared_change(row, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return CUDA_SUCCESS;
}

static CUresult checkpoint(int row)
{
    REFUSE(!shared_change(row, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED),
           ILLEGAL_STATE);
    nanosleep(&(struct timespec){.tv_sec = (time_t)(config.checkpoint_ms / 1000)}, NULL);
    shared_save(row);
    return CUDA_SUCCESS;
}

static CUresult restore(int row)
{
    REFUSE(shared_state(row) == CU_PROCESS_STATE_FAILED, OPERATING_SYSTEM);
    REFUSE(shared_state(row) != CU_PROCESS_STATE_CHECKPOINTED, ILLEGAL_STATE);
    if (!shared_restore(row, config.capacity_bytes)) {
        shared_change(row, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_FAILED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    shared_change(row, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
    return CUDA_SUCCESS;
}

static CUresult unlock(int row)
{
    return shared_change(row, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING)
               ? CUDA_SUCCESS
               : CUDA_ERROR_ILLEGAL_STATE;
}

#define PROCESS                                                                                    \
    NEEDS(config.shared != NULL, NOT_SUPPORTED) NEEDS(shared_find(pid) >= 0, INVALID_VALUE)

API_UNLOCKED(cuCheckpointProcessLock, (int pid, CUcheckpointLockArgs *args),
             PROCESS lock(shared_find(pid), args))
API_UNLOCKED(cuCheckpointProcessCheckpoint, (int pid, CUcheckpointCheckpointArgs *args),
             PROCESS checkpoint(shared_find(pid)))
API_UNLOCKED(cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs *args),
             PROCESS restore(shared_find(pid)))
API_UNLOCKED(cuCheckpointProcessUnlock, (int pid, CUcheckpointUnlockArgs *args),
             PROCESS unlock(shared_find(pid)))
API_UNLOCKED(cuCheckpointProcessGetState, (int pid, CUprocessState *state),
             PROCESS NEEDS(state != NULL, INVALID_VALUE)
                 GIVE(state, (CUprocessState)shared_state(shared_find(pid))))
