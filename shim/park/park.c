/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See park.h, also for the argument; the numbers below are those of its steps. The park thread has
 * all state but the atomic words, and a job before it is asked for.
 */
#include "shim/park/park.h"

#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/closed.h"
#include "shim/option/in_force.h"
#include "shim/park/ends.h"
#include "shim/park/gate.h"
#include "shim/park/move.h"
#include "shim/park/quiet.h"
#include "shim/park/receipt.h"
#include "shim/park/room.h"
#include "shim/park/wake.h"
#include "shim/park/whole.h"
#include "shim/process/futex.h"
#include "shim/process/log.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"
#include "shim/process/text.h"
#include "shim/stats/counters.h"
#include "shim/trace/trace.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define DRAIN_NS (100 * MS_NS)
#define LEAVE_NS (10 * SEC_NS)
/* How long a wake without a use tries. */
#define ASKED_WAKE_NS (5 * SEC_NS)
#define STACK_BYTES (4 << 20) /* the driver saves the process on it */
#define GIB (UINT64_C(1) << 30)

enum { RESULTS = 16 };

static struct job {
    uint64_t number, asked_ns;
    bool wakes, drops;
    struct park_wish wish;
} job;
static struct park_receipt results[RESULTS]; /* by number */
static _Atomic uint64_t asked, done;         /* numbers */

struct park_last park_last;

static char unreadable[PARK_TO_BYTES]; /* for the log */

static void say_refused(struct park_receipt *r, const char *why)
{
    if (why != r->why)
        snprintf(r->why, sizeof r->why, "%s", why);
}

void park_at_exit(void)
{
    ends_at_exit(clock_now_ns() + LEAVE_NS);
    whole_at_exit(clock_now_ns() + in_force()->park_wait_ns);
}

static bool may_go_on(void)
{
    return gate_is_closing() && ends_are_none();
}

/* The same for memory that joins what is away already. */
static bool may_join(void)
{
    return gate_state() == GATE_PARKED && ends_are_none();
}

/* No work runs or is accepted from here on. False: r->why says why not. */
static bool close_gate(const struct park_wish *w, struct park_receipt *r)
{
    if (!gate_close()) {
        say_refused(r, "the program used the GPU meanwhile");
        return false;
    }
    if (!gate_drain(DRAIN_NS)) {
        say_refused(r, gate_is_closing() ? "a thread is inside a call of the driver"
                                         : "the program used the GPU meanwhile");
        return false;
    }
    const char *why = quiet_await(clock_now_ns() + w->wait_ns);
    if (why)
        say_refused(r, why);
    return !why;
}

/* Moves what is to go. joins: the process is parked, and the gate stays closed whatever comes. */
static bool move_all(const struct park_wish *w, bool joins, struct park_receipt *r)
{
    if (!ends_hold_off()) {
        say_refused(r, ends_why());
        move_let_go();
        return false;
    }
    uint64_t start_ns = clock_now_ns();
    bool left = move_out(w, joins ? may_join : may_go_on, r) && ends_are_none();
    r->copy_ns = clock_now_ns() - start_ns;
    if (left && !gate_leave()) {
        say_refused(r, "the program used the GPU meanwhile");
        left = false;
    } else if (!left && (!r->why[0] || !ends_are_none())) { /* that stopped the copies */
        say_refused(r, ends_why());
    }
    if (left)
        move_release(r);
    else
        move_let_go();
    ends_allow();
    return left;
}

/* Before the gate is closed; or while it is, for memory that joins. */
static bool may_prepare(void)
{
    return gate_state() != GATE_WAKING && ends_are_none();
}

static bool prepare(const struct park_wish *w, bool joins, struct park_receipt *r)
{
    uint64_t start_ns = clock_now_ns();
    /* Where work runs, the park may well be refused: then nothing is made ready for it. */
    bool prepared = move_prepare(w, joins, !quiet_look(), may_prepare, r);

    r->room_ns = clock_now_ns() - start_ns;
    if (!prepared) {
        if (!ends_are_none())
            say_refused(r, ends_why());
        return false;
    }
    snprintf(r->to, sizeof r->to, "%s", move_place());
    atomic_store(&park_last.refusals, 0);
    return true;
}

