/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room socket/ carries bytes and descriptors between processes of one user, by Unix sockets.
 * It knows no CUDA and no meaning of a message; shim/share/ticket.h defines the messages.
 * Its one seam is listener.h; an asking process uses socket_ask and socket_receive below.
 *
 * All sockets are closed at exec. None but the listener's stays longer than one question and its
 * answer. The listener is a datagram socket with an abstract name, which every user of the machine
 * can read in /proc/net/unix. An abstract name leaves no file behind when a process is killed.
 *
 * What keeps others out, in this order:
 *  1. The socket has a filter. With it the kernel drops each message that lacks the listener's
 *     secret or has another length than our messages. The drop costs time of the sender only. A
 *     sender without a handle cannot fill the listener's queue, wake its thread, or leave a
 *     descriptor there. A kernel without filters lets others flood the listener; the next checks
 *     hold there too.
 *  2. The receiver drops each message that this user or root did not send. The kernel names the
 *     sender (SCM_CREDENTIALS).
 *  3. A question carries one end of a pair of sockets, through which the receiver answers. So there
 *     is no second name to which another process could connect. The asking side looks at the
 *     credentials of each answer, because any process can take the name of an exporter that ended.
 *
 * What bounds the cost:
 *  4. No sender waits. If the receiver's queue is full, the message is lost.
 *  5. The receiver takes all descriptors of a message before it judges the message, and closes them
 *     if it drops the message.
 *
 * No function here calls CUDA or takes a lock. All go on after EINTR.
 */
#ifndef SHIM_SOCKET_H
#define SHIM_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Of a listener: its name, and a secret that only the owners of a handle know. */
struct socket_token {
    unsigned char name[8];
    unsigned char secret[8];
};

enum { SOCKET_FDS_MAX = 32, SOCKET_QUESTION_BYTES = 72, SOCKET_ANSWER_BYTES = 376 };

/* Every message to a listener begins like this. */
struct socket_head {
    uint64_t magic; /* the sender's; not looked at here */
    struct socket_token token;
};

struct socket_question {
    struct socket_head head;
    unsigned char rest[SOCKET_QUESTION_BYTES - sizeof(struct socket_head)];
};

/* An answer on its way inside the exporter, to the thread that has the socket for it. */
struct socket_relay {
    struct socket_head head;
    uint64_t number; /* of the question */
    unsigned char answer[SOCKET_ANSWER_BYTES];
};

/* A message that came to a listener. */
struct socket_message {
    bool own; /* of this process: a relay; else a question */
    union {
        struct socket_question question;
        struct socket_relay relay;
    };
    size_t num_fds; /* a question has one, for the answer */
    int fds[SOCKET_FDS_MAX];
};

/* Draws a random token. False: the kernel gave no random bytes. */
bool socket_token_draw(struct socket_token *token);

/* Opens the listener's socket, with the token's name. Returns the descriptor, or -1. */
int socket_open(const struct socket_token *token);
/* Waits for a message with the token. The caller owns the descriptors in it. False: the socket is
 * broken. */
bool socket_hear(int fd, const struct socket_token *token, struct socket_message *message);
/* Sends a message to the token's listener. Returns 0 or an errno. ECONNREFUSED: there is none.
 * EAGAIN: its queue is full. */
int socket_put(const struct socket_token *to, const void *message, size_t size_bytes,
               const int *fds, size_t num_fds);
/* Sends a question of SOCKET_QUESTION_BYTES, which begins with a socket_head, to the listener of
 * that token. Returns as socket_put. The caller owns *reply, which gets the answer; -1: failed. */
int socket_ask(const void *question, int *reply);
/* Sends an answer of SOCKET_ANSWER_BYTES. False: the other side did not accept it. */
bool socket_answer(int reply, const void *answer, const int *fds, size_t num_fds);

enum socket_got {
    SOCKET_GOT,
    SOCKET_LATE,    /* nothing came in time */
    SOCKET_DROPPED, /* nothing will come: the other side has closed its end */
    SOCKET_BROKEN,  /* a wrong message, a full descriptor table, or waiting is forbidden */
    SOCKET_FOREIGN, /* another user sent it: the exporter is gone */
};
/* Waits for an answer of SOCKET_ANSWER_BYTES. The caller owns the descriptors, which fit into
 * fds[SOCKET_FDS_MAX]; there are none unless the result is SOCKET_GOT. */
enum socket_got socket_receive(int reply, void *answer, int *fds, size_t *num_fds, int wait_ms);

void socket_close(int fd); /* below 0: none */
void socket_close_all(const int *fds, size_t num_fds);
/* The same on a thread with a descriptor table of its own. */
void socket_close_apart(const int *fds, size_t num_fds);

#endif
