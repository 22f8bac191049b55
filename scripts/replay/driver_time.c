/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See driver_time.h.
 */
#include "scripts/replay/driver_time.h"

#include "pool/bits.h"

#define US_NS UINT64_C(1000)

static struct driver_time *of(struct backend *b)
{
    return ((struct model *)(void *)b)->hook_arg;
}

/* A call: so much in any case, and so much for a GiB. */
static void spend(struct backend *b, uint64_t idle_us, uint64_t busy_us, uint64_t gib_us,
                  uint64_t size_bytes)
{
    struct driver_time *d = of(b);
    uint64_t us = model_is_idle(d->model) ? idle_us : busy_us;
    uint64_t size_ns = gib_us * US_NS * (size_bytes >> 20) >> 10;
    uint64_t ns = us * US_NS + size_ns;
    atomic_fetch_add(&d->spent_ns, ns);
    atomic_fetch_add(&d->busy_ns, busy_us * US_NS + size_ns);
    model_advance(d->model, ns);
}

/* What there is no memory for is refused at once, whatever its size. */
static uint64_t if_it_fits(struct driver_time *d, uint64_t size_bytes)
{
    struct model *m = d->model;
    pthread_mutex_lock(&m->lock);
    bool fits = m->backend.total_bytes - m->used_bytes - m->other_bytes >= size_bytes;
    pthread_mutex_unlock(&m->lock);
    return fits ? size_bytes : 0;
}

static int row_create(struct backend *b, uint64_t size_bytes, uint64_t *handle)
{
    spend(b, 8, 8, 27, if_it_fits(of(b), size_bytes));
    return of(b)->real->create(b, size_bytes, handle);
}

static void row_release(struct backend *b, uint64_t handle, uint64_t size_bytes)
{
    spend(b, 20, 25, 500, size_bytes);
    of(b)->real->release(b, handle, size_bytes);
}

static int row_map(struct backend *b, uint64_t addr, uint64_t size_bytes, uint64_t handle)
{
    spend(b, 15, 40, 0, size_bytes);
    return of(b)->real->map(b, addr, size_bytes, handle);
}

static int row_allow(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    spend(b, 19, 500, 65, size_bytes);
    return of(b)->real->allow(b, addr, size_bytes);
}

static int row_unmap(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    atomic_fetch_add(&of(b)->unmaps, 1);
    spend(b, 13, 20, 20, size_bytes);
    return of(b)->real->unmap(b, addr, size_bytes);
}

static int row_segment_alloc(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    spend(b, 48, 100, 120, if_it_fits(of(b), size_bytes));
    return of(b)->real->segment_alloc(b, size_bytes, addr);
}

static int row_segment_free(struct backend *b, uint64_t addr, bool idle)
{
    spend(b, 60, 60, 0, 0);
    return of(b)->real->segment_free(b, addr, idle);
}

bool driver_time_alloc(struct driver_time *d, uint64_t size_bytes)
{
    struct model *m = d->model;
    uint64_t fits = if_it_fits(d, size_bytes);
    spend(&m->backend, 48, 100, 120, fits);
    pthread_mutex_lock(&m->lock);
    m->other_bytes += fits;
    pthread_mutex_unlock(&m->lock);
    return fits;
}

void driver_time_free(struct driver_time *d, uint64_t size_bytes)
{
    struct model *m = d->model;
    spend(&m->backend, 60, 60, 0, 0);
    pthread_mutex_lock(&m->lock);
    m->other_bytes -= size_bytes;
    pthread_mutex_unlock(&m->lock);
}

void driver_time_init(struct driver_time *d, struct model *m)
{
    *d = (struct driver_time){.model = m, .real = m->backend.ops, .ops = *m->backend.ops};
    d->ops.create = row_create;
    d->ops.release = row_release;
    d->ops.map = row_map;
    d->ops.allow = row_allow;
    d->ops.unmap = row_unmap;
    d->ops.segment_alloc = row_segment_alloc;
    d->ops.segment_free = row_segment_free;
    m->hook_arg = d;
    m->backend.ops = &d->ops;
}
