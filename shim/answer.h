/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver's answer to a call of the program's means to the pools, for every wrapped call:
 *
 * - It has no memory (CUDA_ERROR_OUT_OF_MEMORY, the only code for that). Natively what the pools
 * hold idle would be free. So idle memory of the devices in question goes back and the call is made
 * again: first what is idle at once; and if that was not enough or there was none, what the program
 * freed while work was in flight, which is waited for as its frees would have waited. A last
 * failure is the program's answer as it is.
 * - The context is lost for good. The driver says so by the error of whichever call comes first;
 * natively each further allocation and free gives the same error, so that the context's pool must
 * not serve any more.
 *
 * answer_<symbol>(...) makes a wrapped function's call of the driver and sees to both. A call that
 * succeeds pays one compare. What the library calls for itself is called by `real` and comes by
 * neither. Takes no lock.
 */
#ifndef SHIM_ANSWER_H
#define SHIM_ANSWER_H

#include "pool/bits.h"
#include "shim/hooks.h"

#include <stdbool.h>
#include <stdint.h>

/* Is there anything to see to? */
static inline bool answer_tells(CUresult rc)
{
    return unlikely(rc != CUDA_SUCCESS) && rc != CUDA_ERROR_NOT_READY;
}

/* Takes note of an answer that tells something. True: there was no memory for the call. Keeps
 * errno. */
bool answer_note(CUresult rc);
/* Gives idle memory of these devices back, by the next of its steps (*step, at first 0). True: some
 * went back, the call is to be made again. False: there is no more to be had. Keeps errno. */
bool answer_release(uint64_t devices, unsigned *step);

/* There is a pool, or memory of another process's: from here on the answers to submissions are
 * looked at. */
void answer_watch(void);

/* The context is lost, if this is one of the codes that say so. */
bool answer_is_loss(CUresult rc);

/* Sets of devices, a bit for each. Those below ask the driver; what it does not say is everywhere.
 */
#define ANSWER_NOWHERE                                                                             \
    UINT64_C(0) /* no memory of a device, or none that waiting would help to get */
#define ANSWER_ANYWHERE UINT64_MAX
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
/* All that reach it: on which one it lies the driver does not say. */
uint64_t answer_pool(CUmemoryPool pool);

#define HOOKS_ANSWERED
#define HOOK_ANSWER(symbol, pfn, params, args, devices)                                            \
    static inline CUresult answer_##symbol params                                                  \
    {                                                                                              \
        CUresult rc = real.symbol args;                                                            \
        for (unsigned step = 0;                                                                    \
             answer_tells(rc) && answer_note(rc) && answer_release(devices, &step);)               \
            rc = real.symbol args;                                                                 \
        return rc;                                                                                 \
    }
#include "shim/hooks.def"

#endif
