/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The move budget: how much of the program's time may go into saving memory. Moving idle memory
 * takes no memory, but it takes time on the program's thread. On a busy GPU access takes half a
 * millisecond, and each mapping 60 us (H200). A program may take a hundred microseconds for a whole
 * layer. A program whose shapes change from step to step would move memory in every step for ever.
 * So moves have a budget, a small part of the time that passes. When it is used up, the pool spends
 * memory instead.
 *
 * While the program needs more than ever before, the pool has to call the driver in any case.
 * Growth by one chunk grants access too. Then only the time beyond such a growth is charged. Below
 * the peak all of the time is charged, because with enough memory the program would not wait at
 * all. A request that moves one chunk and calls the driver for nothing else is never charged. It
 * takes as long as growth by that chunk. If it were charged, peak reserved of gpt2 and resnet would
 * be 0.2 % higher in replay, with as much time in driver calls. Belongs to the pool's lock.
 */
#ifndef POOL_MOVE_BUDGET_H
#define POOL_MOVE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct move_budget {
    int64_t left_ns;    /* the budget now; below zero: overdrawn */
    uint64_t growth_ns; /* what growth by one chunk takes, the mean of late */
    uint64_t seen_ns;   /* when it was last added to; 0: never */
};

/* Adds what the time since the last call has earned. Is some of the budget left? */
bool move_budget_is_left(struct move_budget *e, uint64_t now_ns);
/* Was the budget full at the last move_budget_is_left? */
bool move_budget_is_full(const struct move_budget *e);
/* So much time went into saving memory; or, with growth, into that and growth. */
void move_budget_spend(struct move_budget *e, uint64_t ns, bool growth);
/* Growth by one chunk took so long. It is no charge. */
void move_budget_note_growth(struct move_budget *e, uint64_t ns);

#endif
