/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room share/ shares pool memory: with other processes (legacy CUDA IPC), and with other
 * devices (peer access). It also lends: processes of one user give each other idle memory (lend.h).
 * Its one seam is "a block that is live" (pool_lookup, pool_expose) on one side, and a mapped range
 * on the other. The wrappers in entry/ call export.h, import.h and peer.h.
 *
 * This file: the handles that the library gives for legacy IPC, and the messages between importer
 * and exporter. A large block in segment backing is an allocation of the driver's own. Its handle
 * is the driver's, which any process can open. Every other block gets a ticket. A process under
 * this library opens it by asking the exporter for the memory:
 *
 *     importer                                exporter
 *     ticket: token, address, serial          listener: a socket with the token's name
 *       sends a question, and   ──────────▶   control thread: is that block still live?
 *       a socket for the answer;
 *       maps the chunks         ◀──────────   up to 32 of the block's chunks as descriptors, or
 *                                             the driver's handle of the segment, and the offset
 *       asks for the next ones  ──────────▶   …
 *
 * Why it is safe:
 *  1. Never wrong memory. A serial names one block of a process for ever, and a token one process.
 *     The exporter first retains the memory behind the address, then looks whether the block with
 *     that serial is still live. If it is, it was live all along. The pool neither moves nor gives
 *     back the chunks of a live block.
 *  2. The driver accepts no ticket (measured). So a process without the library gets the driver's
 *     error.
 *  3. Never handed out again. An exported block is exposed. Once the program frees it, no request
 *     gets its memory until the memory goes back to the driver as a whole. The importer's mapping
 *     keeps the physical memory, whatever the exporter does to its own.
 *  4. Only to the same user: both sides look at the credentials that the kernel gives with each
 *     message (shim/socket/socket.h).
 *  5. Other users can delay no process: see socket.h. Processes of the same user cannot make the
 *     exporter wait. Its control thread answers few questions at a time, keeps nothing of them, and
 *     sends without waiting.
 *
 * Three kinds of importer need memory of the driver's own (GPUCACHE_BACKING=segment). The first
 * runs without the library. The second is in another network namespace, where socket names end. The
 * third opens handles while the exporter is stopped.
 *
 * Both sides are builds of this library for one machine, so structures go as they are. The magic
 * number holds the version.
 */
#ifndef SHIM_TICKET_H
#define SHIM_TICKET_H

#include "shim/driver/hooks.h"
#include "shim/socket/socket.h"

#define TICKET_MAGIC UINT64_C(0x3243504943555047)

/* The 64 bytes of a handle of ours. The driver's own handles have the size of the mapping, and the
 * kernel's numbers of the memory and its owner, where a ticket has zeros. So a driver that gets a
 * ticket finds no such memory and returns CUDA_ERROR_INVALID_VALUE (measured). */
struct ticket {
    uint64_t magic;
    struct socket_token token; /* of the exporter's listener */
    uint64_t no_size;
    uint64_t addr, serial;
    uint64_t no_memory;
    uint64_t check; /* ticket_check */
};

/* One question, one answer: the exporter keeps nothing in between. */
struct ticket_question {
    struct ticket ticket;
    uint64_t done_bytes; /* of the memory: the importer has these */
};

enum ticket_kind {
    TICKET_REFUSED, /* rc is the reason */
    TICKET_CHUNKS,  /* the next `count` chunks of total_bytes, with one descriptor each */
    TICKET_NATIVE,  /* the driver's handle of the allocation that holds the block */
};

enum { TICKET_BATCH = SOCKET_FDS_MAX };
struct ticket_answer {
    uint32_t kind; /* enum ticket_kind */
    int32_t rc;    /* a CUresult */
    CUuuid device;
    uint64_t size_bytes;   /* of the block */
    uint64_t offset_bytes; /* of the block, in the memory that is sent */
    uint64_t total_bytes;  /* of that memory, over all answers */
    CUipcMemHandle native;
    uint32_t count;
    uint64_t chunk_bytes[TICKET_BATCH];
};

/* FNV-1a over all fields before `check`: tells a ticket from 64 bytes that begin like one. */
uint64_t ticket_check(const struct ticket *ticket);
/* Is this handle a ticket? */
bool ticket_is_ours(const CUipcMemHandle *handle);
/* socket_receive, for an answer that has as many descriptors as it says (answer->count). */
enum socket_got ticket_receive(int reply, struct ticket_answer *answer, int *fds, int wait_ms);

#endif
