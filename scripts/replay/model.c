/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The model's memory, fault plan and life. Streams and fences: model_work.c.
 */
#include "scripts/replay/model.h"

#include <stdlib.h>
#include <string.h>

/* Each model has a part of the address space to itself, used again after it is gone, as addresses
 * of a destroyed context are. */
#define SLOT_BYTES (UINT64_C(1) << 43)
#define SLOTS 30

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t slots_taken;

enum { SEGMENTS = MODEL_SPACES - 1 };

static struct model *model_of(struct backend *b)
{
    return (struct model *)(void *)b; /* its first member */
}

static struct model *enter(struct backend *b)
{
    struct model *m = model_of(b);
    pthread_mutex_lock(&m->lock);
    return m;
}

void model_blame(struct model *m, const char *words)
{
    if (!m->error)
        m->error = words;
}

bool model_row_fails(struct model *m, enum model_row row)
{
    m->calls[row]++;
    m->calls[MODEL_ANY]++;
    return m->plan.at && m->calls[m->plan.row] - m->plan.at < m->plan.count &&
           (m->plan.row == row || m->plan.row == MODEL_ANY);
}

/* What a row does first: a test's own step, then the count and the plan. */
static struct model *begin(struct backend *b, enum model_row row, bool *fails)
{
    struct model *m = model_of(b);
    if (m->hook)
        m->hook(m, row);
    enter(b);
    *fails = model_row_fails(m, row);
    return m;
}

static int leave(struct model *m, int code)
{
    pthread_mutex_unlock(&m->lock);
    return code;
}

static struct model_space *space_of(struct model *m, uint64_t addr, uint64_t size_bytes)
{
    for (int i = 0; i < MODEL_SPACES; i++) {
        struct model_space *s = &m->spaces[i];
        if (s->size_bytes && addr >= s->base && addr - s->base < s->size_bytes)
            return size_bytes <= s->size_bytes - (addr - s->base) ? s : NULL;
    }
    return NULL;
}

static struct model_granule *granule_of(const struct model_space *s, uint64_t addr)
{
    return &s->granules[(addr - s->base) / MODEL_GRANULE_BYTES];
}

struct model_granule *model_granule_at(struct model *m, uint64_t addr)
{
    struct model_space *s = space_of(m, addr, 1);
    return s ? granule_of(s, addr) : NULL;
}

static bool whole(uint64_t n)
{
    return n && n % MODEL_GRANULE_BYTES == 0;
}

static int row_reserve(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_reserve, &fails);
    if (!whole(size_bytes))
        model_blame(m, "address space is reserved in whole granules");
    for (int i = 0; i < SEGMENTS && !fails; i++) {
        struct model_space *s = &m->spaces[i];
        if (s->size_bytes)
            continue;
        s->base = (m->slot + 1) * SLOT_BYTES + SLOT_BYTES / 4;
        if (size_bytes > SLOT_BYTES / 4 * 3)
            break;
        s->size_bytes = size_bytes;
        s->granules = calloc(size_bytes / MODEL_GRANULE_BYTES, sizeof *s->granules);
        *addr = s->base;
        return leave(m, 0);
    }
    return leave(m, m->plan.code ? m->plan.code : MODEL_NOMEM);
}

static void row_unreserve(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct model *m = enter(b);
    struct model_space *s = space_of(m, addr, size_bytes);
    if (!s || s->base != addr || s->size_bytes != size_bytes) {
        model_blame(m, "address space is given back as it was reserved");
    } else {
        for (uint64_t i = 0; i < size_bytes / MODEL_GRANULE_BYTES; i++)
            if (s->granules[i].owner)
                model_blame(m, "address space is given back with memory in it");
        free(s->granules);
        *s = (struct model_space){0};
    }
    leave(m, 0);
}

static bool take_bytes(struct model *m, uint64_t size_bytes)
{
    uint64_t rest = m->backend.total_bytes - m->used_bytes;
    if (rest < m->other_bytes || rest - m->other_bytes < size_bytes)
        return false;
    m->used_bytes += size_bytes;
    if (m->used_bytes > m->peak_bytes)
        m->peak_bytes = m->used_bytes;
    return true;
}

