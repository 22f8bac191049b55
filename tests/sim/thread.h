/* SPDX-License-Identifier: BSD-2-Clause */
/* What the driver keeps per host thread: the stack of current contexts, the capture mode, the
 * per-thread default streams. Only the thread itself reads and writes it; its streams die with it.
 */
#ifndef SIM_THREAD_H
#define SIM_THREAD_H

#include "tests/sim/driver.h"

#define THREAD_CONTEXTS_MAX 64

struct thread {
    CUcontext stack[THREAD_CONTEXTS_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
    uint64_t id;
    struct thread_stream {
        CUcontext context;
        uint64_t context_id;
        CUstream stream;
    } * streams;
    unsigned stream_count;
};

/* The calling thread's; never NULL. */
struct thread *thread_self(void);

/* The current context, or NULL. It may have been destroyed: see context_usable. */
CUcontext thread_current(void);

/* The calling thread's default stream in the context, created at first use. Driver lock. */
CUresult thread_stream(CUcontext context, CUstream *out);

#endif
