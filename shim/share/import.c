/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See import.h. One lock guards the lists of entries. It is never held over a driver call. A thread
 * that opens an entry marks it busy, drops the lock for its calls, and then wakes the threads that
 * want the same entry.
 *
 * How an entry is closed:
 *  1. The driver's own close does not return before the memory is out of use. So ours waits for
 *     the work of the context before it unmaps the memory.
 *  2. During a capture that wait would break the capture. Then the mapping stays, and a duty of the
 *     control thread unmaps it after the capture (a duty that needs calm).
 *  3. A capture may begin during the wait. The calls that are left to do are allowed then, in the
 *     capture mode of a call scope.
 *  4. Whenever clear_closed leaves an entry in `closed`, it calls for the duty. So none stays there
 *     for ever, provided that there is a control thread: import_close asks for one.
 *  5. The driver closes its own mappings with their context, and others may get their addresses at
 *     once. So entries of a context are hidden while a thread ends it: nobody finds them, and the
 *     driver's call closes none of them.
 *  6. The wait for the work of the context is by an event. No thread may use one of a context that
 *     has ended (Note [Visits] in device_fence.h). So who ends a context hides its entries, and
 *     then waits until no other thread unmaps one, some 2 s at most. A thread unmaps none that is
 *     hidden: import_forget does that once the context has ended, or the duty if it goes on.
 */
#include "shim/share/import.h"

#include "pool/host_memory.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/driver/access.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/driver/device.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/error.h"
#include "shim/driver/pushed.h"
#include "shim/process/clock.h"
#include "shim/socket/listener.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* When the control thread tries again after a capture that the library did not see refused the
 * wait. The library does not see that capture's end either. */
#define TIDY_AGAIN_NS (100 * MS_NS)

