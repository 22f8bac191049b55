/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Another process takes this one's GPU memory off the device and puts it back, by the driver's
 * checkpoint functions. The program waits meanwhile, with live, idle and lately freed blocks.
 * Whatever the driver answers, it answers bare as well; and if it worked, all is as it was, and
 * goes on.
 */
#include "tests/preload/scene.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char inner_variable[] = "SCENE_CHECKPOINT"; /* the process to be checkpointed */

enum { STEPS = 4, LIVE = 6 };

static const char *const steps[STEPS] = {"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint",
                                         "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"};

/* Exits with 0 if all went well. Else the status is 32 times the failing step (1 to 4) plus the
 * lowest five bits of the code. */
static int helper(int pid)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = NULL;
    EXPECT(driver != NULL);
    *(void **)&init = dlsym(driver, "cuInit");
    EXPECT(init != NULL);
    for (int i = 0; i < STEPS; i++) {
        int (*step)(int, void *) = NULL;
        unsigned char arguments[64] = {0};
        *(void **)&step = dlsym(driver, steps[i]);
        if (step == NULL)
            return SCENE_SKIP;
        if (i == 0) {
            REQUIRE(init(0));
            memcpy(arguments, &(unsigned){5000}, sizeof(unsigned)); /* the lock's time limit, ms */
        }
        int rc = step(pid, i == 0 ? arguments : NULL);
        if (rc != 0) {
            if (i == 1 && (*(void **)&step = dlsym(driver, steps[3])) != NULL)
                step(pid, NULL);
            return (i + 1) * 32 + rc % 32;
        }
    }
    return 0;
}

int main(void)
{
    static const size_t sizes[LIVE] = {600, 9000, 300000, 1 * MIB, 5 * MIB, 40 * MIB};
    uint64_t live[LIVE];
    uint64_t idle = 0;
    CUstream stream = NULL;
    char value[32];
    int status = -1;
    size_t wrong = 0;
    const char *whom = getenv(inner_variable);
    if (whom != NULL)
        return helper(atoi(whom));
    scene_start(1, 60);
    if (!scene_driver_has(steps[0]))
        scene_skip("no checkpoint functions");
    REQUIRE(gpu_stream_create(&stream, false));
    for (int i = 0; i < LIVE; i++) {
        REQUIRE(gpu_malloc(&live[i], sizes[i]));
        REQUIRE(gpu_malloc(&idle, sizes[i] * 2));
        REQUIRE(gpu_memset_async(live[i], 40 + i, sizes[i], stream));
        REQUIRE(gpu_memset_async(idle, 1, sizes[i] * 2, stream));
        REQUIRE(gpu_free(idle));
    }
    fflush(stdout);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    snprintf(value, sizeof value, "%d", (int)getpid());
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        setenv(inner_variable, value, 1);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "checkpoint", (char *)NULL);
        _exit(127);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
    printf("checkpointed and restored: %d\n", WEXITSTATUS(status));
    for (int i = 0; i < LIVE; i++)
        wrong += scene_wrong_bytes(live[i], sizes[i], (unsigned char)(40 + i));
    for (int round = 0; round < 20; round++) {
        REQUIRE(gpu_malloc(&idle, (size_t)(round + 1) * MIB));
        REQUIRE(gpu_memset_async(idle, round, MIB, stream));
        REQUIRE(gpu_stream_sync(stream));
        wrong += scene_wrong_bytes(idle, MIB, (unsigned char)round);
        REQUIRE(gpu_free(idle));
    }
    for (int i = 0; i < LIVE; i++)
        REQUIRE(gpu_free(live[i]));
    printf("%zu wrong bytes\n", wrong);
    return wrong != 0;
}
