/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams are queues of work. The legacy default stream is ordered against the others by rules of
 * its own. Driver lock. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "tests/sim/vector.h"
#include "tests/sim/work.h"

enum stream_kind {
    STREAM_LEGACY,     /* waits for all blocking streams of the context, and they for it */
    STREAM_PER_THREAD, /* a blocking stream that cannot be destroyed */
    STREAM_BLOCKING,
    STREAM_NON_BLOCKING,
};

struct CUstream_st {
    uint32_t magic;
    enum stream_kind kind;
    CUcontext context;
    uint64_t id;             /* unique */
    struct work *tail;       /* the last work, or NULL */
    unsigned slot;           /* in vector clocks */
    uint64_t seq;            /* of the last work that accesses memory */
    struct vector clock;     /* what comes before the stream's next work */
    bool chained;            /* the last work was a kernel */
    uint64_t chain_seq;      /* what the last kernel that may not start early comes after */
    struct capture *capture; /* that the stream is part of, or NULL */
    struct CUgraphNode_st **capture_tail; /* the nodes that the next captured node depends on */
    size_t capture_tail_count;
    CUstream next; /* in the context's list */
};

/* Never NULL. */
CUstream stream_create(CUcontext context, enum stream_kind kind);
/* Ends the stream. Its unfinished work goes on, as part of the context. */
void stream_destroy(CUstream stream);

/* Resolves a handle of the program: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of the current
 * context, or a live stream. Returns CUDA_ERROR_INVALID_HANDLE, or what context_usable says of the
 * context. */
CUresult stream_resolve(CUstream handle, CUstream *out);

/* Makes the stream's next work come after `before` and after all that `clock` covers. */
void stream_order(CUstream stream, struct work *before, const struct vector *clock);

/* Returns the work that is done when all work of the stream is, or NULL if none is pending. The
 * stream keeps the reference. Brings stream->clock up to date. */
struct work *stream_frontier(CUstream stream);

/* Submits the command and reports hazards. The call may block while the context has too much work
 * in flight. In a capture it adds a node instead. */
CUresult stream_submit(CUstream stream, const struct command *command);

/* Submits work that also waits for `after`. Does not look at captures and the queue depth. */
struct work *stream_enqueue(CUstream stream, const struct command *command, struct work **after,
                            size_t after_count);

/* Submits a node of a graph that is launched into the stream. It waits for `after` only and does
 * not become the tail of the stream. Returns the work with a reference. */
struct work *stream_enqueue_node(CUstream stream, const struct command *command,
                                 struct work **after, size_t after_count);

/* Blocks until all work that was submitted before is done. Records that the host knows. */
CUresult stream_wait(CUstream stream);

/* The same for work of the context with a reference, which is released, and what is done then. seen
 * is finished. */
CUresult stream_wait_work(struct work *last, struct vector *seen, CUcontext context);

/* What the host has seen complete. All its later submissions come after that. */
extern struct vector stream_host_clock;

#endif