struct opened {
    struct opened *next;
    struct ticket ticket;
    CUcontext ctx;
    CUdevice device; /* of the context */
    struct mapping mapping;
    unsigned opens;
    bool busy;   /* being opened: all but ticket and ctx belong to the thread that opens it */
    bool hidden; /* a thread ends its context, or has ended it */
    bool ended;  /* in leaving: that thread has */
    unsigned long long buffer_id;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct host_cache records = {.record_bytes = (sizeof(struct opened) + 15) / 16 * 16};
/* closed: unmapped when no capture is open. leaving: closed, and a thread waits for its work. */
static struct opened *list, *closed, *leaving;
static atomic_int open_count, closed_count; /* closed_count: of both those lists */
static struct departure *departures;        /* the threads that unmap an entry */
static unsigned walkers; /* threads that change the access to ranges that they have listed */

static void remove_entry(struct opened **head, struct opened *gone)
{
    while (*head != gone)
        head = &(*head)->next;
    *head = gone->next;
}

static struct opened *find_ticket(const struct ticket *ticket, CUcontext ctx)
{
    for (struct opened *o = list; o; o = o->next)
        if (o->ctx == ctx && memcmp(&o->ticket, ticket, sizeof *ticket) == 0)
            return o;
    return NULL;
}

static struct opened *add_opened(const struct ticket *ticket, CUcontext ctx)
{
    struct opened *o = host_cache_ensure(&records, 1) ? host_cache_get(&records) : NULL;
    if (o) {
        *o = (struct opened){.next = list, .ticket = *ticket, .ctx = ctx, .busy = true};
        list = o;
    }
    return o;
}

/* Of an entry in `leaving`. */
struct departure {
    struct departure *next; /* in departures */
    pthread_t thread;
    CUcontext ctx; /* of the entry */
    struct opened *entry;
    bool refused; /* a capture is open: nothing was unmapped, and the entry is closed again */
    bool native;  /* the driver's call closes it; else the driver does that with the context */
};

static void forget_entry(struct departure *d)
{
    struct opened *o = d->entry;
    pthread_mutex_lock(&lock);
    remove_entry(&leaving, o);
    d->native = d->native && !o->hidden;
    d->refused = d->refused && !o->ended;
    if (d->refused) {
        o->next = closed;
        closed = o;
    } else {
        atomic_fetch_sub(&closed_count, 1);
    }
    pthread_mutex_unlock(&lock);
}

/* Afterwards no walk has an entry that has left `list` before. Bounded, because the caller may be a
 * signal handler that has interrupted a walk of its own thread. */
static void await_walkers(void)
{
    for (unsigned turn = 0; turn < CONTEXT_AWAIT_TURNS; turn++) {
        pthread_mutex_lock(&lock);
        bool none = !walkers;
        pthread_mutex_unlock(&lock);
        if (none)
            return;
        spin_pause(turn);
    }
}

static void unmap_closed(void *data)
{
    struct departure *d = data;
    const struct opened *o = d->entry;
    struct pushed pushed;
    d->native = pushed_begin(&pushed, o->ctx);
    /* The end of a context waits for its work. */
    d->refused = d->native && device_fence_drain(o->ctx) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    forget_entry(d); /* before the driver may give its addresses to others */
    if (!d->refused) {
        await_walkers();
        mapping_destroy(&o->mapping, !d->native);
    }
    pushed_end(&pushed);
}

static uint64_t tidy(uint64_t now_ns);
static struct duty tidy_duty = {.run = tidy, .needs_calm = true, .due_ns = DUTY_NEVER};

/* The first one that is not hidden. */
static struct opened *find_closed(void)
{
    struct opened *o = closed;
    while (o && o->hidden)
        o = o->next;
    return o;
}

/* The lock is held. */
static void depart(struct departure *d)
{
    struct opened *o = d->entry;
    remove_entry(&closed, o);
    o->next = leaving;
    leaving = o;
    d->ctx = o->ctx;
    d->thread = pthread_self();
    d->next = departures;
    departures = d;
}

/* The lock is held. */
static void end_departure(const struct departure *d)
{
    struct departure **at = &departures;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
}

/* The lock is held on entry and exit. */
static void clear_closed(void)
{
    struct opened *o;
    while ((o = find_closed()) && !capture_open()) {
        struct departure d = {.entry = o};
        depart(&d);
        pthread_mutex_unlock(&lock);
        if (!call_scope_run(NULL, unmap_closed, &d))
            forget_entry(&d);
        pthread_mutex_lock(&lock);
        end_departure(&d);
        if (d.refused) {
            /* The end of a capture that we have seen runs the duty. Else it runs by the clock. */
            control_due(&tidy_duty, capture_open() ? 0 : clock_now_ns() + TIDY_AGAIN_NS);
            return;
        }
        host_cache_put(&records, o);
    }
    if (o)
        control_due(&tidy_duty, 0);
}

bool import_any_closed(void)
{
    return atomic_load_explicit(&closed_count, memory_order_relaxed) != 0;
}

static uint64_t tidy(uint64_t now_ns)
{
    pthread_mutex_lock(&lock);
    clear_closed();
    pthread_mutex_unlock(&lock);
    return DUTY_NEVER;
}

/* Of a busy entry, over which no change of access walks. The peers may change during its mapping.
 */
static void allow_late(void *data)
{
    const struct opened *o = data;
    access_allow(o->device, o->mapping.base, o->mapping.total_bytes);
}

/* Makes the mapping of a busy entry. */
static CUresult map_entry(struct opened *o, unsigned flags, mapping_open_fn native)
{
    CUresult rc = mapping_create(&o->mapping, &o->ticket, flags, native);
    if (rc != CUDA_SUCCESS)
        return rc;
    real.cuPointerGetAttribute(&o->buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, o->mapping.addr);
    real.cuCtxGetDevice(&o->device);
    return CUDA_SUCCESS;
}

CUresult import_open(CUdeviceptr *addr, const CUipcMemHandle *handle, unsigned flags,
                     mapping_open_fn native, bool *mapped)
{
    struct ticket ticket;
    CUcontext ctx = NULL;
    CUresult rc = error_here(); /* calls that map memory would not tell */
    memcpy(&ticket, handle, sizeof ticket);
    *mapped = false;
    if (rc == CUDA_SUCCESS)
        rc = real.cuCtxGetCurrent(&ctx);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (!addr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (!ctx || listener_is_ours(&ticket.token))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!mapping_is_supported())
        return CUDA_ERROR_NOT_SUPPORTED;
    bool is_new = false;
    pthread_mutex_lock(&lock);
    clear_closed();
    struct opened *o;
    while ((o = find_ticket(&ticket, ctx)) && o->busy)
        pthread_cond_wait(&changed, &lock);
    if (!o && !(o = add_opened(&ticket, ctx)))
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (o && o->busy) {
        pthread_mutex_unlock(&lock);
        rc = map_entry(o, flags, native);
        pthread_mutex_lock(&lock);
        while (rc == CUDA_SUCCESS && o->mapping.total_bytes &&
               o->mapping.peers != access_peers(o->device)) {
            uint64_t gone = o->mapping.peers, peers = access_peers(o->device);
            o->mapping.peers = peers;
            pthread_mutex_unlock(&lock);
            for (gone &= ~peers; gone; gone &= gone - 1)
                access_change(__builtin_ctzll(gone), false, o->mapping.base,
                              o->mapping.total_bytes);
            call_scope_run(NULL, allow_late, o);
            pthread_mutex_lock(&lock);
        }
        o->busy = false; /* from here on a change of access walks over it */
        pthread_cond_broadcast(&changed);
        if (rc == CUDA_SUCCESS) {
            atomic_fetch_add(&open_count, 1);
            is_new = o->mapping.total_bytes;
        } else {
            remove_entry(&list, o);
            host_cache_put(&records, o);
        }
    }
    if (rc == CUDA_SUCCESS) {
        o->opens++;
        *addr = o->mapping.addr;
    }
    pthread_mutex_unlock(&lock);
    *mapped = is_new;
    return rc;
}

static struct opened *find_around(struct opened *o, CUdeviceptr addr)
{
    for (; o; o = o->next)
        if (!o->busy && !o->hidden && addr >= o->mapping.addr &&
            addr - o->mapping.addr < o->mapping.size_bytes)
            return o;
    return NULL;
}

bool import_any_open(void)
{
    return atomic_load_explicit(&open_count, memory_order_acquire) != 0;
}

bool import_close(CUdeviceptr addr, CUresult *rc)
{
    if (!import_any_open())
        return false;
    CUresult refused = error_here();
    pthread_mutex_lock(&lock);
    struct opened *o = find_around(list, addr);
    bool mine = o != NULL;
    if (mine) {
        *rc = refused;
        if (refused != CUDA_SUCCESS) {
            /* it stays open */
        } else if (o->mapping.addr != addr) {
            *rc = CUDA_ERROR_INVALID_VALUE;
        } else if (--o->opens == 0) {
            remove_entry(&list, o);
            atomic_fetch_sub(&open_count, 1);
            o->next = closed;
            closed = o;
            atomic_fetch_add(&closed_count, 1);
            clear_closed();
            if (closed)
                control_ensure_thread();
        }
    }
    pthread_mutex_unlock(&lock);
    return mine;
}

static void unmap_after_context(void *data)
{
    const struct opened *o = data;
    await_walkers();
    mapping_destroy(&o->mapping, true);
}

/* Does another thread unmap an entry of the context? */
static bool is_departing(CUcontext ctx)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const struct departure *d = departures; d && !found; d = d->next)
        found = d->ctx == ctx && !pthread_equal(d->thread, pthread_self());
    pthread_mutex_unlock(&lock);
    return found;
}

