/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See error.h.
 */
#include "shim/driver/error.h"

#include "shim/driver/hide.h"

/* Of most of these cuda.h says "This leaves the process in an inconsistent state and any further
 * CUDA work will return the same error". The others were seen to stick, or may stick. */
bool error_is_loss(CUresult rc)
{
    switch ((int)rc) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case 226: /* CUDA_ERROR_CONTAINED, which headers before 12.8 do not name */
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK, which headers before 12.9 do not name */
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

CUresult error_here(void)
{
    CUdeviceptr base;
    size_t size_bytes;
    CUresult rc = real.cuMemGetAddressRange_v2(&base, &size_bytes, hide_host_address());
    bool refused = rc == CUDA_ERROR_INVALID_CONTEXT || rc == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
                   error_is_loss(rc);
    return refused ? rc : CUDA_SUCCESS;
}
