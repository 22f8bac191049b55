/* SPDX-License-Identifier: BSD-2-Clause */
/* What the driver keeps for each host thread: the stack of current contexts, the capture mode, and
 * the per-thread default streams. Only the thread itself reads and writes it. Its streams end with
 * it. */
#ifndef SIM_THREAD_H
#define SIM_THREAD_H

#include "tests/sim/driver.h"

#define THREAD_CONTEXTS_MAX 64

struct thread {
    CUcontext stack[THREAD_CONTEXTS_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
    uint64_t id;
    CUcontext stale; /* made current after it had ended; or NULL */
    struct thread_stream {
        CUcontext context;
        uint64_t context_id;
        CUstream stream;
    } *streams;
    unsigned stream_count;
};

/* The state of the calling thread. Never NULL. */
struct thread *thread_self(void);

/* The current context, or NULL. It may be destroyed: see context_usable. */
CUcontext thread_current(void);

/* Had the current context ended before the thread made it current? */
bool thread_current_is_stale(void);

/* The default stream of the calling thread in the context. The first use creates it. Driver
 * lock. */
CUresult thread_stream(CUcontext context, CUstream *out);

#endif
