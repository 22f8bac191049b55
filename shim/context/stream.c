/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See stream.h. While all work of a process goes to one stream, that stream's order alone makes memory safe
 * to hand out again. A stream that was only created counts for nothing: libraries make some in stock.
 *
 * The stream is the one in pool_sole; at first whoever comes first (pool.h). Why it is enough:
 *
 * - Every submission is seen: while pool_watch says so, each of the entry points in shim/driver/submit.def comes
 *   here before the driver, and goes on only when its stream is the sole one or no pool relies on one.
 *   Driver libraries that submit work by ways of their own (rendering, video) end it for good.
 * - A stream is known by its handle, the per-thread default stream by its thread. A destroyed handle ends
 *   the time of its stream, before another stream can have it.
 * - A launch that may start before its predecessors in the stream end (programmatic dependent launch) is
 *   sent in turn instead where that matters, see "Early launches". One with attributes that are not
 *   known to keep it in order is taken for a stream of its own.
 * - Captures end it, and it does not begin before they are closed: captured work is no submission.
 * - No function that is newer than our tables: it may submit work unseen. When cuGetProcAddress hands out
 *   the first one, as runtimes newer than the tables ask drivers of their kind for, it ends for good (resolve.c).
 *   Not noticed is who asks for such a function by dlsym, or is linked to it; nor an object that is loaded
 *   past all wrappers (dlmopen, RTLD_DEEPBIND) and submits work on the pool's memory: nothing tells of it.
 * - Peers, a second context with a pool, green contexts end it for good: they have default streams, and
 *   work, in no order with this one.
 *
 * Early launches. A kernel E with leave to start early may overlap the kernels before it in its stream, back
 * to the last one without, K; K began when all before it was complete. So what E must not touch is
 * memory whose last work came after K was submitted, that is, memory freed since. covered_seals says up
 * to which close of an epoch (pool_seals) frees were known when such a K went to the driver. E is left
 * as it is if no epoch closed since and none has frees; what E may use was handed out, and so freed,
 * before E came here, so that this thread sees that free in pool_watch, or in pool_seals if another
 * thread's submission has closed its epoch. Otherwise E loses its leave, and is a K itself. Only
 * submissions to the sole stream count, and a stream that becomes the sole one begins without a K. Default
 * streams have the same name in every context: a K is one of the pool's. With several streams nothing is handed out
 * but behind complete work, or behind a wait of the whole context, which no launch passes (seen on an
 * H100; waits for events of its own stream do not keep it back). tests/model/early.pml is this rule. Not
 * covered is memory that was freed just beside E's submission, and whose address reaches E while it runs.
 *
 * Domains. A memory fence on the device orders the writes of its kernel's memory synchronisation
 * domain only; kernels of two domains are as far apart as two devices (CUDA programming guide,
 * "Memory Synchronization Domains"; CUlaunchMemSyncDomain in cuda.h). Nothing documented says that
 * stream order alone reaches so far. Events do, as streams of other devices may wait for them. So
 * one stream is not enough once a kernel may have a domain of its own:
 * - by its launch: it counts as one for another stream (name_of), like other unknown attributes;
 * - by its stream: a stream gets attributes by cuStreamSetAttribute, which ends the time of single
 *   streams for good; cuStreamCopyAttributes copies only what was set so;
 * - by its node of a graph: set there, or at a launch that was captured. Both end it for good. Not
 *   noticed is a kernel that was captured before there was a pool.
 *
 * What the driver does on streams of its own (copies from pageable memory) is ordered with the stream as
 * documented.
 *
 * What was submitted before the first pool went by unseen. The pool begins with one stream if the driver says
 * that nothing is running; drivers before 12.5 cannot be asked. Work that is on its way to the driver in that
 * moment remains: it could touch the pool's memory only by an address that reaches it while it runs.
 *
 * It begins again after a run of submissions to one stream, once all work for others is complete. Thread
 * X, at the end of a run, publishes its stream as the candidate; looks whether any thread is inside a
 * submission to another (each says so in its record first); and asks the pool for a mark. From then on, a
 * thread T with other work says so in its record, sees that no stream is sole, sees the candidate, notes
 * the breach, and looks again whether one is sole by now. Later X, when all work before the mark is
 * complete, announces its stream as the sole one, and then looks for a breach, before any memory is handed
 * out in its order. All of these in one order for all threads: either X sees T's record and drops the
 * candidate, or T sees the candidate; then either X sees the breach and takes the announcement back, or T
 * sees the sole stream and leaves before it submits. The candidate stays until there is a new one, and that
 * is no sooner than the pool has left; a new pool knows of none.
 *
 * tests/model/stream.pml is this protocol, for a model checker, in steps of one order for all threads. So
 * are here: the records when they are set, candidate, breached, captures, given_up, pool_sole are
 * sequentially consistent. Weaker are only the record's end, a release: whoever sees it sees the work
 * submitted; pool_watch, which does not change while the pool lives but to give up, and whose beginning
 * comes before any memory of the pool; and the length of the run and the pool it is for, which are guesses.
 */
