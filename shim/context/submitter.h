/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The record of a thread of the program's: what it submits at present, and how much it has. While a
 * thread is in a use (a call that may touch pool memory, or make its mapping known), its record
 * bears a mark. The marks are read by threads that must know whether anybody is between its look at
 * pool_watch and the driver's answer (stream_watch.c, shim/park/gate.h).
 *
 *  1. A thread marks its record, then reads pool_watch. Whoever waits for the threads changes what
 *     they read, then looks at the marks. Both orders are sequentially consistent. So either the
 *     mark is seen, or the thread sees the change.
 *  2. The end of a mark is a release. Who sees it sees the work submitted.
 *  3. Uses may be nested: a signal handler or a profiler's callback makes one inside another.
 *     `depth` counts them, and only the end of the outermost one ends the mark. A handler leaves
 *     `depth` as it found it, so it may come between any two instructions here.
 *  4. A thread that ends inside a use, by pthread_cancel, leaves no mark: its record goes back when
 *     the thread's own data is destroyed. A thread that leaves a use by longjmp stays marked until
 *     it ends, as if the call did not return.
 *  5. There are SUBMITTERS_MAX records, and a record of an ended thread serves another one. Once a
 *     thread finds no record, submitters_are_missed returns true for good. The thread says so
 *     before it reads pool_watch, so step 1 holds for that word too.
 *  6. While pool_watch is 0 a thread leaves no mark, as the process had no pool when it looked. Its
 *     work reaches pool memory only if an address comes to it while it runs (step 8 of Note [Single
 *     stream] in README.md).
 *  7. In a forked child pool_watch is 0, so nobody marks a record or reads the marks.
 *
 * No lock.
 */
#ifndef SHIM_SUBMITTER_H
#define SHIM_SUBMITTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SUBMITTERS_MAX = 1024 };

/* What a record says of the streams. Streams have other names: handles are multiples of 8, those of
 * default streams of threads end in 7, and pool.h has the names 1 and 3. */
#define SUBMITTER_IDLE UINT64_C(2)    /* no mark */
#define SUBMITTER_OTHER UINT64_C(5)   /* work for several streams, or for one that is not known */
#define SUBMITTER_NO_WORK UINT64_C(6) /* a use that submits no work */

struct submitter {
    _Alignas(64) _Atomic uint64_t stream; /* the mark */
    _Atomic uint64_t uses;                /* begun; never falls, whichever thread has the record */
    atomic_bool taken;
    uint32_t depth;      /* of uses inside uses */
    uint64_t per_thread; /* the name of its own default stream */
    uint64_t seals;      /* for stream_watch.c: covered_seals once its kernel is submitted */
};

/* The calling thread's record; NULL before its first use. */
extern __thread struct submitter *submitter_mine
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* For a thread that has no record. NULL: there are more threads than records (step 5). Keeps
 * errno. */
struct submitter *submitter_take(void);
static inline struct submitter *submitter_find(void)
{
    struct submitter *s = submitter_mine;
    return __builtin_expect(s != NULL, 1) ? s : submitter_take();
}

/* A use begins. The caller reads pool_watch after it. */
static inline void submitter_mark(struct submitter *s, uint64_t stream)
{
    uint64_t uses = atomic_load_explicit(&s->uses, memory_order_relaxed);
    atomic_store_explicit(&s->uses, uses + 1, memory_order_relaxed);
    atomic_store(&s->stream, s->depth++ ? SUBMITTER_OTHER : stream);
}

/* It has ended, or does not go to the driver. */
static inline void submitter_unmark(struct submitter *s)
{
    if (--s->depth == 0)
        atomic_store_explicit(&s->stream, SUBMITTER_IDLE, memory_order_release);
}

/* Is no thread but the caller in a use now? */
bool submitters_are_idle(void);
/* Does another work than that of this stream go to the driver now? Counts marks of any thread. */
bool submitters_have_other(uint64_t stream);
/* True: some threads may leave no mark. */
bool submitters_are_missed(void);
/* How many uses all threads have begun. It stands still while there are none. A use inside another
 * may not count. */
uint64_t submitters_uses(void);

#endif
