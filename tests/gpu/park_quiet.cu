// SPDX-License-Identifier: BSD-2-Clause
//
// Kernels for park_quiet_kinds.c that only nvcc makes: work that work on the GPU starts itself, and
// reads through a texture. Every kernel writes or reads memory that the host names, n_words words.
#include <cuda_runtime.h>
#include <stdint.h>

static __device__ void spin(uint64_t ns)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < ns);
}

static __device__ void fill(uint32_t *at, uint64_t n_words, uint32_t value)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n_words;
         i += gridDim.x * (uint64_t)blockDim.x)
        at[i] = value;
}

__global__ void late_fill(uint32_t *at, uint64_t n_words, uint32_t value, uint64_t ns)
{
    spin(ns);
    fill(at, n_words, value);
}

// A kernel that starts another one, which may run on when the first has ended.
extern "C" __global__ void child_forget(uint32_t *at, uint64_t n_words, uint32_t value, uint64_t ns)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
        late_fill<<<1, 64, 0, cudaStreamFireAndForget>>>(at, n_words, value, ns);
}

extern "C" __global__ void child_tail(uint32_t *at, uint64_t n_words, uint32_t value, uint64_t ns)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
        late_fill<<<1, 64, 0, cudaStreamTailLaunch>>>(at, n_words, value, ns);
}

// The node of a graph that other graphs start: what it writes it reads from memory, because a
// graph's arguments are fixed.
extern "C" __global__ void late_copy(uint32_t *at, const uint32_t *source, uint64_t n_words,
                                     uint64_t ns)
{
    spin(ns);
    for (uint64_t i = threadIdx.x; i < n_words; i += blockDim.x)
        at[i] = source[i];
}

// how: 0 fire and forget, 1 tail, 2 sibling.
extern "C" __global__ void start_graph(cudaGraphExec_t graph, uint32_t how)
{
    if (threadIdx.x != 0)
        return;
    if (how == 0)
        cudaGraphLaunch(graph, cudaStreamGraphFireAndForget);
    else if (how == 1)
        cudaGraphLaunch(graph, cudaStreamGraphTailLaunch);
    else
        cudaGraphLaunch(graph, cudaStreamGraphFireAndForgetAsSibling);
}

extern "C" __global__ void from_texture(uint32_t *at, cudaTextureObject_t texture, uint64_t n_words,
                                        uint64_t ns)
{
    spin(ns);
    for (uint64_t i = threadIdx.x; i < n_words; i += blockDim.x)
        at[i] = tex1Dfetch<uint32_t>(texture, (int)i);
}

// The body of a graph's loop: a part of the memory each time, until all is done.
extern "C" __global__ void loop_fill(uint32_t *at, const uint32_t *source, uint64_t n_words,
                                     uint32_t *turn, uint32_t turns,
                                     cudaGraphConditionalHandle handle)
{
    uint64_t share = n_words / turns, first = *turn * share;
    spin(5000);
    for (uint64_t i = threadIdx.x; i < share; i += blockDim.x)
        at[first + i] = source[first + i];
    __syncthreads();
    if (threadIdx.x == 0) {
        *turn = *turn + 1 == turns ? 0 : *turn + 1;
        cudaGraphSetConditional(handle, *turn != 0);
    }
}
