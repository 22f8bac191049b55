/* SPDX-License-Identifier: BSD-2-Clause */
/* The observing process of observer.h. It starts itself again without LD_PRELOAD, so that it holds
 * nothing of the cache. No state. */
#include "tests/preload/observer.h"
#include "tests/preload/scene.h"

static const char observe_variable[] = "SCENE_OBSERVE"; /* "ask,answer": descriptors */

static void observe(int ask, int answer)
{
    char question = 0;
    if (gpu_open(0) != 0)
        _exit(1);
    while (read(ask, &question, 1) == 1) {
        size_t free_bytes = 0;
        if (gpu_mem_info(&free_bytes, NULL) != 0 ||
            write(answer, &free_bytes, sizeof free_bytes) != sizeof free_bytes)
            _exit(1);
    }
    _exit(0);
}

void observer_serve(void)
{
    int ask = -1, answer = -1;
    const char *inherited = getenv(observe_variable);
    if (inherited != NULL && sscanf(inherited, "%d,%d", &ask, &answer) == 2)
        observe(ask, answer);
}

void observer_start(struct observer *observer)
{
    int to[2], from[2];
    REQUIRE(pipe(to));
    REQUIRE(pipe(from));
    observer->pid = fork();
    EXPECT(observer->pid >= 0);
    if (observer->pid == 0) {
        char descriptors[32];
        close(to[1]);
        close(from[0]);
        snprintf(descriptors, sizeof descriptors, "%d,%d", to[0], from[1]);
        setenv(observe_variable, descriptors, 1);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "observer", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    observer->ask = to[1];
    observer->answer = from[0];
}

size_t observer_free_bytes(struct observer *observer)
{
    size_t free_bytes = 0;
    EXPECT(write(observer->ask, "?", 1) == 1);
    EXPECT(read(observer->answer, &free_bytes, sizeof free_bytes) == sizeof free_bytes);
    return free_bytes;
}

void observer_stop(struct observer *observer)
{
    int status = -1;
    close(observer->ask);
    close(observer->answer);
    EXPECT(waitpid(observer->pid, &status, 0) == observer->pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
