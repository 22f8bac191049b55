/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room entry/ holds the wrappers: what the program's call of the driver does. Its one seam is
 * the exported names of shim/driver/hooks.def: only the program and the resolver enter by them. The
 * wrappers of route/ (submissions, the runtime's cudaMalloc) use this header and alloc.h.
 *
 * This file: what an error of a call of the program's means to the pools, and the same call again.
 *
 * 1. The driver has no memory (CUDA_ERROR_OUT_OF_MEMORY; for a context that is made also
 *    CUDA_ERROR_UNKNOWN, see context_end.c). Without us the memory that the pools hold idle would
 *    be free. So the library gives the idle memory of the devices in question back and makes the
 *    call again, in steps. The first step gives back memory that is idle already. If there is none,
 *    or the call fails again, the second step gives back memory that the program freed while work
 *    was in flight. It waits for that work as the frees would have waited. Then other processes are
 *    asked for theirs, in several steps (shim/share/lend.h), but not after CUDA_ERROR_UNKNOWN. The
 *    program gets the last failure as it is.
 * 2. The context is lost for good. The first call after that gives the driver's error. Without us
 *    each further allocation and free would give the same error, so the context's pool must not
 *    serve any more.
 *
 * retry_<symbol>(...) makes a wrapped function's call of the driver and does both. A call that
 * succeeds costs one compare more. The library's own calls go by `real` and do neither. No lock.
 */
#ifndef SHIM_RETRY_H
#define SHIM_RETRY_H

#include "pool/backend.h"
#include "pool/bits.h"
#include "shim/driver/hooks.h"
#include "shim/entry/devices.h"

#include <stdbool.h>
#include <stdint.h>

/* Does retry_note_error have to look at it? Not at success and "not ready". */
static inline bool retry_is_error(CUresult rc)
{
    return unlikely(rc != CUDA_SUCCESS) && rc != CUDA_ERROR_NOT_READY;
}

/* Looks for lost contexts if the error may tell of one. True: the driver had no memory for the
 * call. Keeps errno. */
bool retry_note_error(CUresult rc);
/* The steps of one call of the program's; at first all zero. */
struct retry_steps {
    unsigned step;
    struct lend_attempt attempt; /* see lend_ask */
    uint64_t bytes;              /* what the call takes; 0: not known */
    bool told;                   /* to a trace, and not as part of an allocation */
};
/* Takes the next step for these devices. True: some memory went back, so the call is to be made
 * again. False: there is no more. Keeps errno. */
bool retry_release(uint64_t devices, struct retry_steps *steps);
/* The call was made again, with this result: for a trace. */
void retry_note_again(CUresult rc, const struct retry_steps *steps);
/* The devices of a call that takes so many bytes, in a row of hooks.def. */
#define RETRY_BYTES(size_bytes, devices) (steps.bytes = (size_bytes), (devices))

#define HOOKS_RETRIED
#define HOOK_RETRIED(symbol, pfn, params, args, devices)                                           \
    static inline CUresult retry_##symbol params                                                   \
    {                                                                                              \
        CUresult rc = real.symbol args;                                                            \
        for (struct retry_steps steps = {0};                                                       \
             retry_is_error(rc) && retry_note_error(rc) && retry_release(devices, &steps);         \
             retry_note_again(rc, &steps))                                                         \
            rc = real.symbol args;                                                                 \
        return rc;                                                                                 \
    }
#include "shim/driver/hooks.def"

#endif
