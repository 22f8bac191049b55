/* SPDX-License-Identifier: BSD-2-Clause */
/* An allocation with nowhere to put the address. */
#include "tests/misuse/misuse.h"

int main(void)
{
    misuse_start();
    misuse_expect("4096 bytes to NULL", gpu_malloc_nowhere(4096), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("20 MiB to NULL", gpu_malloc_nowhere(20 * MIB), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("0 bytes to NULL", gpu_malloc_nowhere(0), CUDA_ERROR_INVALID_VALUE);
    return misuse_end();
}
