/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ipc_wire.h. Abstract names: no file to clean up, nothing left behind by a killed process.
 */
#include "shim/share/ipc_wire.h"

#include "shim/process/kernel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RETRY(call)                                                                                \
    __extension__({                                                                                \
        __typeof__(call) result_;                                                                  \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (result_ < 0 && errno == EINTR);                                                     \
        result_;                                                                                   \
    })

_Static_assert(offsetof(struct ipc_question, ticket.token) == offsetof(struct ipc_errand, token),
               "the filter looks at one place");

bool ipc_token_draw(struct ipc_token *token)
{
    return RETRY(kernel_getrandom(token, sizeof *token)) == (ssize_t)sizeof *token;
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
    for (size_t i = 0; i < sizeof token->name; i++)
        at += sprintf(at, "%02x", token->name[i]);
    return (socklen_t)(at - (char *)to);
}

/* By system calls, not by the C library's functions: the thread at the door has a table of
 * descriptors of its own, and checkers that watch those functions (the thread sanitizer) know of
 * one table only. Descriptors in the program's table are closed as usual. */
static ssize_t raw_send(int fd, const struct msghdr *m, int flags)
{
    return syscall(SYS_sendmsg, fd, m, flags);
}

static ssize_t raw_receive(int fd, struct msghdr *m, int flags)
{
    return syscall(SYS_recvmsg, fd, m, flags);
}

void ipc_wire_close_apart(const int *fds, size_t num_fds)
{
    for (size_t i = 0; i < num_fds; i++)
        syscall(SYS_close, fds[i]);
}

void ipc_wire_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

void ipc_wire_close_all(const int *fds, size_t num_fds)
{
    for (size_t i = 0; i < num_fds; i++)
        close(fds[i]);
}

/* The filter reads words in network order. On a kernel without filters others can flood the door.
 * The receiver looks at each message's contents in any case. */
static void admit_only(int door, const struct ipc_token *token)
{
    const uint32_t at = offsetof(struct ipc_errand, token.secret);
    uint32_t words[2];
    memcpy(words, token->secret, sizeof words);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(struct ipc_question), 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(struct ipc_errand), 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + sizeof words[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    setsockopt(door, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int ipc_wire_door(const struct ipc_token *token)
{
    struct sockaddr_un at;
    socklen_t size = name(&at, token);
    int on = 1, fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    admit_only(fd, token); /* before anybody can send to it */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&at, size) != 0) {
        ipc_wire_close_apart(&fd, 1);
        return -1;
    }
    return fd;
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * IPC_BATCH) + CMSG_SPACE(sizeof(struct ucred))];
};

static ssize_t send_message(int fd, struct msghdr *m, const int *fds, size_t num_fds)
{
    union control control;
    if (num_fds) {
        memset(&control, 0, sizeof control);
        m->msg_control = &control;
        m->msg_controllen = CMSG_SPACE(num_fds * sizeof *fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(num_fds * sizeof *fds);
        memcpy(CMSG_DATA(c), fds, num_fds * sizeof *fds);
    }
    return RETRY(raw_send(fd, m, MSG_NOSIGNAL | MSG_DONTWAIT));
}

int ipc_wire_put(const struct ipc_token *door, const void *message, size_t size_bytes,
                 const int *fds, size_t num_fds)
{
    struct sockaddr_un to;
    struct iovec part = {(void *)(uintptr_t)message, size_bytes};
    struct msghdr m = {.msg_name = &to, .msg_namelen = name(&to, door), .msg_iov = &part,
                       .msg_iovlen = 1};
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (from < 0)
        return errno;
    int failed = send_message(from, &m, fds, num_fds) == (ssize_t)size_bytes ? 0 : errno;
    close(from);
    return failed;
}

int ipc_wire_ask(const struct ipc_question *question, int *reply)
{
    int ends[2], on = 1;
    *reply = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return errno;
    /* Before anybody has the other end. */
    int failed = setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ? errno : 0;
    if (!failed)
        failed = ipc_wire_put(&question->ticket.token, question, sizeof *question, &ends[1], 1);
    close(ends[1]);
    if (failed)
        close(ends[0]);
    else
        *reply = ends[0];
    return failed;
}

bool ipc_wire_answer(int reply, const struct ipc_answer *answer, const int *fds, size_t num_fds)
{
    struct iovec part = {(void *)(uintptr_t)answer, sizeof *answer};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    return send_message(reply, &m, fds, num_fds) == (ssize_t)sizeof *answer;
}

/* A message as it came, with all that the kernel says of it. */
struct parcel {
    ssize_t size_bytes; /* 0: the other side has closed; less: an errno */
    bool cut;           /* it, or its descriptors, did not fit */
    bool trusted;
    pid_t sender; /* 0: of no process in sight */
    size_t num_fds;
    int fds[IPC_BATCH];
};

static void take_fds(struct parcel *p, const struct cmsghdr *c)
{
    for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        if (p->num_fds < IPC_BATCH) {
            p->fds[p->num_fds++] = fd;
        } else {
            ipc_wire_close_apart(&fd, 1);
            p->cut = true;
        }
    }
}

