/* SPDX-License-Identifier: BSD-2-Clause */
/* An allocation of no bytes: the runtime gives NULL and success, the driver an error. */
#include "tests/misuse/misuse.h"

int main(void)
{
    uint64_t block = 1;
    size_t pitch_bytes = 0;
    misuse_start();
    misuse_expect("malloc of 0", gpu_malloc(&block, 0),
                  gpu_is_runtime ? 0 : CUDA_ERROR_INVALID_VALUE);
    printf("NULL: %s\n", block == 0 ? "yes" : "no");
    misuse_report("pitch of 0 rows", gpu_malloc_pitch(&block, &pitch_bytes, 100, 0));
    misuse_report("pitch of 0 columns", gpu_malloc_pitch(&block, &pitch_bytes, 0, 100));
    return misuse_end();
}
