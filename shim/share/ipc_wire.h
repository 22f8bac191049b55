/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What goes between an importer and an exporter, and the sockets it goes through: all of them closed at
 * exec, none of them there longer than one question and its answer, but for the door. Both are builds
 * of this library for one machine, so structures go as they are; the version is in the magic number.
 *
 * A door is a datagram socket with an abstract name, which every user of the machine can read in
 * /proc/net/unix. What keeps others out, in this order:
 *
 * 1. The kernel drops at the sender's expense what does not contain the door's secret, or has
 *    another length than our messages (a filter on the socket). Who has no handle cannot fill the
 *    door's queue, wake its thread, or leave a descriptor there.
 * 2. What arrives was sent by this user, or root, says the kernel (SCM_CREDENTIALS), or is dropped.
 * 3. A question brings one end of a pair of sockets along, on which it is answered: there is no
 *    second name to which somebody else could connect. The importer looks at the credentials of
 *    each answer, as the name of an exporter that is gone is free for everybody.
 *
 * Whatever is sent is sent without waiting: who does not take it, goes without. All descriptors of
 * a message are taken in hand before the message is judged, and closed if it is dropped. No
 * function here calls CUDA or holds a lock; all keep going after EINTR.
 */
#ifndef SHIM_IPC_WIRE_H
#define SHIM_IPC_WIRE_H

#include "shim/driver/hooks.h"

#include <sys/types.h>

#define IPC_MAGIC UINT64_C(0x3243504943555047)

/* Of a door: its name, and what only those know who have a handle. */
struct ipc_token {
    unsigned char name[8];
    unsigned char secret[8];
};

/* The 64 bytes of a handle of ours. The zeros lie where the driver's own have the size of the mapping and
 * the numbers of the memory and its owner in the kernel: a driver that is given a handle of ours has to
 * find no such memory, and gives CUDA_ERROR_INVALID_VALUE (measured). */
struct ipc_ticket {
    uint64_t magic;
    struct ipc_token token; /* of the exporter's door */
    uint64_t no_size;
    uint64_t addr, serial;
    uint64_t no_memory;
    uint64_t check;
};

/* One question, one answer: the exporter keeps nothing in between. */
struct ipc_question {
    struct ipc_ticket ticket;
    uint64_t done_bytes; /* of the memory: what the importer has by now */
};

enum ipc_kind {
    IPC_REFUSED, /* rc tells */
    IPC_CHUNKS,  /* the next `count` chunks of total_bytes, with one descriptor each */
    IPC_NATIVE,  /* the driver's handle of the allocation that holds the block */
};

enum { IPC_BATCH = 32 };
struct ipc_answer {
    uint32_t kind; /* enum ipc_kind */
    int32_t rc;
    CUuuid device;
    uint64_t size_bytes;   /* of the block */
    uint64_t offset_bytes; /* … in what is sent */
    uint64_t total_bytes;
    CUipcMemHandle native;
    uint32_t count;
    uint64_t chunk_bytes[IPC_BATCH];
};

/* An answer on its way inside the exporter, to the thread that has the reply's socket. Like a
 * ticket up to the token: the filter looks at both alike. */
struct ipc_errand {
    uint64_t magic;
    struct ipc_token token;
    uint64_t number; /* of the question */
    struct ipc_answer answer;
};

/* What comes in at a door. */
struct ipc_visitor {
    bool own; /* of this process: an errand; else a question */
    union {
        struct ipc_question question;
        struct ipc_errand errand;
    };
    size_t num_fds; /* a question has one, on which it is answered */
    int fds[IPC_BATCH];
};

bool ipc_token_draw(struct ipc_token *token);
uint64_t ipc_ticket_check(const struct ipc_ticket *ticket);

/* The socket with the token's name, or -1. */
int ipc_wire_door(const struct ipc_token *token);
/* Waits for a message with that token. The descriptors are the caller's. False: the door is
 * broken. */
bool ipc_wire_hear(int door, const struct ipc_token *token, struct ipc_visitor *visitor);
/* Puts a message at a door: 0, ECONNREFUSED if there is none, EAGAIN if it is full, or another
 * errno. */
int ipc_wire_put(const struct ipc_token *door, const void *message, size_t size_bytes,
                 const int *fds, size_t num_fds);
/* Puts a question at the door that its ticket names, as above; *reply is where the answer comes. */
int ipc_wire_ask(const struct ipc_question *question, int *reply);
/* Sends an answer. False: the other side does not take it. */
bool ipc_wire_answer(int reply, const struct ipc_answer *answer, const int *fds, size_t num_fds);

enum ipc_got {
    IPC_GOT,
    IPC_LATE,    /* nothing came in time */
    IPC_DROPPED, /* and nothing will: the other side has closed it */
    IPC_BROKEN,  /* something else came, the table of descriptors is full, or a sandbox forbids to wait */
    IPC_FOREIGN, /* it came from another user: the exporter is gone */
};
/* Waits for the answer. The descriptors, as many as the answer's count, are the caller's. */
enum ipc_got ipc_wire_receive(int reply, struct ipc_answer *answer, int *fds, int wait_ms);

void ipc_wire_close(int fd);
void ipc_wire_close_all(const int *fds, size_t num_fds);
/* The same on the thread at the door. */
void ipc_wire_close_apart(const int *fds, size_t num_fds);

#endif
