/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See signal.h.
 */
#include "shim/control/signal.h"

#include "shim/process/log.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static struct sigaction chained;  /* the program's setting before our handler */
static atomic_bool chained_gone;  /* it was for one signal (SA_RESETHAND), which has come */
static int installed;             /* the signal with our handler; 0: none */
static struct duty *_Atomic duty; /* a thread that takes the signal may be any */

static void on_signal(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    control_due(atomic_load(&duty), 0);
    if ((chained.sa_flags & SA_RESETHAND) && atomic_exchange(&chained_gone, true)) {
        /* The program's handler was for one signal only. */
    } else if (chained.sa_flags & SA_SIGINFO) {
        if (chained.sa_sigaction)
            chained.sa_sigaction(signal_number, info, context);
    } else if (chained.sa_handler != SIG_DFL && chained.sa_handler != SIG_IGN) {
        chained.sa_handler(signal_number);
    }
    errno = saved_errno;
}

static bool is_ours(int signal_number)
{
    struct sigaction now;
    return !sigaction(signal_number, NULL, &now) && (now.sa_flags & SA_SIGINFO) &&
           now.sa_sigaction == on_signal;
}

/* A signal that the program ignores stays ignored. Children inherit that, but no handler: a child
 * of posix_spawn, vfork or system would die of the signal. Where the program has a handler, ours
 * keeps its mask, its stack and its way of interrupting calls. Where it has none, interrupted calls
 * are restarted, so that the program notices nothing. */
int signal_install(int signal_number, struct duty *due)
{
    struct sigaction mine;
    if (!signal_number || sigaction(signal_number, NULL, &chained))
        return 0;
    bool own = (chained.sa_flags & SA_SIGINFO) || chained.sa_handler != SIG_DFL;
    if (chained.sa_handler == SIG_IGN) { /* the kernel looks at nothing else, whatever the flags */
        log_info("the process ignores signal %d, and the library leaves it so: the signal gives no "
                 "memory back; name another one with GPUCACHE_SIGNAL",
                 signal_number);
        return 0;
    }
    atomic_store(&duty, due);
    mine = chained;
    mine.sa_sigaction = on_signal;
    mine.sa_flags = SA_SIGINFO | (own ? chained.sa_flags & ~SA_RESETHAND : SA_RESTART | SA_ONSTACK);
    if (!own)
        sigemptyset(&mine.sa_mask);
    if (!sigaction(signal_number, &mine, NULL))
        installed = signal_number;
    return installed;
}

void signal_leave(void)
{
    if (!installed || !is_ours(installed))
        return;
    if (atomic_load(&chained_gone))
        chained = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(installed, &chained, NULL);
}
