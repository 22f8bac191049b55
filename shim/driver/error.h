/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the driver's codes mean. No state, no lock.
 */
#ifndef SHIM_ERROR_H
#define SHIM_ERROR_H

#include "shim/driver/hooks.h"

#include <stdbool.h>

/* May a context be lost after this code? Then each context is to be asked. */
bool error_is_loss(CUresult rc);

/* Was the call refused because of an open capture? */
static inline bool error_is_capture(CUresult rc)
{
    return rc >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           rc <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

#endif
