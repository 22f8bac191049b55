/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ipc_wire.h. Abstract names: no file to clean up, nothing left behind by a killed process. They
 * can be read by anybody on the machine, so they prove nothing; credentials do.
 */
#include "shim/ipc_wire.h"

#include "shim/kernel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* How long one side waits for the other to take or send a message. */
#define PATIENCE_S 5

#define RETRY(call)                                                                                \
    __extension__({                                                                                \
        __typeof__(call) result_;                                                                  \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (result_ < 0 && errno == EINTR);                                                     \
        result_;                                                                                   \
    })

bool ipc_token_draw(struct ipc_token *token)
{
    return RETRY(kernel_getrandom(token->bytes, sizeof token->bytes)) ==
           (ssize_t)sizeof token->bytes;
}

/* FNV-1a: tells a handle of ours from 64 bytes that only begin like one. */
uint64_t ipc_ticket_check(const struct ipc_ticket *ticket)
{
    const unsigned char *bytes = (const unsigned char *)ticket;
    uint64_t sum = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < offsetof(struct ipc_ticket, check); i++)
        sum = (sum ^ bytes[i]) * UINT64_C(1099511628211);
    return sum;
}

/* The first byte of an abstract name is 0. */
static socklen_t name(struct sockaddr_un *to, const struct ipc_token *token)
{
    static const char prefix[] = "gpucache-";
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    char *at = to->sun_path + 1;
    at += sprintf(at, "%s", prefix);
    for (size_t i = 0; i < sizeof token->bytes; i++)
        at += sprintf(at, "%02x", token->bytes[i]);
    return (socklen_t)(at - (char *)to);
}

static int make(int type)
{
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = PATIENCE_S};
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

void ipc_wire_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

static int make_bound(int type, const struct ipc_token *token)
{
    struct sockaddr_un at;
    socklen_t size = name(&at, token);
    int fd = make(type);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, size) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int ipc_wire_door(const struct ipc_token *token)
{
    int fd = make_bound(SOCK_DGRAM, token), on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int ipc_wire_listen(const struct ipc_token *token)
{
    int fd = make_bound(SOCK_SEQPACKET, token);
    if (fd >= 0 && listen(fd, 1) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool is_trusted(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

/* fd if who is at its other end may be there, else -1. */
static int same_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (fd >= 0 && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
                    !is_trusted(peer.uid))) {
        close(fd);
        return -1;
    }
    return fd;
}

int ipc_wire_accept(int listener)
{
    return same_user(RETRY(accept4(listener, NULL, NULL, SOCK_CLOEXEC)));
}

int ipc_wire_connect(const struct ipc_token *token)
{
    struct sockaddr_un to;
    socklen_t size = name(&to, token);
    int fd = make(SOCK_SEQPACKET);
    if (fd >= 0 && RETRY(connect(fd, (struct sockaddr *)&to, size)) != 0) {
        close(fd);
        return -1;
    }
    return same_user(fd);
}

int ipc_wire_ask(const struct ipc_token *door, const struct ipc_question *question)
{
    struct sockaddr_un to;
    socklen_t size = name(&to, door);
    int from = make(SOCK_DGRAM);
    if (from < 0)
        return errno;
    ssize_t sent = RETRY(sendto(from, question, sizeof *question, MSG_NOSIGNAL | MSG_DONTWAIT,
                                (struct sockaddr *)&to, size));
    int failed = sent == (ssize_t)sizeof *question ? 0 : errno;
    close(from);
    return failed;
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * IPC_BATCH) + CMSG_SPACE(sizeof(struct ucred))];
};

bool ipc_wire_hear(int door, struct ipc_question *question)
{
    for (;;) {
        union control control;
        struct iovec part = {question, sizeof *question};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                                 .msg_controllen = sizeof control};
        ssize_t got = RETRY(recvmsg(door, &message, MSG_CMSG_CLOEXEC));
        if (got < 0)
            return false;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            struct ucred sender;
            if (c->cmsg_level != SOL_SOCKET)
                continue;
            if (c->cmsg_type == SCM_RIGHTS) {
                /* Nobody should send any. */
                for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
                    int fd;
                    memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                    close(fd);
                }
            } else if (c->cmsg_type == SCM_CREDENTIALS) {
                memcpy(&sender, CMSG_DATA(c), sizeof sender);
                if (got == (ssize_t)sizeof *question && is_trusted(sender.uid))
                    return true;
            }
        }
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* By the clock: signals of the program's may come faster than answers. */
bool ipc_wire_wait(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t end_ms = now_ms() + wait_ms;
    for (;;) {
        int64_t left_ms = end_ms - now_ms();
        int ready = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
        if (ready >= 0 || errno != EINTR)
            return ready > 0;
        if (left_ms <= 0)
            return false;
    }
}

bool ipc_wire_send(int fd, const void *message, size_t size_bytes, const int *fds, size_t num_fds)
{
    union control control;
    struct iovec part = {(void *)(uintptr_t)message, size_bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (num_fds) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(num_fds * sizeof *fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(num_fds * sizeof *fds);
        memcpy(CMSG_DATA(c), fds, num_fds * sizeof *fds);
    }
    return RETRY(sendmsg(fd, &m, MSG_NOSIGNAL)) == (ssize_t)size_bytes;
}

bool ipc_wire_receive(int fd, void *message, size_t size_bytes, int *fds, size_t num_fds)
{
    union control control;
    struct iovec part = {message, size_bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                       .msg_controllen = sizeof control};
    if (!ipc_wire_wait(fd, PATIENCE_S * 1000))
        return false;
    ssize_t got = RETRY(recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
    size_t found = 0;
    bool right = got == (ssize_t)size_bytes;
    if (got < 0)
        return false;
    /* Where the table of descriptors is full, fewer arrive than were sent. */
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
            int one;
            memcpy(&one, CMSG_DATA(c) + i * sizeof one, sizeof one);
            if (found < num_fds) {
                fds[found++] = one;
            } else {
                close(one);
                right = false;
            }
        }
    }
    if (right && found == num_fds && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return true;
    while (found > 0)
        close(fds[--found]);
    return false;
}