void import_hide(CUcontext ctx, bool hidden)
{
    if (!ctx || !(import_any_open() || import_any_closed()))
        return;
    pthread_mutex_lock(&lock);
    struct opened *heads[] = {list, closed, leaving};
    for (int i = 0; i < 3; i++)
        for (struct opened *o = heads[i]; o; o = o->next)
            if (o->ctx == ctx && !o->busy && !o->ended)
                o->hidden = hidden;
    bool waits = closed && !hidden;
    pthread_mutex_unlock(&lock);
    if (waits)
        control_due(&tidy_duty, 0);
    for (unsigned turn = 0; hidden && turn < CONTEXT_AWAIT_TURNS && is_departing(ctx); turn++)
        spin_pause(turn);
}

void import_forget(CUcontext ctx)
{
    struct opened **heads[] = {&list, &closed};
    if (!ctx)
        return;
    pthread_mutex_lock(&lock);
    for (struct opened *o = leaving; o; o = o->next)
        if (o->ctx == ctx)
            o->hidden = o->ended = true;
    for (int i = 0; i < 2; i++)
        for (struct opened **at = heads[i]; *at;) {
            struct opened *o = *at;
            if (o->ctx != ctx || o->busy) {
                at = &o->next;
                continue;
            }
            *at = o->next;
            atomic_fetch_sub(i == 0 ? &open_count : &closed_count, 1);
            pthread_mutex_unlock(&lock);
            call_scope_run(NULL, unmap_after_context, o);
            pthread_mutex_lock(&lock);
            host_cache_put(&records, o);
            at = heads[i]; /* the list may have changed */
        }
    pthread_mutex_unlock(&lock);
}

