/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See player.h.
 */
#include "scripts/replay/player.h"

void player_begin(struct player *r, const struct player_gpu *gpu, const struct pool_config *config)
{
    *r = (struct player){.model = model_create(gpu->bytes)};
    r->model->backend.single_stream = gpu->single;
    r->model->backend.frees_beside = !gpu->frees_waits;
    r->model->late_allowed = true;
    if (gpu->slow)
        driver_time_init(&r->driver, r->model);
    r->pool = pool_create(&r->model->backend, config, NULL);
}

void player_end(struct player *r)
{
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    model_destroy(r->model);
}

const char *player_error(struct player *r)
{
    const char *words = pool_check(r->pool);
    return words ? words : model_error(r->model);
}

void player_submit(struct player *r, unsigned stream)
{
    if (atomic_load_explicit(&pool_watch, memory_order_relaxed))
        pool_submit(r->pool, stream);
}

bool player_free(uint64_t addr)
{
    if (pool_free(addr) != POOL_OK)
        return false;
    if (atomic_load_explicit(&pool_release_due, memory_order_relaxed))
        pool_release_at_free(addr);
    return true;
}
