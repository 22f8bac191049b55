/* SPDX-License-Identifier: BSD-2-Clause */
/* The runtime's memory handles for other processes. No state of its own. */
#include "tests/sim/cudart/cudart.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "the handle is passed on");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    return IN_CONTEXT(
        CALL(cuIpcGetMemHandle, 4010, (CUipcMemHandle *)handle, (CUdeviceptr)(uintptr_t)pointer));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle driver_handle;
    memcpy(&driver_handle, &handle, sizeof driver_handle);
    return IN_CONTEXT(
        CALL(cuIpcOpenMemHandle, 11000, (CUdeviceptr *)pointer, driver_handle, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    return IN_CONTEXT(CALL(cuIpcCloseMemHandle, 4010, (CUdeviceptr)(uintptr_t)pointer));
}
