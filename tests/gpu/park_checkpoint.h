/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the parts of park_checkpoint.c share: a process with memory, a graph and an arena that is
 * away, and the steps of its checkpoint. One thread makes the steps.
 */
#ifndef TESTS_GPU_PARK_CHECKPOINT_H
#define TESTS_GPU_PARK_CHECKPOINT_H

#include "tests/gpu/driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { TURNS = 4, STEP_S = 20 };
#define MIB ((size_t)1 << 20)

extern struct options {
    unsigned limit_ms;
    bool is_each, is_other;
    size_t bytes;
} options;

/* Headers before 12.8 do not declare the functions of checkpoints. */
struct lock_args {
    unsigned timeout_ms, reserved;
    uint64_t more_reserved[7];
};
enum { STATE_RUNNING = 0, STATE_FAILED = 3 };

#define LOOKED_UP(symbol) __typeof__(symbol) *symbol;
extern struct checkpoint_calls {
    int (*cuCheckpointProcessLock)(int pid, struct lock_args *args);
    int (*cuCheckpointProcessCheckpoint)(int pid, void *args);
    int (*cuCheckpointProcessRestore)(int pid, void *args);
    int (*cuCheckpointProcessUnlock)(int pid, void *args);
    int (*cuCheckpointProcessGetState)(int pid, int *state);
#include "tests/gpu/park_checkpoint.def"
} call;

/* Made before the first lock, used by all calls. */
extern struct prepared {
    CUcontext context;
    CUstream stream;
    CUevent event, other_event;
    CUmodule module;
    CUfunction spin, fill;
    CUgraphExec exec;
    CUmemoryPool pool;
    CUmemLocation location;
    CUmemAllocationProp prop;
    CUdeviceptr block, blocks[TURNS], mapped[TURNS], away;
    void *host, *pages[TURNS];
} prepared;

/* Between processes: what fills the device (`full`), and what makes the steps (--other). */
extern struct shared {
    atomic_bool may_fill, is_full, may_end;
    size_t filled_bytes;
    atomic_int wanted, answer; /* a step, its code; -1: none */
} *shared;

/* Asks for the helper with --other, opens the driver, makes what `prepared` has: a block of so many
 * bytes of the pattern, and the rest. Ends the process with EXIT_SKIP without checkpoints. */
void prepare(size_t block_bytes);

/* Maps new memory. */
CUresult map_at(CUdeviceptr at, size_t bytes);

/* Of the prepared block's first bytes: words that are not as prepared. */
unsigned wrong_words(size_t bytes);

enum { LOCK, CHECKPOINT, RESTORE, UNLOCK };
extern const char *const step_names[];

/* Makes a step on a thread of its own; await_step waits for one that has not returned. Returns the
 * code; -1: no return in STEP_S seconds, and the thread stays. */
int take_step(int which);
int await_step(void);

/* How long the last step took. */
double step_ms(void);

/* Makes steps as long as they succeed; false: one did not, which a line says. */
bool take_steps(int first, int last);

/* The part `calls`. */
int play_calls(void *unused);

#endif
