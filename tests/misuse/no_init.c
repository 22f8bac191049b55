/* SPDX-License-Identifier: BSD-2-Clause */
/* Driver calls before cuInit. */
#include "tests/misuse/misuse.h"

int main(void)
{
    CUdeviceptr block = 0;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    scene_watchdog(60);
    misuse_expect("malloc", (int)cuMemAlloc(&block, 4096), CUDA_ERROR_NOT_INITIALIZED);
    misuse_expect("free", (int)cuMemFree(0x12345000), CUDA_ERROR_NOT_INITIALIZED);
    misuse_report("memory information", (int)cuMemGetInfo(&free_bytes, &total_bytes));
    scene_start(1, 60);
    return misuse_end();
}
