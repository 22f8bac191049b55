/* SPDX-License-Identifier: BSD-2-Clause */
/* The named launches of gpu.h over gpu_launch, the same for every route. No state. */
#include "tests/preload/gpu.h"

const char *const gpu_kernel_names[GPU_KERNELS] = {
    "fill", "copy", "check", "spin", "spin_fill", "spin_check", "wait_flag",
};

int gpu_fill(uint64_t ptr, uint64_t n_words, uint32_t value, CUstream stream)
{
    return gpu_launch(GPU_FILL, stream, (void *[]){&ptr, &n_words, &value});
}

int gpu_copy(uint64_t dst, uint64_t src, uint64_t n_words, CUstream stream)
{
    return gpu_launch(GPU_COPY, stream, (void *[]){&dst, &src, &n_words});
}

int gpu_check(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t errors_ptr, CUstream stream)
{
    return gpu_launch(GPU_CHECK, stream, (void *[]){&ptr, &n_words, &value, &errors_ptr});
}

int gpu_spin(uint64_t ns, CUstream stream)
{
    return gpu_launch(GPU_SPIN, stream, (void *[]){&ns});
}

int gpu_spin_fill(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t ns, CUstream stream)
{
    return gpu_launch(GPU_SPIN_FILL, stream, (void *[]){&ptr, &n_words, &value, &ns});
}

int gpu_spin_check(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t errors_ptr, uint64_t ns,
                   CUstream stream)
{
    return gpu_launch(GPU_SPIN_CHECK, stream, (void *[]){&ptr, &n_words, &value, &errors_ptr, &ns});
}

int gpu_wait_flag(uint64_t flag_ptr, CUstream stream)
{
    return gpu_launch(GPU_WAIT_FLAG, stream, (void *[]){&flag_ptr});
}
