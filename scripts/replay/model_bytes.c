/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What is in the model's memory: see model_write in model.h.
 */
#include "scripts/replay/model.h"

#include <stdlib.h>

#define UNIT UINT64_C(512)
#define UNITS (MODEL_GRANULE_BYTES / UNIT)

/* The granule at addr, if work may use it. */
static struct model_granule *usable(struct model *m, uint64_t addr)
{
    struct model_granule *g = model_granule_at(m, addr);
    if (g && g->owner && g->allowed)
        return g;
    model_blame(m, "bytes are read and written where memory is");
    return NULL;
}

bool model_is_there(struct model *m, uint64_t addr)
{
    pthread_mutex_lock(&m->lock);
    const struct model_granule *g = model_granule_at(m, addr);
    bool there = g && g->owner && g->allowed;
    pthread_mutex_unlock(&m->lock);
    return there;
}

void model_write(struct model *m, uint64_t addr, uint32_t mark)
{
    pthread_mutex_lock(&m->lock);
    struct model_granule *g = usable(m, addr);
    if (g && !g->marks)
        g->marks = calloc(UNITS, sizeof *g->marks);
    if (g)
        g->marks[addr / UNIT % UNITS] = mark;
    pthread_mutex_unlock(&m->lock);
}

uint32_t model_read(struct model *m, uint64_t addr)
{
    pthread_mutex_lock(&m->lock);
    const struct model_granule *g = usable(m, addr);
    uint32_t mark = g && g->marks ? g->marks[addr / UNIT % UNITS] : 0;
    pthread_mutex_unlock(&m->lock);
    return mark;
}

void model_each_mark(struct model *m, uint64_t addr, uint64_t size_bytes,
                     void (*f)(void *arg, uint64_t addr, uint32_t mark), void *arg)
{
    uint64_t end = addr + size_bytes, next;
    for (uint64_t at = addr; at < end; at = next) {
        next = (at / MODEL_GRANULE_BYTES + 1) * MODEL_GRANULE_BYTES;
        next = next < end ? next : end;
        pthread_mutex_lock(&m->lock);
        const struct model_granule *g = usable(m, at);
        for (uint64_t unit = at; g && g->marks && unit < next; unit += UNIT)
            if (g->marks[unit / UNIT % UNITS])
                f(arg, unit, g->marks[unit / UNIT % UNITS]);
        pthread_mutex_unlock(&m->lock);
    }
}
