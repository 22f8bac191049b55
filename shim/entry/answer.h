/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room entry/ holds the wrappers: what the program's call of the driver does. Its one seam is
 * the exported names of shim/driver/hooks.def: only the program and the resolver enter by them. The
 * wrappers of route/ (submissions, the runtime's cudaMalloc) use this header and alloc.h.
 *
 * This file: what the driver's answer to a call of the program's means to the pools.
 *
 * 1. The driver has no memory (CUDA_ERROR_OUT_OF_MEMORY, its only code for that). Without us the
 *    memory that the pools hold idle would be free. So the library gives the idle memory of the
 *    devices in question back and makes the call again, in steps. The first step gives back memory
 *    that is idle already. If there is none, or the call fails again, the second step gives back
 *    memory that the program freed while work was in flight. It waits for that work as the frees
 *    would have waited. Then other processes are asked for theirs, in several steps
 *    (shim/share/lend.h). The program gets the last failure as it is.
 * 2. The context is lost for good. The first call after that gives the driver's error. Without us
 *    each further allocation and free would give the same error, so the context's pool must not
 *    serve any more.
 *
 * answer_<symbol>(...) makes a wrapped function's call of the driver and does both. A call that
 * succeeds costs one compare more. The library's own calls go by `real` and do neither. No lock.
 */
#ifndef SHIM_ANSWER_H
#define SHIM_ANSWER_H

#include "pool/bits.h"
#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stdint.h>

/* Does the answer need answer_note? Success and "not ready" do not. */
static inline bool answer_tells(CUresult rc)
{
    return unlikely(rc != CUDA_SUCCESS) && rc != CUDA_ERROR_NOT_READY;
}

/* Looks for lost contexts if the answer may tell of one. True: the driver had no memory for the
 * call. Keeps errno. */
bool answer_note(CUresult rc);
/* The steps of one call of the program's; at first all zero. */
struct answer_steps {
    unsigned step;
    uint64_t series; /* see lend_ask */
    uint64_t bytes;  /* what the call takes; 0: not known */
};
/* Takes the next step for these devices. True: some memory went back, so the call is to be made
 * again. False: there is no more. Keeps errno. */
bool answer_release(uint64_t devices, struct answer_steps *steps);
/* The devices of a call that takes so many bytes, in a row of hooks.def. */
#define ANSWER_BYTES(size_bytes, devices) (steps.bytes = (size_bytes), (devices))

/* Sets of devices, a bit for each. The functions below ask the driver; where it does not answer,
 * the set is DEVICES_ALL. */
/* No memory of a device, or none that a release would help to get. */
#define DEVICES_NONE UINT64_C(0)
#define DEVICES_ALL UINT64_MAX
uint64_t answer_device(CUdevice device);
uint64_t answer_current(void);           /* of the current context */
uint64_t answer_context(CUcontext ctx);  /* NULL: the current one */
uint64_t answer_peers(CUcontext peer);   /* of the current context and that one */
uint64_t answer_stream(CUstream stream); /* a default one: of the current context */
uint64_t answer_green(CUgreenCtx green);
uint64_t answer_location(const CUmemLocation *location);
uint64_t answer_physical(const CUmemAllocationProp *prop);
uint64_t answer_handle(CUmemGenericAllocationHandle handle);
uint64_t answer_access(const CUmemAccessDesc *desc, size_t count);
/* All devices that reach the pool: the driver does not say on which one it lies. */
uint64_t answer_pool(CUmemoryPool pool);

#define HOOKS_ANSWERED
#define HOOK_ANSWER(symbol, pfn, params, args, devices)                                            \
    static inline CUresult answer_##symbol params                                                  \
    {                                                                                              \
        CUresult rc = real.symbol args;                                                            \
        for (struct answer_steps steps = {0};                                                      \
             answer_tells(rc) && answer_note(rc) && answer_release(devices, &steps);)              \
            rc = real.symbol args;                                                                 \
        return rc;                                                                                 \
    }
#include "shim/driver/hooks.def"

#endif
