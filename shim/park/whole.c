/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See whole.h; the numbers below are those of its steps. No lock.
 */
#include "shim/park/whole.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/driver/backing.h"
#include "shim/driver/closed.h"
#include "shim/park/gate.h"
#include "shim/park/room.h"
#include "shim/process/environ.h"
#include "shim/process/fork_gate.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/share/import.h"
#include "shim/stats/counters.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCK_MS 1000
#define DRAIN_NS (100 * MS_NS)
#define ROOM_PAUSE_NS (100 * MS_NS)
#define MIB (UINT64_C(1) << 20)
/* A context takes that, whatever was seen of it. */
#define LEAST_BYTES (512 * MIB)
#define SPARE_BYTES (1024 * MIB)

static uint64_t needs[DEVICES_MAX];
atomic_bool whole_shares;
static _Atomic int lost_code;
static CUprocessState known_state; /* as far as the library changed it */

/* Step 6. */
static CUprocessState ask_state(void)
{
    CUprocessState now = known_state;
    CUresult rc = closed_real.cuCheckpointProcessGetState(getpid(), &now);

    return rc == CUDA_SUCCESS ? now : known_state;
}

/* --- whether it may go */

static const char *refusal_of_driver(char why[PARK_WHY_BYTES])
{
    CUprocessState now = CU_PROCESS_STATE_RUNNING;

    if (!hooks_present(HOOK_cuCheckpointProcessLock) ||
        !hooks_present(HOOK_cuCheckpointProcessRestore) ||
        !hooks_present(HOOK_cuCheckpointProcessUnlock) || !real.cuCheckpointProcessGetState ||
        !real.cuCheckpointProcessCheckpoint)
        return "the driver has no checkpoints (570)";
    CUresult rc = real.cuCheckpointProcessGetState(getpid(), &now);
    if (rc != CUDA_SUCCESS) {
        snprintf(why, PARK_WHY_BYTES, "the driver makes no checkpoints here: error %d", (int)rc);
        return why;
    }
    return now == CU_PROCESS_STATE_RUNNING ? NULL : "another process has locked it";
}

static const char *refusal_of_memory(void)
{
    if (counter_get(COUNTER_MANAGED))
        return "the program has used managed memory";
    if (import_any_open() || import_any_closed() || atomic_load(&whole_shares))
        return "memory or an event of another process is open";
    FOR_EACH_CONTEXT(c) {
        if (pool_exposed_bytes(c->pool))
            return "memory is known outside of the process";
    }
    return NULL;
}

static const char *refusal_of_libraries(void)
{
    static const struct library libraries[] = {
#define LIBRARY(name, reason) {name, reason},
#include "shim/park/whole.def"
    };

    fork_gate_enter(); /* a child would find the loader's lock taken */
    const struct library *found = library_find(libraries, sizeof libraries / sizeof libraries[0]);
    fork_gate_leave();
    return found ? found->reason : NULL;
}

