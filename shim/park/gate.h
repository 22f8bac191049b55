/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The gate keeps uses away from the driver while the park thread moves memory. A use is a call of
 * the program's that may touch pool memory, or make its mapping known: all of submit.def, the rows
 * of the other tables that name memory, and the hand-written wrappers that call gate_use_begin.
 *
 *     OPEN -> CLOSING -> LEAVING -> PARKED -> WAKING -> OPEN
 *        <- cancelled             <- no memory
 *
 * The park thread leads every step but two. An arrival, which is a use that finds the gate closed,
 * takes CLOSING back to OPEN, and PARKED on to WAKING. The bit POOL_WATCH_GATE of pool_watch is set
 * from before the first look at the marks until after the state is OPEN again. A park may add to
 * what is away: then it goes from PARKED to LEAVING and back.
 *
 * Safety: no use is with the driver, or on its way, from gate_leave until gate_open.
 *  1. A thread marks its record, then reads pool_watch, and only then calls the driver. The park
 *     thread sets the bit, then looks at the marks (step 1 of submitter.h). So the park thread sees
 *     the mark, or the thread sees the bit. A thread that sees the bit does not call the driver.
 *  2. gate_drain returns true only after a look at which no thread was marked, with the bit set.
 *     From then on every use arrives, until the bit falls. A use that is nested in another counts
 *     as its outer one: its thread is marked, so 2 is not yet true.
 *  3. Marks that come and go after 2 are those of arrivals, which do not call the driver.
 *  4. The bit alone would do for safety. gate_leave, one compare and exchange from CLOSING, is for
 *     the arrivals: a park that one has cancelled ends soon, and needs no wake. From PARKED it is
 *     the same exchange, behind the bit that is set since.
 *  5. Only the park thread clears the bit, in gate_open. A cancelled park stays behind the bit
 *     until the park thread, which sees that the state is not CLOSING, has undone its steps.
 *  6. Threads without a record leave no mark. Then gate_drain returns false (submitter.h, step 5).
 *  7. Work that uses have submitted before 2 may still run. quiet_await waits for it.
 *
 * Liveness: every arrival goes on.
 *  8. In CLOSING it cancels and rings, so the park thread does not sleep on in gate_drain or
 *     gate_pause. The park thread asks gate_is_closing between two short steps, and then opens.
 *  9. In PARKED it makes the state WAKING and rings. One that arrives in LEAVING or WAKING sleeps.
 *     It looks again after each change that it may have to answer: OPEN and PARKED raise gate_turn
 *     behind the change, and wake all. An arrival reads gate_turn, then looks, then sleeps while
 *     gate_turn has not changed. So it misses none. The bell works alike the other way.
 * 10. It holds no lock of the library, and no mark but that of a use around it. The mark around it
 *     keeps a park from leaving, and the arrival cancels that park. So a signal handler's use waits
 *     for no mark of its own thread.
 * 11. A drain may wait for a thread that waits for one at the gate, such as a host function that
 *     needs a lock of the launching thread's. The one at the gate cancels, so the wait ends.
 * 12. A wake ends with gate_open, or with gate_fail after a time with a bound. Then all uses that
 *     waited since before get the error. gate_refuse gives it to them, too, and changes no state:
 *     who gets an error does not call the driver.
 * 13. While the driver is closed, which is between LEAVING and WAKING, calls that are no uses
 *     arrive, too (shim/driver/closed.h). They hold no mark, and wake as uses do. A plain call
 *     waits for OPEN, because it might take the device memory that the wake needs. A call scope
 *     waits for the driver alone (gate_arrive_until), because the wake may wait for it. So the park
 *     thread raises gate_turn behind the opening of the driver as well (gate_look_again).
 *
 * An arrival keeps errno, and is no cancellation point. A signal handler runs on it as on any
 * thread that sleeps. tests/model/gate.pml models all of this.
 *
 * Questions about memory (gate_ask_begin) leave a mark too, so the memory that they name is there
 * until the driver has answered. Behind the bit they are uses if the address is a pool's: then the
 * driver may not know it. Others pass.
 *
 * No lock: the state, gate_turn, the bell and the failure are atomics with one order for all
 * threads.
 */
