/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See whole.h; the numbers below are those of its steps. No lock.
 */
#include "shim/park/whole.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/backing.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/closed.h"
#include "shim/option/in_force.h"
#include "shim/park/ends.h"
#include "shim/park/gate.h"
#include "shim/park/move.h"
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
#define LEAVE_LOOK_NS (2 * MS_NS)
#define STEP_NS (20 * SEC_NS)
#define STEP_LOOK_NS (250 * MS_NS)
#define MIB (UINT64_C(1) << 20)
/* A context takes that, whatever was seen of it. */
#define LEAST_BYTES (512 * MIB)
#define SPARE_BYTES (1024 * MIB)
#define LISTED_LESS_BYTES (64 * MIB)

static uint64_t needs[DEVICES_MAX];
atomic_bool whole_shares;
static _Atomic int lost_code;
static CUprocessState known_state; /* as the library left it, or the driver said last */
static bool is_ours;               /* step 5 */

/* Step 10. */
static const char *_Atomic step_name;
static _Atomic uint64_t step_since_ns; /* 0: no step is under way */

static bool step_is_late(uint64_t since_ns)
{
    return since_ns && clock_now_ns() - since_ns >= STEP_NS;
}

const char *whole_late_step(void)
{
    return step_is_late(atomic_load(&step_since_ns)) ? atomic_load(&step_name) : NULL;
}

static uint64_t watch_steps(uint64_t now_ns)
{
    static uint64_t told_ns, refused_ns; /* the beginning of that step; the last time */
    uint64_t since_ns = atomic_load(&step_since_ns);

    if (!since_ns)
        return DUTY_NEVER;
    if (told_ns != since_ns && step_is_late(since_ns)) {
        told_ns = refused_ns = since_ns;
        log_warn("the driver does not return from cuCheckpointProcess%s", atomic_load(&step_name));
    }
    if (told_ns == since_ns && now_ns - refused_ns >= max_u64(STEP_NS, in_force()->park_wait_ns)) {
        refused_ns = now_ns;
        gate_refuse(CUDA_ERROR_OPERATING_SYSTEM);
    }
    return now_ns + STEP_LOOK_NS;
}

static struct duty watch = {.run = watch_steps, .due_ns = DUTY_NEVER};

static void step_begins(const char *name)
{
    atomic_store(&step_name, name);
    atomic_store(&step_since_ns, clock_now_ns());
    control_due(&watch, clock_now_ns() + STEP_LOOK_NS);
}

static CUresult step_over(CUresult rc)
{
    atomic_store(&step_since_ns, 0);
    return rc;
}

#define STEP(functions, name, arg)                                                                 \
    (step_begins(#name), step_over(functions.cuCheckpointProcess##name(getpid(), arg)))

/* Step 6. */
static CUprocessState ask_state(void)
{
    CUprocessState now = known_state;

    return STEP(closed_real, GetState, &now) == CUDA_SUCCESS ? now : known_state;
}

/* --- whether it may go */

struct question {
    CUprocessState state;
    CUresult rc;
};

static void query_state(void *arg)
{
    struct question *q = arg;

    q->rc = STEP(real, GetState, &q->state);
}

static const char LOCKED[] = "another process has locked it";

/* It counts as a call scope, and is none: the calls that begin one may end a process that is
 * checkpointed. */
const char *whole_lock_refusal(void)
{
    CUprocessState now = CU_PROCESS_STATE_RUNNING;

    call_scope_depth++;
    atomic_fetch_add(&call_scope_count, 1);
    if (!atomic_load(&call_scope_barred) && hooks_present(HOOK_cuCheckpointProcessLock) &&
        real.cuCheckpointProcessGetState &&
        real.cuCheckpointProcessGetState(getpid(), &now) != CUDA_SUCCESS)
        now = CU_PROCESS_STATE_RUNNING;
    atomic_fetch_sub(&call_scope_count, 1);
    call_scope_depth--;
    return now == CU_PROCESS_STATE_RUNNING ? NULL : LOCKED;
}

static const char *refusal_of_driver(char why[PARK_WHY_BYTES])
{
    struct question q;

    if (!hooks_present(HOOK_cuCheckpointProcessLock) ||
        !hooks_present(HOOK_cuCheckpointProcessRestore) ||
        !hooks_present(HOOK_cuCheckpointProcessUnlock) || !real.cuCheckpointProcessGetState ||
        !real.cuCheckpointProcessCheckpoint)
        return "the driver has no checkpoints (570)";
    if (!call_scope_run(NULL, query_state, &q))
        return "the process leaves";
    if (q.rc != CUDA_SUCCESS) {
        snprintf(why, PARK_WHY_BYTES, "the driver makes no checkpoints here: error %d", (int)q.rc);
        return why;
    }
    return q.state == CU_PROCESS_STATE_RUNNING ? NULL : LOCKED;
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

static const char *refusal_of_graphics(void)
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
    found = found ? found : refusal_of_graphics();
    found = found ? found : has_mps() ? "it shares the device by MPS" : NULL;
    return found ? found : room_open();
}

/* --- the way out */

static bool failed(struct park_receipt *r, const char *what, CUresult rc)
{
    snprintf(r->why, sizeof r->why, "the driver does not %s the process: error %d", what, (int)rc);
    return false;
}

/* What NVML tells of each device, on both sides of a checkpoint. */
static struct room {
    uint64_t free_bytes, own_bytes;
} before[DEVICES_MAX], after[DEVICES_MAX];

static bool tell_room(struct room rooms[], struct park_receipt *r)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        rooms[device].own_bytes = room_own_bytes(device);
        if (!room_tell(device, &rooms[device].free_bytes)) {
            snprintf(r->why, sizeof r->why, "libnvidia-ml.so.1 does not tell what is free");
            return false;
        }
    }
    return true;
}

