/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Records of allocations and frees that take nanoseconds themselves. A record costs a look at the
 * clock of the processor (7 ns; 16 to 21 in a virtual machine with an H200) and 16 bytes.
 */
#ifndef SHIM_TRACE_FAST_H
#define SHIM_TRACE_FAST_H

#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/trace/trace.h"

#include <pthread.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* Powers of two. A call path is looked for in TRACE_PATHS_NEAR places. */
enum { TRACE_SITES = 512, TRACE_PATHS = 4096, TRACE_PATHS_NEAR = 4 };

struct trace_site {
    uint64_t key; /* the caller's address, or that of a path (struct trace_stack) */
    uint32_t number;
};
#define TRACE_PATHS_BYTES ((TRACE_PATHS + TRACE_PATHS_NEAR) * sizeof(struct trace_site))

/* One thread's. The first members are what a record needs. */
struct trace_thread {
    struct trace_record *next, *end; /* in its chunk */
    uint64_t ticks;                  /* of the last record */
    uint64_t base_units;
    uint32_t trace; /* the number of the trace that the chunk is of; 0: there is no chunk */
    uint32_t num_sites;
    atomic_bool busy; /* inside a record */
    bool has_base;    /* in this chunk */
    bool is_new;      /* the chunk does not know the thread yet */
    struct trace_chunk *chunk;
    bool is_of_file; /* the chunk */
    uint64_t
        still_ns; /* all records have the time `ticks`, which is this; 0: they have their own */
    struct trace_ring *ring;
    struct trace_chunk *(*next_chunk)(void); /* NULL: the trace says where chunks come from */
    struct trace_thread *next_spare;
    struct trace_site *paths; /* NULL: none so far */
    struct trace_site sites[TRACE_SITES];
};

extern __thread struct trace_thread *trace_mine __attribute__((visibility("hidden")))
__attribute__((tls_model("initial-exec")));
extern enum trace_clock trace_clock __attribute__((visibility("hidden")));

/* All but the last pair of times, which is the first one. For the thread that begins a trace. */
void trace_fill_header(struct trace_header *header);

/* Tries so often, with a millisecond between. In a forked child the lock may be held for ever. With
 * the lock there is no cancellation point. */
static inline bool trace_lock(pthread_mutex_t *lock, int tries)
{
    int cancel = cancel_forbid();
    bool locked = pthread_mutex_trylock(lock) == 0;
    while (!locked && --tries > 0) {
        clock_sleep(MS_NS);
        locked = pthread_mutex_trylock(lock) == 0;
    }
    cancel_allow(cancel);
    return locked;
}

static inline uint64_t trace_ticks(void)
{
#if defined(__x86_64__)
    if (__builtin_expect(trace_clock == TRACE_CLOCK_TSC, 1))
        return __rdtsc();
#elif defined(__aarch64__)
    if (__builtin_expect(trace_clock == TRACE_CLOCK_CNTVCT, 1)) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return clock_now_ns();
}

static inline struct trace_site *trace_site_of(struct trace_thread *t, uint64_t key)
{
    return &t->sites[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 55];
}
_Static_assert(TRACE_SITES == 1 << (64 - 55), "trace_site_of finds all places");

/* The path's place. Another path's, or a free one: it has none. */
static inline struct trace_site *trace_path_of(struct trace_thread *t, uint64_t key)
{
    struct trace_site *near = &t->paths[key >> 40 & (TRACE_PATHS - 1)];
    for (int i = 0; i < TRACE_PATHS_NEAR; i++)
        if (near[i].key == key)
            return &near[i];
    for (int i = 0; i < TRACE_PATHS_NEAR; i++)
        if (!near[i].key)
            return &near[i];
    return &near[t->num_sites % TRACE_PATHS_NEAR];
}

/* An address and a size. False, and nothing is recorded: the place is not the key's, or the record
 * has no narrow form or no room. */
static inline bool trace_put_fast(struct trace_thread *t, enum trace_kind kind, uint64_t addr,
                                  uint64_t size_bytes, const struct trace_site *site, uint64_t key)
{
    atomic_store_explicit(&t->busy, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    uint64_t ticks = trace_ticks(), step = (ticks - t->ticks) >> TRACE_STEP_SHIFT;
    uint64_t at = (addr >> TRACE_UNIT_SHIFT) - t->base_units;
    bool fits = !((step | at) >> 32) && !(size_bytes >> 24) && !(addr & 511) && site->key == key &&
                t->next != t->end &&
                t->trace == atomic_load_explicit(&trace_now, memory_order_relaxed);
    if (__builtin_expect(!fits, 0)) {
        atomic_store_explicit(&t->busy, false, memory_order_relaxed);
        return false;
    }
    struct trace_record *r = t->next;
    t->ticks += step << TRACE_STEP_SHIFT;
    r->step_at = step | at << 32;
    __atomic_store_n(&r->what_who, size_bytes | (uint64_t)kind << 24 | (uint64_t)site->number << 32,
                     __ATOMIC_RELEASE);
    t->next = r + 1;
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&t->busy, false, memory_order_relaxed);
    return true;
}

/* With the call path (GPUCACHE_TRACE_STACKS). */
void trace_note_path(enum trace_kind kind, uint64_t addr, uint64_t size_bytes, const void *caller);

/* An address and a size, of what the program asked for at `caller`. */
static inline void trace_note_fast(enum trace_kind kind, uint64_t addr, uint64_t size_bytes,
                                   const void *caller)
{
    struct trace_thread *t = trace_mine;
    uint64_t key = (uintptr_t)caller;
    if (!trace_put_fast(t, kind, addr, size_bytes, trace_site_of(t, key), key))
        trace_note(kind, &(const struct trace_event){addr, size_bytes, caller, .aux = 0});
}

/* The same, for an allocation. */
static inline void trace_note_alloc(uint64_t addr, uint64_t size_bytes, const void *caller)
{
    if (atomic_load_explicit(&trace_depth, memory_order_relaxed))
        trace_note_path(TRACE_ALLOC_FAST, addr, size_bytes, caller);
    else
        trace_note_fast(TRACE_ALLOC_FAST, addr, size_bytes, caller);
}

#endif
