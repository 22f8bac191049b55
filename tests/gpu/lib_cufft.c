/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cuFFT: transforms of varying length and batch, there and back, with work areas of the library's
 * and of the program's own.
 */
#include "tests/gpu/lib_common.h"

#include <cufft.h>
#include <math.h>

enum { ROUNDS = 40 };

static cufftHandle plan_of(int length, int batch, int own_area, void **area)
{
    cufftHandle plan;
    size_t size_bytes = 0;
    MUST(cufftCreate(&plan));
    MUST(cufftSetAutoAllocation(plan, !own_area));
    MUST(cufftMakePlan1d(plan, length, CUFFT_C2C, batch, &size_bytes));
    *area = NULL;
    if (own_area && size_bytes) {
        *area = lib_device(size_bytes);
        MUST(cufftSetWorkArea(plan, *area));
    }
    return plan;
}

int main(int argc, char **argv)
{
    uint32_t state = 3;
    for (int round = 0; lib_goes_on(round, ROUNDS, argc, argv); round++) {
        /* powers of two, small primes, and a prime of some size, which takes a work area */
        static const int lengths[] = {1024, 3000, 4096, 1 << 15, 10007, 720720};
        int length = lengths[round % 6], batch = 1 + round % 5;
        size_t count = (size_t)length * batch, size_bytes = count * sizeof(cufftComplex);
        cufftComplex *host = lib_host(size_bytes);
        for (size_t i = 0; i < count; i++)
            host[i] = (cufftComplex){.x = (float)(lib_random(&state) % 64),
                                     .y = (float)(lib_random(&state) % 64)};
        void *area;
        cufftHandle plan = plan_of(length, batch, round % 2, &area);
        cufftComplex *in = lib_upload(host, size_bytes, 0), *out = lib_device(size_bytes);
        MUST(cufftExecC2C(plan, in, out, CUFFT_FORWARD));
        MUST(cufftExecC2C(plan, out, in, CUFFT_INVERSE));
        uint64_t forward = lib_hash_device(out, lib_host(size_bytes), size_bytes);
        cufftComplex *back = lib_host(size_bytes);
        MUST(cudaMemcpy(back, in, size_bytes, cudaMemcpyDeviceToHost));
        double worst = 0;
        for (size_t i = 0; i < count; i++)
            worst = fmax(worst, fabs((double)back[i].x / length - (double)host[i].x));
        MUST(cudaFree(in));
        MUST(cudaFree(area));
        MUST(cufftDestroy(plan));
        printf("%d %d x %d %016llx %s\n", round, length, batch, (unsigned long long)forward,
               worst < 0.01 ? "back" : "WRONG");
        free(back);
        free(host);
    }
    return 0;
}
