/* SPDX-License-Identifier: BSD-2-Clause */
/* The functions of unsimulated.def. Their parameters do not matter to them; cuda.h, which knows
 * them, stays outside. */
#include "tests/sim/proc.h"

#include <stddef.h>

enum { BARE = 0, PER_THREAD = 1 << 1 }; /* as in api.h */
enum { NOT_SUPPORTED = 801 };

#define UNSIMULATED(symbol, base, since, flags)                                                    \
    __attribute__((visibility("default"))) int symbol(void);                                       \
    int symbol(void)                                                                               \
    {                                                                                              \
        return NOT_SUPPORTED;                                                                      \
    }
#include "tests/sim/unsimulated.def"

const struct proc_row proc_unsimulated[] = {
#define UNSIMULATED(symbol, base, since, flags) {#base, since, flags, (void (*)(void))symbol},
#include "tests/sim/unsimulated.def"
    {NULL, 0, 0, NULL},
};
