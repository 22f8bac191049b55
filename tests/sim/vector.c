/* SPDX-License-Identifier: BSD-2-Clause */
/* Vector clocks as growing arrays. A slot beyond the length counts as zero. */
#include "tests/sim/vector.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"

static void lengthen(struct vector *vector, unsigned length)
{
    if (length > vector->capacity) {
        unsigned capacity = length + 4;
        uint64_t *at = never_null(realloc(vector->at, capacity * sizeof *at));
        vector->at = at;
        vector->capacity = capacity;
    }
    if (length > vector->length) {
        memset(vector->at + vector->length, 0, (length - vector->length) * sizeof *vector->at);
        vector->length = length;
    }
}

void vector_finish(struct vector *vector)
{
    free(vector->at);
    *vector = (struct vector){0};
}

void vector_copy(struct vector *to, const struct vector *from)
{
    to->length = 0;
    lengthen(to, from->length);
    if (from->length > 0)
        memcpy(to->at, from->at, from->length * sizeof *to->at);
}

void vector_join(struct vector *to, const struct vector *from)
{
    if (to->length < from->length)
        lengthen(to, from->length);
    for (unsigned i = 0; i < from->length; i++)
        if (to->at[i] < from->at[i])
            to->at[i] = from->at[i];
}

void vector_set(struct vector *vector, unsigned slot, uint64_t seq)
{
    lengthen(vector, slot + 1);
    vector->at[slot] = seq;
}
