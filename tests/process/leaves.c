/* SPDX-License-Identifier: BSD-2-Clause */
/* LEAVES WAY CALL: leaves while a second thread is in an allocation that takes long, once it is in
 * that call of the driver: exit status 5. In the way "child" a child leaves instead, made by a fork
 * that runs no handlers of pthread_atfork(). In the way "signal" there is no second thread: a
 * signal handler leaves while the first one allocates. In the way "flush" the second thread gives
 * its memory back, and the library's thread is in a flush. */
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t simCallCount(const char *symbol); /* tests/sim/sim.h */

static CUcontext context;

static void *work(void *flushes)
{
    CUdeviceptr block = 0;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        _exit(1);
    cuMemAlloc(&block, 1 << 20);
    if (flushes) {
        cuMemFree(block);
        kill(getpid(), SIGUSR1);
    }
    pause();
    return NULL;
}

static void leave(int signal_number)
{
    exit(5);
}

static void leave_by_signal(void)
{
    const struct itimerval soon = {.it_value = {.tv_usec = 5000}};
    CUdeviceptr block;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        exit(1);
    signal(SIGALRM, leave);
    for (int i = 0;; i++) {
        if (cuMemAlloc(&block, 3000) != CUDA_SUCCESS || cuMemFree(block) != CUDA_SUCCESS)
            exit(1);
        if (i == 10)
            setitimer(ITIMER_REAL, &soon, NULL);
    }
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int status = 0;
    if (argc < 2)
        return 1;
    bool by_child = strcmp(argv[1], "child") == 0, flushes = strcmp(argv[1], "flush") == 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return 1;
    if (strcmp(argv[1], "signal") == 0)
        leave_by_signal();
    if (argc < 3 || pthread_create(&thread, NULL, work, flushes ? &context : NULL) != 0)
        return 1;
    while (!simCallCount(argv[2]))
        usleep(1000);
    if (!by_child)
        exit(5);
    pid_t child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (child == 0)
        exit(5);
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}
