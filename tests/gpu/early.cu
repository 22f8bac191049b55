// SPDX-License-Identifier: BSD-2-Clause
//
// Kernels that start before their predecessors end (programmatic dependent launch). They use memory
// that the program freed while such a predecessor was still to write there. The work is on the
// legacy stream, on one stream of its own, and on one stream beside another.
//   early [--by-hand]    see handover.cuh
// Status 0: no word was lost; 1: some were; 77: the GPU has no such launches.
#include "tests/gpu/handover.cuh"

enum { ROUNDS = 60 };

__global__ void write_late(volatile uint32_t *at, uint32_t value, long long cycles)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    for (long long start = clock64(); clock64() - start < cycles;)
        ;
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        at[i] = value;
}

__global__ void write_early(volatile uint32_t *at, uint32_t value)
{
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        at[i] = value;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;");
#endif
}

static void launch_early(uint32_t *at, uint32_t value, cudaStream_t stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    REQUIRE(cudaLaunchKernelEx(&config, write_early, (volatile uint32_t *)at, value));
}

static unsigned play(cudaStream_t stream, cudaStream_t beside, bool by_hand)
{
    unsigned *wrong, lost = 0;
    uint32_t *scratch;
    REQUIRE(cudaMalloc(&wrong, sizeof *wrong));
    REQUIRE(cudaMalloc(&scratch, 4 * WORDS * sizeof *scratch));
    REQUIRE(cudaMemset(wrong, 0, sizeof *wrong));
    for (int i = 0; i < RUN; i++)
        write_late<<<1, 256, 0, stream>>>(scratch, i, 0);
    REQUIRE(cudaDeviceSynchronize());
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint32_t *old, *block;
        REQUIRE(cudaMalloc(&old, WORDS * sizeof *old));
        if (beside && round % 5 == 0)
            write_late<<<1, 256, 0, beside>>>(scratch, round, 100000);
        write_late<<<1, 256, 0, stream>>>(old, 0xdead, 2000000);
        block = handed_over(old, by_hand);
        for (uint32_t i = 0; i < round % 3; i++)
            launch_early(scratch + (i + 1) * WORDS, i, stream);
        launch_early(block, round, stream);
        count_wrong<<<1, 256, 0, stream>>>(block, round, wrong);
        REQUIRE(cudaStreamSynchronize(stream));
        REQUIRE(cudaFree(block));
    }
    REQUIRE(cudaMemcpy(&lost, wrong, sizeof lost, cudaMemcpyDeviceToHost));
    REQUIRE(cudaFree(wrong));
    REQUIRE(cudaFree(scratch));
    return lost;
}

int main(int argc, char **argv)
{
    bool by_hand = by_hand_asked(argc, argv);
    int major = 0;
    cudaStream_t blocking, non_blocking;
    REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 9)
        return 77;
    REQUIRE(cudaStreamCreate(&blocking));
    REQUIRE(cudaStreamCreateWithFlags(&non_blocking, cudaStreamNonBlocking));
    unsigned legacy = play(cudaStreamLegacy, nullptr, by_hand);
    unsigned one = play(non_blocking, nullptr, by_hand);
    unsigned two = play(non_blocking, blocking, by_hand);
    printf("words lost: %u on the legacy stream, %u on one of its own, %u with another beside\n",
           legacy, one, two);
    return legacy + one + two ? 1 : 0;
}