static uint32_t handle_new(struct model *m, uint64_t size_bytes)
{
    uint32_t h = m->handle_count;
    /* Numbers are used again late, so that a stale one is noticed. */
    if (h >= 1024)
        for (h = 1; h < m->handle_count && m->handles[h].size_bytes; h++)
            ;
    if (h == m->handle_count) {
        m->handle_count = h ? h + 1 : 2;
        h = m->handle_count - 1;
        m->handles = realloc(m->handles, m->handle_count * sizeof *m->handles);
        m->handles[0] = (struct model_handle){0};
    }
    m->handles[h] = (struct model_handle){.size_bytes = size_bytes};
    return h;
}

static int row_create(struct backend *b, uint64_t size_bytes, uint64_t *handle)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_create, &fails);
    if (!whole(size_bytes))
        model_blame(m, "memory is created in whole granules");
    if (fails)
        return leave(m, m->plan.code);
    if (!take_bytes(m, size_bytes))
        return leave(m, m->backend.nomem_code);
    *handle = handle_new(m, size_bytes);
    return leave(m, 0);
}

static struct model_handle *handle_at(struct model *m, uint64_t handle)
{
    if (!handle || handle >= m->handle_count || !m->handles[handle].size_bytes ||
        m->handles[handle].released)
        return NULL;
    return &m->handles[handle];
}

static void drop_if_unused(struct model *m, struct model_handle *h)
{
    if (!h->released || h->map_count)
        return;
    m->used_bytes -= h->size_bytes;
    h->size_bytes = 0;
}

static void row_release(struct backend *b, uint64_t handle, uint64_t size_bytes)
{
    struct model *m = enter(b);
    struct model_handle *h = handle_at(m, handle);
    if (!h || h->size_bytes != size_bytes) {
        model_blame(m, "memory is released that is not there");
    } else {
        h->released = true;
        drop_if_unused(m, h);
    }
    leave(m, 0);
}

static int row_map(struct backend *b, uint64_t addr, uint64_t size_bytes, uint64_t handle)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_map, &fails);
    struct model_space *s = space_of(m, addr, size_bytes);
    struct model_handle *h = handle_at(m, handle);
    if (fails)
        return leave(m, m->plan.code);
    if (!s || !h || h->size_bytes != size_bytes || addr % MODEL_GRANULE_BYTES ||
        h->map_count == MODEL_ALIASES) {
        model_blame(m, "a handle is mapped whole, at a granule of reserved space");
        return leave(m, MODEL_BROKEN);
    }
    for (uint64_t at = addr; at < addr + size_bytes; at += MODEL_GRANULE_BYTES) {
        if (granule_of(s, at)->owner)
            model_blame(m, "memory is mapped where memory is");
        *granule_of(s, at) = (struct model_granule){.owner = (uint32_t)handle};
    }
    h->maps[h->map_count++] = addr;
    return leave(m, 0);
}

static int row_allow(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_allow, &fails);
    struct model_space *s = space_of(m, addr, size_bytes);
    if (fails)
        return leave(m, m->plan.code);
    for (uint64_t at = addr; s && at < addr + size_bytes; at += MODEL_GRANULE_BYTES) {
        if (!granule_of(s, at)->owner)
            model_blame(m, "access is granted where no memory is");
        granule_of(s, at)->allowed = true;
    }
    if (!s || !whole(size_bytes))
        model_blame(m, "access is granted to what was reserved");
    return leave(m, 0);
}

/* The mapping that starts at addr; its size, or 0: none that lies within room_bytes. */
static uint64_t unmap_one(struct model *m, uint64_t addr, uint64_t room_bytes)
{
    struct model_space *s = space_of(m, addr, 1);
    uint32_t owner = s ? granule_of(s, addr)->owner : 0;
    struct model_handle *h = &m->handles[owner];
    unsigned at_map = 0;
    while (owner && at_map < h->map_count && h->maps[at_map] != addr)
        at_map++;
    if (!owner || at_map == h->map_count || h->size_bytes > room_bytes) {
        model_blame(m, "a mapping is taken away whole");
        return 0;
    }
    uint64_t size_bytes = h->size_bytes;
    if (model_range_is_busy(m, addr, size_bytes))
        model_blame(m, "memory is unmapped while work uses it");
    for (uint64_t at = addr; at < addr + size_bytes; at += MODEL_GRANULE_BYTES) {
        free(granule_of(s, at)->marks);
        *granule_of(s, at) = (struct model_granule){0};
    }
    h->maps[at_map] = h->maps[--h->map_count];
    drop_if_unused(m, h);
    return size_bytes;
}

