/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See start.h. The start takes no lock: one thread does it (state_claim), and allocations of other
 * threads meanwhile go to the driver.
 */
#include "shim/entry/start.h"

#include "pool/pool.h"
#include "pool/spin.h"
#include "shim/command/command.h"
#include "shim/context/context.h"
#include "shim/control/flush.h"
#include "shim/control/interim_report.h"
#include "shim/control/publish.h"
#include "shim/control/signal.h"
#include "shim/control/tracing.h"
#include "shim/driver/call_scope.h"
#include "shim/loader/second_copy.h"
#include "shim/option/in_force.h"
#include "shim/park/asleep.h"
#include "shim/park/park.h"
#include "shim/process/environ.h"
#include "shim/process/fork_gate.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/share/lend.h"
#include "shim/socket/listener.h"
#include "shim/stats/report.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK /* glibc has it since 2.27 */
#define MADV_WIPEONFORK 18
#endif

/* The process that started the library, and before that the one that watched forks first. A child
 * made by clone() inherits the word ON, since the handler of fork() does not run there. */
static _Atomic pid_t owner;

/* CUDA does not work in a forked child, and another thread of the parent may have held any lock.
 * From here on every call goes to the driver, whose answer is the native one. CUDA does work if all
 * calls of the parent failed; that child has no pool. */
static void forked_child(void)
{
    state_turn_off();
    fork_gate_forget();
    atomic_store(&pool_watch, 0);
    context_forget_thread();
    signal_leave();
    trace_leave();
    listener_forget();
}

/* On the heap, 128 KiB: the thread that ends the process may have a stack of 16 KiB. */
struct at_exit {
    struct options options;
    struct report_pool pools[REPORT_ROWS_MAX];
};

static void report_at_exit(void)
{
    if (!in_force_wants_report())
        return;
    if (!context_can_report()) {
        log_warn("the report is not written: a signal handler ended the process in the middle of "
                 "an allocation");
        return;
    }
    struct at_exit *now = malloc(sizeof *now);
    if (!now) {
        log_warn("the report is not written: the process has no host memory for it");
        return;
    }
    interim_report_end();
    in_force_copy(&now->options); /* the control thread may be changing them */
    const struct option_stats *where = &now->options.stats;
    struct report_flush last;
    struct report r;
    publish_fill_report(&r, now->pools, REPORT_ROWS_MAX, &last);
    r.options = &now->options;
    if (!report_write(&r, where) && where->path[0])
        log_warn("the report cannot be written to %s: name a file in a folder of your own",
                 where->path);
    free(now);
}

/* What atexit(), at_quick_exit() and pthread_atfork() call. Those three would be linked into the
 * library (libc_nonshared.a), from objects that may lack the notes for shadow stacks and branch
 * targets. Then the whole process would lose both. Older C libraries have the same functions; musl
 * has the first one only. An object is named so that its unloading removes the handlers. We stay
 * loaded. */
extern int __cxa_atexit(void (*run)(void *), void *arg, void *object);
extern int __cxa_at_quick_exit(void (*run)(void *), void *object) __attribute__((weak));
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                             void *object) __attribute__((weak));

static void run_at_exit(void *arg)
{
    (void)arg;
    if (!state_is_on() || getpid() != atomic_load(&owner))
        return;     /* a child: neither the page nor the calls under way are its own */
    park_at_exit(); /* the report asks the driver */
    tracing_end();
    report_at_exit();
    call_scope_at_exit();
    publish_end();
}

/* The driver has registered its own handlers before, so ours run before them. */
static void register_exit_handlers(void)
{
    __cxa_atexit(run_at_exit, NULL, NULL);
    if (__cxa_at_quick_exit)
        __cxa_at_quick_exit(run_at_exit, NULL);
}

static atomic_bool forks_watched;
/* A handler of a signal may call a wrapper in the middle of the registration, whose lock is taken.
 * The call that it interrupted then goes on with the registration. */
static __thread bool watching_forks __attribute__((tls_model("initial-exec")));

/* A byte that is 1, and 0 in each child that has memory of its own, however it was forked. NULL:
 * the kernel has no such memory (it came with Linux 4.14), or a filter of calls forbids it. */
static _Atomic(unsigned char *) parent_mark;

static void make_parent_mark(void)
{
    unsigned char *none = NULL;
    atomic_store(&owner, getpid());
    unsigned char *mark = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED)
        return;
    *mark = 1;
    if (madvise(mark, 1, MADV_WIPEONFORK) != 0 ||
        !atomic_compare_exchange_strong(&parent_mark, &none, mark))
        munmap(mark, 1);
}

static bool is_unmarked(void)
{
    const unsigned char *mark = atomic_load_explicit(&parent_mark, memory_order_acquire);
    return mark && !*mark;
}

/* Without the byte: has the process another number? A child of vfork has one too, and all memory of
 * its parent, so nothing is to change there. */
static bool is_other_process(void)
{
    return !atomic_load_explicit(&parent_mark, memory_order_acquire) &&
           getpid() != atomic_load(&owner);
}

static bool watch_forks(void)
{
    if (atomic_load_explicit(&forks_watched, memory_order_acquire) || watching_forks)
        return true;
    int saved_errno = errno;
    watching_forks = true;
    make_parent_mark();
    bool done = __register_atfork &&
                __register_atfork(fork_gate_close, fork_gate_open, forked_child, NULL) == 0;
    watching_forks = false;
    if (done)
        atomic_store_explicit(&forks_watched, true, memory_order_release);
    errno = saved_errno;
    return done;
}

bool library_is_off(void)
{
    watch_forks();
    if (!state_is_off() && is_unmarked())
        forked_child();
    return state_is_off() || is_other_process();
}

bool start_library(void)
{
    if (!state_claim())
        return state_is_on();
    int saved_errno = errno;
    environ_hold();
    bool on = !second_copy_comes_first() && in_force_load();
    environ_release();
    on = on && watch_forks();
    if (on) {
        atomic_store(&owner, getpid());
        register_exit_handlers();
    }
    if (on) { /* before another thread makes a pool, and with it the page */
        lend_start();
        command_start();
    }
    state_settle(on);
    if (on) {
        flush_start();
        tracing_start();
        asleep_options_changed();
    }
    errno = saved_errno;
    return on;
}

bool library_is_started(void)
{
    for (unsigned turn = 0; !state_is_on() && !start_library(); turn++) {
        if (atomic_load(&state_now) != STATE_STARTING)
            return state_is_on();
        spin_pause(turn);
    }
    return true;
}
