/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cuSOLVER: linear systems by Cholesky and LU, and eigenvalues, of varying size.
 */
#include "tests/gpu/lib_common.h"

#include <cusolverDn.h>
#include <math.h>

enum { ROUNDS = 24 };

/* Symmetric, dominated by its diagonal. */
static double *matrix_of(int n, uint32_t *state)
{
    double *a = lib_host((size_t)n * n * sizeof *a);
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            a[(size_t)i * n + j] = a[(size_t)j * n + i] =
                i == j ? 2.0 * n + i : (double)(lib_random(state) % 16) / 16;
    return a;
}

static int info_of(int *info)
{
    int value;
    MUST(cudaMemcpy(&value, info, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

/* The largest error of the solution, whose every element is 1. */
static double error_of(double *x, int n)
{
    double *host = lib_host((size_t)n * sizeof *host), worst = 0;
    MUST(cudaMemcpy(host, x, (size_t)n * sizeof *host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(host[i] - 1));
    free(host);
    return worst;
}

static double cholesky(cusolverDnHandle_t handle, const double *host, const double *sums, int n,
                       int *info)
{
    int size;
    double *a = lib_upload(host, (size_t)n * n * sizeof *a, 0),
           *x = lib_upload(sums, (size_t)n * sizeof *x, 0);
    MUST(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, &size));
    double *work = lib_device((size_t)size * sizeof *work);
    MUST(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, work, size, info));
    MUST(cudaFree(work));
    MUST(cusolverDnDpotrs(handle, CUBLAS_FILL_MODE_LOWER, n, 1, a, n, x, n, info));
    MUST(cudaFree(a));
    double error = error_of(x, n);
    MUST(cudaFree(x));
    return error;
}

static double lu(cusolverDnHandle_t handle, const double *host, const double *sums, int n,
                 int *info)
{
    int size;
    double *a = lib_upload(host, (size_t)n * n * sizeof *a, 0),
           *x = lib_upload(sums, (size_t)n * sizeof *x, 0);
    int *pivots = lib_device((size_t)n * sizeof *pivots);
    MUST(cusolverDnDgetrf_bufferSize(handle, n, n, a, n, &size));
    double *work = lib_device((size_t)size * sizeof *work);
    MUST(cusolverDnDgetrf(handle, n, n, a, n, work, pivots, info));
    MUST(cudaFree(work));
    MUST(cusolverDnDgetrs(handle, CUBLAS_OP_N, n, 1, a, n, pivots, x, n, info));
    MUST(cudaFree(a));
    MUST(cudaFree(pivots));
    double error = error_of(x, n);
    MUST(cudaFree(x));
    return error;
}

/* The sum of the eigenvalues less the trace, which it equals. */
static double eigenvalues(cusolverDnHandle_t handle, const double *host, int n, int *info)
{
    int size;
    double *a = lib_upload(host, (size_t)n * n * sizeof *a, 0),
           *values = lib_device((size_t)n * sizeof *values);
    MUST(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a,
                                     n, values, &size));
    double *work = lib_device((size_t)size * sizeof *work),
           *mine = lib_host((size_t)n * sizeof *mine);
    MUST(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a, n, values,
                          work, size, info));
    MUST(cudaMemcpy(mine, values, (size_t)n * sizeof *mine, cudaMemcpyDeviceToHost));
    double difference = 0;
    for (int i = 0; i < n; i++)
        difference += mine[i] - host[(size_t)i * n + i];
    free(mine);
    MUST(cudaFree(work));
    MUST(cudaFree(values));
    MUST(cudaFree(a));
    return difference;
}

int main(int argc, char **argv)
{
    cusolverDnHandle_t handle;
    uint32_t state = 9;
    double start = 0;
    MUST(cusolverDnCreate(&handle));
    int *info = lib_device(sizeof *info);
    for (int round = 0; round < ROUNDS; round++) {
        int n = 40 + round * 71 % 300;
        double *a = matrix_of(n, &state), *sums = lib_host((size_t)n * sizeof *sums);
        for (int i = 0; i < n; i++) {
            sums[i] = 0;
            for (int j = 0; j < n; j++)
                sums[i] += a[(size_t)i * n + j];
        }
        double by_cholesky = cholesky(handle, a, sums, n, info);
        int first = info_of(info);
        double by_lu = lu(handle, a, sums, n, info), rest = eigenvalues(handle, a, n, info);
        printf("%d %d cholesky %s lu %s eigenvalues %s info %d %d\n", round, n,
               by_cholesky < 1e-9 ? "right" : "WRONG", by_lu < 1e-9 ? "right" : "WRONG",
               fabs(rest) < 1e-6 * n * n ? "right" : "WRONG", first, info_of(info));
        free(a);
        free(sums);
        if (round == 0)
            start = lib_now();
    }
    MUST(cudaFree(info));
    MUST(cusolverDnDestroy(handle));
    lib_figures(argc, argv, lib_now() - start);
    return 0;
}
