/* SPDX-License-Identifier: BSD-2-Clause
 *
 * While the driver is closed no thread calls it: the process is checkpointed, and has nothing that
 * a call could use (shim/park/whole.h). A call would block, and one ends the process (H100).
 *
 *  1. Every wrapper and every call of the library's goes by a slot (hooks.h), but for what submits
 *     work, which the gate keeps out (shim/park/gate.h). closed_drain puts other functions into the
 *     slots, and closed_end the driver's. So an open driver costs a call nothing.
 *  2. Such a function waits until the driver is open again, and then calls it. A thread of the
 *     program's makes that happen (`await`). A thread of the library's own gets an error at once,
 *     as at exit. Queries and synchronisations are answered: all work is complete.
 *  3. From closed_begin on no call scope begins, and no own work (own_visit_begin). closed_drain
 *     awaits those that did, and only then switches the slots: each ends as it began. Submissions
 *     are kept out since before. What is left are plain calls of the program's threads that took
 *     the driver's address out of its slot before. The process is locked next, which lets calls
 *     finish that began, and blocks those that begin. Such a thread is harmed only if it rests
 *     between two instructions for CLOSED_GRACE_NS and the whole lock, and then makes the one call
 *     that does not block.
 *  4. In a forked child the slots stay as they are, and such calls get what the driver gives there:
 *     not initialised.
 *  5. One call of the program's may be several calls here. Once `await` gave an error, the thread's
 *     calls of the next CLOSED_SAME_CALL_NS get it without another wait.
 *  6. A call scope of the program's may belong to a job of a pool, or to a question about a
 *     context. Other threads wait for these, and the park thread, which opens the driver, waits for
 * such threads. So a call scope goes on as soon as the driver is open (`in_scope`). A call by a
 * slot belongs to neither, and `await` may hold it up longer. If it may begin the life of a primary
 * context, a thread that ends one waits for it, but not for long (context_release_begins).
 *
 * The park thread alone begins and ends it. No lock.
 */
#ifndef SHIM_CLOSED_H
#define SHIM_CLOSED_H

#include "shim/driver/hooks.h"
#include "shim/process/clock.h"

#include <stdbool.h>

#define CLOSED_GRACE_NS (20 * MS_NS)
#define CLOSED_SAME_CALL_NS (10 * MS_NS)

/* await: see 2; on a thread of the program's. It returns an error if the driver stays closed.
 * in_scope: the same for call scopes; it returns as soon as closed_end was called. */
void closed_begin(CUresult (*await)(void), CUresult (*in_scope)(void));
/* True: no call scope and no own work is under way, and no call goes to the driver. Waits so long
 * for it. */
bool closed_drain(uint64_t wait_ns);
void closed_end(void);

/* Any thread. */
bool closed_is_now(void);
/* Waits as 2 says. An error: the driver must not be called. */
CUresult closed_await(void);

/* The driver's functions of the slots, from closed_begin to closed_end. */
extern struct hooks_real closed_real __attribute__((visibility("hidden")));

#endif
