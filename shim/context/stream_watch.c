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

/* Names that are not the handle of a stream, beside those in pool.h. */
#define STREAM_IDLE UINT64_C(2)
#define STREAM_OTHER UINT64_C(5)

/* A run is looked at after so many submissions, and again after so many more. */
enum { RUN_LENGTH = 64, RUN_STEP = 16 };
/* Each end of the single stream makes GPU work wait. So a program that keeps using several streams
 * pays for so many ends, and for one more each second. After that there is no single stream. */
enum { COSTLY_ENDS = 8 };
enum { SUBMITTERS_MAX = 1024 };

/* The record of a thread: what the thread submits at present. */
struct submitter {
    _Alignas(64) _Atomic uint64_t stream;
    atomic_bool taken;
    uint32_t depth;      /* of submissions inside submissions, by a profiler or signal handler */
    uint64_t per_thread; /* the name of its own default stream */
    uint64_t seals;      /* covered_seals once its kernel is submitted; 0: unchanged */
};

static struct submitter submitters[SUBMITTERS_MAX];
/* No thread has ever had a record from here on. Raised before a thread takes one. */
static atomic_size_t submitters_end;
static __thread struct submitter *mine __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t names = 1;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

static atomic_bool given_up;
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

bool stream_watch_may_be_single(void)
{
    uint64_t adds = 0;
    int found = atomic_load(&given_up) ? 0 : dl_iterate_phdr(submits_unseen, &adds);
    if (found == WALK_FOUND)
        single_stream_disable();
    else if (!found && adds)
        atomic_store_explicit(&walked_adds, adds, memory_order_relaxed);
    return !atomic_load(&given_up) && atomic_load(&captures) == 0;
}

static void submitter_ends(void *record)
{
    struct submitter *s = record;
    mine = NULL;
    s->depth = 0;
    atomic_store(&s->stream, STREAM_IDLE);
    atomic_store(&s->taken, false);
}

static void make_submitter_key(void)
{
    key_made = pthread_key_create(&key, submitter_ends) == 0;
}

static struct submitter *find_record(void)
{
    pthread_once(&key_once, make_submitter_key);
    for (size_t i = 0; key_made && i < SUBMITTERS_MAX; i++) {
        struct submitter *s = &submitters[i];
        if (atomic_load_explicit(&s->taken, memory_order_relaxed))
            continue;
        for (size_t end = atomic_load(&submitters_end); end <= i;)
            if (atomic_compare_exchange_weak(&submitters_end, &end, i + 1))
                break;
        if (atomic_exchange(&s->taken, true))
            continue;
        atomic_store(&s->stream, STREAM_IDLE);
        if (pthread_setspecific(key, s)) {
            atomic_store(&s->taken, false);
            break;
        }
        s->per_thread = atomic_fetch_add(&names, 1) << 3 | 7;
        return mine = s;
    }
    single_stream_disable(); /* there are more threads than records */
    return NULL;
}

/* Of launches, see Note [Memory domains]. */
static uint64_t stream_number(const struct submitter *s, CUstream stream, unsigned flags)
{
    if (flags & (SUBMIT_FLAG_ATTRS | SUBMIT_FLAG_MANY))
        return STREAM_OTHER;
    if (stream == CU_STREAM_PER_THREAD || (!stream && (flags & SUBMIT_FLAG_PTSZ)))
        return s ? s->per_thread : STREAM_OTHER;
    return stream == CU_STREAM_LEGACY ? 0 : (uint64_t)(uintptr_t)stream;
}

static bool others_submit(uint64_t stream)
{
    size_t end = atomic_load(&submitters_end);
    for (size_t i = 0; i < end; i++)
        if (atomic_load(&submitters[i].taken)) {
            uint64_t now = atomic_load(&submitters[i].stream);
            if (now != STREAM_IDLE && now != stream)
                return true;
        }
    return false;
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
    if (others_submit(atomic_load(&pool_single_stream)))
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
    if (others_submit(stream))
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
    if (stream == STREAM_OTHER ||
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
    if (single == POOL_STREAM_ANY && stream != STREAM_OTHER &&
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

enum submit_seen submission_begin(CUstream stream, unsigned flags)
{
    unsigned watch = atomic_load(&pool_watch);
    if (!state_is_on())
        return SUBMIT_UNSEEN;
    int saved_errno = errno;
    struct submitter *s = mine;
    enum submit_seen seen = SUBMIT_UNSEEN;
    if (!s && (watch & POOL_WATCH_STREAMS))
        s = find_record();
    uint64_t name = stream_number(s, stream, flags);
    if (__builtin_expect(flags & SUBMIT_FLAG_ATTRS, 0) && atomic_load(&captures))
        single_stream_disable();
    if (s && (watch & POOL_WATCH_STREAMS)) {
        seen = SUBMIT_SEEN;
        s->seals = 0;
        atomic_store(&s->stream, s->depth++ ? STREAM_OTHER : name);
        uint64_t single = atomic_load(&pool_single_stream);
        if (__builtin_expect(single != name, 0))
            submit_other(name, single);
    }
    if (watch & POOL_WATCH_UNSEALED)
        context_submit(name);
    if (seen == SUBMIT_SEEN && (flags & SUBMIT_FLAG_KERNEL) &&
        atomic_load(&pool_single_stream) == name)
        seen = note_kernel(s, flags, watch & POOL_WATCH_UNSEALED);
    errno = saved_errno;
    return seen;
}

void submission_end(bool taken)
{
    struct submitter *s = mine;
    if (!s)
        return;
    if (taken && s->seals > atomic_load_explicit(&covered_seals, memory_order_relaxed))
        atomic_store(&covered_seals, s->seals);
    s->seals = 0; /* a submission that this one was made inside of must not count as it */
    if (--s->depth == 0)
        atomic_store_explicit(&s->stream, STREAM_IDLE, memory_order_release);
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
