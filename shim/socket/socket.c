/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See socket.h. No lock.
 */
#include "shim/socket/socket.h"

#include "shim/process/clock.h"
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

_Static_assert(sizeof(struct socket_question) == SOCKET_QUESTION_BYTES &&
                   sizeof(struct socket_relay) ==
                       sizeof(struct socket_head) + sizeof(uint64_t) + SOCKET_ANSWER_BYTES,
               "the filter looks at the lengths");

bool socket_token_draw(struct socket_token *token)
{
    return RETRY(kernel_getrandom(token, sizeof *token)) == (ssize_t)sizeof *token;
}

/* The first byte of an abstract name is 0. */
static socklen_t fill_address(struct sockaddr_un *to, const struct socket_token *token)
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

/* The listener's thread has a descriptor table of its own. Checkers that watch the C library's
 * functions (the thread sanitizer) know of one table only. So the functions that this thread uses
 * make system calls. Descriptors in the program's table are closed as usual. */
static ssize_t raw_send(int fd, const struct msghdr *m, int flags)
{
    return syscall(SYS_sendmsg, fd, m, flags);
}

static ssize_t raw_receive(int fd, struct msghdr *m, int flags)
{
    return syscall(SYS_recvmsg, fd, m, flags);
}

void socket_close_apart(const int *fds, size_t num_fds)
{
    for (size_t i = 0; i < num_fds; i++)
        syscall(SYS_close, fds[i]);
}

void socket_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

void socket_close_all(const int *fds, size_t num_fds)
{
    for (size_t i = 0; i < num_fds; i++)
        close(fds[i]);
}

/* The filter reads words in network order. */
static void admit_only(int fd, const struct socket_token *token)
{
    const uint32_t at = offsetof(struct socket_head, token.secret);
    uint32_t words[2];
    memcpy(words, token->secret, sizeof words);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(struct socket_question), 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(struct socket_relay), 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + sizeof words[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int socket_open(const struct socket_token *token)
{
    struct sockaddr_un at;
    socklen_t size = fill_address(&at, token);
    int on = 1, fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    admit_only(fd, token); /* before any process can send to it */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&at, size) != 0) {
        socket_close_apart(&fd, 1);
        return -1;
    }
    return fd;
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * SOCKET_FDS_MAX) + CMSG_SPACE(sizeof(struct ucred))];
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

int socket_put(const struct socket_token *token, const void *message, size_t size_bytes,
               const int *fds, size_t num_fds)
{
    struct sockaddr_un to;
    struct iovec part = {(void *)(uintptr_t)message, size_bytes};
    struct msghdr m = {.msg_name = &to,
                       .msg_namelen = fill_address(&to, token),
                       .msg_iov = &part,
                       .msg_iovlen = 1};
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (from < 0)
        return errno;
    int failed = send_message(from, &m, fds, num_fds) == (ssize_t)size_bytes ? 0 : errno;
    close(from);
    return failed;
}

int socket_ask(const void *question, int *reply)
{
    struct socket_head head;
    int ends[2], on = 1;
    memcpy(&head, question, sizeof head);
    *reply = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return errno;
    /* Before another process has the other end. */
    int failed = setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ? errno : 0;
    if (!failed)
        failed = socket_put(&head.token, question, SOCKET_QUESTION_BYTES, &ends[1], 1);
    close(ends[1]);
    if (failed)
        close(ends[0]);
    else
        *reply = ends[0];
    return failed;
}

bool socket_answer(int reply, const void *answer, const int *fds, size_t num_fds)
{
    struct iovec part = {(void *)(uintptr_t)answer, SOCKET_ANSWER_BYTES};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    return send_message(reply, &m, fds, num_fds) == (ssize_t)SOCKET_ANSWER_BYTES;
}

/* A received message, with the kernel's data about it. */
struct parcel {
    ssize_t size_bytes; /* 0: the other side has closed its end; below 0: the receive failed */
    bool cut;           /* the message, or its descriptors, did not fit */
    bool trusted;       /* this user or root sent it */
    pid_t sender;       /* 0: no process that can be seen from here */
    size_t num_fds;
    int fds[SOCKET_FDS_MAX];
};

static void take_fds(struct parcel *p, const struct cmsghdr *c)
{
    for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        if (p->num_fds < SOCKET_FDS_MAX) {
            p->fds[p->num_fds++] = fd;
        } else {
            socket_close_apart(&fd, 1);
            p->cut = true;
        }
    }
}

static void take_parcel(int fd, void *message, size_t size_bytes, int flags, struct parcel *p)
{
    union control control;
    struct iovec part = {message, size_bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
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

/* A relay counts its own descriptors; a question has one, for its answer. */
static bool is_welcome(const struct parcel *p, const struct socket_token *token,
                       struct socket_message *m)
{
    m->own = p->sender == getpid() && p->size_bytes == (ssize_t)sizeof m->relay;
    if (!p->trusted || p->cut)
        return false;
    if (m->own)
        return memcmp(&m->relay.head.token, token, sizeof *token) == 0;
    return p->size_bytes == (ssize_t)sizeof m->question && p->num_fds == 1 &&
           memcmp(&m->question.head.token, token, sizeof *token) == 0;
}

bool socket_hear(int fd, const struct socket_token *token, struct socket_message *m)
{
    for (;;) {
        struct parcel p;
        take_parcel(fd, &m->relay, sizeof m->relay, 0, &p);
        if (p.size_bytes < 0)
            return false;
        if (is_welcome(&p, token, m)) {
            m->num_fds = p.num_fds;
            memcpy(m->fds, p.fds, sizeof m->fds);
            return true;
        }
        socket_close_apart(p.fds, p.num_fds);
    }
}

/* The clock ends the wait: the program's signals may come faster than answers. Returns below 0
 * where waiting is forbidden. If a caller asked again then, it would do so without a pause. */
static int wait_readable(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t end_ms = clock_now_ms() + wait_ms;
    for (;;) {
        int64_t left_ms = end_ms - clock_now_ms();
        int ready = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
        if (ready >= 0 || errno != EINTR)
            return ready;
        if (left_ms <= 0)
            return 0;
    }
}

enum socket_got socket_receive(int reply, void *answer, int *fds, size_t *num_fds, int wait_ms)
{
    struct parcel p;
    int ready = wait_readable(reply, wait_ms);
    *num_fds = 0;
    if (ready <= 0)
        return ready ? SOCKET_BROKEN : SOCKET_LATE;
    take_parcel(reply, answer, SOCKET_ANSWER_BYTES, MSG_DONTWAIT, &p);
    bool whole = p.size_bytes == (ssize_t)SOCKET_ANSWER_BYTES && !p.cut;
    enum socket_got got = p.size_bytes < 0    ? SOCKET_BROKEN
                          : p.size_bytes == 0 ? SOCKET_DROPPED
                          : !p.trusted        ? SOCKET_FOREIGN
                          : !whole            ? SOCKET_BROKEN
                                              : SOCKET_GOT;
    if (got != SOCKET_GOT) {
        socket_close_all(p.fds, p.num_fds);
        return got;
    }
    memcpy(fds, p.fds, p.num_fds * sizeof *fds);
    *num_fds = p.num_fds;
    return SOCKET_GOT;
}