/* NULL: it may go. */
static const char *refusal(const struct park_wish *w, struct park_receipt *r)
{
    const char *why = in_force()->park.off ? "GPUCACHE_PARK=off" : quiet_refusal();

    return why || !w->whole ? why : whole_refusal(r->why);
}

/* True: chunks went away. */
static bool try_park(const struct park_wish *w, struct park_receipt *r)
{
    const char *why = refusal(w, r);
    enum gate_state at = gate_state(); /* OPEN, PARKED, or WAKING since a use arrived */
    bool joins = at == GATE_PARKED;

    if (!why && at == GATE_WAKING)
        why = "it is waking";
    atomic_fetch_add(&park_last.refusals, w->reason == PARK_IDLE);
    if (why || ends_process_leaves()) {
        say_refused(r, why ? why : ends_why());
        return false;
    }
    bool prepared = prepare(w, joins, r), gone = false;
    bool closed = prepared && (joins || close_gate(w, r));
    if (closed)
        gone = move_all(w, joins, r);
    if (gone && w->whole)
        r->is_whole = whole_close(r);
    if (gone && (joins || receipt_parked_bytes(r) || closed_is_now())) {
        gate_is_parked();
        move_settle();
    } else if (!joins) {
        gate_open();
    }
    if (closed && !gone) /* no use waits for it: 16 GiB of host memory take 50 ms */
        move_forget();
    if (gate_state() == GATE_OPEN) {
        move_unstage(!quiet_look());
        move_finish();
    }
    return gone;
}

static void count(const struct park_receipt *r, bool gone)
{
    uint64_t bytes = receipt_parked_bytes(r);

    if (!gone)
        counter_add(COUNTER_PARK_REFUSED, 1);
    if (!receipt_took_any(r))
        return;
    counter_add(COUNTER_PARK, 1);
    counter_add(COUNTER_PARK_NS, r->ns);
    atomic_store(&park_last.cost_ns, r->ns);
    atomic_store(&park_last.parked_ns, clock_now_ns());
    TRACE(PARK, .a = bytes, .b = r->ns);
}

static void run_park(const struct park_wish *w, struct park_receipt *r)
{
    uint64_t start_ns = clock_now_ns();
    int code = whole_settle();
    bool was_whole = closed_is_now(); /* then all is away */
    bool gone = was_whole ? !code && gate_state() == GATE_PARKED : try_park(w, r);

    if (!closed_is_now())
        room_close();
    r->ns = clock_now_ns() - start_ns;
    if (code)
        wake_say_why(code, r->why);
    r->is_whole = !code && atomic_load(&publish_park.whole);
    if (was_whole && !gone && !code)
        say_refused(r, "it is waking");
    count(r, gone);
    receipt_tell(r->is_whole ? NULL : w, r);
    r->outcome = gone ? PARK_IS_DONE : PARK_IS_REFUSED;
    for (unsigned i = 0; gone && i < r->num_gpus; i++)
        if (r->gpus[i].exposed_bytes || r->gpus[i].segment_bytes || r->gpus[i].other_bytes)
            r->outcome = PARK_IS_PARTLY;
    if (gone && w->whole && r->why[0])
        r->outcome = PARK_IS_PARTLY;
    r->is_parked = gate_state() == GATE_PARKED;
    if (r->is_parked && !atomic_load(&publish_park.parked_unix_ns))
        atomic_store(&publish_park.parked_unix_ns, clock_unix_ns());
}

/* Step 7. */
static int try_wake(void)
{
    int code = whole_open();

    if (code)
        return code;
    ends_hold_off_after(PARK_ENDERS_NS);
    code = move_back();
    ends_allow();
    return code;
}

