/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h: the records of contexts and the steps of their lives. The lock of lives is held
 * for a few instructions at a time, and over no driver call.
 */
#include "shim/context/context.h"

#include "pool/host_memory.h"
#include "pool/spin.h"
#include "shim/context/end_rows.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/process/state.h"
#include "shim/trace/beside.h"
#include "shim/trace/trace.h"

#include <pthread.h>

_Atomic(struct context *) context_records[CONTEXTS_MAX];
atomic_int context_count;

static pthread_mutex_t lives_lock = PTHREAD_MUTEX_INITIALIZER;

/* The latest record of a thread without one. Its handle is NULL, as is the handle of no context, so
 * both compare equal where no context is current. */
static struct context no_context;
__thread struct context *context_latest __attribute__((tls_model("initial-exec"))) = &no_context;
/* How many calls of this thread, one inside the other, may be ending contexts. */
static __thread int ends_here __attribute__((tls_model("initial-exec")));
/* Contexts that this thread asks the driver about, and that no other thread destroys meanwhile. */
static __thread int asks_here __attribute__((tls_model("initial-exec")));
/* As ends_here, for calls that may begin a life of a primary context. */
static __thread int begins_here __attribute__((tls_model("initial-exec")));

void context_remember(struct context *c)
{
    context_latest = c ? c : &no_context;
}

void context_forget_thread(void)
{
    context_remember(NULL);
    pool_forget_thread();
}

struct context *context_find(CUcontext ctx)
{
    int count = atomic_load_explicit(&context_count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        struct context *c = atomic_load_explicit(&context_records[i], memory_order_acquire);
        if (atomic_load_explicit(&c->handle, memory_order_acquire) == ctx)
            return c;
    }
    return NULL;
}

bool context_is_alone(const struct context *c)
{
    FOR_EACH_CONTEXT(other)
        if (other != c)
            return false;
    return true;
}

/* Allocations find the record again, unless an ender is at it. Lock held. */
static void show(struct context *c)
{
    CUcontext ctx = atomic_load(&c->ctx);
    if (atomic_load(&c->backend.enders) || c->state != CONTEXT_ALIVE)
        return;
    atomic_store(&c->handle, ctx);
    atomic_store(&c->fast_handle, ctx);
}

/* Allocations do not find the record any more. Lock held. */
static void withdraw(struct context *c)
{
    atomic_fetch_add(&c->withdrawals, 1);
    atomic_store(&c->fast_handle, (CUcontext)(void *)c);
    atomic_store(&c->handle, NULL);
}

bool context_pin(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    bool may = c->state == CONTEXT_ALIVE && !c->destroyers;
    c->askers += may;
    asks_here += may;
    pthread_mutex_unlock(&lives_lock);
    return may;
}

void context_unpin(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    c->askers--;
    asks_here--;
    pthread_mutex_unlock(&lives_lock);
}

/* True: the caller calls context_abandon. If a maker still fills the record, context_made does it.
 * Lock held. */
static bool mark_record_ended(struct context *c)
{
    c->condemned = c->state == CONTEXT_MAKING;
    if (c->state != CONTEXT_ALIVE)
        return false;
    c->state = CONTEXT_ENDING;
    atomic_store(&c->backend.base.gone, true);
    atomic_store(&c->backend.destruction, DESTRUCTION_OVER);
    atomic_store(&c->hidden, true);
    withdraw(c);
    return true;
}

void context_retire(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    c->condemned = c->doubted = false;
    c->state = CONTEXT_ENDED;
    atomic_store(&c->backend.destruction, DESTRUCTION_OVER); /* device_renew took it away */
    pthread_mutex_unlock(&lives_lock);
}

void context_abandon(struct context *c)
{
    if (c->pool)
        pool_abandon(c->pool);
    TRACE(CONTEXT_END, .a = (uint64_t)c->device, .context = c->backend.number);
    if (trace_is_on() && context_is_alone(c))
        trace_beside_keep(TRACE_CONTEXT_END, (uint64_t)c->device);
    context_retire(c);
}

