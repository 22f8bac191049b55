/* SPDX-License-Identifier: BSD-2-Clause */
/* Vector clocks: for each slot (one per stream) the number of the last work that is known to come
 * before. They carry the happens-before relation of the hazard checker. Driver lock. */
#ifndef SIM_VECTOR_H
#define SIM_VECTOR_H

#include <stdbool.h>
#include <stdint.h>

struct vector {
    uint64_t *at;
    unsigned length, capacity;
};

void vector_finish(struct vector *vector);
void vector_copy(struct vector *to, const struct vector *from);
/* to[i] = max(to[i], from[i]) */
void vector_join(struct vector *to, const struct vector *from);
void vector_set(struct vector *vector, unsigned slot, uint64_t seq);

static inline uint64_t vector_get(const struct vector *vector, unsigned slot)
{
    return slot < vector->length ? vector->at[slot] : 0;
}

#endif
