/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room park/ holds the park: the device memory of a process that sleeps goes to the host and
 * comes back at the next use. gate.h keeps the program's work out meanwhile, quiet.h says when no
 * work runs, store.h keeps the bytes on the host, copy.h moves them, and this file has the thread
 * that does it all. The room's one seam is this header; wrappers call gate.h and ends.h, too.
 *
 * Words. A use is a call of the program's that may touch pool memory or make its mapping known. A
 * chunk is away while its device memory is gone: its addresses stay reserved, and its bytes are in
 * the store. The park thread is one thread of the library's, made at the first park. It does every
 * park and every wake.
 *
 * A park: refusals that need no gate (quiet_refusal), room for the bytes, staging memory and
 * workers; then the gate is closed, the calls under way are awaited (gate_drain), all contexts
 * become idle (quiet_await), and the pools hold their chunks. What the program may read again is
 * copied. Only then the gate is left (gate_leave) and the device memory goes back. A wake: all
 * chunks that hold anything get device memory again, or none does. Then what is live is copied
 * back, the gate opens, and the store is freed, or retains its bytes for the next park (retain.h).
 *
 * On request the driver's checkpoint takes what is left off the device, behind the same gate
 * (whole.h).
 *
 * What this keeps of the promises of the library: results, codes and addresses are those without a
 * park. New are the time that a use waits, host memory while the process is parked, and one error:
 * a use whose device memory does not come within GPUCACHE_PARK_WAIT gets the driver's error, out of
 * memory. Where the bytes went to a file and its disk fails, a use gets
 * CUDA_ERROR_OPERATING_SYSTEM and never wrong bytes (store_file.h).
 *
 * Why it is safe:
 *  1. No work of the program's runs or is accepted while a chunk is away. gate.h and quiet.h have
 *     the argument; the gate is open only while no chunk is away.
 *  2. The bytes that come back are the bytes that were written last. They were copied behind
 *     quiet_await, or were in the store already and found to be equal there (retain.h). gate_leave
 *     succeeds only if no use arrived since the gate was closed.
 *  3. Nothing moves under a copy: a held chunk is neither moved nor given back (pool/park.c). A
 *     block that the program frees meanwhile may be handed out again, but nothing can write to it.
 *  4. What others know is not unmapped: a chunk with an exposed block is not held, and what exposes
 *     a block is a use.
 *  5. Until gate_leave a park has changed nothing but host memory, and what hasher.h has. Each
 *     fault before it lets go of the chunks and opens the gate. Only then it frees what was copied
 *     in this park, for which no use waits.
 *  6. Until the gate opens a wake drops no row of the store. Each fault in it sends the chunks of
 *     this try away again.
 *  7. A context that ends while the park thread works in it: context_ends_begin cancels a park that
 *     copies, and waits for one that has left the gate, and for a wake. A park that begins later
 *     finds the count of such threads raised and is refused. A wake that begins later waits for
 *     them, PARK_ENDERS_NS at most.
 *  8. Own driver calls are call scopes (call_scope.h) and made while no lock is held. Their errors
 *     stay on the park thread, whose errors no program reads.
 *
 * Why no thread waits for ever:
 *  9. A use that arrives while a park copies cancels it. Each worker asks between two steps of
 *     COPY_HALF_BYTES (gate_is_closing), so the gate opens within milliseconds.
 * 10. gate_drain and quiet_await have a bound. What follows gate_leave waits for nobody but the
 *     driver (for its checkpoint see step 10 of whole.h).
 * 11. A wake waits for device memory for GPUCACHE_PARK_WAIT at most. Then the uses get the error,
 *     and the next use begins another wait.
 * 12. There is no circle of waits. A thread of the program waits for the park thread, which may ask
 *     a neighbour's control thread, which waits for nobody: it starts the park of its own park
 *     thread and looks again in turns (again_ns). With the driver open the park thread waits for
 *     jobs of pools, for walks and for contexts that end, all with bounds. No thread that is in one
 *     of them waits at the gate then: jobs and walks call the driver in call scopes (step 13 of
 *     gate.h), and ends.h lets no context end beside a closed driver. While the driver is closed
 *     the park thread waits for none of them.
 * 13. The control thread and signal handlers wait for no park and no wake.
 * 14. A job that comes while a use waits for device memory is refused between two tries: a park at
 *     once, a wake when its own time is over. So a request does not wait as long as the use.
 * 15. What takes long for a file or for much host memory comes before the gate is closed. A park
 *     that joins another one asks may_prepare meanwhile, so that a use does not wait for host
 *     memory. Where zeros are written to a file (step 2 of store_file.h), it waits for 16 MiB.
 */
