/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See stream_watch.h. Why the order of one stream is enough, and when it ends and begins again:
 * Note [Single stream], Note [Early launches], Note [Memory domains] and Note [Return to a single
 * stream] in README.md. X, T, E and K are theirs.
 */
#include "shim/context/stream_watch.h"

#include "pool/pool.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/loader/object.h"
#include "shim/process/clock.h"
#include "shim/process/state.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* A run is looked at after so many submissions, and again after so many more. */
enum { RUN_LENGTH = 64, RUN_STEP = 16 };
/* Each end of the single stream makes GPU work wait. So a program that keeps using several streams
 * pays for so many ends, and for one more each second. After that there is no single stream. */
enum { COSTLY_ENDS = 8 };

static atomic_bool given_up, unseen;
static atomic_int captures, costly_ends;
static _Atomic uint64_t run_stream, run_length;
static _Atomic uint64_t candidate = POOL_STREAM_NONE, candidate_mark;
static _Atomic uint64_t covered_seals;
static atomic_bool breached;
/* A lock. Not held over a driver call. */
static atomic_flag stepping = ATOMIC_FLAG_INIT;

static void leave_pool(struct pool *p)
{
    if (pool_leave_single_stream(p))
        atomic_fetch_add(&costly_ends, 1);
}

void single_stream_disable(void)
{
    atomic_store(&given_up, true);
    context_for_each_pool(pool_give_up_single_stream);
}

/* Work that the single stream's order does not cover may follow. Returns when every pool has
 * ordered what stream order alone ordered so far. No pool is missed. The maker of a pool lists it,
 * then looks at given_up and captures (stream_watch_pool_listed). Our caller has set one of those,
 * then looks at the list. So one of the two sees the other. Every caller goes through all pools, so
 * no caller returns before an earlier one has left them. */
static void leave_single(void)
{
    if (!(atomic_load(&pool_watch) & POOL_WATCH_STREAMS))
        return;
    context_for_each_pool(leave_pool);
    if (atomic_load(&costly_ends) >= COSTLY_ENDS) {
        uint64_t seconds = (clock_now_ns() - state_started_ns()) / SEC_NS;
        if ((uint64_t)atomic_load(&costly_ends) >= COSTLY_ENDS + seconds)
            single_stream_disable();
    }
}

/* dlpi_adds (the count of libraries loaded so far) at the latest walk that found no such library.
 * 0: there was no such walk, or the loader does not count. A walk that begins with the same count
 * ends there: it would see no other names.
 * 1. The loader adds a library to its list and to the count under the lock that a walk holds. The
 *    count never goes down, so with an equal one every name of the list was in the list before.
 * 2. A library that is closed and opened again counts again. What is only closed takes names away.
 * 3. The count is that of all namespaces, but a walk sees only the names of the library's own. So
 *    the count may grow without a new name. That costs a walk.
 * 4. Of several threads the slower one may store an older count. Then the next walk is a whole one.
 */
static _Atomic uint64_t walked_adds;
enum { WALK_FOUND = 1, WALK_KNOWN };

static int submits_unseen(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char *const names_of[] = {"libnvoptix.so", "libnvidia-encode.so", "libnvcuvid.so",
                                           "libnvidia-opticalflow.so"};
    uint64_t *adds = arg;
    *adds = object_has_counts(size) ? info->dlpi_adds : 0;
    if (*adds && *adds == atomic_load_explicit(&walked_adds, memory_order_relaxed))
        return WALK_KNOWN;
    const char *base = strrchr(info->dlpi_name, '/');
    base = base ? base + 1 : info->dlpi_name;
    for (size_t i = 0; i < sizeof names_of / sizeof names_of[0]; i++)
        if (strncmp(base, names_of[i], strlen(names_of[i])) == 0)
            return WALK_FOUND;
    return 0;
}

void stream_watch_note_unseen(void)
{
    atomic_store(&unseen, true);
    single_stream_disable();
}

