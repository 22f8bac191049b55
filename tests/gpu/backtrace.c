/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Preloaded behind the library: a program that aborts (a corrupt heap, a failed assertion of the
 * driver's) says on stderr where. A rare crash on a machine without core files is seen once only.
 */
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void on_abort(int signal_number)
{
    void *frames[64];
    dprintf(STDERR_FILENO, "abort in process %d, thread %ld:\n", (int)getpid(),
            (long)syscall(SYS_gettid));
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

__attribute__((constructor)) static void start(void)
{
    void *frame;
    backtrace(&frame, 1); /* loads what it needs now, while the heap is whole */
    signal(SIGABRT, on_abort);
}
