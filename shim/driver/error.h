/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver's codes mean, and which one a context has. No state, no lock.
 */
#ifndef SHIM_ERROR_H
#define SHIM_ERROR_H

#include "shim/driver/hooks.h"

#include <stdbool.h>

/* May a context be lost after this code? Then each context is to be asked. */
bool error_is_loss(CUresult rc);

/* The error of most calls in the calling thread's current context: there is none, or it has ended,
 * or it is lost. CUDA_SUCCESS: the driver serves it. Asks the driver. */
CUresult error_here(void);

/* Was the call refused because of an open capture? */
static inline bool error_is_capture(CUresult rc)
{
    return rc >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           rc <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/* Asked about a context, the driver may answer with the error of earlier work, also of another
 * context's (documented). Does the answer say that the context has ended? Of one that has, 580.159
 * says 201 to cuCtxGetApiVersion and 709 to cuCtxGetId. */
static inline bool error_is_end(CUresult rc)
{
    switch (rc) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_UNKNOWN: /* cuCtxGetApiVersion has it of its own */
        return true;
    default:
        return false;
    }
}

#endif
