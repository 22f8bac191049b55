/* SPDX-License-Identifier: BSD-2-Clause
 *
 * NCCL: sums over two GPUs in one process, in buffers that are allocated for each round and freed
 * while the other GPU is at work. A machine with one GPU sums over that.
 */
#include "tests/gpu/lib_common.h"

#include <nccl.h>

enum { ROUNDS = 40, MOST_GPUS = 2 };

static void upload(int gpu, cudaStream_t stream, int round, size_t count, float **device)
{
    float *host = lib_host(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)((i * (unsigned)(gpu + 3) + (unsigned)round) % 1000);
    MUST(cudaSetDevice(gpu));
    *device = lib_upload(host, count * sizeof *host, stream);
    free(host);
}

int main(int argc, char **argv)
{
    int gpus = 0;
    MUST(cudaGetDeviceCount(&gpus));
    gpus = gpus < MOST_GPUS ? gpus : MOST_GPUS;
    ncclComm_t comms[MOST_GPUS];
    cudaStream_t streams[MOST_GPUS];
    MUST(ncclCommInitAll(comms, gpus, NULL));
    for (int gpu = 0; gpu < gpus; gpu++) {
        MUST(cudaSetDevice(gpu));
        MUST(cudaStreamCreateWithFlags(&streams[gpu], cudaStreamNonBlocking));
    }
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++) {
        size_t count = 1000 + (size_t)round * 104729 % 2000000, size_bytes = count * sizeof(float);
        float *in[MOST_GPUS], *out[MOST_GPUS];
        for (int gpu = 0; gpu < gpus; gpu++) {
            upload(gpu, streams[gpu], round, count, &in[gpu]);
            out[gpu] = lib_device(size_bytes);
        }
        MUST(ncclGroupStart());
        for (int gpu = 0; gpu < gpus; gpu++)
            MUST(ncclAllReduce(in[gpu], out[gpu], count, ncclFloat, ncclSum, comms[gpu],
                               streams[gpu]));
        MUST(ncclGroupEnd());
        printf("%d %zu", round, count);
        for (int gpu = 0; gpu < gpus; gpu++) {
            MUST(cudaSetDevice(gpu));
            MUST(cudaStreamSynchronize(streams[gpu]));
            MUST(cudaFree(in[gpu]));
            printf(" %016llx",
                   (unsigned long long)lib_hash_device(out[gpu], lib_host(size_bytes), size_bytes));
        }
        printf("\n");
    }
    for (int gpu = 0; gpu < gpus; gpu++)
        MUST(ncclCommDestroy(comms[gpu]));
    return 0;
}
