/* SPDX-License-Identifier: BSD-2-Clause */
/* A process takes the GPU memory of another one, or its own, off the device and puts it back, by
 * the driver's checkpoint functions. Whatever the driver answers, it answers bare as well; and if
 * it worked, all is as it was, and goes on. */
#include "tests/preload/asker.h"
#include "tests/preload/ipc_peer.h"

#include <sys/prctl.h>

/* The process to be checkpointed; and set in a process that another one locks */
static const char inner_variable[] = "SCENE_CHECKPOINT";
static const char target_variable[] = "SCENE_CHECKPOINTED";

enum { STEPS = 4, LIVE = 6 };

static const char *const steps[STEPS] = {"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint",
                                         "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"};

static int step(int index, int pid)
{
    int (*function)(int, void *) = NULL;
    unsigned char arguments[64] = {0};
    *(void **)&function = scene_driver_symbol(steps[index]);
    EXPECT(function != NULL);
    if (index == 0)
        memcpy(arguments, &(unsigned){5000}, sizeof(unsigned)); /* the lock's time limit, ms */
    return function(pid, index == 0 ? arguments : NULL);
}

/* Exits with 0 if all went well. Else the status is 32 times the failing step (1 to 4) plus the
 * lowest five bits of the code. */
static int helper(int pid)
{
    REQUIRE(cuInit(0));
    for (int i = 0; i < STEPS; i++) {
        int rc = step(i, pid);
        if (rc != 0) {
            if (i == 1)
                step(3, pid);
            return (i + 1) * 32 + rc % 32;
        }
    }
    return 0;
}

static bool can_step(void)
{
    for (int i = 0; i < STEPS; i++)
        if (!scene_driver_has(steps[i]))
            return false;
    return true;
}

/* Live, idle and lately freed blocks of a process that waits meanwhile. The one that takes the
 * checkpoint has no memory of its own, and is without the library. */
ACT(what_was_checkpointed_goes_on)
{
    static const size_t sizes[LIVE] = {600, 9000, 300000, 1 * MIB, 5 * MIB, 40 * MIB};
    uint64_t live[LIVE], idle = 0;
    char value[32];
    size_t wrong = 0;
    scene_start(1, 60);
    if (!can_step())
        scene_skip("no checkpoint functions");
    CUstream stream = NEW_STREAM(false);
    for (int i = 0; i < LIVE; i++) {
        live[i] = NEW_BLOCK(sizes[i]);
        idle = NEW_BLOCK(sizes[i] * 2);
        REQUIRE(gpu_memset_async(live[i], 40 + i, sizes[i], stream));
        REQUIRE(gpu_memset_async(idle, 1, sizes[i] * 2, stream));
        REQUIRE(gpu_free(idle));
    }
    fflush(stdout);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    snprintf(value, sizeof value, "%d", (int)getpid());
    pid_t child = scene_fork();
    if (child == 0) {
        setenv(inner_variable, value, 1);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "checkpoint", (char *)NULL);
        _exit(127);
    }
    printf("checkpointed and restored: %d\n", scene_wait(child));
    for (int i = 0; i < LIVE; i++)
        wrong += scene_wrong_bytes(live[i], sizes[i], (unsigned char)(40 + i));
    for (int round = 0; round < 20; round++) {
        idle = NEW_BLOCK((size_t)(round + 1) * MIB);
        REQUIRE(gpu_memset_async(idle, round, MIB, stream));
        REQUIRE(gpu_stream_sync(stream));
        wrong += scene_wrong_bytes(idle, MIB, (unsigned char)round);
        REQUIRE(gpu_free(idle));
    }
    printf("%zu wrong bytes\n", wrong);
    return wrong != 0;
}

/* ---- a process that another one locks */

/* Each context takes that (scenes.table). Work takes longer than a flush waits for it. */
enum { TARGET_LIVE_MIB = 64, TARGET_IDLE_MIB = 1024, CONTEXT_MIB = 512, WORK_MS = 700 };
/* More than the process ever had in its pool, and less than that and its context. */
enum { ROOM_MIB = 400 };

/* Frees much before the lock. Has a pool of the driver's, whose figures are a driver call. Says
 * when it is ready, and waits until it may go on. */
