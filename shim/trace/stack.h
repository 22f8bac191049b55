/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Call paths: the return addresses on the calling thread's stack. A frame costs 2 ns once the rule
 * of its return address is known (cfi.h); rules of 4,096 addresses are kept, for all threads. No
 * lock and no memory then. The first look at an address takes microseconds, and the thread's first
 * walk asks for its bounds: 2 us, or 100 us in the process's first thread.
 *
 * A path is what the stack says, or shorter:
 * 1. A walk begins at its own frame. So all registers that count are known, and the frames of this
 *    library are left by rules, too. The path begins with the return address `caller`.
 * 2. All reads are between the own stack pointer and the end of the thread's stack. A frame begins
 *    where the one before it ends, so a walk goes up and ends. On another stack (a signal's, a
 *    coroutine's) there is no path.
 * 3. Where a value is not sure, the path ends: code without a rule, or a frame that counts from rbp
 *    after rbp was lost. A signal's frame has no rule.
 * 4. An address counts only if it lies in loaded code behind a call.
 * 5. A rule is of the object that had the address when it was learned, by a thread that had the
 *    address on its stack. Our dlclose forgets all rules before an object goes (stack_forget). A
 *    thread that learns one meanwhile has its object on its stack; that object is unloaded by a
 *    later dlclose. A dlclose that does not come to ours leaves rules for other code at the same
 *    addresses. Then 2 still holds, and 4 for the other code as well once it was looked at.
 * 6. A rule is one word, with the address in it. So a reader has a whole rule or none.
 * 7. Nothing is kept of a frame, so exceptions, longjmp and the end of a thread leave nothing.
 */
#ifndef SHIM_STACK_H
#define SHIM_STACK_H

#include <stdbool.h>
#include <stdint.h>

enum { STACK_FRAMES_MOST = 64 };

/* Code at these addresses. */
struct stack_code {
    uintptr_t start, end;
};
/* Fills up to `most` return addresses, from `caller` on, outwards, and before one in `until`.
 * Returns how many; 0: `caller` is not found. The calling thread must not be in a forked child
 * (cfi.h, 2). Keeps errno. No cancellation point. */
unsigned stack_walk(const void *caller, unsigned most, struct stack_code until, uint64_t *out);
/* An object may be unloaded. Any thread. */
void stack_forget(void);

#endif