#include "shim/context/stream.h"

#include "pool/pool.h"
#include "pool/spin.h"
#include "shim/context/context.h"
#include "shim/process/state.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Names that are no handle of a stream, beside those in pool.h. */
#define STREAM_IDLE UINT64_C(2)
#define STREAM_OTHER UINT64_C(5)

/* A run is this long before it is looked at, and is looked at again so often. */
enum { RUN_LENGTH = 64, RUN_STEP = 16 };
/* A program that keeps using several streams at a time pays for each end, GPU work waits: so many, and one
 * more each second. */
enum { COSTLY_ENDS = 8 };
enum { SUBMITTERS_MAX = 1024 };

/* What a thread submits just now. */
struct submitter {
    _Alignas(64) _Atomic uint64_t stream;
    atomic_bool taken;
    uint32_t depth;      /* of submissions inside submissions: a profiler's, a signal handler's */
    uint64_t per_thread; /* the name of its own default stream */
    uint64_t seals;      /* what its kernel will cover; 0: nothing */
};

static struct submitter submitters[SUBMITTERS_MAX];
/* Records from here on nobody ever had. Raised before one is taken. */
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
/* Held over no driver call. */
static atomic_flag stepping = ATOMIC_FLAG_INIT;

static void leave_pool(struct pool *p)
{
    if (pool_leave_single_stream(p))
        atomic_fetch_add(&costly_ends, 1);
}

void stream_give_up(void)
{
    atomic_store(&given_up, true);
    context_for_each_pool(pool_give_up_single_stream);
}

/* A pool is listed and then looks at given_up and captures (context.c); this is called after those were
 * set, and then looks at the list: no pool is missed. Every caller goes through the pools, so that none
 * returns before the one who came first is done. */
void stream_leave_single(void)
{
    if (!(atomic_load(&pool_watch) & POOL_WATCH_STREAMS))
        return;
    context_for_each_pool(leave_pool);
    if (atomic_load(&costly_ends) >= COSTLY_ENDS) {
        uint64_t seconds = (state_clock_ns() - state_started_ns()) / 1000000000u;
        if ((uint64_t)atomic_load(&costly_ends) >= COSTLY_ENDS + seconds)
            stream_give_up();
    }
}

static int submits_unseen(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char *const names_of[] = {"libnvoptix.so", "libnvidia-encode.so", "libnvcuvid.so",
                                           "libnvidia-opticalflow.so"};
    const char *base = strrchr(info->dlpi_name, '/');
    base = base ? base + 1 : info->dlpi_name;
    for (size_t i = 0; i < sizeof names_of / sizeof names_of[0]; i++)
        if (strncmp(base, names_of[i], strlen(names_of[i])) == 0)
            return 1;
    return 0;
}

bool stream_may_be_single(void)
{
    if (!atomic_load(&given_up) && dl_iterate_phdr(submits_unseen, NULL))
        stream_give_up();
    return !atomic_load(&given_up) && atomic_load(&captures) == 0;
}

static void thread_ends(void *record)
{
    struct submitter *s = record;
    mine = NULL;
    s->depth = 0;
    atomic_store(&s->stream, STREAM_IDLE);
    atomic_store(&s->taken, false);
}

static void make_key(void)
{
    key_made = pthread_key_create(&key, thread_ends) == 0;
}

static struct submitter *find_record(void)
{
    pthread_once(&key_once, make_key);
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
    stream_give_up(); /* more threads than can be watched */
    return NULL;
}

static uint64_t name_of(const struct submitter *s, CUstream stream, unsigned flags)
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

/* Work of earlier than the pool was not seen: if some is running, or on its way, its stream counts. What was
 * proposed for an earlier pool says nothing about this one. */
static bool starts_idle(void)
{
    atomic_store(&breached, true);
    atomic_store(&busy, false);
    if (others_submit(atomic_load(&pool_sole)))
        return false;
    context_for_each_pool(note_busy);
    return !atomic_load(&busy);
}

