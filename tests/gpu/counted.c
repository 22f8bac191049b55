/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What spent.c counts of a program that takes memory by NVIDIA's runtime: `counted SPENT FILE`.
 * SPENT is the library, and FILE gets its figures. The program takes and frees memory ROUNDS times
 * and sets some, so under libgpucache each setting follows a free.
 */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>

enum { ROUNDS = 3, SIZE_BYTES = 1 << 20 };

static int play(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        void *freed = NULL, *kept = NULL;
        if (cudaMalloc(&freed, SIZE_BYTES) || cudaMalloc(&kept, SIZE_BYTES) || cudaFree(freed) ||
            cudaMemset(kept, 0, SIZE_BYTES) || cudaFree(kept))
            return 1;
    }
    return cudaDeviceSynchronize() != cudaSuccess;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (play()) /* the context, and the first memory */
        return 1;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*begin)(void), (*end)(const char *);
    *(void **)&begin = dlsym(library, "spent_begin");
    *(void **)&end = dlsym(library, "spent_end");
    int code = begin && end ? begin() : -1;
    if (!code)
        code = play() ? -1 : end(argv[2]);
    if (code)
        fprintf(stderr, "code %d\n", code);
    return code != 0;
}
