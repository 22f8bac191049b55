/* SPDX-License-Identifier: BSD-2-Clause */
/* A libcudart.so.<RUNTIME_MAJOR> that knows three functions and answers with its own version. */
#include <stddef.h>

int cudaRuntimeGetVersion(int *version);
int cudaMalloc(void **p, size_t size);
int cudaFree(void *p);

int cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_MAJOR * 1000;
    return 0;
}

int cudaMalloc(void **p, size_t size)
{
    *p = NULL;
    if (size == 1) /* the only one that succeeds */
        return 0;
    return RUNTIME_MAJOR * 100 + (int)size;
}

int cudaFree(void *p)
{
    return RUNTIME_MAJOR * 100;
}
