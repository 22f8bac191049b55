/* SPDX-License-Identifier: BSD-2-Clause */
/* Another process of a scene, forked before either of the two uses CUDA, or the program started
 * anew, with a pipe each way. It has work of its own, or opens handles on request: then it keeps
 * what it has opened until it is told to close it. */
#pragma once

#include "tests/preload/scene.h"

struct ipc_peer {
    int to, from;
    pid_t pid;
};

enum ipc_order {
    IPC_OPEN,  /* the answer's address, and how many bytes are not `byte` */
    IPC_LOOK,  /* how many bytes at `address` are not `byte` */
    IPC_WRITE, /* fills [address, address + size_bytes) with `byte` */
    IPC_FILL,  /* the same by a kernel that takes a while and is not waited for; whole words */
    IPC_RANGE, /* the address range around `address`: base, size_bytes */
    IPC_CLOSE,
    IPC_RESET, /* resets the device and opens it again */
    IPC_END,
};

struct ipc_message {
    enum ipc_order order;
    int rc;
    CUipcMemHandle handle;
    uint64_t address, base;
    size_t size_bytes, wrong;
    unsigned char byte;
};

/* In the child: serves until IPC_END. */
void ipc_serve(int from, int to);
/* Forks one that does work(from, to) and exits with what that returns; nothing of CUDA may have
 * been used so far. */
struct ipc_peer ipc_peer_fork_work(int (*work)(int from, int to));
/* Forks one that serves; the same holds. */
struct ipc_peer ipc_peer_fork(void);
/* Starts the program of /proc/self/exe with "serve" and the descriptors' numbers, and without
 * LD_PRELOAD: its main has to call ipc_serve. */
struct ipc_peer ipc_peer_start_bare(void);
/* One order and its answer. */
struct ipc_message ipc_peer_do(const struct ipc_peer *peer, struct ipc_message order);
/* The same message again, with another order. */
struct ipc_message ipc_peer_then(const struct ipc_peer *peer, struct ipc_message m,
                                 enum ipc_order order);
/* Waits until its work is done; its exit status, or the signal that ended it, negative. */
int ipc_peer_join(const struct ipc_peer *peer);
/* Ends one that serves; the same. */
int ipc_peer_end(const struct ipc_peer *peer);

int ipc_count_fds(void);

/* The handle of a block; skips where the driver has no such handles. */
void ipc_export(CUipcMemHandle *handle, uint64_t block);
/* A block full of a byte, with no work left on it. */
uint64_t ipc_filled(size_t size_bytes, unsigned char byte);
/* Such a block and its handle. */
uint64_t ipc_share(CUipcMemHandle *handle, size_t size_bytes, unsigned char byte);
/* Forks an importer, makes a block of each size, full of 1, 2, .., writes all handles to the
 * importer, and waits for its end. */
void ipc_share_with(int (*import)(int from, int to), const size_t *sizes_bytes, int count);
