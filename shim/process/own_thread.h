/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Threads of the library's own, beside the program's: the control thread, the listener, the thread
 * of the packages and the thread at the doorbell. All are made here, and all alike:
 *
 *  1. Detached. No thread waits for its end, and the maker keeps no handle: once the thread has
 *     ended, a handle names nothing.
 *  2. All signals are blocked on it from its first instruction on. The maker blocks them on itself
 *     for the call, because a thread begins with its maker's mask. So the program's handlers never
 *     run on it, and it takes no signal that the program waits for.
 *  3. It sets its name itself. From another thread that call opens a file in /proc, among the
 *     program's descriptors.
 *  4. While the driver must not be called (shim/driver/closed.h) they do no work that needs it.
 *     own_visit_begin refuses such work, which the closing thread has awaited before.
 *  5. A forked child has none of these threads. What the maker remembers of them is a copy there:
 *     the library is off in a child (process/state.h) and makes no other.
 */
#ifndef SHIM_OWN_THREAD_H
#define SHIM_OWN_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* Static: the thread reads it. */
struct own_thread {
    const char *name; /* at most 15 characters, in /proc/PID/task/TID/comm */
    /* The whole stack; only touched pages count as memory. The C library takes the thread-local
     * data of the program's objects out of it. If they leave too little, the stack has the
     * program's default size. */
    size_t stack_bytes;
    void (*run)(void); /* the thread ends when it returns */
};

/* Makes the thread. False: there is none, because the process may not create another thread or has
 * no memory for its stack. Any thread may call, but no signal handler. Waits for no other thread.
 * Keeps errno and the signal mask. */
bool own_thread_start(const struct own_thread *thread);

/* Is the calling thread one of these? */
extern __thread bool own_thread_is_here
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Around work that changes pools or calls packages. False: this is one of the library's threads,
 * and the driver must not be called now; nothing follows. Other threads pass. May be nested. */
bool own_visit_begin(void);
void own_visit_end(void);
/* From here on no visit begins. own_visits_are_over: has each one ended that was under way? */
void own_visits_bar(void);
bool own_visits_are_over(void);
void own_visits_allow(void);

#endif
