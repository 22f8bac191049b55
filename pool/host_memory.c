/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See host_memory.h.
 */
#include "pool/host_memory.h"

#include "pool/tuning.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Behind it: where the batch before is. */
#define BATCH_ROOM_BYTES (HOST_BATCH_BYTES - sizeof(char *))

void *host_pages(size_t bytes)
{
    int saved = errno;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    errno = saved;
    return p == MAP_FAILED ? NULL : p;
}

void host_pages_free(void *pages, size_t bytes)
{
    int saved = errno;
    if (pages)
        munmap(pages, bytes);
    errno = saved;
}

void host_cache_init(struct host_cache *c, size_t record_bytes, size_t zeroed_bytes)
{
    *c = (struct host_cache){.record_bytes = (record_bytes + 15) & ~(size_t)15,
                             .zeroed_bytes = zeroed_bytes};
}

static void *take_fresh(struct host_cache *c)
{
    char *record = c->fresh;
    c->fresh += c->record_bytes;
    c->fresh_count--;
    c->count--;
    return record;
}

bool host_cache_ensure(struct host_cache *c, size_t count)
{
    while (c->count < count) {
        char *batch = host_pages(HOST_BATCH_BYTES);
        if (!batch)
            return false;
        while (c->fresh_count) /* fewer than count */
            host_cache_put(c, take_fresh(c));
        c->fresh = batch;
        c->fresh_count = BATCH_ROOM_BYTES / c->record_bytes;
        memcpy(batch + BATCH_ROOM_BYTES, &c->batches, sizeof c->batches);
        c->batches = batch;
        c->count += c->fresh_count;
    }
    return true;
}

void *host_cache_get(struct host_cache *c)
{
    if (!host_cache_ensure(c, 1))
        return NULL;
    void *record = c->free;
    if (!record)
        return take_fresh(c);
    memcpy(&c->free, record, sizeof c->free);
    memset(record, 0, c->zeroed_bytes);
    c->count--;
    return record;
}

void host_cache_put(struct host_cache *c, void *record)
{
    memcpy(record, &c->free, sizeof c->free);
    c->free = record;
    c->count++;
}

void host_cache_each(const struct host_cache *c, void (*f)(void *record))
{
    for (char *batch = c->batches, *before; batch; batch = before) {
        size_t used = BATCH_ROOM_BYTES / c->record_bytes;
        memcpy(&before, batch + BATCH_ROOM_BYTES, sizeof before);
        if (batch == c->batches)
            used -= c->fresh_count;
        for (size_t i = 0; i < used; i++)
            f(batch + i * c->record_bytes);
    }
}

void host_cache_reclaim(struct host_cache *c)
{
    c->free = NULL;
    c->count = c->fresh_count;
    for (char *batch = c->batches, *before; batch; batch = before) {
        size_t used = BATCH_ROOM_BYTES / c->record_bytes;
        memcpy(&before, batch + BATCH_ROOM_BYTES, sizeof before);
        if (batch == c->batches)
            used -= c->fresh_count;
        while (used > 0)
            host_cache_put(c, batch + --used * c->record_bytes);
    }
}