void stream_pool_listed(bool alone)
{
    bool may = stream_may_be_single();
    if (!alone || atomic_load(&given_up))
        stream_give_up();
    else if (!starts_idle() || !may)
        stream_leave_single();
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

/* The run of a stream is long: propose it, or if it was, make it the sole one. */
static void step(uint64_t stream)
{
    atomic_store_explicit(&only_pool, NULL, memory_order_relaxed);
    context_for_each_pool(note_pool);
    struct pool *p = atomic_load_explicit(&only_pool, memory_order_relaxed);
    if (!p || atomic_load(&given_up) || atomic_load(&captures))
        return;
    uint64_t mark = atomic_load(&candidate_mark);
    /* The walk over the loaded libraries comes last: it takes longer than a launch. */
    bool complete = atomic_load(&candidate) == stream && !atomic_load(&breached) &&
                    pool_passed(p, mark) && stream_may_be_single();
    if (!begin_step())
        return;
    if (atomic_load(&pool_sole) == POOL_STREAM_NONE && atomic_load(&captures) == 0 &&
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

/* No stream is sole. */
static void follow(uint64_t stream)
{
    uint64_t proposed = atomic_load(&candidate);
    if (proposed != POOL_STREAM_NONE && proposed != stream) {
        atomic_store(&breached, true);
        uint64_t sole = atomic_load(&pool_sole);
        if (sole != POOL_STREAM_NONE && sole != stream)
            stream_leave_single();
    }
    if (stream == STREAM_OTHER || atomic_load_explicit(&run_stream, memory_order_relaxed) != stream) {
        atomic_store_explicit(&run_stream, stream, memory_order_relaxed);
        atomic_store_explicit(&run_length, 0, memory_order_relaxed);
        return;
    }
    uint64_t length = atomic_load_explicit(&run_length, memory_order_relaxed) + 1;
    atomic_store_explicit(&run_length, length, memory_order_relaxed);
    if (length >= RUN_LENGTH && length % RUN_STEP == 0)
        step(stream);
}

static void submit_other(uint64_t stream, uint64_t sole)
{
    if (sole == POOL_STREAM_ANY && stream != STREAM_OTHER &&
        (atomic_compare_exchange_strong(&pool_sole, &sole, stream) || sole == stream))
        return;
    if (sole != POOL_STREAM_NONE)
        stream_leave_single();
    follow(stream);
}

/* A kernel for a stream of the sole one's name; unsealed: there were frees before it that no fence covered. Which
 * context it is for is asked once in an epoch of frees. */
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

enum submit_seen stream_note(CUstream stream, unsigned flags)
{
    unsigned watch = atomic_load(&pool_watch);
    if (!state_is_on())
        return SUBMIT_UNSEEN;
    int saved_errno = errno;
    struct submitter *s = mine;
    enum submit_seen seen = SUBMIT_UNSEEN;
    if (!s && (watch & POOL_WATCH_STREAMS))
        s = find_record();
    uint64_t name = name_of(s, stream, flags);
    if (__builtin_expect(flags & SUBMIT_FLAG_ATTRS, 0) && atomic_load(&captures))
        stream_give_up();
    if (s && (watch & POOL_WATCH_STREAMS)) {
        seen = SUBMIT_SEEN;
        s->seals = 0;
        atomic_store(&s->stream, s->depth++ ? STREAM_OTHER : name);
        uint64_t sole = atomic_load(&pool_sole);
        if (__builtin_expect(sole != name, 0))
            submit_other(name, sole);
    }
    if (watch & POOL_WATCH_UNSEALED)
        context_submit(name);
    if (seen == SUBMIT_SEEN && (flags & SUBMIT_FLAG_KERNEL) && atomic_load(&pool_sole) == name)
        seen = note_kernel(s, flags, watch & POOL_WATCH_UNSEALED);
    errno = saved_errno;
    return seen;
}

void stream_done(bool taken)
{
    struct submitter *s = mine;
    if (!s)
        return;
    if (taken && s->seals > atomic_load_explicit(&covered_seals, memory_order_relaxed))
        atomic_store(&covered_seals, s->seals);
    s->seals = 0; /* what this one was made inside of, if anything, is not to be taken for it */
    if (--s->depth == 0)
        atomic_store_explicit(&s->stream, STREAM_IDLE, memory_order_release);
}

/* Whoever is about to make a stream the sole one is through, or sees the capture. */
void stream_capture_opens(void)
{
    atomic_fetch_add(&captures, 1);
    for (unsigned turn = 0; !begin_step(); turn++)
        spin_pause(turn);
    end_step();
    stream_leave_single();
}

void stream_capture_closed(void)
{
    atomic_fetch_sub(&captures, 1);
}

void stream_forget(CUstream stream)
{
    uint64_t name = (uint64_t)(uintptr_t)stream;
    if (!(atomic_load_explicit(&pool_watch, memory_order_relaxed) & POOL_WATCH_STREAMS))
        return;
    if (atomic_load(&candidate) == name)
        atomic_store(&breached, true);
    if (atomic_load(&pool_sole) == name)
        stream_leave_single();
    if (atomic_load_explicit(&run_stream, memory_order_relaxed) == name)
        atomic_store_explicit(&run_length, 0, memory_order_relaxed);
}
