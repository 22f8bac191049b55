/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What goes between an importer and an exporter, and the sockets it goes through: all of them closed at
 * exec, none of them there longer than one question and its answer, but for the door. Both are builds
 * of this library for one machine, so structures go as they are; the version is in the magic number.
 * No function here calls CUDA or holds a lock; all keep going after EINTR.
 */
#ifndef SHIM_IPC_WIRE_H
#define SHIM_IPC_WIRE_H

#include "shim/hooks.h"

#include <sys/types.h>

#define IPC_MAGIC UINT64_C(0x3143504943555047)

struct ipc_token {
    unsigned char bytes[16];
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

struct ipc_question {
    struct ipc_ticket ticket;
    struct ipc_token reply; /* where the importer listens, and proof that the answer is to this question */
};

enum ipc_kind {
    IPC_REFUSED, /* rc tells */
    IPC_CHUNKS,  /* num_chunks chunks follow, together total_bytes */
    IPC_NATIVE,  /* the driver's handle of the allocation that holds the block */
};

struct ipc_answer {
    struct ipc_token reply;
    uint32_t kind; /* enum ipc_kind */
    int32_t rc;
    CUuuid device;
    uint64_t size_bytes;   /* of the block */
    uint64_t offset_bytes; /* … in what was sent */
    uint64_t total_bytes;
    uint32_t num_chunks;
    CUipcMemHandle native;
};

/* Chunks follow the answer, so many at a time, with one descriptor each. */
enum { IPC_BATCH = 32 };
struct ipc_batch {
    uint32_t count;
    uint64_t size_bytes[IPC_BATCH];
};

bool ipc_token_draw(struct ipc_token *token);
uint64_t ipc_ticket_check(const struct ipc_ticket *ticket);

/* Sockets, or -1. door: bound to the token's name, receives credentials. listen: for one connection.
 * connect: to who listens. Both ends of a connection belong to the same user. */
int ipc_wire_door(const struct ipc_token *token);
int ipc_wire_listen(const struct ipc_token *token);
int ipc_wire_accept(int listener);
int ipc_wire_connect(const struct ipc_token *token);
void ipc_wire_close(int fd);

/* Puts a question at a door: 0, ECONNREFUSED if there is none, or another errno. */
int ipc_wire_ask(const struct ipc_token *door, const struct ipc_question *question);
/* Waits for a question of the same user. False: the door is broken. */
bool ipc_wire_hear(int door, struct ipc_question *question);
/* Waits until the socket can be read: false after wait_ms. */
bool ipc_wire_wait(int fd, int wait_ms);

/* One message, with descriptors. False: the other side is gone, or does not take or give it in time. */
bool ipc_wire_send(int fd, const void *message, size_t size_bytes, const int *fds, size_t num_fds);
bool ipc_wire_receive(int fd, void *message, size_t size_bytes, int *fds, size_t num_fds);

#endif
