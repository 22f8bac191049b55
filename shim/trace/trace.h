/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room trace/ records what happens to GPU memory, when, and who asked for it. It includes
 * nothing of CUDA and of the rooms above page/. Its seam is this header; fast.h is the same for the
 * two calls whose time counts, beside.h for memory beside the pool, and dump.h writes what rings
 * hold.
 *
 * While no trace is on, a place costs the test of one word. Otherwise each thread writes to a chunk
 * of its own (file.h), without a lock, and without a wait but for the next chunk.
 *
 * 1. A record is there once its last word is, which is stored last. What a killed process leaves
 *    is whole up to its last record.
 * 2. An allocation is recorded after it succeeded, a free before the pool has the block. So in the
 *    order of time no address is taken twice, but for calls that fail.
 * 3. A trace has a number, and a thread's chunk is of one trace. After a trace ends and another
 *    begins, a thread sees at its next record that its chunk is not of this one. A thread that was
 *    inside a record meanwhile finishes it in the old file.
 * 4. A thread's state goes to a list of spare ones at its end, with the rest of its chunk. The next
 *    new thread goes on there. So many short threads make no large file.
 * 5. A signal handler that interrupts a thread inside a record loses its own record (LOST).
 * 6. A forked child records nothing: trace_leave. A child of clone or _Fork, which run no handlers,
 *    would write to its parent's chunk. CUDA serves no such child.
 * 7. A trace without a file has rings of chunks in place of the file. All else is the same, so a
 *    record costs the same.
 * Keeps errno, and is no cancellation point. No driver call, no lock that is held over anything but
 * files (file.h).
 */
#ifndef SHIM_TRACE_H
#define SHIM_TRACE_H

#include "shim/trace/format.h"
#include "shim/trace/stack.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The number of the trace that is on; 0: none is. Of a trace without a file it is odd. */
extern _Atomic uint32_t trace_now __attribute__((visibility("hidden")));

static inline bool trace_is_on(void)
{
#if defined(__x86_64__)
    bool on; /* the compiler would load an atomic first, and a free has one instruction more */
    __asm__ volatile("cmpl $0, %1" : "=@ccne"(on) : "m"(trace_now));
#else
    bool on = atomic_load_explicit(&trace_now, memory_order_relaxed) != 0;
#endif
    return __builtin_expect(on, 0);
}

/* Ends the trace that is on, then begins one in the file `path` (a pattern: log_file_name). "":
 * begins none. False: there is none, and a warning says why. One thread at a time. */
bool trace_begin(const char *path);
/* Ends the trace that is on, then begins one without a file: each thread keeps its latest records
 * (shim/trace/ring.h) until a dump writes them (shim/trace/dump.h). One thread at a time. */
void trace_begin_ring(void);
static inline bool trace_is_ring(uint32_t trace)
{
    return trace & 1;
}
/* To be called each second or so while a trace is on, and once more: writes a pair of times. */
void trace_tick(void);
/* Records how many records were lost since the trace began, if any were. */
void trace_note_lost(void);
uint64_t trace_num_lost(void);
/* One more is. */
void trace_count_lost(void);
/* Ends the trace that is on. One thread at a time. */
void trace_end(void);
/* In a forked child: the trace is the parent's. Async-signal-safe. */
void trace_leave(void);

/* The code that asked the runtime, while the runtime asks the driver for the thread; NULL: the
 * driver's caller itself asked. */
extern __thread const void *trace_asker __attribute__((visibility("hidden")))
__attribute__((tls_model("initial-exec")));

/* The frames of a call path that an allocation records (GPUCACHE_TRACE_STACKS); 0: the caller
 * alone. What fails or passes the pool is rare, and has TRACE_DEPTH_RARE of them at least. */
enum { TRACE_DEPTH_RARE = 16 };
extern _Atomic uint32_t trace_depth __attribute__((visibility("hidden")));
/* paths: may stacks be walked at all (shim/trace/stack.h)? */
void trace_set_depth(unsigned frames, bool paths);

struct trace_stack {
    uint64_t key; /* of the path; never an address */
    unsigned count, num_python;
    /* Return addresses, of which the first is the caller's, then frames of Python's. */
    uint64_t at[2 * STACK_FRAMES_MOST];
};

/* What a record says: kinds.def has the meaning. caller: NULL: no site. text: NULL: none. */
struct trace_event {
    uint64_t a, b;
    const void *caller;
    const char *text;
    uint32_t aux; /* trace_aux */
    unsigned context;
    const struct trace_stack *stack; /* NULL: the caller is all that is known */
};
/* Records it, if a trace is on. */
void trace_note(enum trace_kind kind, const struct trace_event *event);
/* The same of a call of the program's that is under way in this thread: with its path. */
void trace_note_call(enum trace_kind kind, const struct trace_event *event);

/* A number in 24 bits; more counts as all of them. */
static inline uint32_t trace_aux(uint64_t value)
{
    return value < 1u << 24 ? (uint32_t)value : (1u << 24) - 1;
}

/* Shorthands; nothing is evaluated while no trace is on. */
#define TRACE_BY(note, kind, ...)                                                                  \
    do {                                                                                           \
        if (trace_is_on())                                                                         \
            note(TRACE_##kind, &(const struct trace_event){__VA_ARGS__});                          \
    } while (0)
#define TRACE(kind, ...) TRACE_BY(trace_note, kind, __VA_ARGS__)
#define TRACE_CALL(kind, ...) TRACE_BY(trace_note_call, kind, __VA_ARGS__)

#endif