static void take(int fd, void *message, size_t size_bytes, int flags, struct parcel *p)
{
    union control control;
    struct iovec part = {message, size_bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                       .msg_controllen = sizeof control};
    *p = (struct parcel){.size_bytes = RETRY(raw_receive(fd, &m, flags | MSG_CMSG_CLOEXEC))};
    if (p->size_bytes < 0)
        return;
    p->cut = m.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        struct ucred sender;
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            take_fds(p, c);
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&sender, CMSG_DATA(c), sizeof sender);
            p->trusted = sender.uid == geteuid() || sender.uid == 0;
            p->sender = sender.pid;
        }
    }
}

/* An errand's descriptors are counted in it; a question has the one for its answer. */
static bool is_welcome(const struct parcel *p, const struct ipc_token *token, struct ipc_visitor *v)
{
    v->own = p->sender == getpid() && p->size_bytes == (ssize_t)sizeof v->errand;
    if (!p->trusted || p->cut)
        return false;
    if (v->own)
        return memcmp(&v->errand.token, token, sizeof *token) == 0;
    return p->size_bytes == (ssize_t)sizeof v->question && p->num_fds == 1 &&
           memcmp(&v->question.ticket.token, token, sizeof *token) == 0;
}

bool ipc_wire_hear(int door, const struct ipc_token *token, struct ipc_visitor *v)
{
    for (;;) {
        struct parcel p;
        take(door, &v->errand, sizeof v->errand, 0, &p);
        if (p.size_bytes < 0)
            return false;
        if (is_welcome(&p, token, v)) {
            v->num_fds = p.num_fds;
            memcpy(v->fds, p.fds, sizeof v->fds);
            return true;
        }
        ipc_wire_close_apart(p.fds, p.num_fds);
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* By the clock: signals of the program's may come faster than answers. Below 0: waiting is not allowed here, and who asked
 * again and again would do so without a pause. */
static int wait_readable(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t end_ms = now_ms() + wait_ms;
    for (;;) {
        int64_t left_ms = end_ms - now_ms();
        int ready = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
        if (ready >= 0 || errno != EINTR)
            return ready;
        if (left_ms <= 0)
            return 0;
    }
}

enum ipc_got ipc_wire_receive(int reply, struct ipc_answer *answer, int *fds, int wait_ms)
{
    struct parcel p;
    int ready = wait_readable(reply, wait_ms);
    if (ready <= 0)
        return ready ? IPC_BROKEN : IPC_LATE;
    take(reply, answer, sizeof *answer, MSG_DONTWAIT, &p);
    enum ipc_got got = p.size_bytes < 0                                 ? IPC_BROKEN
                       : p.size_bytes == 0                              ? IPC_DROPPED
                       : !p.trusted                                     ? IPC_FOREIGN
                       : p.cut || p.size_bytes != (ssize_t)sizeof *answer ? IPC_BROKEN
                       : answer->count != p.num_fds                     ? IPC_BROKEN
                                                                        : IPC_GOT;
    if (got == IPC_GOT)
        memcpy(fds, p.fds, p.num_fds * sizeof *fds);
    else
        ipc_wire_close_all(p.fds, p.num_fds);
    return got;
}