/* The log is the control thread's: the park thread writes none while the gate is closed. */
static uint64_t tell_of_park(uint64_t now_ns)
{
    static uint64_t told;
    const struct park_receipt *r = &results[job.number % RESULTS];

    (void)now_ns;
    if (job.wakes || told == job.number || atomic_load(&done) != job.number)
        return DUTY_NEVER;
    told = job.number;
    if (r->outcome == PARK_IS_REFUSED)
        log_info("not parked: %s", r->why);
    else
        receipt_log(r);
    publish_soon();
    return DUTY_NEVER;
}

static struct duty tell = {.run = tell_of_park, .due_ns = DUTY_NEVER};

/* The store of a process that is parked stays as it is. */
static uint64_t run_tell_unreadable(uint64_t now_ns)
{
    (void)now_ns;
    log_once(LOG_LEVEL_WARN,
             "device memory went to %s and cannot be read: the program gets the driver's error %d",
             unreadable, CUDA_ERROR_OPERATING_SYSTEM);
    return DUTY_NEVER;
}

static struct duty tell_unreadable = {.run = run_tell_unreadable, .due_ns = DUTY_NEVER};

/* The job's receipt is written. */
static void end_job(void)
{
    atomic_store(&done, job.number);
    control_due(&tell, 0);
}

static bool asked_only;

/* Ends a job that came while a use waits for memory: step 14. The control thread writes the job
 * while there is none. */
static void refuse_job(void)
{
    uint64_t now_ns = clock_now_ns();

    if (!park_is_busy() || (job.wakes && now_ns < job.asked_ns + ASKED_WAKE_NS))
        return;
    struct park_receipt *r = &results[job.number % RESULTS];
    *r = (struct park_receipt){.outcome = PARK_IS_REFUSED, .is_parked = true};
    receipt_tell(NULL, r);
    r->ns = now_ns - job.asked_ns;
    if (job.wakes)
        wake_say_why(CUDA_ERROR_OUT_OF_MEMORY, r->why);
    else
        say_refused(r, "it is waking");
    end_job();
}

/* Once the process leaves, only a thread of the program's is worth a wake. */
static bool wake_goes_on(void)
{
    if (asked_only)
        return !ends_process_leaves();
    refuse_job();
    return true;
}

/* The gate is WAKING. */
static int run_wake(bool is_asked)
{
    uint64_t start_ns = clock_now_ns(), waited_ns, bytes = context_away_bytes(-1);
    uint64_t wait_ns = is_asked ? ASKED_WAKE_NS : in_force()->park_wait_ns;

    asked_only = is_asked;
    atomic_store(&publish_park.wakes, true);
    publish_soon();
    call_scope_is_awaited = !is_asked;
    int code = wake_run(true, try_wake, wake_goes_on, start_ns + wait_ns, &waited_ns);
    call_scope_is_awaited = false;
    counter_add(COUNTER_WAKE_WAIT_NS, waited_ns);
    atomic_store(&publish_park.wakes, false);
    if (code == CUDA_ERROR_OPERATING_SYSTEM && !whole_lost_code()) {
        snprintf(unreadable, sizeof unreadable, "%s", move_place());
        control_due(&tell_unreadable, 0);
    }
    if (code) {
        if (is_asked)
            gate_is_parked(); /* a use that came meanwhile has all its time */
        else
            gate_fail((CUresult)code);
        return code;
    }
    move_unstage(true);
    uint64_t ns = clock_now_ns() - start_ns;
    counter_add(COUNTER_WAKE, 1);
    counter_add(COUNTER_WAKE_NS, ns);
    atomic_store(&publish_park.parked_unix_ns, 0);
    atomic_fetch_add(&park_last.cost_ns, ns);
    atomic_store(&park_last.woke_ns, clock_now_ns());
    TRACE(WAKE, .a = bytes, .b = ns); /* who sees the gate open sees both */
    gate_open();
    move_finish();
    room_close();
    log_info("woke in %s ms: %s GiB are on the device again", text_fixed(ns, MS_NS, 1).text,
             text_fixed(bytes, GIB, 2).text);
    publish_soon();
    return 0;
}

