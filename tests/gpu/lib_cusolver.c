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

/* Solves by Cholesky, or by LU; the error. */
static double solve(cusolverDnHandle_t handle, const double *host, const double *sums, int n,
                    int by_lu, int *info)
{
    int size, *pivots = by_lu ? lib_device((size_t)n * sizeof *pivots) : NULL;
    double *a = lib_upload(host, (size_t)n * n * sizeof *a, 0),
           *x = lib_upload(sums, (size_t)n * sizeof *x, 0);
    if (by_lu)
        MUST(cusolverDnDgetrf_bufferSize(handle, n, n, a, n, &size));
    else
        MUST(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, &size));
    double *work = lib_device((size_t)size * sizeof *work);
    if (by_lu)
        MUST(cusolverDnDgetrf(handle, n, n, a, n, work, pivots, info));
    else
        MUST(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, work, size, info));
    MUST(cudaFree(work));
    if (by_lu)
        MUST(cusolverDnDgetrs(handle, CUBLAS_OP_N, n, 1, a, n, pivots, x, n, info));
    else
        MUST(cusolverDnDpotrs(handle, CUBLAS_FILL_MODE_LOWER, n, 1, a, n, x, n, info));
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
    MUST(cusolverDnCreate(&handle));
    int *info = lib_device(sizeof *info);
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++) {
        int n = 40 + round * 71 % 300;
        double *a = matrix_of(n, &state), *sums = lib_host((size_t)n * sizeof *sums);
        for (int i = 0; i < n; i++) {
            sums[i] = 0;
            for (int j = 0; j < n; j++)
                sums[i] += a[(size_t)i * n + j];
        }
        double by_cholesky = solve(handle, a, sums, n, 0, info);
        int first = info_of(info);
        double by_lu = solve(handle, a, sums, n, 1, info), rest = eigenvalues(handle, a, n, info);
        printf("%d %d cholesky %s lu %s eigenvalues %s info %d %d\n", round, n,
               by_cholesky < 1e-9 ? "right" : "WRONG", by_lu < 1e-9 ? "right" : "WRONG",
               fabs(rest) < 1e-6 * n * n ? "right" : "WRONG", first, info_of(info));
        free(a);
        free(sums);
    }
    MUST(cudaFree(info));
    MUST(cusolverDnDestroy(handle));
    return 0;
}