/* What the checkpoint took off a device: step 4. */
static uint64_t left_bytes(int device)
{
    const struct room *was = &before[device], *is = &after[device];
    uint64_t freed = is->free_bytes - min_u64(is->free_bytes, was->free_bytes);
    uint64_t least = was->own_bytes, most = was->own_bytes + LISTED_LESS_BYTES;

    if (!least || is->own_bytes || (freed >= least && freed <= most))
        return freed;
    return most;
}

/* Step 4. */
static bool note_needs(struct park_receipt *r)
{
    uint64_t arenas[DEVICES_MAX];

    memset(needs, 0, sizeof needs);
    FOR_EACH_CONTEXT(c) {
        if (c->device >= 0 && c->device < DEVICES_MAX)
            needs[c->device] = LEAST_BYTES;
    }
    if (!tell_room(after, r))
        return false;
    move_needs(arenas);
    for (int device = 0; device < DEVICES_MAX; device++) {
        uint64_t left = left_bytes(device);
        uint64_t free_bytes = before[device].free_bytes;
        uint64_t beside = free_bytes - min_u64(free_bytes, arenas[device]);
        uint64_t wanted = max_u64(left, needs[device]);

        r->whole_bytes += left;
        needs[device] = wanted ? min_u64(wanted + SPARE_BYTES, left + beside / 2) : 0;
    }
    return true;
}

static bool lock_and_save(struct park_receipt *r)
{
    CUcheckpointLockArgs args = {.timeoutMs = LOCK_MS};

    if (!closed_drain(DRAIN_NS)) {
        snprintf(r->why, sizeof r->why, "the library itself is inside a call of the driver");
        return false;
    }
    if (!tell_room(before, r))
        return false;
    CUresult rc = STEP(closed_real, Lock, &args);
    is_ours = rc != CUDA_ERROR_ILLEGAL_STATE;
    if (rc != CUDA_SUCCESS)
        return failed(r, "lock", rc);
    known_state = CU_PROCESS_STATE_LOCKED;
    if (!ends_are_none()) {
        snprintf(r->why, sizeof r->why, "%s", ends_why());
        return false;
    }
    rc = STEP(closed_real, Checkpoint, NULL);
    if (rc != CUDA_SUCCESS)
        return failed(r, "checkpoint", rc);
    known_state = CU_PROCESS_STATE_CHECKPOINTED;
    return note_needs(r);
}

static bool driver_is_open(void)
{
    return !closed_is_now();
}

static CUresult await_driver(void)
{
    return gate_arrive_until(driver_is_open);
}

bool whole_close(struct park_receipt *r)
{
    if (!ends_hold_off()) {
        snprintf(r->why, sizeof r->why, "%s", ends_why());
        return false;
    }
    known_state = CU_PROCESS_STATE_RUNNING;
    is_ours = false;
    move_pin(false);
    closed_begin(gate_arrive, await_driver);
    bool saved = lock_and_save(r);
    if (!saved)
        whole_open(); /* step 5 */
    ends_allow();
    atomic_store(&publish_park.whole,
                 closed_is_now() && known_state == CU_PROCESS_STATE_CHECKPOINTED);
    return saved;
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

int whole_open(void)
{
    CUresult rc = CUDA_SUCCESS;

    if (!closed_is_now())
        return 0;
    if (whole_lost_code())
        return whole_lost_code();
    CUprocessState now = known_state = is_ours ? ask_state() : CU_PROCESS_STATE_RUNNING;
    if (now == CU_PROCESS_STATE_FAILED)
        return note_failure(CUDA_ERROR_OPERATING_SYSTEM);
    if (now == CU_PROCESS_STATE_CHECKPOINTED) {
        rc = STEP(closed_real, Restore, NULL);
        if (rc != CUDA_SUCCESS)
            return note_failure(rc);
        now = known_state = CU_PROCESS_STATE_LOCKED;
    }
    if (now == CU_PROCESS_STATE_LOCKED)
        rc = STEP(closed_real, Unlock, NULL);
    if (rc != CUDA_SUCCESS)
        return (int)rc;
    known_state = CU_PROCESS_STATE_RUNNING;
    memset(needs, 0, sizeof needs);
    atomic_store(&publish_park.whole, false);
    closed_end();
    gate_look_again(); /* first: what follows may wait for threads that wait for the driver */
    move_pin(true);
    return 0;
}

int whole_settle(void)
{
    bool waits_for_room = closed_is_now() && ask_state() == CU_PROCESS_STATE_CHECKPOINTED;

    return waits_for_room ? 0 : whole_open();
}

void whole_at_exit(uint64_t end_ns)
{
    gate_ring();
    while (closed_is_now() && !whole_lost_code() && !whole_late_step() && clock_now_ns() < end_ns)
        clock_sleep(LEAVE_LOOK_NS);
    if (!closed_is_now())
        room_at_exit();
}

int whole_lost_code(void)
{
    return atomic_load(&lost_code);
}

void whole_needs(bool with_arenas, uint64_t needs_bytes[])
{
    if (with_arenas)
        move_needs(needs_bytes);
    else
        memset(needs_bytes, 0, DEVICES_MAX * sizeof needs_bytes[0]);
    if (whole_settle() || !closed_is_now())
        return;
    for (int device = 0; device < DEVICES_MAX; device++)
        needs_bytes[device] += needs[device];
}
