/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process of the same user, with a handle, asks for the block again and again and takes no
 * answer. The exporter goes on: it gives memory back at a signal as soon as without him, and
 * another process opens the same handle. Questions are written here as shim/share/ticket.h has
 * them; bare there is nobody to ask.
 */
#include "tests/preload/ipc_peer.h"
#include "tests/preload/observer.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { IDLE = 8, LONG_MS = 1500 };

static const size_t size_bytes = 300 * KIB;

struct question {
    unsigned char handle[64]; /* a number, 8 bytes of the door's name, 8 of its secret, .. */
    uint64_t done_bytes;
};

static int send_question(const struct question *q, int reply)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof reply)];
    } control = {.bytes = {0}};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_usec = 20000};
    struct iovec part = {(void *)(uintptr_t)q, sizeof *q};
    char *end = to.sun_path + 1 + sprintf(to.sun_path + 1, "gpucache-");
    for (int i = 8; i < 16; i++)
        end += sprintf(end, "%02x", q->handle[i]);
    struct msghdr m = {.msg_name = &to, .msg_namelen = (socklen_t)(end - (char *)&to),
                       .msg_iov = &part, .msg_iovlen = 1,
                       .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                          .cmsg_len = CMSG_LEN(sizeof reply)};
    memcpy(CMSG_DATA(c), &reply, sizeof reply);
    int from = socket(AF_UNIX, SOCK_DGRAM, 0);
    setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    bool sent = sendmsg(from, &m, MSG_NOSIGNAL) == sizeof *q;
    close(from);
    return sent;
}

/* Whether it is answered if the answer is taken. */
static bool is_answered(const struct question *q)
{
    char answer[4096];
    int ends[2];
    struct timeval patience = {.tv_sec = 5};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    bool answered = send_question(q, ends[1]);
    close(ends[1]);
    answered = answered && read(ends[0], answer, sizeof answer) > 64;
    close(ends[0]);
    return answered;
}

static int be_greedy(int from, int to)
{
    struct question q = {.done_bytes = 0};
    int ends[2];
    char byte = 0;
    scene_watchdog(60);
    EXPECT(read(from, q.handle, sizeof q.handle) == sizeof q.handle);
    if (scene_preloaded())
        EXPECT(is_answered(&q));
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends));
    while (send(ends[1], &q, sizeof q, MSG_NOSIGNAL) > 0)
        ;
    fcntl(from, F_SETFL, O_NONBLOCK);
    for (unsigned asked = 0; read(from, &byte, 1) < 0; asked++) {
        if (asked == 100)
            EXPECT(write(to, &byte, 1) == 1);
        if (!send_question(&q, ends[1]))
            scene_sleep_ms(1);
    }
    return 0;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int main(void)
{
    struct ipc_message m = {.order = IPC_OPEN, .size_bytes = size_bytes, .byte = 9};
    uint64_t idle[IDLE], block = 0;
    struct observer observer;
    char byte = 0;
    scene_watchdog(60);
    observer_start(&observer);
    struct ipc_peer importer = ipc_peer_fork(), greedy = ipc_peer_fork_work(be_greedy);
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, size_bytes));
    REQUIRE(gpu_memset(block, m.byte, size_bytes));
    REQUIRE(gpu_sync());
    int rc = gpu_ipc_export(&m.handle, block);
    if (rc == CUDA_ERROR_NOT_FOUND || rc == CUDA_ERROR_NOT_SUPPORTED || rc == 36)
        scene_skip("the driver has no such handles");
    REQUIRE(rc);
    EXPECT(write(greedy.to, &m.handle, sizeof m.handle) == sizeof m.handle);
    EXPECT(read(greedy.from, &byte, 1) == 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < IDLE; i++)
            REQUIRE(gpu_malloc(&idle[i], 64 * MIB));
        size_t full = observer_free_bytes(&observer), want = full + (IDLE * 64 - 32) * MIB;
        for (int i = 0; i < IDLE; i++)
            REQUIRE(gpu_free(idle[i]));
        uint64_t start_ms = now_ms();
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        while (observer_free_bytes(&observer) < want && now_ms() - start_ms < 30000)
            scene_sleep_ms(1);
        uint64_t took_ms = now_ms() - start_ms;
        if (took_ms > LONG_MS)
            printf("memory is back after %llu ms\n", (unsigned long long)took_ms);
        struct ipc_message opened = ipc_peer_do(&importer, m);
        printf("opened %d, %zu wrong", opened.rc, opened.wrong);
        opened.order = IPC_CLOSE;
        printf(", closed %d\n", ipc_peer_do(&importer, opened).rc);
    }
    EXPECT(write(greedy.to, &byte, 1) == 1);
    printf("greedy ended with %d\n", ipc_peer_join(&greedy));
    printf("importer ended with %d\n", ipc_peer_end(&importer));
    observer_stop(&observer);
    return 0;
}
