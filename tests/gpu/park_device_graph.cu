// SPDX-License-Identifier: BSD-2-Clause
//
// A graph that a kernel launches. Such work comes from no call of the host. The kernel is in a
// graph of its own, which ends at once. The graph that it launches takes 2 s and then fills a
// block. The program says "ready", and answers each line of its input:
//   child, sibling, tail   launches it so    -> launched, or what the driver says
//   check                  waits for all     -> sound, or the number of wrong words
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace
{

constexpr size_t WORDS = 16 << 20;
constexpr unsigned long long WORK_NS = 2000000000;

void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    std::printf("%s: %s\n", what, cudaGetErrorString(rc));
    std::exit(1);
}
#define MUST(call) must((call), #call)

__device__ unsigned long long now_ns()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// *rounds counts the launches: the block has that value afterwards.
__global__ void fill_late(uint32_t *block, const uint32_t *rounds)
{
    const unsigned long long start = now_ns();
    while (now_ns() - start < WORK_NS)
        ;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < WORDS;
         i += (size_t)gridDim.x * blockDim.x)
        block[i] = *rounds;
}

enum how { CHILD, SIBLING, TAIL, WAYS };

__global__ void launch(cudaGraphExec_t graph, int how, uint32_t *rounds, int *code)
{
    ++*rounds;
    *code = (int)(how == CHILD     ? cudaGraphLaunch(graph, cudaStreamGraphFireAndForget)
                  : how == SIBLING ? cudaGraphLaunch(graph, cudaStreamGraphFireAndForgetAsSibling)
                                   : cudaGraphLaunch(graph, cudaStreamGraphTailLaunch));
}

} // namespace

int main()
{
    const std::string names[WAYS] = {"child", "sibling", "tail"};
    std::vector<uint32_t> words(WORDS);
    uint32_t *block, *rounds, expected = 0;
    int *code;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t inner, outer[WAYS];
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaMalloc(&block, WORDS * sizeof *block));
    MUST(cudaMalloc(&rounds, sizeof *rounds));
    MUST(cudaMallocHost(&code, sizeof *code));
    MUST(cudaMemset(rounds, 0, sizeof *rounds));

    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fill_late<<<16, 256, 0, stream>>>(block, rounds);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&inner, graph, cudaGraphInstantiateFlagDeviceLaunch));
    MUST(cudaGraphUpload(inner, stream));
    for (int how = 0; how < WAYS; how++) {
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        launch<<<1, 1, 0, stream>>>(inner, how, rounds, code);
        MUST(cudaStreamEndCapture(stream, &graph));
        MUST(cudaGraphInstantiate(&outer[how], graph, 0));
    }
    MUST(cudaDeviceSynchronize());
    std::cout << "ready" << std::endl;

    for (std::string line; std::getline(std::cin, line);) {
        for (int how = 0; how < WAYS; how++)
            if (line == names[how]) {
                *code = -1;
                MUST(cudaGraphLaunch(outer[how], stream));
                while (*(volatile int *)code < 0)
                    ;
                expected++;
                std::cout << (*code ? "code " + std::to_string(*code) : "launched") << std::endl;
            }
        if (line == "check") {
            size_t wrong = 0;
            MUST(cudaDeviceSynchronize());
            MUST(cudaMemcpy(words.data(), block, WORDS * sizeof *block, cudaMemcpyDeviceToHost));
            for (uint32_t word : words)
                wrong += word != expected;
            std::cout << (wrong ? std::to_string(wrong) : "sound") << std::endl;
        }
    }
    return 0;
}