/* May the call of e end the context of c? Lock held. */
static bool is_meant(const struct context *c, const struct context_end *e)
{
    if (c->state != CONTEXT_MAKING && c->state != CONTEXT_ALIVE)
        return false;
    if (e->ctx)
        return atomic_load(&c->ctx) == e->ctx;
    return (e->device < 0 || c->device == e->device) &&
           (e->created || c->primary != CONTEXT_CREATED);
}

/* No thread destroys the context any more, and it goes on. If it was being made, `hidden` does not
 * tell of the destruction. Lock held. */
static void note_failed_destruction(struct context *c)
{
    bool goes_on = c->state == CONTEXT_MAKING || c->state == CONTEXT_ALIVE;
    if (goes_on && !c->condemned && !c->destroyers)
        atomic_store(&c->backend.destruction, DESTRUCTION_NONE);
}

/* Calls for all pools skip it, until context_unhide. Lock held. */
static void hide(struct context *c)
{
    atomic_store(&c->backend.base.gone, true);
    atomic_store(&c->hidden, true);
}

/* The call of e may end the context of c. Lock held. */
static void hold(struct context_end *e, struct context *c)
{
    end_rows_note(e, c);
    atomic_fetch_add(&c->backend.enders, 1);
    c->destroyers += e->ctx != NULL;
    if (e->ctx)
        atomic_store(&c->backend.destruction, DESTRUCTION_BEGUN);
    withdraw(c);
    if (e->hides && c->state == CONTEXT_ALIVE)
        hide(c);
}

/* True: there is a record. */
static bool begin_end(struct context_end *e)
{
    bool any = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        if (is_meant(c, e)) {
            any = true;
            device_ends_of[c->index]++;
            hold(e, c);
        }
    end_rows_add(e);
    pthread_mutex_unlock(&lives_lock);
    return any;
}

void context_end_returned(struct context_end *e)
{
    if (!e->row)
        return;
    pthread_mutex_lock(&lives_lock);
    end_rows_remove(e);
    pthread_mutex_unlock(&lives_lock);
}

static bool is_asked_about(const struct context_end *e)
{
    bool asked = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        asked = asked || (context_end_holds(e, c) && c->askers);
    pthread_mutex_unlock(&lives_lock);
    return asked;
}

/* begun: waits for threads in what must not meet the end of a context, which are frees of segments,
 * and before a destruction all visits. Before: lets frees begin. See Note [Frees of segments] in
 * device.h and Note [Visits] in device_fence.h. */
static void await_visits(const struct context_end *e, bool begun)
{
    unsigned most = e->hides ? CONTEXT_AWAIT_TURNS : RELEASE_AWAIT_TURNS;
    bool visited = !call_scope_depth && !device_frees_here;
    for (unsigned turn = 0; visited && turn < most; turn++) {
        visited = false;
        FOR_EACH_RECORD(c)
            if (!begun)
                visited |= c->device == e->device && atomic_load(&c->backend.waiting_frees);
            else if (context_end_holds(e, c))
                visited |= atomic_load(&c->backend.segment_frees) ||
                           (e->ctx && atomic_load(&c->backend.visits));
        if (visited)
            spin_pause(turn);
    }
}

void context_destroy_begins(struct context_end *e, CUcontext ctx)
{
    *e = (struct context_end){.ctx = ctx, .hides = true, .begun = true};
    ends_here++;
    if (!ctx || state_is_off())
        return;
    /* The handle may be none of a context. The driver is asked only about one that has a record, or
     * is current. */
    bool known = begin_end(e);
    CUcontext here = NULL;
    if (known || (state_is_on() && real.cuCtxGetCurrent(&here) == CUDA_SUCCESS && here == ctx))
        e->life = context_life(ctx);
    /* A signal handler may destroy what its own thread asks about. */
    for (unsigned turn = 0; known && !asks_here && is_asked_about(e); turn++)
        spin_pause(turn);
    if (known)
        await_visits(e, true);
}

/* Threads in a call that may begin a life of the device's primary context, and threads in a call
 * that may end one; in the last row those for any device. The lock of lives protects them. */
static struct {
    unsigned beginners, enders;
} primary_lives[DEVICES_MAX + 1];

static unsigned row_of(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? (unsigned)device : DEVICES_MAX;
}

static void count_end(struct context_end *e)
{
    pthread_mutex_lock(&lives_lock);
    primary_lives[row_of(e->device)].enders++;
    pthread_mutex_unlock(&lives_lock);
    e->holds_begin = true;
}

