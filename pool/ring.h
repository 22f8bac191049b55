/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The fences of a pool that were recorded and are not known done, oldest epoch first, and the
 * events that may be recorded again. fence.h says what they mean, and which of them a thread may
 * wait for.
 *
 * All of it belongs to the pool's lock. A thread that hands an event to the driver without the lock
 * pins its fence meanwhile. The fence keeps its event, though not its place.
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

/* Index of the oldest fence that covers epoch and may be waited for. With late_too a late fence
 * counts as well. r->count: there is none. */
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

/* The caller has made sure that there is room. */
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

/* Pins the fence; returns it with its event. */
static inline struct fence ring_pin(struct ring *r, unsigned at)
{
    r->at[at].pins++;
    return r->at[at];
}
/* The fence was pinned at `at`; meanwhile others may have come and gone. */
void ring_unpin(struct ring *r, unsigned at, uint64_t event);

/* Takes the events of fences that need them no more, so that the events can be recorded again.
 * Fences up to complete_epoch are known done. Fences before passed_epoch are passed: a newer one
 * was ordered. Passed ones are taken many at a time. A pinned fence stays until its user is back.
 * So do the oldest and the newest of the passed. */
#define RING_ALL UINT64_MAX /* as passed_epoch: no thread waits for any of them */
void ring_collect(struct ring *r, uint64_t complete_epoch, uint64_t passed_epoch);
/* The ring is full of fences that are not done: drops every second one, but not the newest. The
 * frees that it covered wait for its successor. The successor was recorded at a later free, and the
 * driver's own free would have returned only when all of that work was done. So the pool waits for
 * nothing that the program could be holding up. A fence that may be waited for leaves none behind
 * that may not. */
void ring_thin(struct ring *r);

#endif