static int be_locked(void)
{
    uint64_t freed = 0;
    CUdeviceptr ordered = 0;
    unsigned char byte = 0;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    scene_start(1, 60);
    uint64_t live = NEW_BLOCK(TARGET_LIVE_MIB * MIB);
    REQUIRE(gpu_memset(live, 42, TARGET_LIVE_MIB * MIB));
    for (int i = 0; i < TARGET_IDLE_MIB / 64; i++) {
        freed = NEW_BLOCK(64 * (size_t)(i % 4 + 1) * MIB);
        REQUIRE(gpu_memset(freed, 1, MIB));
        REQUIRE(gpu_free(freed));
    }
    REQUIRE(cuMemAllocAsync(&ordered, MIB, NULL));
    REQUIRE(cuMemFreeAsync(ordered, NULL));
    REQUIRE(gpu_sync());
    (void)asker_page(); /* another process asks it, through its page */
    EXPECT(write(STDOUT_FILENO, "x", 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1);
    size_t wrong = scene_wrong_bytes(live, TARGET_LIVE_MIB * MIB, 42);
    for (int i = 0; i < 20; i++) {
        freed = NEW_BLOCK(10 * MIB);
        REQUIRE(gpu_memset(freed, 7, 10 * MIB));
        REQUIRE(gpu_free(freed));
    }
    return wrong != 0;
}

static int exec_target(int from, int to)
{
    setenv(target_variable, "1", 1);
    dup2(from, STDIN_FILENO);
    dup2(to, STDOUT_FILENO);
    execl("/proc/self/exe", "checkpoint", (char *)NULL);
    _exit(127);
}

/* Returns once it is ready. */
static struct ipc_peer start_target(void)
{
    char byte = 0;
    struct ipc_peer target = ipc_peer_fork_work(exec_target);
    EXPECT(read(target.from, &byte, 1) == 1);
    return target;
}

static int take(size_t size_bytes)
{
    uint64_t block = 0;
    int rc = gpu_malloc(&block, size_bytes);
    if (rc == 0)
        REQUIRE(gpu_free(block));
    return rc;
}

/* What is in the way of the restore, and is freed before it: memory of the process that takes the
 * checkpoint, in these cases; or of a third process, all or half of the device. */
enum freed { FREED, FREED_BEHIND_WORK, FREED_BEFORE_CAPTURE, FREED_BY_ANOTHER, FREED_HALF };

static void work(void *unused)
{
    scene_sleep_ms(WORK_MS);
}

static void fill_and_free(bool behind_work)
{
    uint64_t large = 0;
    printf("more than is free: %d\n", take(FREE_BYTES() + 64 * MIB));
    printf("nearly all: %d\n", gpu_malloc(&large, FREE_BYTES() - ROOM_MIB * MIB));
    if (behind_work)
        REQUIRE(cuLaunchHostFunc(NULL, work, NULL));
    REQUIRE(gpu_free(large));
}

/* In a process of its own, when it may. Waits until it may end. */
static int be_in_the_way(int from, int to)
{
    char byte = 0;
    uint64_t half = 0;
    EXPECT(read(from, &byte, 1) == 1);
    scene_start(1, 60);
    NEW_BLOCK(MIB);
    if (byte == FREED_HALF) {
        half = NEW_BLOCK(FREE_BYTES() / 2);
        REQUIRE(gpu_free(half));
    } else {
        fill_and_free(false);
    }
    (void)asker_figure("reserved_bytes"); /* its page says it by now */
    fflush(stdout);
    EXPECT(write(to, "x", 1) == 1 && read(from, &byte, 1) == 1);
    return 0;
}

/* The one that takes the checkpoint has no memory yet when it locks. A real device has other users:
 * then only the simulated one is filled. A restore that fails loses the process, so the first one
 * has to find the memory. */
static int put_back(enum freed freed)
{
    char byte = (char)freed;
    bool has_other = freed == FREED_BY_ANOTHER || freed == FREED_HALF;
    CUgraph graph = NULL;
    struct ipc_peer other = {0};
    if (has_other)
        other = ipc_peer_fork_work(be_in_the_way);
    scene_start(1, 60);
    if (!can_step() || (freed != FREED && !scene_simulated()))
        scene_skip("no checkpoint functions");
    size_t before = FREE_BYTES();
    struct ipc_peer target = start_target();
    printf("lock: %d\n", step(0, target.pid));
    if (scene_simulated())
        printf("what it has freed is %s\n",
               before - FREE_BYTES() < (TARGET_LIVE_MIB + CONTEXT_MIB + 64) * MIB ? "free"
                                                                                  : "taken");
    NEW_BLOCK(MIB);
    CUstream stream = NEW_STREAM(true);
    printf("checkpoint: %d\n", step(1, target.pid));
    fflush(stdout);
    if (has_other)
        EXPECT(write(other.to, &byte, 1) == 1 && read(other.from, &byte, 1) == 1);
    else if (scene_simulated())
        fill_and_free(freed == FREED_BEHIND_WORK);
    if (freed == FREED_BEFORE_CAPTURE)
        REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    size_t room = FREE_BYTES();
    int restored = step(2, target.pid);
    printf("restore: %d\n", restored);
    if (freed == FREED_HALF)
        printf("what is idle is %s\n", FREE_BYTES() < room ? "left alone" : "taken");
    if (freed == FREED_BEFORE_CAPTURE)
        printf("the capture ends with %d\n", cuStreamEndCapture(stream, &graph));
    if (scene_simulated())
        printf("%d restore\n", (int)SIM(simCallCount)(steps[2]));
    printf("unlock: %d\n", step(3, target.pid));
    if (restored != 0)
        kill(target.pid, SIGKILL); /* it is lost, and its calls never return */
    EXPECT(write(target.to, "x", 1) == 1);
    int status = ipc_peer_join(&target);
    printf("it ends with %x\n", (unsigned)status);
    if (has_other) {
        EXPECT(write(other.to, "x", 1) == 1);
        status |= ipc_peer_join(&other);
    }
    return status != 0;
}

ACT(a_process_is_put_back_where_another_has_freed_memory)
{
    return put_back(FREED);
}

ACT(a_process_is_put_back_where_memory_was_freed_behind_work)
{
    return put_back(FREED_BEHIND_WORK);
}

ACT(a_process_is_put_back_beside_a_capture)
{
    return put_back(FREED_BEFORE_CAPTURE);
}

ACT(a_process_is_put_back_where_a_third_has_freed_memory)
{
    return put_back(FREED_BY_ANOTHER);
}

ACT(a_third_keeps_what_is_idle_where_there_is_room)
{
    return put_back(FREED_HALF);
}

/* A process that is locked gives nothing, so requests that find the device full do not wait for it.
 * The first would wait for all of GPUCACHE_SHARE. The thread sanitizer makes them slow, too. */
#ifdef __SANITIZE_THREAD__
#define AT_ONCE_S 100
#else
#define AT_ONCE_S 8
#endif

ACT(nobody_waits_for_a_locked_process)
{
    enum { REQUESTS = 3 };
    int refused = 0;
    REQUIRE(setenv("GPUCACHE_SHARE", "30s", 1));
    scene_start(1, 120);
    if (!can_step() || !scene_simulated())
        scene_skip("no simulated driver");
    NEW_BLOCK(MIB);
    struct ipc_peer target = start_target();
    REQUIRE(step(0, target.pid));
    uint64_t start_ns = scene_now_ns();
    for (int i = 0; i < REQUESTS; i++)
        refused += take(FREE_BYTES() + 64 * MIB) != 0;
    printf("lock again: %d\n", step(0, target.pid));
    bool at_once = (double)(scene_now_ns() - start_ns) / 1e9 < AT_ONCE_S;
    printf("%d refused, %s\n", refused, at_once ? "at once" : "late");
    REQUIRE(step(3, target.pid));
    EXPECT(write(target.to, "x", 1) == 1);
    ipc_peer_join(&target);
    return refused != REQUESTS;
}

/* No call but those of the checkpoint comes back before the unlock. */
static int lock_itself(bool captures)
{
    CUgraph graph = NULL;
    scene_start(1, 60);
    if (!can_step() || !scene_simulated())
        scene_skip("no simulated driver");
    CUstream stream = NEW_STREAM(true);
    uint64_t block = NEW_BLOCK(256 * MIB);
    REQUIRE(gpu_memset(block, 1, 256 * MIB));
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_sync());
    if (captures)
        REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("lock: %d\n", step(0, getpid()));
    uint64_t bytes = SIM(simDeviceBytesUsed)(0);
    printf("unlock: %d\n", step(3, getpid()));
    if (captures)
        printf("the capture ends with %d\n", cuStreamEndCapture(stream, &graph));
    printf("%s\n", bytes < (CONTEXT_MIB + 64) * MIB ? "nothing is idle" : "much is idle");
    return bytes >= (CONTEXT_MIB + 64) * MIB;
}

ACT(a_process_that_locks_itself_has_nothing_idle)
{
    return lock_itself(false);
}

ACT(a_process_that_locks_itself_in_a_capture_has_nothing_idle)
{
    return lock_itself(true);
}

int main(int argc, char **argv)
{
    const char *whom = getenv(inner_variable);
    if (whom != NULL)
        return helper(atoi(whom));
    if (getenv(target_variable) != NULL)
        return be_locked();
    return scene_play(argc, argv);
}
