/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The time budget: how much of the program's time may go into saving memory. The budget is a small
 * part of the time that passes. When it is used up, the pool spends memory instead.
 *
 * An arena moves idle memory in place of taking more. On a busy GPU access takes half a
 * millisecond, and each mapping 60 us (H200). A program may take a hundred microseconds for a whole
 * layer. A program whose shapes change from step to step would move memory in every step for ever.
 * With segments, the time counts in which a free of the program's gives memory back (segment.c).
 *
 * While the program needs more than ever before, the pool has to call the driver in any case.
 * Growth by one chunk grants access too. Then only the time beyond such a growth is charged. Below
 * the peak all of the time is charged, because with enough memory the program would not wait at
 * all. A request that moves one chunk and calls the driver for nothing else is never charged. It
 * takes as long as growth by that chunk. If it were charged, peak reserved of two programs would be
 * 0.2 % higher in replay, with as much time in driver calls. Belongs to the pool's lock.
 */
#ifndef POOL_TIME_BUDGET_H
#define POOL_TIME_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct time_budget {
    int64_t left_ns;    /* the budget now; below zero: overdrawn */
    uint64_t growth_ns; /* what growth by one chunk takes, the mean of late */
    uint64_t seen_ns;   /* when it was last added to; 0: never */
};

/* Adds what the time since the last call has earned. Is some of the budget left? */
bool time_budget_is_left(struct time_budget *e, uint64_t now_ns);
/* Was the budget full at the last time_budget_is_left? */
bool time_budget_is_full(const struct time_budget *e);
/* So much time went into saving memory; or, with growth, into that and growth. */
void time_budget_spend(struct time_budget *e, uint64_t ns, bool growth);
/* Growth by one chunk took so long. It is no charge. */
void time_budget_note_growth(struct time_budget *e, uint64_t ns);

#endif