/* False: a use came first, and its wake goes before the job. */
static bool run_job(struct park_receipt *r)
{
    *r = (struct park_receipt){.outcome = PARK_IS_REFUSED};
    if (!job.wakes) {
        run_park(&job.wish, r);
        return true;
    }
    uint64_t start_ns = clock_now_ns();
    int code = 0;
    if (gate_wake())
        code = run_wake(true);
    else if (gate_state() == GATE_WAKING)
        return false;
    receipt_tell(NULL, r);
    if (job.drops && gate_state() == GATE_OPEN) {
        r->dropped_bytes = park_retained_bytes();
        move_drop();
    }
    r->ns = clock_now_ns() - start_ns;
    r->outcome = code ? PARK_IS_REFUSED : PARK_IS_DONE;
    r->is_parked = gate_state() == GATE_PARKED;
    if (code && ends_process_leaves())
        say_refused(r, ends_why());
    else if (code)
        wake_say_why(code, r->why);
    return true;
}

bool park_is_busy(void)
{
    return atomic_load(&asked) != atomic_load(&done);
}

static void run_jobs(void)
{
    for (;;) {
        uint32_t seen = gate_bell();
        uint64_t waited_ns;

        if (gate_state() == GATE_WAKING) {
            run_wake(false);
        } else if (ends_process_leaves() && closed_is_now() && !whole_lost_code()) {
            wake_run(false, whole_open, closed_is_now, UINT64_MAX, &waited_ns);
        } else if (park_is_busy()) {
            if (run_job(&results[job.number % RESULTS]))
                end_job();
        } else {
            bool open = gate_state() == GATE_OPEN; /* the park thread alone closes it */
            gate_await_bell(seen, open ? move_tend(clock_now_ns()) : UINT64_MAX);
        }
    }
}

bool park_is_parked(void)
{
    return gate_state() == GATE_PARKED || gate_state() == GATE_WAKING;
}

/* The wish is the park thread's own. On the control thread, which alone reads the option's text. */
static void choose_place(struct park_wish *w)
{
    if (!w->to[0])
        snprintf(w->to, sizeof w->to, "%s", in_force()->park_to.path);
    if (!strcmp(w->to, "host"))
        w->to[0] = '\0';
}

/* On the control thread. */
static uint64_t begin_job(const struct park_wish *wish, bool drops)
{
    static const struct own_thread thread = {"gpucache-park", STACK_BYTES, run_jobs};
    static bool started;

    if (park_is_busy() || ends_process_leaves())
        return 0;
    started = started || own_thread_start(&thread);
    job = (struct job){.number = atomic_load(&asked) + 1,
                       .asked_ns = clock_now_ns(),
                       .wakes = !wish,
                       .drops = drops};
    if (wish) {
        job.wish = *wish;
        choose_place(&job.wish);
    }
    atomic_store(&asked, job.number);
    if (!started) { /* so nobody else has the receipts */
        struct park_receipt *r = &results[job.number % RESULTS];
        *r = (struct park_receipt){.outcome = PARK_IS_REFUSED};
        say_refused(r, "the process gets no thread for it");
        end_job();
    }
    gate_ring();
    return job.number;
}

uint64_t park_begin(const struct park_wish *wish)
{
    return begin_job(wish, false);
}

uint64_t park_begin_wake(bool drops)
{
    return begin_job(NULL, drops);
}

uint64_t park_retained_bytes(void)
{
    return move_retained_bytes();
}

uint64_t park_under_way(void)
{
    return park_is_busy() && !job.wakes ? job.number : 0;
}

bool park_is_over(uint64_t number, struct park_receipt *out)
{
    if (atomic_load(&done) < number)
        return false;
    *out = results[number % RESULTS];
    return true;
}