bool stream_watch_sees_all(void)
{
    uint64_t adds = 0;
    int found = atomic_load(&unseen) ? 0 : dl_iterate_phdr(submits_unseen, &adds);
    if (found == WALK_FOUND)
        stream_watch_note_unseen();
    else if (!found && adds)
        atomic_store_explicit(&walked_adds, adds, memory_order_relaxed);
    return !atomic_load(&unseen);
}

bool stream_watch_may_be_single(void)
{
    return !atomic_load(&given_up) && stream_watch_sees_all() && atomic_load(&captures) == 0;
}

static atomic_bool busy;

static void note_busy(struct pool *p)
{
    if (!pool_is_idle(p))
        atomic_store(&busy, true);
}

/* Work from before the pool was not seen. If some runs, or is on its way, its stream counts. A
 * candidate for an earlier pool says nothing about this one. */
static bool starts_idle(void)
{
    atomic_store(&breached, true);
    atomic_store(&busy, false);
    if (submitters_have_other(atomic_load(&pool_single_stream)))
        return false;
    context_for_each_pool(note_busy);
    return !atomic_load(&busy);
}

void stream_watch_pool_listed(bool alone)
{
    bool may = stream_watch_may_be_single();
    if (!alone || atomic_load(&given_up))
        single_stream_disable();
    else if (!starts_idle() || !may)
        leave_single();
}

static _Atomic(struct pool *) only_pool;

static void note_pool(struct pool *p)
{
    atomic_store_explicit(&only_pool, p, memory_order_relaxed);
}

static bool begin_step(void)
{
    return !atomic_flag_test_and_set(&stepping);
}

static void end_step(void)
{
    atomic_flag_clear(&stepping);
}

static void propose(struct pool *p, uint64_t stream)
{
    atomic_store(&breached, false);
    atomic_store(&candidate, stream);
    if (submitters_have_other(stream))
        atomic_store(&candidate, POOL_STREAM_NONE);
    else
        atomic_store(&candidate_mark, pool_mark(p));
}

/* The run of a stream is long: makes it the candidate, or the candidate the single stream. Note
 * [Return to a single stream]. */
static void step(uint64_t stream)
{
    atomic_store_explicit(&only_pool, NULL, memory_order_relaxed);
    context_for_each_pool(note_pool);
    struct pool *p = atomic_load_explicit(&only_pool, memory_order_relaxed);
    if (!p || atomic_load(&given_up) || atomic_load(&captures))
        return;
    uint64_t mark = atomic_load(&candidate_mark);
    /* The walk over the loaded libraries comes last: the first one takes longer than a launch. */
    bool complete = atomic_load(&candidate) == stream && !atomic_load(&breached) &&
                    pool_passed(p, mark) && stream_watch_may_be_single();
    if (!begin_step())
        return;
    if (atomic_load(&pool_single_stream) == POOL_STREAM_NONE && atomic_load(&captures) == 0 &&
        !atomic_load(&given_up)) {
        if (atomic_load(&candidate) != stream || atomic_load(&breached))
            propose(p, stream);
        else if (complete && mark == atomic_load(&candidate_mark)) {
            atomic_store(&covered_seals, 0);
            pool_enter_single_stream(p, mark, stream, &breached);
        }
    }
    end_step();
}

/* A submission while there is no single stream. */
static void follow_stream(uint64_t stream)
{
    uint64_t proposed = atomic_load(&candidate);
    if (proposed != POOL_STREAM_NONE && proposed != stream) {
        atomic_store(&breached, true);
        uint64_t single = atomic_load(&pool_single_stream);
        if (single != POOL_STREAM_NONE && single != stream)
            leave_single();
    }
    if (stream == SUBMITTER_OTHER ||
        atomic_load_explicit(&run_stream, memory_order_relaxed) != stream) {
        atomic_store_explicit(&run_stream, stream, memory_order_relaxed);
        atomic_store_explicit(&run_length, 0, memory_order_relaxed);
        return;
    }
    uint64_t length = atomic_load_explicit(&run_length, memory_order_relaxed) + 1;
    atomic_store_explicit(&run_length, length, memory_order_relaxed);
    if (length >= RUN_LENGTH && length % RUN_STEP == 0)
        step(stream);
}

