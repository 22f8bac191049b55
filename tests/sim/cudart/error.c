/* SPDX-License-Identifier: BSD-2-Clause */
/* The thread's last error, and the codes and words of the runtime. A failure stays the last error
 * until cudaGetLastError takes it; success never clears it. Thread-local, no lock. */
#include "tests/sim/cudart/cudart.h"

#include <assert.h>

#define ERROR(runtime, driver, words)                                                              \
    static_assert((int)(runtime) == (int)(driver), #runtime " and " #driver " differ");
#include "tests/sim/cudart/errors.def"

static _Thread_local cudaError_t last_error;

cudaError_t error_of(CUresult result)
{
    switch (result) {
#define ERROR(runtime, driver, words)                                                              \
    case driver:                                                                                   \
        return runtime;
#include "tests/sim/cudart/errors.def"
    default:
        return cudaErrorUnknown;
    }
}

cudaError_t error_record(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* Without a usable driver both functions return that error for ever. */
cudaError_t cudaGetLastError(void)
{
    TRY(driver_load());
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    TRY(driver_load());
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define ERROR(runtime, driver, words)                                                              \
    case runtime:                                                                                  \
        return #runtime;
#include "tests/sim/cudart/errors.def"
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorCallRequiresNewerDriver:
        return "cudaErrorCallRequiresNewerDriver";
    case cudaErrorInvalidMemcpyDirection:
        return "cudaErrorInvalidMemcpyDirection";
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define ERROR(runtime, driver, words)                                                              \
    case runtime:                                                                                  \
        return words;
#include "tests/sim/cudart/errors.def"
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorCallRequiresNewerDriver:
        return "API call is not supported in the installed CUDA driver";
    case cudaErrorInvalidMemcpyDirection:
        return "invalid copy direction for memcpy";
    default:
        return "unrecognized error code";
    }
}
