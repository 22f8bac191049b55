/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program that was started with SIGUSR1 ignored (nohup and job systems do so with signals): it
 * stays so, for calls that a signal would interrupt and for children made in every way.
 */
#include "tests/preload/scene.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static char command[] = "kill -USR1 $$; exit 3";
static char shell[] = "sh", option[] = "-c";
static char *const words[] = {shell, option, command, NULL};

static void show(const char *how, int status)
{
    if (WIFSIGNALED(status))
        printf("%s: ended by signal %d\n", how, WTERMSIG(status));
    else
        printf("%s: left with %d\n", how, WEXITSTATUS(status));
}

static void *signal_soon(void *main_thread)
{
    scene_sleep_ms(100);
    REQUIRE(pthread_kill(*(pthread_t *)main_thread, SIGUSR1));
    return NULL;
}

int main(void)
{
    struct sigaction now;
    uint64_t block = 0;
    pid_t child;
    int status = 0;
    pthread_t self = pthread_self(), other;
    EXPECT(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, 4 * MIB));
    REQUIRE(gpu_free(block));
    REQUIRE(sigaction(SIGUSR1, NULL, &now));
    printf("%s\n", now.sa_handler == SIG_IGN ? "ignored" : "not ignored");
    REQUIRE(pthread_create(&other, NULL, signal_soon, &self));
    printf("poll: %d\n", poll(NULL, 0, 300));
    REQUIRE(pthread_join(other, NULL));
    fflush(stdout);
    REQUIRE(posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ));
    EXPECT(waitpid(child, &status, 0) == child);
    show("posix_spawn", status);
    fflush(stdout);
    child = vfork();
    EXPECT(child >= 0);
    if (child == 0) {
        execve("/bin/sh", words, environ);
        _exit(1);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    show("vfork", status);
    show("system", system(command));
    return 0;
}
