/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A pool's fences that were recorded and are not known done, oldest epoch first, and the events that may be
 * recorded again. What they mean, and who may wait for which, is the matter of fence.h.
 *
 * All of it belongs to the pool's lock. A thread that hands an event to the driver without the lock pins its
 * fence meanwhile: it keeps the event, though not its place.
 */
#ifndef POOL_RING_H
#define POOL_RING_H

#include "pool/bits.h"
#include "pool/tuning.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct fence {
    uint64_t epoch;
    uint64_t event; /* the backend's handle */
    uint16_t pins;  /* threads that use the event without the lock */
    bool late;
};

struct ring {
    struct fence at[RING_MAX];
    unsigned count;
    uint64_t spare[RING_MAX + 64];
    unsigned spares;
};

/* Index of the oldest fence of that epoch or a later one; count: none. */
static inline unsigned ring_find(const struct ring *r, uint64_t epoch)
{
    unsigned lo = 0, hi = r->count;
    while (lo < hi) {
        unsigned at = lo + (hi - lo) / 2;
        if (r->at[at].epoch < epoch)
            lo = at + 1;
        else
            hi = at;
    }
    return lo;
}

/* Index of the oldest fence that covers epoch and may be waited for, with late_too also of a late one; count: none. */
static inline unsigned ring_find_waitable(const struct ring *r, uint64_t epoch, bool late_too)
{
    unsigned at = ring_find(r, epoch);
    while (at < r->count && r->at[at].late && !late_too)
        at++;
    return at;
}

static inline void ring_put_spare(struct ring *r, uint64_t event)
{
    r->spare[r->spares++] = event;
}

/* There is room. */
static inline void ring_insert(struct ring *r, uint64_t epoch, uint64_t event, bool late)
{
    unsigned at = r->count;
    while (at > 0 && r->at[at - 1].epoch > epoch)
        at--;
    if (unlikely(at < r->count))
        memmove(&r->at[at + 1], &r->at[at], (r->count - at) * sizeof r->at[0]);
    r->at[at] = (struct fence){.epoch = epoch, .event = event, .late = late};
    r->count++;
}

/* The fence, and its event for the driver. */
static inline struct fence ring_pin(struct ring *r, unsigned at)
{
    r->at[at].pins++;
    return r->at[at];
}
/* Pinned at `at`; meanwhile others may have come and gone, or all. */
void ring_unpin(struct ring *r, unsigned at, uint64_t event);

/* Events of fences that are known done, up to complete_epoch, or passed by a newer one, those before passed_epoch, can
 * be recorded again; the passed ones are taken many at a time. A pinned one stays until its user is back, and so do the
 * oldest and the newest of the passed. */
#define RING_ALL UINT64_MAX /* as passed_epoch: nobody waits for any of them */
void ring_collect(struct ring *r, uint64_t complete_epoch, uint64_t passed_epoch);
/* The ring is full of fences that are not done: every second one goes, but for the newest. What it
 * covered waits for its successor, which was recorded at a later free: natively that free would have
 * returned only when all of it was done, so that nothing is waited for that the program, having come
 * so far, could be holding up. A fence that may be waited for leaves none behind that may not. */
void ring_thin(struct ring *r);

#endif