#ifndef SHIM_PARK_H
#define SHIM_PARK_H

#include "shim/process/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PARK_ENDERS_NS (2 * SEC_NS)

enum { PARK_GPUS_MAX = 16, PARK_WHY_BYTES = 256, PARK_TO_BYTES = 256 };

/* Who asks for a park. */
enum park_reason { PARK_ASKED, PARK_IDLE, PARK_LENT };

struct park_wish {
    enum park_reason reason;
    int device;             /* -1: all */
    uint64_t keep_bytes;    /* on each device; 0: none */
    uint64_t most_bytes;    /* no more than that has to go; 0: all */
    uint64_t wait_ns;       /* for GPU work that runs */
    char to[PARK_TO_BYTES]; /* "host", a folder, or "": where GPUCACHE_PARK_TO says */
    bool whole;             /* whole.h; with device -1, keep_bytes 0, most_bytes 0 */
};

enum park_outcome {
    PARK_IS_DONE,
    PARK_IS_PARTLY,  /* something stays that was to go */
    PARK_IS_REFUSED, /* nothing changed; `why` is one sentence */
};

/* What one GPU has after a park or a wake. */
struct park_gpu {
    int device;
    const char *uuid;       /* static */
    uint64_t parked_bytes;  /* device memory that went in this park */
    uint64_t live_bytes;    /* of them, what the host keeps */
    uint64_t copied_bytes;  /* of them, what was copied for it; the rest is a retained copy */
    uint64_t away_bytes;    /* what is away now, of all parks */
    uint64_t kept_bytes;    /* what stays: because of keep_bytes or most_bytes, */
    uint64_t exposed_bytes; /* .. known outside of the process, or beside such memory, */
    uint64_t segment_bytes; /* .. of pools without an arena */
    uint64_t other_bytes;   /* .. idle, or in work by another thread just then */
};

struct park_receipt {
    enum park_outcome outcome;
    char why[PARK_WHY_BYTES]; /* of PARK_IS_REFUSED; or why it is not whole; else empty */
    char to[PARK_TO_BYTES];   /* of a park: "host", or the folder; "": it made no room */
    bool is_parked, is_whole; /* now */
    uint64_t whole_bytes;     /* device memory that went by the driver's checkpoint */
    uint64_t dropped_bytes;   /* host memory of retained copies that a wake freed */
    /* All of it; of that, until the store was there, and behind the gate until all was copied. */
    uint64_t ns, room_ns, copy_ns;
    unsigned num_gpus;
    struct park_gpu gpus[PARK_GPUS_MAX];
};

/* Begins a park, or a wake, on the park thread. Returns its number; 0: another one is under way, so
 * ask again; or the process leaves (ends.h). park_under_way: the number of the park that is under
 * way; 0: none, or it is a wake. park_is_over: has it ended? Then *out says how. All four on the
 * control thread, and none waits. */
uint64_t park_begin(const struct park_wish *wish);
uint64_t park_begin_wake(bool drops); /* .. and retained copies are freed, if it wakes */
uint64_t park_under_way(void);
bool park_is_over(uint64_t number, struct park_receipt *out);

/* The last park and the last wake: when they ended (0: there was none), and what both took. And how
 * many parks of PARK_IDLE in a row were refused before the gate was closed. Any thread. */
struct park_last {
    _Atomic uint64_t parked_ns, woke_ns, cost_ns;
    atomic_uint refusals;
};
extern struct park_last park_last __attribute__((visibility("hidden")));

/* Is device memory on the host? Does the park thread work on a request? Any thread. */
bool park_is_parked(void);
bool park_is_busy(void);
/* Host memory of retained copies while none is. Any thread. */
uint64_t park_retained_bytes(void);

/* The process leaves: a park under way is cancelled, and no other begins. A use that comes still
 * wakes. At exit, before call_scope_at_exit. */
void park_at_exit(void);

#endif
