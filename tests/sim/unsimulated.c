/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions that are not simulated, from variants.def. A program that calls one gets
 * CUDA_ERROR_NOT_SUPPORTED, and stderr names the function. The parameters do not matter. This file
 * does not include cuda.h, which declares the functions with their parameters. */
#include "tests/sim/proc.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

enum { BARE = 0, PER_THREAD = 1 << 1 }; /* as in api.h */
enum { NOT_SUPPORTED = 801 };

static int refuse(const char *symbol)
{
    int saved = errno;
    fprintf(stderr, "sim: %s is not simulated\n", symbol);
    errno = saved;
    return NOT_SUPPORTED;
}

#define ANSWER(symbol)                                                                             \
    int symbol(void);                                                                              \
    int symbol(void)                                                                               \
    {                                                                                              \
        return refuse(#symbol);                                                                    \
    }
#define UNSIMULATED(symbol, base, since, flags)                                                    \
    __attribute__((visibility("default"))) ANSWER(symbol)
#define LOOKUP_ONLY(symbol, base, since, flags) ANSWER(symbol)
#include "tests/sim/variants.def"

const struct proc_row proc_unsimulated[] = {
#define UNSIMULATED(symbol, base, since, flags) {#base, since, flags, (void (*)(void))symbol},
#define LOOKUP_ONLY(symbol, base, since, flags) {#base, since, flags, (void (*)(void))symbol},
#include "tests/sim/variants.def"
    {NULL, 0, 0, NULL},
};
