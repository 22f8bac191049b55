/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room framework/: the caches of device memory that Python packages keep of their own (PyTorch,
 * CuPy, Numba, RMM). Without CUDA: struct framework_host lends what is needed of it. Its one seam
 * is this header. A flush first asks the packages to give their caches back. Then it gives back
 * what is idle in the pools.
 *
 * A thread of the library's own asks them. It is made when a flush asks, and ends with the answer.
 * All signals are blocked on it. shim/framework/python.h says what it does in the interpreter.
 *
 * Which locks meet here, and why no wait is without end: Note [Framework locks] in README.md, whose
 * letters and steps the code names.
 */
#ifndef SHIM_FRAMEWORK_H
#define SHIM_FRAMEWORK_H

#include "shim/framework/python.h"
#include "shim/process/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* How long a request of another process waits for the packages' answer. Beside a busy program the
 * interpreter's lock takes some 5 ms (sys.getswitchinterval). */
#define FRAMEWORK_WAIT_NS (100 * MS_NS)

/* Asks the packages, and waits for nothing. Once they have answered, `answered` is called on
 * another thread. Returns the number of the question. 0: none is asked, because there is no
 * interpreter, GPUCACHE_FRAMEWORKS is off, or no thread can be made. On the control thread. Both
 * pointers must stay valid, and be the same in all calls. */
uint64_t framework_ask(const struct framework_host *host, void (*answered)(void));
/* Has the question its answer? Fills NUM_FRAMEWORKS results: those of the latest answer, or
 * FRAMEWORK_LATE. Question 0 has one: all are absent. Any thread. */
bool framework_has_answered(uint64_t question, struct framework_result *results);

/* Asks the packages how much memory they only keep, and waits for nothing. Else as framework_ask;
 * nobody is called. A thread that runs either question runs the other too. */
uint64_t framework_look(const struct framework_host *host);
/* Fills NUM_FRAMEWORKS of `cached` too, if the question has its answer. */
bool framework_has_looked(uint64_t question, struct framework_result *results,
                          struct framework_cached *cached);

/* Does one of the results, or does each of them, have this state? */
bool framework_any_is(const struct framework_result *results, enum framework_state state);
bool framework_all_are(const struct framework_result *results, enum framework_state state);
/* The state as a word: "absent", "idle", "done", "keeps", "failed", "busy", "late". Static. */
const char *framework_state_name(enum framework_state state);

#endif
