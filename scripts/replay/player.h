/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A pool on a model of a GPU, for requests of a recorded program. The model's driver calls take
 * their time (driver_time.h) if they are to.
 */
#ifndef REPLAY_PLAYER_H
#define REPLAY_PLAYER_H

#include "pool/pool.h"
#include "scripts/replay/driver_time.h"

struct player_gpu {
    uint64_t bytes;
    bool slow;        /* driver calls take their time */
    bool single;      /* the program uses the legacy default stream alone */
    bool frees_waits; /* a segment goes back when all work is done, as with old drivers */
};

struct player {
    struct model *model;
    struct pool *pool;
    struct driver_time driver; /* with slow */
};

/* Makes the model and the pool. Any thread may use them by the functions of pool.h and model.h, and
 * those below. */
void player_begin(struct player *r, const struct player_gpu *gpu, const struct pool_config *config);
/* Forgets both. All work has to be done (model_drain). */
void player_end(struct player *r);
/* NULL, or the first thing that is broken: of the pool, or what the model saw. */
const char *player_error(struct player *r);

/* The program submits GPU work now: frees before it get their fence. */
void player_submit(struct player *r, unsigned stream);
/* A free as the library does it. */
bool player_free(uint64_t addr);

#endif
