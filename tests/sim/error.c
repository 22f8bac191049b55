/* SPDX-License-Identifier: BSD-2-Clause */
/* Names and words of error codes. */
#include "tests/sim/api.h"

static const struct {
    CUresult code;
    const char *name, *words;
} errors[] = {
#define ERROR(name, words) {name, #name, words},
#include "tests/sim/errors.def"
#undef ERROR
};

static CUresult find(CUresult code, const char **name, const char **words)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code != code)
            continue;
        if (name != NULL)
            *name = errors[i].name;
        if (words != NULL)
            *words = errors[i].words;
        return CUDA_SUCCESS;
    }
    if (name != NULL)
        *name = NULL;
    if (words != NULL)
        *words = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API(cuGetErrorName, (CUresult code, const char **out),
    out != NULL ? find(code, out, NULL) : CUDA_ERROR_INVALID_VALUE)
API(cuGetErrorString, (CUresult code, const char **out),
    out != NULL ? find(code, NULL, out) : CUDA_ERROR_INVALID_VALUE)
