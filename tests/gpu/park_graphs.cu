// SPDX-License-Identifier: BSD-2-Clause
//
// A C++ program with two CUDA graphs: one made node by node of kernels, copies, memsets and a host
// function, one captured. It is parked from outside between their launches (part_frames.py). It
// says "ready", and answers each line of its input with checksums. What the graphs leave on the GPU
// the next launch reads.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr size_t WORDS = 8 << 20, HEAD = 1024;

void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    std::printf("%s: %s\n", what, cudaGetErrorString(rc));
    std::exit(1);
}
#define MUST(call) must((call), #call)

__global__ void mix(uint32_t *to, const uint32_t *from, const uint32_t *more, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i] * 1664525u + more[i % HEAD] + static_cast<uint32_t>(i);
}

__global__ void sum(unsigned long long *out, const uint32_t *from, size_t words)
{
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        mine += from[i];
    atomicAdd(out, mine);
}

uint32_t *device_words(size_t words)
{
    void *p = nullptr;
    MUST(cudaMalloc(&p, words * sizeof(uint32_t)));
    MUST(cudaMemset(p, 1, words * sizeof(uint32_t)));
    return static_cast<uint32_t *>(p);
}

// What the host function of the graph reads and changes.
struct Host {
    uint32_t *up;               // pinned, copied to the GPU by the graph
    unsigned long long *result; // pinned, copied from it
    unsigned calls = 0;
};

void change(void *data)
{
    auto *host = static_cast<Host *>(data);
    host->calls++;
    for (size_t i = 0; i < HEAD; i++)
        host->up[i] += static_cast<uint32_t>(*host->result >> i % 32) + host->calls;
}

struct State {
    uint32_t *a = device_words(WORDS), *b = device_words(WORDS), *more = device_words(HEAD);
    unsigned long long *total = reinterpret_cast<unsigned long long *>(device_words(2));
    Host host{};

    State()
    {
        MUST(cudaMallocHost(reinterpret_cast<void **>(&host.up), HEAD * sizeof(uint32_t)));
        MUST(cudaMallocHost(reinterpret_cast<void **>(&host.result), sizeof *host.result));
        *host.result = 0;
        for (size_t i = 0; i < HEAD; i++)
            host.up[i] = static_cast<uint32_t>(i);
    }
};

cudaGraphNode_t kernel_node(cudaGraph_t graph, cudaGraphNode_t behind, const void *function,
                            void **parameters)
{
    cudaKernelNodeParams node = {};
    cudaGraphNode_t added;
    node.func = const_cast<void *>(function);
    node.gridDim = dim3(128);
    node.blockDim = dim3(256);
    node.kernelParams = parameters;
    MUST(cudaGraphAddKernelNode(&added, graph, &behind, 1, &node));
    return added;
}

cudaGraphNode_t copy_node(cudaGraph_t graph, cudaGraphNode_t behind, void *to, const void *from,
                          size_t bytes, cudaMemcpyKind kind)
{
    cudaGraphNode_t added;
    MUST(cudaGraphAddMemcpyNode1D(&added, graph, behind ? &behind : nullptr, behind ? 1 : 0, to,
                                  from, bytes, kind));
    return added;
}

// up -> more, a and more -> b, memset of total, sum of b -> total -> host, host function, b -> a.
cudaGraphExec_t made(State &s)
{
    size_t words = WORDS;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node, set;
    cudaMemsetParams memset = {};
    cudaHostNodeParams function = {};

    MUST(cudaGraphCreate(&graph, 0));
    node = copy_node(graph, nullptr, s.more, s.host.up, HEAD * sizeof(uint32_t),
                     cudaMemcpyHostToDevice);
    void *mixed[] = {&s.b, &s.a, &s.more, &words};
    node = kernel_node(graph, node, reinterpret_cast<const void *>(mix), mixed);
    memset.dst = s.total;
    memset.elementSize = 4;
    memset.width = 2;
    memset.height = 1;
    MUST(cudaGraphAddMemsetNode(&set, graph, &node, 1, &memset));
    void *summed[] = {&s.total, &s.b, &words};
    node = kernel_node(graph, set, reinterpret_cast<const void *>(sum), summed);
    node = copy_node(graph, node, s.host.result, s.total, sizeof *s.total, cudaMemcpyDeviceToHost);
    function.fn = change;
    function.userData = &s.host;
    MUST(cudaGraphAddHostNode(&node, graph, &node, 1, &function));
    copy_node(graph, node, s.a, s.b, WORDS * sizeof(uint32_t), cudaMemcpyDeviceToDevice);
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

// The same work as a stream has it.
cudaGraphExec_t captured(State &s, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    MUST(cudaMemcpyAsync(s.more, s.host.up, HEAD * sizeof(uint32_t), cudaMemcpyHostToDevice,
                         stream));
    mix<<<128, 256, 0, stream>>>(s.b, s.a, s.more, WORDS);
    MUST(cudaMemsetAsync(s.total, 0, sizeof *s.total, stream));
    sum<<<128, 256, 0, stream>>>(s.total, s.b, WORDS);
    MUST(cudaMemcpyAsync(s.host.result, s.total, sizeof *s.total, cudaMemcpyDeviceToHost, stream));
    MUST(cudaLaunchHostFunc(stream, change, &s.host));
    MUST(cudaMemcpyAsync(s.a, s.b, WORDS * sizeof(uint32_t), cudaMemcpyDeviceToDevice, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

} // namespace

int main()
{
    State s;
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaDeviceSynchronize());
    const std::vector<cudaGraphExec_t> graphs = {made(s), captured(s, stream)};
    std::cout << "ready" << std::endl;
    std::string line;
    for (unsigned step = 1; std::getline(std::cin, line); step++) {
        std::cout << step;
        for (cudaGraphExec_t graph : graphs) {
            MUST(cudaGraphLaunch(graph, stream));
            MUST(cudaStreamSynchronize(stream));
            std::cout << ' ' << *s.host.result << ' ' << s.host.up[HEAD - 1];
        }
        std::cout << std::endl;
    }
    return 0;
}
