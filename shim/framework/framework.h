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
 * The locks that meet here, and why no wait is without end:
 *  G  the interpreter's lock. A thread may hold it in C code for minutes. A  a package's allocator
 *  lock. PyTorch holds it while it calls cudaMalloc and cudaFree. P  the pools' locks. No lock of
 *  ours is held over a driver call or a call of Python's. S  a slot of the page, which another
 *  process waits on, for a bounded time. C  the control thread: it runs one duty at a time. F  the
 *  framework thread: there is one at most, and later requests join it. L  the loader's lock. A
 *  thread may hold it while a constructor waits for something.
 *
 *  1. A thread of the program that allocates may hold G, A and L. It waits in the library for P,
 *     for captures, and for other processes (S). It never waits for F, nor for C: when it is out of
 *     memory, only the pools are asked. A request of the environment that it carries out only sets
 *     a duty of C due. So it is no part of a circle with F or C in this process.
 *  2. C waits for no F. It asks, and goes on with its duties. It runs no Python, calls no dlopen,
 *     and looks for an interpreter without L. Where a request of another process (S) is to tell the
 *     answer, a duty of C looks for it in turns, FRAMEWORK_WAIT_NS at most
 *     (shim/control/gpu_wait.h).
 *  3. F waits for L, for G, then for A, and in its calls of the driver for P. It holds G and A as a
 *     thread of the program would that calls the same functions. torch.cuda.empty_cache waits for A
 *     without G. But for 10, F waits for nothing else: not for C, not for S, not for a capture. A
 *     free by the package is the program's own free: it asks no other process and waits for no
 *     capture.
 *  4. A wait for P is short, because no thread holds P over a driver call or a call of Python's. So
 *     otherwise F waits only for threads that hold L, G or A. They wait for no F by 1. hold_exit
 *     and hold_fork (python.h, 7 and 11) wait for F, but they let G go first, and wait for a
 *     bounded time.
 *  5. Two processes may both be out of memory. In each a thread holds G and A, and waits for the
 *     other process (S) for a bounded time. Each C is free by 1. C gives back what the pools have.
 *     It answers after a bounded time, though its F waits for G. So both waits for S end within
 *     their bound.
 *  6. F may wait for ever (G is never let go). Then no second thread is made, and the pools' memory
 *     goes back all the same.
 *  7. F stores the answer, then calls `answered`, which makes a duty of C due. thread.h says why no
 *     such call is lost. So what the packages freed goes back by another flush, however late F is.
 *  8. A question that comes while F runs: the asker counts the question, then looks whether F is
 *     there. F says that it is not there any more, then looks at the count. So F runs again, or the
 *     asker makes a new one.
 *  9. A forked child has no F and makes none: the library is off there.
 * 10. C and F wait for the end of a fork, and a fork waits for them (python.h, 12). Either wait is
 *     bounded. The moments that a fork waits for are short: in them C and F wait for none of these
 *     locks.
 * 11. A look asks what the packages keep, and empties nothing. PyTorch tells it under A, and waits
 *     for A with G held. PyTorch's own order is G before A. So no thread that holds A waits for G
 *     itself. But a thread may hold A while it waits for GPU work, and that work may wait for a
 *     host function that needs G. So F asks PyTorch only while no thread of the program waits in
 *     the driver for GPU work, and none is in a driver call of the library's (is_quiet). Else the
 *     package is FRAMEWORK_BUSY. A thread that holds A in another state gives it back soon: it
 *     waits for no GPU work, and for other processes a second at most. Not covered: a thread that
 *     takes A and begins such a wait in the microseconds between F's look at the threads and its
 *     call.
 * 12. A look is asked for by a request of another process alone.
 *
 * C++ programs (libtorch without Python) are not asked: c10::cuda::CUDACachingAllocator::emptyCache
 * is a C++ function whose name and table change between releases.
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