static int row_unmap(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct model *m = (struct model *)(void *)b;
    if (m->hook_unmap)
        m->hook_unmap(m);
    if (m->unmap_code)
        return m->unmap_code;
    enter(b);
    m->unmaps++;
    for (uint64_t end = addr + size_bytes; addr < end;) {
        uint64_t taken_bytes = unmap_one(m, addr, end - addr);
        if (!taken_bytes)
            break;
        addr += taken_bytes;
    }
    return leave(m, m->work_code);
}

static int row_segment_alloc(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_segment_alloc, &fails);
    struct model_space *s = &m->spaces[SEGMENTS];
    uint64_t want = (size_bytes + MODEL_GRANULE_BYTES - 1) / MODEL_GRANULE_BYTES + m->odd_segments;
    uint64_t count = s->size_bytes / MODEL_GRANULE_BYTES;
    if (fails)
        return leave(m, m->plan.code);
    if (!take_bytes(m, size_bytes))
        return leave(m, m->backend.nomem_code);
    for (uint64_t at = 0, run = 0; at < count; at++) {
        run = s->granules[at].owner ? 0 : run + 1;
        if (run < want)
            continue;
        uint64_t start = s->base + (at + 1 - want) * MODEL_GRANULE_BYTES;
        uint32_t h = handle_new(m, size_bytes);
        for (uint64_t i = at + 1 - want; i <= at; i++)
            s->granules[i] = (struct model_granule){.owner = h, .allowed = true};
        *addr = m->handles[h].addr = start + (m->odd_segments ? MODEL_GRANULE_BYTES / 2 : 0);
        return leave(m, 0);
    }
    m->used_bytes -= size_bytes;
    return leave(m, m->backend.nomem_code);
}

static void segment_drop(struct model *m, uint32_t h)
{
    struct model_space *s = &m->spaces[SEGMENTS];
    for (struct model_granule *g = granule_of(s, m->handles[h].addr); g->owner == h; g++) {
        free(g->marks);
        *g = (struct model_granule){0};
    }
    m->used_bytes -= m->handles[h].size_bytes;
    m->handles[h] = (struct model_handle){0};
}

/* As cuMemFree does, waits for all work of the context. */
static int row_segment_free(struct backend *b, uint64_t addr, bool idle)
{
    struct model *m = enter(b);
    struct model_space *s = &m->spaces[SEGMENTS];
    uint32_t owner = space_of(m, addr, 1) == s ? granule_of(s, addr)->owner : 0;
    /* A call may be under way when the context ends and takes all segments with it: it is
     * refused. */
    if (!owner && m->context_gone)
        return leave(m, MODEL_BROKEN);
    if (!owner || m->handles[owner].addr != addr) {
        model_blame(m, "a segment is freed by its start, once");
        return leave(m, 1);
    }
    if (idle && model_range_is_busy(m, addr, m->handles[owner].size_bytes))
        model_blame(m, "a segment is said to be idle while work uses it");
    bool beside = idle && m->backend.frees_beside;
    if (!(beside ? model_wait_ordered(m) : model_wait_all(m)))
        model_blame(m, "a segment is freed while a kernel runs that never ends");
    segment_drop(m, owner);
    leave(m, 0);
    if (m->hook_freed)
        m->hook_freed(m, addr);
    return 0;
}

static int row_mem_info(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes)
{
    bool fails;
    struct model *m = begin(b, MODEL_ROW_mem_info, &fails);
    uint64_t rest = m->backend.total_bytes - m->used_bytes;
    *free_bytes = rest > m->other_bytes ? rest - m->other_bytes : 0;
    *total_bytes = m->backend.total_bytes;
    return leave(m, fails ? m->plan.code : 0);
}

static uint64_t row_now_ns(struct backend *b)
{
    return model_now(model_of(b));
}

static struct backend_ops rows;
static pthread_once_t rows_once = PTHREAD_ONCE_INIT;

