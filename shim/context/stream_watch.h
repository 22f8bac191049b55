/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which streams the program submits work to, and so whether the order of one stream is enough for
 * the pool (pool/single_stream.h). The argument is Note [Single stream] in README.md.
 */
#ifndef SHIM_STREAM_WATCH_H
#define SHIM_STREAM_WATCH_H

#include "shim/context/submitter.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>

/* The column `flags` of shim/driver/submit.def. */
enum {
    SUBMIT_FLAG_PTSZ = 1,   /* per-thread variant: the NULL stream is the calling thread's own */
    SUBMIT_FLAG_ATTRS = 2,  /* a launch with attributes that may order it otherwise */
    SUBMIT_FLAG_MANY = 4,   /* several streams at once, on several devices; `stream` says nothing */
    SUBMIT_FLAG_KERNEL = 8, /* one kernel: starts when what its stream holds is complete, but ... */
    SUBMIT_FLAG_EARLY = 16, /* ... this one may start before the kernels right before it end */
    SUBMIT_FLAG_COPY = 32,  /* from one memory to another */
    SUBMIT_FLAG_ANYWHERE = 64, /* may need memory of any device */
    SUBMIT_FLAG_PARTS = 128,   /* several operations: if one fails, others may be submitted */
};

enum submit_seen {
    SUBMIT_UNSEEN,  /* nothing follows */
    SUBMIT_MARKED,  /* submitter_unmark is to follow */
    SUBMIT_SEEN,    /* submission_end is to follow */
    SUBMIT_IN_TURN, /* the same; and the kernel must not start early, whatever its attributes say */
};

/* What the thread marks its record with (submitter.h) when it submits work to this stream. NULL is
 * the default stream: the legacy one unless SUBMIT_FLAG_PTSZ; CU_STREAM_LEGACY and
 * CU_STREAM_PER_THREAD come as they are. The stream may be invalid: the driver has not seen it yet.
 * Of launches, see Note [Memory domains] in README.md. */
static inline uint64_t submission_name(const struct submitter *s, CUstream stream, unsigned flags)
{
    if (flags & (SUBMIT_FLAG_ATTRS | SUBMIT_FLAG_MANY))
        return SUBMITTER_OTHER;
    if (stream == CU_STREAM_PER_THREAD || (!stream && (flags & SUBMIT_FLAG_PTSZ)))
        return s ? s->per_thread : SUBMITTER_OTHER;
    return stream == CU_STREAM_LEGACY ? 0 : (uint64_t)(uintptr_t)stream;
}
/* A thread is about to submit work. s: its record, which has that mark; NULL: it has none. watch:
 * pool_watch, read behind the mark. May call the driver. Keeps errno. */
enum submit_seen submission_begin(struct submitter *s, uint64_t name, unsigned watch,
                                  unsigned flags);
/* The driver has answered that submission; taken: with CUDA_SUCCESS. Ends the mark. */
void submission_end(bool taken);

/* Attributes that leave a kernel behind what its stream holds, one bit each, by their numbers in
 * cuda.h. They are: ignore, access policy, cooperative, synchronisation policy, the three of
 * clusters, priority, carveout, NVLink hint. Every library for sm_90 sets some of these at every
 * launch. All others may order a kernel in ways of their own, or put it into a memory domain of its
 * own (stream_watch.c, "Domains"). */
#define STREAM_ATTRIBUTES_IN_ORDER 0x1493fu

/* Does work with this attribute run behind what its stream holds, as it does without? False also
 * of attributes that are newer than the list, and of programmatic serialisation. */
static inline bool stream_watch_keeps_order(CUlaunchAttributeID id)
{
    return (unsigned)id < 32 && STREAM_ATTRIBUTES_IN_ORDER >> (unsigned)id & 1;
}

/* May a pool made now rely on the order of one stream? */
bool stream_watch_may_be_single(void);
/* context_for_each_pool finds such a pool from now on. alone: it is the only one of the process. */
void stream_watch_pool_listed(bool alone);
/* The process does work that is not seen, or that no stream's order covers: there is no single
 * stream any more. Returns when every pool has ordered what stream order alone ordered so far. May
 * call the driver. */
void single_stream_disable(void);
/* The same, and the reason is that the process submits work that is not seen. */
void stream_watch_note_unseen(void);
/* False: the process may submit work that is not seen, from now on for good. Walks the list of
 * loaded libraries, with the loader's lock held. */
bool stream_watch_sees_all(void);

/* A capture begins: leaves the single stream. There is none until as many captures have closed. */
void stream_watch_capture_opens(void);
void stream_watch_capture_closed(void);
/* The stream is about to be destroyed. Its handle may come back as another stream. */
void stream_watch_forget(CUstream stream);

#endif