#ifndef SHIM_GATE_H
#define SHIM_GATE_H

#include "pool/bits.h"
#include "pool/pool.h"
#include "shim/context/submitter.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stdint.h>

enum gate_state { GATE_OPEN, GATE_CLOSING, GATE_LEAVING, GATE_PARKED, GATE_WAKING };

enum gate_state gate_state(void);

/* The park thread's steps.
 *
 * OPEN -> CLOSING, and sets the bit. False: not OPEN, and nothing was done. True: whatever comes,
 * the park thread calls gate_is_parked or gate_open in the end. */
bool gate_close(void);
/* Waits until no thread is in a use. False: not within that time, or some threads leave no mark, or
 * an arrival has cancelled (gate_is_closing tells). */
bool gate_drain(uint64_t wait_ns);
/* Has no arrival cancelled? To be asked between two steps. */
bool gate_is_closing(void);
/* Sleeps for so long, or until an arrival cancels. Returns gate_is_closing. */
bool gate_pause(uint64_t ns);
/* CLOSING -> LEAVING, or PARKED -> LEAVING. From here on no arrival cancels or wakes. False: one
 * has. */
bool gate_leave(void);
/* LEAVING -> PARKED, or WAKING -> PARKED when a wake that nobody waits for found no memory. A use
 * that arrived meanwhile makes it WAKING at once. */
void gate_is_parked(void);
/* WAKING -> PARKED. Each use that has waited since before gets rc, which is an error. */
void gate_fail(CUresult rc);
/* The park thread does not come back from the driver. The same, in any state, which stays. */
void gate_refuse(CUresult rc);
/* Any state -> OPEN, then clears the bit and wakes all. */
void gate_open(void);
/* Step 13. Any state, which stays. */
void gate_look_again(void);

/* What the park thread sleeps on while it has nothing to do. It reads the bell, then looks for work
 * and at the state, and then sleeps until the bell is another. Arrivals ring, and whoever has work
 * for it. until_ns: it sleeps no longer (clock_now_ns); UINT64_MAX: for ever. */
uint32_t gate_bell(void);
void gate_ring(void);
void gate_await_bell(uint32_t seen, uint64_t until_ns);

/* A request: PARKED -> WAKING. False: the state is another. Any thread; does not wait. */
bool gate_wake(void);

/* The program's threads. */

/* A use has seen the bit, and has taken its mark back. Sleeps until the gate is open: CUDA_SUCCESS.
 * Else the program gets this error. */
CUresult gate_arrive(void);
/* Step 13: the same until may_go says true. gate_look_again follows whatever makes it so. */
CUresult gate_arrive_until(bool (*may_go)(void));
/* Marks the record, and takes the mark back while the gate is closed; sleeps meanwhile. s: the
 * thread's record, or NULL if it has none. *watch: pool_watch behind the mark. CUDA_SUCCESS: the
 * use goes to the driver, and submitter_unmark follows. Else the use is not marked, and the program
 * gets this error. No lock held. Keeps errno. */
static inline CUresult gate_enter(struct submitter *s, uint64_t mark, unsigned *watch)
{
    for (;;) {
        if (s)
            submitter_mark(s, mark);
        *watch = atomic_load(&pool_watch); /* step 1 */
        if (likely(!(*watch & POOL_WATCH_GATE)))
            return CUDA_SUCCESS;
        if (s)
            submitter_unmark(s);
        CUresult rc = gate_arrive();
        if (rc != CUDA_SUCCESS)
            return rc;
    }
}

/* Around a use that is no submission. NULL in `s`: it left no mark. */
struct gate_use {
    struct submitter *s;
};
/* Waits while the gate is closed. CUDA_SUCCESS: gate_use_end follows. Else the program gets this
 * error, and nothing follows. Keeps errno. */
CUresult gate_use_begin(struct gate_use *use);
void gate_use_end(const struct gate_use *use);
/* The same around a question about the memory at addr. gate_use_end follows. */
CUresult gate_ask_begin(struct gate_use *use, uint64_t addr);

#endif