static void rows_fill(void)
{
    rows = model_fence_rows;
    rows.reserve = row_reserve;
    rows.unreserve = row_unreserve;
    rows.create = row_create;
    rows.release = row_release;
    rows.map = row_map;
    rows.allow = row_allow;
    rows.unmap = row_unmap;
    rows.segment_alloc = row_segment_alloc;
    rows.segment_free = row_segment_free;
    rows.mem_info = row_mem_info;
    rows.now_ns = row_now_ns;
}

struct model *model_create(uint64_t capacity_bytes)
{
    struct model *m = calloc(1, sizeof *m);
    struct model_space *s = &m->spaces[SEGMENTS];
    pthread_once(&rows_once, rows_fill);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_lock(&slots_lock);
    while (slots_taken >> m->slot & 1)
        m->slot++;
    if (m->slot >= SLOTS)
        abort(); /* a test that keeps so many models has lost count of them */
    slots_taken |= UINT32_C(1) << m->slot;
    pthread_mutex_unlock(&slots_lock);
    m->backend = (struct backend){.ops = &rows,
                                  .granularity_bytes = MODEL_GRANULE_BYTES,
                                  .total_bytes = capacity_bytes,
                                  .nomem_code = MODEL_NOMEM,
                                  .has_arena = true,
                                  .has_order = true};
    s->base = (m->slot + 1) * SLOT_BYTES + SLOT_BYTES / 8;
    /* A driver finds a hole for everything that it has memory for; one granule stays free at the
     * end. */
    s->size_bytes = capacity_bytes * 4 / MODEL_GRANULE_BYTES * MODEL_GRANULE_BYTES;
    s->granules = calloc(s->size_bytes / MODEL_GRANULE_BYTES + 1, sizeof *s->granules);
    m->now_ns = UINT64_C(1000000000);
    return m;
}

void model_destroy(struct model *m)
{
    pthread_mutex_lock(&slots_lock);
    slots_taken &= ~(UINT32_C(1) << m->slot);
    pthread_mutex_unlock(&slots_lock);
    for (int i = 0; i < MODEL_SPACES; i++)
        free(m->spaces[i].granules);
    free(m->handles);
    free(m->works);
    free(m->fences);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void model_destroy_context(struct model *m)
{
    enter(&m->backend);
    m->context_gone = true;
    m->work_count = 0;
    memcpy(m->completed, m->submitted, sizeof m->completed);
    for (uint32_t h = 1; h < m->handle_count; h++)
        if (m->handles[h].size_bytes && space_of(m, m->handles[h].addr, 1) == &m->spaces[SEGMENTS])
            segment_drop(m, h);
    leave(m, 0);
}

const char *model_error(struct model *m)
{
    enter(&m->backend);
    const char *words = m->error;
    leave(m, 0);
    return words;
}

const char *model_leak(struct model *m)
{
    const char *words = NULL;
    enter(&m->backend);
    for (uint32_t i = 0; i < m->fence_count; i++)
        if (m->fences[i].alive)
            words = "a fence is left";
    for (int i = 0; i < SEGMENTS; i++)
        if (m->spaces[i].size_bytes)
            words = "address space is left";
    if (m->used_bytes)
        words = "memory is left";
    leave(m, 0);
    return words;
}

uint64_t model_used_bytes(struct model *m)
{
    enter(&m->backend);
    uint64_t used = m->used_bytes;
    leave(m, 0);
    return used;
}

void model_fail(struct model *m, enum model_row row, uint64_t nth, int code)
{
    model_fail_many(m, row, nth, 1, code);
}

void model_fail_many(struct model *m, enum model_row row, uint64_t nth, uint64_t count, int code)
{
    enter(&m->backend);
    m->plan.row = row;
    m->plan.at = nth ? m->calls[row] + nth : 0;
    m->plan.count = count;
    m->plan.code = code;
    leave(m, 0);
}

bool model_failed(struct model *m)
{
    enter(&m->backend);
    bool failed = m->plan.at && m->calls[m->plan.row] >= m->plan.at;
    leave(m, 0);
    return failed;
}

uint64_t model_calls(struct model *m, enum model_row row)
{
    enter(&m->backend);
    uint64_t calls = m->calls[row];
    leave(m, 0);
    return calls;
}
