/* SPDX-License-Identifier: BSD-2-Clause */
/* The simulator does not go on without memory of its own. */
#ifndef SIM_ALLOC_H
#define SIM_ALLOC_H

#include <stdlib.h>

static inline void *never_null(void *at)
{
    if (at == NULL)
        abort();
    return at;
}

#endif
