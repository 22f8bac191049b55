/* SPDX-License-Identifier: BSD-2-Clause */
/* The program runs in a sandbox that has no close_range and forbids unshare, as Docker's does on
 * Linux before 5.9. It gives a handle out and opens it. Then it closes every descriptor that it did
 * not open itself, opens files of its own under the same numbers, and opens the handle again. A
 * child has no descriptor more than before. */
#include "tests/preload/ipc_peer.h"

#include <sys/syscall.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { FILES_MAX = 1024 };

static const size_t size_bytes = 300 * KIB;

static void enter_sandbox(void)
{
    if (!scene_refuse(SYS_close_range, SYS_unshare, EPERM))
        scene_skip("no filter for system calls");
}

static bool was_open[FILES_MAX];

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void note_open(void)
{
    for (int fd = 0; fd < FILES_MAX; fd++)
        was_open[fd] = is_open(fd);
}

/* Those that were not open before: a child's. */
static int count_in_child(void)
{
    int count = 0;
    pid_t child = scene_fork();
    if (child == 0) {
        for (int fd = 0; fd < FILES_MAX; fd++)
            count += is_open(fd) && !was_open[fd];
        _exit(count);
    }
    return scene_wait(child);
}

/* While a question is answered there are more for a moment, in a child too. */
static int count_left_in_child(void)
{
    int count = count_in_child();
    for (int tries = 0; count > 0 && tries < 1000; tries++) {
        scene_sleep_ms(10);
        count = count_in_child();
    }
    return count;
}

/* While an answer is under way the exporter has more descriptors for a moment than it keeps. */
static void await_rest(void)
{
    int count = FILES_MAX;
    for (int tries = 0; tries < 1000 && count > 1; tries++) {
        scene_sleep_ms(50);
        count = 0;
        for (int fd = 0; fd < FILES_MAX; fd++)
            count += is_open(fd) && !was_open[fd];
    }
}

/* Under the same numbers there is something else then, which has to stay as it is. */
static int replace_unknown(void)
{
    int replaced = 0, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT(null >= 0);
    for (int fd = 0; fd < FILES_MAX; fd++)
        if (is_open(fd) && !was_open[fd] && fd != null) {
            EXPECT(dup2(null, fd) == fd);
            was_open[fd] = true;
            replaced++;
        }
    close(null);
    return replaced;
}

static void share(const struct ipc_peer *importer, struct ipc_message m, const char *when)
{
    struct ipc_message opened = ipc_peer_do(importer, m);
    printf("%s: opened %d, %zu wrong", when, opened.rc, opened.wrong);
    printf(", closed %d\n", ipc_peer_then(importer, opened, IPC_CLOSE).rc);
}

int main(void)
{
    struct ipc_message m = {.order = IPC_OPEN, .size_bytes = size_bytes, .byte = 5};
    scene_watchdog(60);
    enter_sandbox();
    struct ipc_peer importer = ipc_peer_fork();
    scene_start(1, 60);
    uint64_t block = NEW_BLOCK(size_bytes);
    REQUIRE(gpu_memset(block, m.byte, size_bytes));
    REQUIRE(gpu_sync());
    note_open();
    int rc = gpu_ipc_export(&m.handle, block);
    if (!scene_preloaded() &&
        (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36))
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
    share(&importer, m, "at first");
    printf("%d descriptors more in a child\n", count_left_in_child());
    for (int round = 0; round < 3; round++) {
        await_rest();
        EXPECT(replace_unknown() <= 1);
        share(&importer, m, "after they were closed");
    }
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    return 0;
}
