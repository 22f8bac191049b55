/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cuSPARSE: sparse matrices of varying size times vectors and matrices, with the work areas that
 * the library asks for.
 */
#include "tests/gpu/lib_common.h"

#include <cusparse.h>

enum { ROUNDS = 40, PER_ROW = 7, COLUMNS = 5 };

struct sparse {
    int n;
    int *rows, *columns;
    float *values;
    cusparseSpMatDescr_t matrix;
};

static struct sparse sparse_make(int n, uint32_t *state)
{
    size_t count = (size_t)n * PER_ROW;
    int *rows = lib_host(((size_t)n + 1) * sizeof *rows),
        *columns = lib_host(count * sizeof *columns);
    float *values = lib_host(count * sizeof *values);
    for (int i = 0; i <= n; i++)
        rows[i] = i * PER_ROW;
    for (size_t i = 0; i < count; i++) {
        columns[i] =
            (int)(i % PER_ROW) * (n / PER_ROW) + (int)(lib_random(state) % (uint32_t)(n / PER_ROW));
        values[i] = (float)(lib_random(state) % 16);
    }
    struct sparse s = {.n = n,
                       .rows = lib_upload(rows, ((size_t)n + 1) * sizeof *rows, 0),
                       .columns = lib_upload(columns, count * sizeof *columns, 0),
                       .values = lib_upload(values, count * sizeof *values, 0)};
    MUST(cusparseCreateCsr(&s.matrix, n, n, (int64_t)count, s.rows, s.columns, s.values,
                           CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                           CUDA_R_32F));
    free(rows);
    free(columns);
    free(values);
    return s;
}

static void sparse_free(struct sparse *s)
{
    MUST(cusparseDestroySpMat(s->matrix));
    MUST(cudaFree(s->rows));
    MUST(cudaFree(s->columns));
    MUST(cudaFree(s->values));
}

static float *dense(uint32_t *state, size_t count)
{
    float *host = lib_host(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)(lib_random(state) % 16);
    float *device = lib_upload(host, count * sizeof *host, 0);
    free(host);
    return device;
}

static uint64_t by_vector(cusparseHandle_t handle, const struct sparse *s, uint32_t *state)
{
    size_t area_bytes, size_bytes = (size_t)s->n * sizeof(float);
    float one = 1, none = 0, *x = dense(state, (size_t)s->n), *y = lib_device(size_bytes);
    cusparseDnVecDescr_t vx, vy;
    MUST(cusparseCreateDnVec(&vx, s->n, x, CUDA_R_32F));
    MUST(cusparseCreateDnVec(&vy, s->n, y, CUDA_R_32F));
    MUST(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, s->matrix, vx,
                                 &none, vy, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, &area_bytes));
    void *area = lib_device(area_bytes + 1);
    MUST(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, s->matrix, vx, &none, vy,
                      CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, area));
    MUST(cudaFree(area));
    MUST(cudaFree(x));
    MUST(cusparseDestroyDnVec(vx));
    MUST(cusparseDestroyDnVec(vy));
    return lib_hash_device(y, lib_host(size_bytes), size_bytes);
}

static uint64_t by_matrix(cusparseHandle_t handle, const struct sparse *s, uint32_t *state)
{
    size_t area_bytes, count = (size_t)s->n * COLUMNS, size_bytes = count * sizeof(float);
    float one = 1, none = 0, *x = dense(state, count), *y = lib_device(size_bytes);
    cusparseDnMatDescr_t mx, my;
    MUST(cusparseCreateDnMat(&mx, s->n, COLUMNS, s->n, x, CUDA_R_32F, CUSPARSE_ORDER_COL));
    MUST(cusparseCreateDnMat(&my, s->n, COLUMNS, s->n, y, CUDA_R_32F, CUSPARSE_ORDER_COL));
    MUST(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                 CUSPARSE_OPERATION_NON_TRANSPOSE, &one, s->matrix, mx, &none, my,
                                 CUDA_R_32F, CUSPARSE_SPMM_ALG_DEFAULT, &area_bytes));
    void *area = lib_device(area_bytes + 1);
    MUST(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                      &one, s->matrix, mx, &none, my, CUDA_R_32F, CUSPARSE_SPMM_ALG_DEFAULT, area));
    MUST(cudaFree(area));
    MUST(cudaFree(x));
    MUST(cusparseDestroyDnMat(mx));
    MUST(cusparseDestroyDnMat(my));
    return lib_hash_device(y, lib_host(size_bytes), size_bytes);
}

int main(int argc, char **argv)
{
    cusparseHandle_t handle;
    uint32_t state = 7;
    MUST(cusparseCreate(&handle));
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++) {
        struct sparse s = sparse_make(1000 + round * 7919 % 60000, &state);
        uint64_t vector = by_vector(handle, &s, &state), matrix = by_matrix(handle, &s, &state);
        printf("%d %d %016llx %016llx\n", round, s.n, (unsigned long long)vector,
               (unsigned long long)matrix);
        sparse_free(&s);
    }
    MUST(cusparseDestroy(handle));
    return 0;
}
