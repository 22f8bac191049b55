/* SPDX-License-Identifier: BSD-2-Clause */
/* A free of ordinary memory of the process: stack, heap, code, static data. */
#include "tests/misuse/misuse.h"

int main(void)
{
    static int data;
    int on_stack = 0;
    void *heap = malloc(4096);
    misuse_start();
    misuse_expect("stack", gpu_free((uint64_t)(uintptr_t)&on_stack), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("heap", gpu_free((uint64_t)(uintptr_t)heap), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("code", gpu_free((uint64_t)(uintptr_t)&misuse_end), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("data", gpu_free((uint64_t)(uintptr_t)&data), CUDA_ERROR_INVALID_VALUE);
    free(heap);
    return misuse_end();
}
