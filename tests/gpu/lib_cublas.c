/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cuBLAS: products of matrices of varying size, single, double and batched, on two streams.
 */
#include "tests/gpu/lib_common.h"

#include <cublas_v2.h>

enum { ROUNDS = 40, BATCH = 3 };

static float *matrix_f(uint32_t *state, size_t count)
{
    float *host = lib_host(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)(lib_random(state) % 8);
    return host;
}

static void single(cublasHandle_t handle, cudaStream_t stream, int round, uint32_t *state)
{
    int n = 33 + round * 37 % 400, k = 17 + round * 53 % 300;
    size_t a_count = (size_t)n * k * BATCH, c_count = (size_t)n * n * BATCH;
    float *a_host = matrix_f(state, a_count), *b_host = matrix_f(state, a_count), one = 1, none = 0;
    float *a = lib_upload(a_host, a_count * sizeof *a, stream),
          *b = lib_upload(b_host, a_count * sizeof *b, stream);
    float *c = lib_device(c_count * sizeof *c), *d = lib_device((size_t)n * n * sizeof *d);
    MUST(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, k, &one, a, n,
                                   (long long)n * k, b, k, (long long)n * k, &none, c, n,
                                   (long long)n * n, BATCH));
    MUST(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, k, &one, a, n, b, n, &none, d, n));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
    MUST(cudaDeviceSynchronize());
    uint64_t first = lib_hash_device(c, lib_host(c_count * sizeof *c), c_count * sizeof *c);
    uint64_t second =
        lib_hash_device(d, lib_host((size_t)n * n * sizeof *d), (size_t)n * n * sizeof *d);
    printf("%d single %d %d %016llx %016llx\n", round, n, k, (unsigned long long)first,
           (unsigned long long)second);
    free(a_host);
    free(b_host);
}

static void doubles(cublasHandle_t handle, cudaStream_t stream, int round, uint32_t *state)
{
    int n = 500 + round * 61 % 700;
    double *host = lib_host((size_t)n * n * sizeof *host), one = 1, none = 0, dot;
    for (size_t i = 0; i < (size_t)n * n; i++)
        host[i] = (double)(lib_random(state) % 16);
    double *a = lib_upload(host, (size_t)n * n * sizeof *a, stream),
           *c = lib_device((size_t)n * n * sizeof *c);
    MUST(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, a, n, a, n, &none, c, n));
    MUST(cublasDdot(handle, n, c, 1, a, n, &dot));
    MUST(cudaFree(a));
    printf("%d double %d %.0f %016llx\n", round, n, dot,
           (unsigned long long)lib_hash_device(c, host, (size_t)n * n * sizeof *c));
}

int main(int argc, char **argv)
{
    cudaStream_t streams[2];
    uint32_t state = 5;
    for (int i = 0; i < 2; i++)
        MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++) {
        cublasHandle_t handle; /* with a workspace of its own */
        MUST(cublasCreate(&handle));
        MUST(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH));
        MUST(cublasSetStream(handle, streams[round % 2]));
        single(handle, streams[round % 2], round, &state);
        doubles(handle, streams[round % 2], round, &state);
        MUST(cublasDestroy(handle));
    }
    return 0;
}
