/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The work-submission entry points (shim/route/submit.def), seen from outside: what their wrappers call
 * before the driver. They do so only while the pool asks for it (pool_watch, pool/pool.h). From the
 * first pool on they look at the driver's answer (shim/entry/answer.h); before it a wrapper is a compare,
 * a branch and a jump, with the caller's arguments where they were.
 */
#ifndef SHIM_SUBMIT_H
#define SHIM_SUBMIT_H

#include "shim/driver/hooks.h"

enum {
    SUBMIT_FLAG_PTSZ = 1,  /* per-thread variant: the NULL stream is the calling thread's own */
    SUBMIT_FLAG_ATTRS = 2, /* a launch with attributes, which may order it otherwise than its stream */
    SUBMIT_FLAG_MANY = 4,  /* several streams at once, on several devices; `stream` says nothing */
    SUBMIT_FLAG_KERNEL = 8, /* one kernel: starts when what its stream holds is complete, but ... */
    SUBMIT_FLAG_EARLY = 16, /* ... this one may start before the kernels right before it end */
    SUBMIT_FLAG_COPY = 32, /* from one memory to another */
    SUBMIT_FLAG_ANYWHERE = 64, /* may need memory of any device */
    SUBMIT_FLAG_PARTS = 128, /* several operations: if one fails others may have been submitted */
};

enum submit_seen {
    SUBMIT_UNSEEN,
    SUBMIT_SEEN,    /* submit_done is to follow */
    SUBMIT_IN_TURN, /* the same; and the kernel must not start early, whatever its attributes say */
};

/* Whether work with this attribute runs behind what its stream holds as it does without. False also
 * of attributes that are newer than the list, and of programmatic serialisation. */
bool submit_keeps_order(CUlaunchAttributeID id);

/* Implemented in shim/context/stream.c; may call the driver, must keep errno. NULL is the default stream, the
 * legacy one unless SUBMIT_FLAG_PTSZ; CU_STREAM_LEGACY and CU_STREAM_PER_THREAD come as they are.
 * Whether the stream is valid is not known yet. */
enum submit_seen submit_note(CUstream stream, unsigned flags);
/* After the driver answered. */
void submit_done(bool taken);

/* The driver's functions, real_cuLaunchKernel and so on: like the slots of `real` in shim/driver/hooks.h, but
 * symbols of their own, because the wrappers are written in assembler. */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    extern _Atomic(pfn) real_##symbol __attribute__((visibility("hidden")));
#include "shim/route/submit.def"

#endif