static bool has_beginner(CUdevice device)
{
    bool any = false;
    pthread_mutex_lock(&lives_lock);
    for (unsigned i = 0; i <= DEVICES_MAX; i++)
        any = any || ((row_of(device) == DEVICES_MAX || i == row_of(device)) &&
                      primary_lives[i].beginners);
    pthread_mutex_unlock(&lives_lock);
    return any;
}

void context_release_begins(struct context_end *e, CUdevice device, bool reset)
{
    *e = (struct context_end){.device = device, .hides = reset, .begun = true};
    ends_here++;
    if (state_is_off())
        return;
    count_end(e);
    for (unsigned turn = 0; !begins_here && turn < CONTEXT_AWAIT_TURNS && has_beginner(device);
         turn++)
        spin_pause(turn);
    if (!reset)
        await_visits(e, false);
    if (begin_end(e))
        await_visits(e, true);
}

void context_end_over(struct context_end *e)
{
    ends_here -= e->begun;
    if (state_is_off() || (!e->row && !e->holds_begin))
        return;
    pthread_mutex_lock(&lives_lock);
    end_rows_remove(e);
    primary_lives[row_of(e->device)].enders -= e->holds_begin;
    pthread_mutex_unlock(&lives_lock);
}

/* Is a thread ending a life of the device's primary context, or about to abandon a pool of the
 * device, or to ask whether it has to? Lock held. */
static bool is_ending(CUdevice device)
{
    bool any = primary_lives[row_of(device)].enders || primary_lives[DEVICES_MAX].enders;
    FOR_EACH_RECORD(c)
        any = any || (c->device == device && (c->state == CONTEXT_ENDING || c->condemned ||
                                              (c->doubted && c->primary != CONTEXT_CREATED)));
    return any;
}

bool context_life_begins(CUdevice device)
{
    bool may = false, waits = !context_ends_here();
    if (state_is_off() || !atomic_load(&context_count))
        return false;
    for (unsigned turn = 0; !may; turn++) {
        pthread_mutex_lock(&lives_lock);
        may = !waits || turn >= CONTEXT_AWAIT_TURNS || !is_ending(device);
        primary_lives[row_of(device)].beginners += may;
        pthread_mutex_unlock(&lives_lock);
        if (!may)
            spin_pause(turn);
    }
    begins_here++;
    return true;
}

void context_life_begun(CUdevice device)
{
    begins_here--;
    if (state_is_off())
        return;
    pthread_mutex_lock(&lives_lock);
    primary_lives[row_of(device)].beginners--;
    pthread_mutex_unlock(&lives_lock);
}

bool context_ends_here(void)
{
    return ends_here > 0;
}

/* The call of e has succeeded: has it ended the context, so far as this can be told without a
 * question? A record made meanwhile served no allocation yet. Lock held. */
static bool is_surely_over(const struct context_end *e, const struct context *c)
{
    bool late = end_rows_is_late(e, c), held = context_end_holds(e, c);
    if (!e->ctx)
        return e->hides && held && c->primary == CONTEXT_PRIMARY;
    return (held && !late) || (c->life && e->life ? c->life == e->life : late);
}

/* Lock held. True: the caller asks the driver. See Note [Ends under way]. */
static bool has_to_ask(const struct context_end *e, struct context *c, bool done, bool spared)
{
    if (!is_meant(c, e) || (e->ctx ? !spared || !c->doubted : !done))
        return false;
    c->doubted = c->destroyers;
    return !c->destroyers;
}

bool context_end_judge(const struct context_end *e, struct context *c, bool done)
{
    bool held = context_end_holds(e, c), destroys = held && e->ctx;
    pthread_mutex_lock(&lives_lock);
    bool over = done && is_meant(c, e) && is_surely_over(e, c), spared = destroys && !over;
    c->destroyers -= spared;
    bool asks = !over && has_to_ask(e, c, done, spared);
    c->askers += asks;
    asks_here += asks;
    CUcontext ctx = atomic_load(&c->ctx);
    unsigned long long life = c->life;
    enum context_primary primary = c->primary;
    pthread_mutex_unlock(&lives_lock);
    if (asks)
        over = context_is_over(ctx, life, primary, c->device);
    pthread_mutex_lock(&lives_lock);
    c->askers -= asks;
    asks_here -= asks;
    c->destroyers -= destroys && !spared;
    bool mine = over && atomic_load(&c->ctx) == ctx && c->life == life && mark_record_ended(c);
    /* First: a handler in between frees nothing. */
    device_ends_of[c->index] -= held && !end_rows_is_late(e, c);
    atomic_fetch_sub(&c->backend.enders, held);
    note_failed_destruction(c);
    pthread_mutex_unlock(&lives_lock);
    return mine;
}

