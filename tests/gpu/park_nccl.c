/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One rank of NCCL, which is parked from outside between two sums (part_beside.py). It says
 * "ready PID" and answers lines of its input:
 *   id              a name for the communicator, in hexadecimal digits
 *   join RANK ID    the communicator of all ranks, and the buffers   -> joined
 *   sum             a sum of new numbers over all ranks              -> right, or how many are
 * wrong capture         a CUDA graph of such a sum                       -> captured replay the
 * same as sum, by the graph
 *
 * park_nccl DEVICE RANKS
 */
#include "tests/gpu/lib_common.h"

#include <nccl.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 16 << 20 };

static int rank, ranks;
static unsigned round_number;
static ncclComm_t comm;
static cudaStream_t stream;
static cudaGraphExec_t graph;
static float *in, *out, *host;

static float number(int of_rank, size_t i)
{
    return (float)((i * (unsigned)(of_rank + 3) + round_number * 7) % 1000);
}

static void join(const char *digits)
{
    ncclUniqueId id;

    for (size_t i = 0; i < sizeof id.internal; i++) {
        unsigned byte = 0;
        MUST(sscanf(digits + 2 * i, "%2x", &byte) != 1);
        id.internal[i] = (char)byte;
    }
    MUST(ncclCommInitRank(&comm, ranks, id, rank));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    in = lib_device(COUNT * sizeof *in);
    out = lib_device(COUNT * sizeof *out);
    host = lib_host(COUNT * sizeof *host);
    puts("joined");
}

static void submit_sum(void)
{
    MUST(ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream));
}

static void capture(void)
{
    cudaGraph_t captured;

    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    submit_sum();
    MUST(cudaStreamEndCapture(stream, &captured));
    MUST(cudaGraphInstantiate(&graph, captured, 0));
    MUST(cudaGraphDestroy(captured));
    puts("captured");
}

static void sum(int by_graph)
{
    size_t wrong = 0;

    round_number++;
    for (size_t i = 0; i < COUNT; i++)
        host[i] = number(rank, i);
    MUST(cudaMemcpyAsync(in, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, stream));
    MUST(cudaMemsetAsync(out, 0xff, COUNT * sizeof *out, stream));
    if (by_graph)
        MUST(cudaGraphLaunch(graph, stream));
    else
        submit_sum();
    MUST(cudaMemcpyAsync(host, out, COUNT * sizeof *host, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < COUNT; i++) {
        float right = 0;
        for (int its = 0; its < ranks; its++)
            right += number(its, i);
        wrong += !(host[i] == right);
    }
    if (wrong)
        printf("%zu numbers are wrong\n", wrong);
    else
        puts("right");
}

static void say_id(void)
{
    ncclUniqueId id;

    MUST(ncclGetUniqueId(&id));
    for (size_t i = 0; i < sizeof id.internal; i++)
        printf("%02x", (unsigned char)id.internal[i]);
    puts("");
}

int main(int argc, char **argv)
{
    char line[1024];
    int length = 0;

    int device = argc > 1 ? atoi(argv[1]) : 0;
    ranks = argc > 2 ? atoi(argv[2]) : 1;
    int gpus = 0;
    MUST(cudaGetDeviceCount(&gpus));
    if (device >= gpus)
        return EXIT_SKIPPED;
    MUST(cudaSetDevice(device));
    MUST(cudaFree(lib_device(1 << 20)));
    printf("ready %ld\n", (long)getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "id", 2))
            say_id();
        else if (sscanf(line, "join %d %n", &rank, &length) == 1)
            join(line + length);
        else if (!strncmp(line, "capture", 7))
            capture();
        else
            sum(!strncmp(line, "replay", 6));
        fflush(stdout);
    }
    return 0;
}
