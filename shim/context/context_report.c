/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See context.h: the rows of the report. No lock.
 */
#include "shim/context/context.h"

#include "shim/driver/async_pool.h"
#include "shim/option/in_force.h"

#include <strings.h>

bool context_can_report(void)
{
    FOR_EACH_RECORD(c)
        if (atomic_load_explicit(&c->filled, memory_order_acquire) && c->pool &&
            !pool_can_tell(c->pool))
            return false;
    return true;
}

/* Then that row has the figures of the device's own pools. */
static bool has_row(const struct report_pool *out, size_t count, CUdevice device)
{
    for (size_t i = 0; i < count; i++)
        if (out[i].device == device)
            return true;
    return false;
}

/* Adds devices that have no record, and memory in the driver's own pools, or had some. A row stays,
 * also while the program has the device closed: a sum over the rows must not fall. */
static size_t report_async_devices(struct report_pool *out, size_t count, size_t max)
{
    static _Atomic uint64_t told; /* a bit for each device that had a row */
    uint64_t stay = async_pool_returned_devices() | atomic_load(&told);
    struct async_stats async;
    FOR_EACH_DEVICE(i, async_pool_devices() | stay) {
        const struct device_identity *id = device_identity(i);
        if (!id || count == max || has_row(out, count, i))
            continue;
        async_pool_stats(i, &async);
        if (!async.async_reserved_bytes && !(stay & device_bit(i)))
            continue;
        atomic_fetch_or(&told, device_bit(i));
        out[count++] = (struct report_pool){.device = i,
                                            .name = id->name,
                                            .backing = "driver",
                                            .reason = "memory of the driver's own pools only",
                                            .uuid = id->uuid.text,
                                            .uuid_bytes = id->uuid.bytes,
                                            .total_bytes = id->total_bytes,
                                            .async = async};
        in_force_pool_config(i, id->total_bytes, &out[count - 1].config);
    }
    return count;
}

/* A pool's figures sum up all contexts that had it. So the report shows it after its context has
 * ended too. */
size_t context_report(struct report_pool *out, size_t max)
{
    size_t count = 0;
    FOR_EACH_RECORD(c)
        if (atomic_load_explicit(&c->filled, memory_order_acquire) && count < max) {
            out[count] = (struct report_pool){.device = c->device,
                                              .name = c->name,
                                              .backing = c->backing,
                                              .reason = c->reason,
                                              .uuid = c->uuid.text,
                                              .uuid_bytes = c->uuid.bytes,
                                              .total_bytes = c->backend.base.total_bytes,
                                              .returned_ns = atomic_load(&c->returned_ns),
                                              .regrown_ns = atomic_load(&c->regrown_ns)};
            in_force_pool_config(c->device, out[count].total_bytes, &out[count].config);
            if (c->pool)
                pool_stats(c->pool, &out[count].stats);
            if (!has_row(out, count, c->device))
                async_pool_stats(c->device, &out[count].async);
            count++;
        }
    return report_async_devices(out, count, max);
}

CUdevice context_find_device(const char *uuid)
{
    FOR_EACH_DEVICE(i, context_async_devices()) {
        const struct device_identity *id = device_identity(i);
        if (id && !strcasecmp(id->uuid.text, uuid))
            return i;
    }
    return -1;
}