bool context_unhide(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    bool was_hidden =
        atomic_load(&c->hidden) && !atomic_load(&c->backend.enders) && c->state == CONTEXT_ALIVE;
    if (was_hidden) {
        atomic_store(&c->backend.base.gone, false);
        atomic_store(&c->hidden, false);
    }
    pthread_mutex_unlock(&lives_lock);
    return was_hidden;
}

void context_show(struct context *c)
{
    pthread_mutex_lock(&lives_lock);
    show(c);
    pthread_mutex_unlock(&lives_lock);
}

void context_set_primary(CUdevice device, CUcontext primary)
{
    const struct context_end any = {.device = device};
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        if (is_meant(c, &any))
            c->primary = atomic_load(&c->ctx) == primary ? CONTEXT_PRIMARY : CONTEXT_CREATED;
    pthread_mutex_unlock(&lives_lock);
}

/* From here on the record is the context's, and an ender of the context finds it. */
static void assign_record(struct context *c, CUcontext ctx, CUdevice device)
{
    unsigned long long life = context_life(ctx);
    enum context_primary primary = context_kind(ctx, device);
    pthread_mutex_lock(&lives_lock);
    withdraw(c);
    atomic_store(&c->ctx, ctx);
    atomic_store(&c->hidden, true);
    if (c->device != device)
        c->device = device; /* not written again: other threads may read it */
    c->life = life;
    c->primary = primary;
    c->condemned = false;
    c->state = CONTEXT_MAKING;
    for (struct context_end *e = end_rows_next(NULL); e; e = end_rows_next(e))
        if (is_meant(c, e))
            hold(e, c);
    if ((int)c->index == atomic_load(&context_count)) { /* a new one */
        atomic_store(&context_records[c->index], c);
        atomic_store(&context_count, (int)c->index + 1);
    }
    pthread_mutex_unlock(&lives_lock);
}

bool context_reuse(struct context *c, CUcontext ctx)
{
    pthread_mutex_lock(&lives_lock);
    bool free = c->state == CONTEXT_ENDED && !atomic_load(&c->backend.enders) && !c->askers;
    pthread_mutex_unlock(&lives_lock);
    if (free)
        assign_record(c, ctx, c->device);
    return free;
}

struct context *context_add(CUcontext ctx, CUdevice device)
{
    int count = atomic_load(&context_count);
    struct context *c = count < CONTEXTS_MAX ? host_pages(sizeof *c) : NULL;
    if (!c)
        return NULL;
    c->index = (unsigned)count;
    c->backend.number = c->index + 1;
    assign_record(c, ctx, device);
    return c;
}

bool context_made(struct context *c, CUcontext ctx)
{
    pthread_mutex_lock(&lives_lock);
    enum context_primary primary = c->primary; /* context_set_primary may have written it */
    pthread_mutex_unlock(&lives_lock);
    bool over = context_is_over(ctx, c->life, primary, c->device);
    pthread_mutex_lock(&lives_lock);
    c->state = CONTEXT_ALIVE;
    bool mine = (over || c->condemned) && mark_record_ended(c);
    if (atomic_load(&c->backend.enders))
        hide(c);
    show(c);
    pthread_mutex_unlock(&lives_lock);
    if (mine)
        context_abandon(c);
    return atomic_load(&c->handle) == ctx;
}

bool context_is_withdrawn(CUcontext ctx)
{
    bool found = false;
    pthread_mutex_lock(&lives_lock);
    FOR_EACH_RECORD(c)
        found = found || (c->state == CONTEXT_ALIVE && atomic_load(&c->ctx) == ctx &&
                          !atomic_load(&c->handle));
    pthread_mutex_unlock(&lives_lock);
    return found;
}