bool import_find(CUdeviceptr addr, struct import_range *range)
{
    if (!import_any_open())
        return false;
    pthread_mutex_lock(&lock);
    const struct opened *o = find_around(list, addr);
    if (o)
        *range = (struct import_range){o->mapping.addr, o->mapping.size_bytes, o->ctx, o->device,
                                       o->buffer_id};
    pthread_mutex_unlock(&lock);
    return o != NULL;
}

bool import_was_closed(CUdeviceptr addr)
{
    if (!import_any_closed())
        return false;
    pthread_mutex_lock(&lock);
    bool was = find_around(closed, addr) || find_around(leaving, addr);
    pthread_mutex_unlock(&lock);
    return was;
}

void import_for_each_range(CUdevice device,
                           void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg)
{
    struct opened_range {
        uint64_t addr, size_bytes;
    } *ranges = NULL;
    size_t count = 0, at = 0;
    pthread_mutex_lock(&lock);
    walkers++;
    for (const struct opened *o = list; o; o = o->next)
        count++;
    if (count)
        ranges = host_pages(count * sizeof *ranges);
    for (const struct opened *o = list; o && ranges; o = o->next)
        if (!o->busy && o->device == device && o->mapping.total_bytes)
            ranges[at++] = (struct opened_range){o->mapping.base, o->mapping.total_bytes};
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < at; i++)
        f(arg, ranges[i].addr, ranges[i].size_bytes);
    pthread_mutex_lock(&lock);
    walkers--;
    pthread_mutex_unlock(&lock);
    if (ranges)
        host_pages_free(ranges, count * sizeof *ranges);
}

uint64_t import_devices(void)
{
    uint64_t devices = 0;
    if (!import_any_open())
        return 0;
    pthread_mutex_lock(&lock);
    for (const struct opened *o = list; o; o = o->next)
        if (!o->busy && o->mapping.total_bytes)
            devices |= device_bit(o->device);
    pthread_mutex_unlock(&lock);
    return devices;
}

size_t import_contexts(CUcontext *ctx, size_t max)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    const struct opened *heads[] = {list, closed, leaving};
    for (int i = 0; i < 3; i++)
        for (const struct opened *o = heads[i]; o; o = o->next) {
            bool known = false;
            for (size_t at = 0; at < count && !known; at++)
                known = ctx[at] == o->ctx;
            if (!known && count < max)
                ctx[count++] = o->ctx;
        }
    pthread_mutex_unlock(&lock);
    return count;
}
