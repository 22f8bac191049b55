/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions of unsimulated.def, one for each row. Their parameters do not matter to them. They
 * are reached by cuGetProcAddress alone: who looks for a symbol does so to see whether it can be
 * used. */
#include "tests/sim/proc.h"

#include <stddef.h>

enum { BARE = 0, PER_THREAD = 1 << 1 }; /* as in api.h */
enum { NOT_SUPPORTED = 801 };

#define UNSIMULATED(symbol, base, since, flags)                                                    \
    static int symbol##_unsimulated(void)                                                          \
    {                                                                                              \
        return NOT_SUPPORTED;                                                                      \
    }
#include "tests/sim/unsimulated.def"

const struct proc_row proc_unsimulated[] = {
#define UNSIMULATED(symbol, base, since, flags)                                                    \
    {#base, since, flags, (void (*)(void))symbol##_unsimulated},
#include "tests/sim/unsimulated.def"
    {NULL, 0, 0, NULL},
};
