/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels, launched as NVIDIA's runtime launches its own. It loads a library from its image, finds
 * a kernel by name, and launches the handle. No state of its own. */
#include "tests/sim/cudart/cudart.h"

#if RUNTIME_VERSION >= 12080 /* before, only nvcc's start-up code could bring kernels in */
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                                enum cudaJitOption *jit_options, void **jit_values,
                                unsigned jit_count, enum cudaLibraryOption *library_options,
                                void **library_values, unsigned library_count)
{
    return IN_CONTEXT(CALL(cuLibraryLoadData, 12000, (CUlibrary *)library, code,
                           (CUjit_option *)jit_options, jit_values, jit_count,
                           (CUlibraryOption *)library_options, library_values, library_count));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    return IN_CONTEXT(
        CALL(cuLibraryGetKernel, 12000, (CUkernel *)kernel, (CUlibrary)library, name));
}
#endif

static cudaError_t cudaLaunchKernel_flavour(bool per_thread, const void *function, dim3 grid,
                                            dim3 block, void **args, size_t shared_bytes,
                                            cudaStream_t stream)
{
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuLaunchKernel, 4000, 7000, (CUfunction)function,
                                grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                (unsigned)shared_bytes, stream, args, NULL));
}
TWINS(cudaLaunchKernel, ptsz,
      (const void *function, dim3 grid, dim3 block, void **args, size_t shared_bytes,
       cudaStream_t stream),
      (function, grid, block, args, shared_bytes, stream))

static cudaError_t cudaLaunchKernelExC_flavour(bool per_thread, const cudaLaunchConfig_t *config,
                                               const void *function, void **args)
{
    if (!driver_enter())
        return cudaPeekAtLastError();
    if (config == NULL)
        return error_record(cudaErrorInvalidValue);
    CUlaunchConfig launch = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    return IN_CONTEXT(CALL_PTSZ(per_thread, cuLaunchKernelEx, 11060, 11060, &launch,
                                (CUfunction)function, args, NULL));
}
TWINS(cudaLaunchKernelExC, ptsz,
      (const cudaLaunchConfig_t *config, const void *function, void **args),
      (config, function, args))
