/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of sockets and of the listener share. The log is stood in for. */
#ifndef TESTS_UNIT_MESSAGES_H
#define TESTS_UNIT_MESSAGES_H

#include "shim/process/clock.h"
#include "shim/share/ticket.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/unit/no_log.h"
#include "tests/unit/proc.h"

static inline struct socket_token drawn(void)
{
    struct socket_token token;
    assert_true(socket_token_draw(&token));
    return token;
}

/* Runs f in a child of another user, if this one may; its result. */
static inline int as_nobody(int (*f)(void *), void *arg)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(setuid(65534) == 0 ? f(arg) : 99);
    int status = child_status(child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* One end has the credentials of what comes in. */
struct pair {
    int importer, exporter;
};

static inline struct pair connected(void)
{
    int ends[2], on = 1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
    return (struct pair){ends[0], ends[1]};
}

static inline void disconnect(struct pair p)
{
    socket_close(p.importer);
    socket_close(p.exporter);
}

/* Any bytes with any descriptors, as another program may send them. */
static inline ssize_t send_raw(int fd, const struct socket_token *to, const void *bytes,
                               size_t size_bytes, size_t num_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 256)];
    } control = {.bytes = {0}};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct iovec part = {(void *)(uintptr_t)bytes, size_bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (to) {
        char *end = at.sun_path + 1 + sprintf(at.sun_path + 1, "gpucache-");
        for (size_t i = 0; i < sizeof to->name; i++)
            end += sprintf(end, "%02x", to->name[i]);
        m.msg_name = &at;
        m.msg_namelen = (socklen_t)(end - (char *)&at);
    }
    if (num_fds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(num_fds * sizeof(int))};
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL);
}

#endif