static void submit_other(uint64_t stream, uint64_t single)
{
    if (single == POOL_STREAM_ANY && stream != SUBMITTER_OTHER &&
        (atomic_compare_exchange_strong(&pool_single_stream, &single, stream) || single == stream))
        return;
    if (single != POOL_STREAM_NONE)
        leave_single();
    follow_stream(stream);
}

/* A kernel for a stream that has the single stream's name. unsealed: there were frees before it
 * that no fence covers yet. The driver is asked for the kernel's context once in an epoch. Note
 * [Early launches]. */
static enum submit_seen note_kernel(struct submitter *s, unsigned flags, bool unsealed)
{
    uint64_t seals = atomic_load(&pool_seals) + 1;
    bool early = flags & SUBMIT_FLAG_EARLY;
    if (seals <= atomic_load(&covered_seals) && !(early && unsealed))
        return SUBMIT_SEEN;
    if (context_is_pooled())
        s->seals = seals;
    return early ? SUBMIT_IN_TURN : SUBMIT_SEEN;
}

enum submit_seen submission_begin(struct submitter *s, uint64_t name, unsigned watch,
                                  unsigned flags)
{
    int saved_errno = errno;
    enum submit_seen seen = s ? SUBMIT_SEEN : SUBMIT_UNSEEN;
    if (!s && (watch & POOL_WATCH_STREAMS))
        single_stream_disable(); /* nobody would see what it submits */
    if (__builtin_expect(flags & SUBMIT_FLAG_ATTRS, 0) && atomic_load(&captures))
        single_stream_disable();
    if (s)
        s->seals = 0;
    if (s && (watch & POOL_WATCH_STREAMS)) {
        uint64_t single = atomic_load(&pool_single_stream);
        if (__builtin_expect(single != name, 0))
            submit_other(name, single);
    }
    if (watch & POOL_WATCH_UNSEALED)
        context_submit(name);
    if (s && (watch & POOL_WATCH_STREAMS) && (flags & SUBMIT_FLAG_KERNEL) &&
        atomic_load(&pool_single_stream) == name)
        seen = note_kernel(s, flags, watch & POOL_WATCH_UNSEALED);
    errno = saved_errno;
    return seen;
}

void submission_end(bool taken)
{
    struct submitter *s = submitter_mine;
    if (taken && s->seals > atomic_load_explicit(&covered_seals, memory_order_relaxed))
        atomic_store(&covered_seals, s->seals);
    s->seals = 0; /* a submission that this one was made inside of must not count as it */
    submitter_unmark(s);
}

/* Another thread may just be making a stream the single one. So this thread waits until `stepping`
 * was free once. A thread that takes `stepping` later sees the capture. */
void stream_watch_capture_opens(void)
{
    atomic_fetch_add(&captures, 1);
    for (unsigned turn = 0; !begin_step(); turn++)
        spin_pause(turn);
    end_step();
    leave_single();
}

void stream_watch_capture_closed(void)
{
    atomic_fetch_sub(&captures, 1);
}

void stream_watch_forget(CUstream stream)
{
    uint64_t name = (uint64_t)(uintptr_t)stream;
    if (!(atomic_load_explicit(&pool_watch, memory_order_relaxed) & POOL_WATCH_STREAMS))
        return;
    if (atomic_load(&candidate) == name)
        atomic_store(&breached, true);
    if (atomic_load(&pool_single_stream) == name)
        leave_single();
    if (atomic_load_explicit(&run_stream, memory_order_relaxed) == name)
        atomic_store_explicit(&run_length, 0, memory_order_relaxed);
}
