/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A child of fork() starts a thread, which makes the process's first calls of setenv, of putenv and
 * of dlsym for a driver function. While the parent forks, another thread of it holds the lock of
 * the loader's list of objects, as a callback of dl_iterate_phdr does. The C library does not
 * release that lock in the child. The three calls do not take it. No CUDA.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t held, forked;

static int hold(struct dl_phdr_info *info, size_t size, void *arg)
{
    sem_post(&held);
    sem_wait(&forked);
    return 1;
}

static void *hold_list(void *arg)
{
    dl_iterate_phdr(hold, arg);
    return NULL;
}

static void *call(void *arg)
{
    static char text[] = "FORKED_PUTENV=1";
    int rc = setenv("FORKED_SETENV", "1", 1);
    rc |= putenv(text);
    rc |= dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL;
    return rc ? arg : NULL;
}

static void child(void)
{
    pthread_t thread;
    void *failed = NULL;
    alarm(10); /* a call that waits for ever ends the child by SIGALRM */
    if (pthread_create(&thread, NULL, call, &held) != 0)
        _exit(2);
    pthread_join(thread, &failed);
    _exit(failed || !getenv("FORKED_SETENV") || !getenv("FORKED_PUTENV"));
}

int main(void)
{
    pthread_t thread;
    int status = -1;
    sem_init(&held, 0, 0);
    sem_init(&forked, 0, 0);
    if (pthread_create(&thread, NULL, hold_list, NULL) != 0)
        return 2;
    sem_wait(&held);
    pid_t pid = fork();
    if (pid == 0)
        child();
    waitpid(pid, &status, 0);
    sem_post(&forked);
    pthread_join(thread, NULL);
    printf("the child ended with status %d\n", status);
    return status != 0;
}