/* The socket of the control daemon that a process of this environment talks to. */
static bool has_mps(void)
{
    char path[256];
    struct stat st;

    environ_hold();
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int n = snprintf(path, sizeof path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    environ_release();

    return n < 0 || (size_t)n >= sizeof path || !kernel_fstatat(AT_FDCWD, path, &st, 0);
}

const char *whole_refusal(char why[PARK_WHY_BYTES])
{
    const char *found = refusal_of_driver(why);

    found = found ? found : refusal_of_memory();
    found = found ? found : refusal_of_libraries();
    found = found ? found : has_mps() ? "it shares the device by MPS" : NULL;
    return found ? found : room_open();
}

/* --- the way out */

static bool failed(struct park_receipt *r, const char *what, CUresult rc)
{
    snprintf(r->why, sizeof r->why, "the driver does not %s the process: error %d", what, (int)rc);
    return false;
}

/* Step 5. */
static void undo(void)
{
    if (ask_state() == CU_PROCESS_STATE_LOCKED) {
        known_state = CU_PROCESS_STATE_LOCKED;
        if (closed_real.cuCheckpointProcessUnlock(getpid(), NULL) != CUDA_SUCCESS)
            return;
    }
    known_state = CU_PROCESS_STATE_RUNNING;
    closed_end();
    room_close();
}

static void look(uint64_t free_bytes[])
{
    for (int device = 0; device < DEVICES_MAX; device++)
        free_bytes[device] = room_free_bytes(device);
}

/* What others take meanwhile makes the difference smaller. */
static uint64_t note_needs(const uint64_t before[], const uint64_t after[])
{
    uint64_t sum = 0;

    memset(needs, 0, sizeof needs);
    for (int device = 0; device < DEVICES_MAX; device++) {
        uint64_t freed = after[device] - min_u64(after[device], before[device]);

        sum += freed;
        if (freed)
            needs[device] = freed + SPARE_BYTES;
    }
    FOR_EACH_CONTEXT(c) {
        if (c->device >= 0 && c->device < DEVICES_MAX)
            needs[c->device] = max_u64(needs[c->device], LEAST_BYTES + SPARE_BYTES);
    }
    return sum;
}

static bool lock_and_save(bool (*goes_on)(void), struct park_receipt *r)
{
    CUcheckpointLockArgs args = {.timeoutMs = LOCK_MS};
    uint64_t before[DEVICES_MAX], after[DEVICES_MAX];

    if (!closed_drain(DRAIN_NS)) {
        snprintf(r->why, sizeof r->why, "the library itself is inside a call of the driver");
        return false;
    }
    CUresult rc = closed_real.cuCheckpointProcessLock(getpid(), &args);
    if (rc != CUDA_SUCCESS)
        return failed(r, "lock", rc);
    known_state = CU_PROCESS_STATE_LOCKED;
    if (!goes_on()) {
        snprintf(r->why, sizeof r->why, "a context is ending");
        return false;
    }
    look(before);
    rc = closed_real.cuCheckpointProcessCheckpoint(getpid(), NULL);
    if (rc != CUDA_SUCCESS)
        return failed(r, "checkpoint", rc);
    known_state = CU_PROCESS_STATE_CHECKPOINTED;
    look(after);
    r->whole_bytes = note_needs(before, after);
    return true;
}

bool whole_close(bool (*goes_on)(void), struct park_receipt *r)
{
    known_state = CU_PROCESS_STATE_RUNNING;
    closed_begin(gate_arrive);
    if (lock_and_save(goes_on, r))
        return true;
    undo();
    return false;
}

/* --- the way back */

static uint64_t run_tell(uint64_t now_ns)
{
    static bool told;
    int code = whole_lost_code();

    (void)now_ns;
    if (code && !told) {
        told = true;
        log_warn("the driver cannot restore the process (error %d): it cannot use the GPU any "
                 "more and has to be ended",
                 code);
    }
    return DUTY_NEVER;
}

static struct duty tell = {.run = run_tell, .due_ns = DUTY_NEVER};

/* Step 7. */
static int note_failure(CUresult rc)
{
    if (ask_state() != CU_PROCESS_STATE_CHECKPOINTED || rc == CUDA_ERROR_OPERATING_SYSTEM) {
        atomic_store(&lost_code, (int)rc);
        control_due(&tell, 0);
    }
    return (int)rc;
}

/* Step 4. */
static bool has_room(bool with_arenas)
{
    for (int turn = 0; turn < 2; turn++) {
        for (int device = 0; device < DEVICES_MAX; device++) {
            uint64_t away = with_arenas ? context_away_bytes(device) : 0;

            if (needs[device] && room_free_bytes(device) < needs[device] + away)
                return false;
        }
        if (turn == 0)
            clock_sleep(ROOM_PAUSE_NS);
    }
    return true;
}

int whole_open(bool with_arenas)
{
    CUresult rc = CUDA_SUCCESS;

    if (!closed_is_now())
        return 0;
    if (whole_lost_code())
        return whole_lost_code();
    CUprocessState now = ask_state();
    if (now == CU_PROCESS_STATE_FAILED)
        return note_failure(CUDA_ERROR_OPERATING_SYSTEM);
    if (now == CU_PROCESS_STATE_CHECKPOINTED) {
        if (!has_room(with_arenas))
            return CUDA_ERROR_OUT_OF_MEMORY;
        rc = closed_real.cuCheckpointProcessRestore(getpid(), NULL);
        if (rc != CUDA_SUCCESS)
            return note_failure(rc);
        now = known_state = CU_PROCESS_STATE_LOCKED;
    }
    if (now == CU_PROCESS_STATE_LOCKED)
        rc = closed_real.cuCheckpointProcessUnlock(getpid(), NULL);
    if (rc != CUDA_SUCCESS)
        return (int)rc;
    known_state = CU_PROCESS_STATE_RUNNING;
    memset(needs, 0, sizeof needs);
    closed_end();
    room_close();
    return 0;
}

int whole_lost_code(void)
{
    return atomic_load(&lost_code);
}

void whole_add_needs(uint64_t needs_bytes[])
{
    for (int device = 0; device < DEVICES_MAX; device++)
        needs_bytes[device] += needs[device];
}

uint64_t whole_free_bytes(int device)
{
    return room_free_bytes(device);
}
