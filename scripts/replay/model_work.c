/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The model's streams, fences and clock. A stream runs its work in order; across streams only what
 * a fence ordered is ordered. Ends are computed at submission and again when an endless kernel
 * ends.
 */
#include "scripts/replay/model.h"

#include <stdlib.h>
#include <string.h>

static struct model *enter(struct backend *b)
{
    struct model *m = (struct model *)(void *)b;
    pthread_mutex_lock(&m->lock);
    return m;
}

static int leave(struct model *m, int code)
{
    pthread_mutex_unlock(&m->lock);
    return code;
}

static bool captured_by(const struct model_work *w, const uint64_t seq[MODEL_STREAMS])
{
    return w->seq <= seq[w->stream];
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* End of the last work of a captured set; 0: all complete. */
static uint64_t end_of(const struct model *m, uint32_t count, const uint64_t seq[MODEL_STREAMS])
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++)
        if (captured_by(&m->works[i], seq))
            end = later(end, m->works[i].end_ns);
    return end;
}

static void compute_end(struct model *m, uint32_t at)
{
    struct model_work *w = &m->works[at];
    uint64_t start = later(w->submit_ns, end_of(m, at, w->after));
    for (uint32_t i = 0; i < at; i++)
        if (m->works[i].stream == w->stream)
            start = later(start, m->works[i].end_ns);
    w->end_ns = w->duration_ns > MODEL_FOREVER - start ? MODEL_FOREVER : start + w->duration_ns;
}

static void retire(struct model *m)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->work_count; i++) {
        struct model_work *w = &m->works[i];
        if (w->end_ns > m->now_ns)
            m->works[kept++] = *w;
        else
            m->completed[w->stream] = later(m->completed[w->stream], w->seq);
    }
    m->work_count = kept;
}

static bool overlaps(const struct model_work *w, uint64_t addr, uint64_t size_bytes)
{
    return w->addr < addr + size_bytes && addr < w->addr + w->size_bytes;
}

bool model_range_is_busy(const struct model *m, uint64_t addr, uint64_t size_bytes)
{
    for (uint32_t i = 0; i < m->work_count; i++)
        if (overlaps(&m->works[i], addr, size_bytes))
            return true;
    return false;
}

static bool wait_for(struct model *m, const uint64_t seq[MODEL_STREAMS])
{
    uint64_t end = end_of(m, m->work_count, seq);
    if (end == MODEL_FOREVER)
        return false;
    m->now_ns = later(m->now_ns, end);
    retire(m);
    return true;
}

bool model_wait_all(struct model *m)
{
    return wait_for(m, m->submitted);
}

/* For what all later work runs behind. */
bool model_wait_ordered(struct model *m)
{
    return wait_for(m, m->barrier);
}

static bool is_there(const struct model *m, uint64_t addr, uint64_t size_bytes)
{
    for (int i = 0; i < MODEL_SPACES; i++) {
        const struct model_space *s = &m->spaces[i];
        if (addr < s->base || addr - s->base >= s->size_bytes)
            continue;
        for (uint64_t g = (addr - s->base) / MODEL_GRANULE_BYTES;
             g * MODEL_GRANULE_BYTES < addr - s->base + size_bytes; g++)
            if (g >= s->size_bytes / MODEL_GRANULE_BYTES || !s->granules[g].owner ||
                !s->granules[g].allowed)
                return false;
        return true;
    }
    return false;
}

/* Does old work touch the same memory, through whatever mapping of it? */
static bool same_memory(const struct model *m, const struct model_work *old, uint64_t addr,
                        uint64_t size_bytes)
{
    if (overlaps(old, addr, size_bytes))
        return true;
    for (int i = 0; i < MODEL_SPACES; i++) {
        const struct model_space *s = &m->spaces[i];
        if (addr < s->base || addr - s->base >= s->size_bytes)
            continue;
        uint64_t first = (addr - s->base) / MODEL_GRANULE_BYTES;
        uint64_t last = (addr - s->base + size_bytes - 1) / MODEL_GRANULE_BYTES;
        for (uint64_t g = first; g <= last; g++) {
            const struct model_handle *h = &m->handles[s->granules[g].owner];
            uint64_t here = s->base + g * MODEL_GRANULE_BYTES, home = 0;
            uint64_t lo = later(addr, here);
            uint64_t hi = addr + size_bytes < here + MODEL_GRANULE_BYTES
                              ? addr + size_bytes
                              : here + MODEL_GRANULE_BYTES;
            for (unsigned k = 0; h->map_count > 1 && k < h->map_count; k++)
                if (h->maps[k] <= here && here < h->maps[k] + h->size_bytes)
                    home = h->maps[k];
            for (unsigned k = 0; home && k < h->map_count; k++)
                if (overlaps(old, h->maps[k] + (lo - home), hi - lo))
                    return true;
        }
    }
    return false;
}

static void check_touch(struct model *m, const struct model_work *new)
{
    if (!new->size_bytes || m->broken)
        return;
    if (!is_there(m, new->addr, new->size_bytes))
        model_blame(m, "work touches memory that is not there");
    for (uint32_t i = 0; i < m->work_count; i++) {
        const struct model_work *old = &m->works[i];
        if (old->owner != new->owner && old->stream != new->stream &&
            same_memory(m, old, new->addr, new->size_bytes) && !captured_by(old, new->after))
            model_blame(m, "work touches memory before the work of its last owner");
    }
}

void model_submit(struct model *m, unsigned stream, uint64_t duration_ns, uint64_t addr,
                  uint64_t size_bytes, uint64_t owner)
{
    enter(&m->backend);
    if (m->work_count == m->work_room) {
        m->work_room = m->work_room ? m->work_room * 2 : 64;
        m->works = realloc(m->works, m->work_room * sizeof *m->works);
    }
    struct model_work *w = &m->works[m->work_count];
    *w = (struct model_work){.stream = stream,
                             .seq = ++m->submitted[stream],
                             .submit_ns = m->now_ns,
                             .duration_ns = duration_ns,
                             .addr = addr,
                             .size_bytes = size_bytes,
                             .owner = owner};
    memcpy(w->after, m->barrier, sizeof w->after);
    check_touch(m, w);
    m->work_count += !m->broken;
    if (m->broken) {
        m->completed[stream] = w->seq;
        leave(m, 0);
        return;
    }
    compute_end(m, m->work_count - 1);
    retire(m);
    leave(m, 0);
}

void model_note_free(struct model *m)
{
    enter(&m->backend);
    memcpy(m->freed_seq, m->submitted, sizeof m->freed_seq);
    leave(m, 0);
}

void model_check_handed_out(struct model *m, uint64_t addr, uint64_t size_bytes, int stream)
{
    enter(&m->backend);
    if (!m->may_be_away && !is_there(m, addr, size_bytes))
        model_blame(m, "memory is handed out that is not there");
    for (uint32_t i = 0; i < m->work_count; i++) {
        const struct model_work *old = &m->works[i];
        if (overlaps(old, addr, size_bytes) && !captured_by(old, m->barrier) &&
            (int)old->stream != stream)
            model_blame(m, "memory is handed out that old work still uses");
    }
    leave(m, 0);
}

uint64_t model_now(struct model *m)
{
    enter(&m->backend);
    uint64_t now = m->now_ns;
    leave(m, 0);
    return now;
}

void model_advance(struct model *m, uint64_t by_ns)
{
    enter(&m->backend);
    m->now_ns += by_ns;
    retire(m);
    leave(m, 0);
}

void model_end_forever(struct model *m)
{
    enter(&m->backend);
    for (uint32_t i = 0; i < m->work_count; i++)
        if (m->works[i].duration_ns == MODEL_FOREVER)
            m->works[i].duration_ns = 0;
    for (uint32_t i = 0; i < m->work_count; i++) {
        if (m->works[i].end_ns == MODEL_FOREVER) {
            m->works[i].submit_ns = m->now_ns;
            compute_end(m, i);
        }
    }
    retire(m);
    leave(m, 0);
}

void model_drain(struct model *m)
{
    model_end_forever(m);
    enter(&m->backend);
    model_wait_all(m);
    leave(m, 0);
}

bool model_is_idle(struct model *m)
{
    enter(&m->backend);
    bool idle = m->work_count == 0;
    leave(m, 0);
    return idle;
}

void model_capture_begin(struct model *m)
{
    enter(&m->backend);
    m->captures++;
    leave(m, 0);
}

void model_capture_end(struct model *m)
{
    enter(&m->backend);
    m->captures--;
    leave(m, 0);
}

/* A sticky error: nothing runs any more, so nothing can be overwritten. */
static void break_context(struct model *m)
{
    m->broken = true;
    m->work_count = 0;
    memcpy(m->completed, m->submitted, sizeof m->completed);
}

/* The fence of a row's call, its lock held; NULL: none such. */
static struct model_fence *begin(struct backend *b, enum model_row row, uint64_t fence,
                                 struct model **model, bool *fails)
{
    struct model *m = *model = (struct model *)(void *)b;
    if (m->hook)
        m->hook(m, row);
    enter(b);
    *fails = model_row_fails(m, row);
    if (fence && fence <= m->fence_count && m->fences[fence - 1].alive)
        return &m->fences[fence - 1];
    if (!m->context_gone)
        model_blame(m, "a fence is used that is not there");
    return NULL;
}

static int row_fence_create(struct backend *b, uint64_t *fence)
{
    struct model *m = (struct model *)(void *)b;
    if (m->hook)
        m->hook(m, MODEL_ROW_fence_create);
    enter(b);
    if (model_row_fails(m, MODEL_ROW_fence_create)) {
        if (m->plan.code != MODEL_NOMEM)
            break_context(m);
        return leave(m, m->plan.code);
    }
    m->fences = realloc(m->fences, (m->fence_count + 1) * sizeof *m->fences);
    m->fences[m->fence_count++] = (struct model_fence){.alive = true};
    *fence = m->fence_count;
    return leave(m, 0);
}

static void row_fence_destroy(struct backend *b, uint64_t fence)
{
    struct model *m = enter(b);
    if (!fence || fence > m->fence_count || !m->fences[fence - 1].alive)
        model_blame(m, "a fence is destroyed that is not there");
    else
        m->fences[fence - 1].alive = false;
    leave(m, 0);
}

static enum fence_record row_fence_record(struct backend *b, uint64_t fence)
{
    bool fails;
    struct model *m;
    struct model_fence *f = begin(b, MODEL_ROW_fence_record, fence, &m, &fails);
    enum fence_record r = FENCE_RECORDED;
    if (!f || m->broken || fails) {
        r = fails && m->plan.code == MODEL_REFUSED ? FENCE_REFUSED : FENCE_FAILED;
        if (r == FENCE_FAILED)
            break_context(m);
    } else if (m->captures) {
        r = FENCE_REFUSED;
    } else if (m->unseen_capture) {
        r = FENCE_BARRED;
    } else {
        f->recorded = true;
        memcpy(f->seq, m->submitted, sizeof f->seq);
        memcpy(f->freed_seq, m->freed_seq, sizeof f->freed_seq);
    }
    leave(m, 0);
    return r;
}

static enum fence_state row_fence_query(struct backend *b, uint64_t fence)
{
    bool fails;
    struct model *m;
    struct model_fence *f = begin(b, MODEL_ROW_fence_query, fence, &m, &fails);
    enum fence_state s = FENCE_BUSY;
    if (!f || m->broken || fails) {
        s = FENCE_LOST;
        break_context(m);
    } else if (!f->recorded) {
        model_blame(m, "a fence is asked that was not recorded");
    } else if (!m->captures || !m->query_refused) {
        s = end_of(m, m->work_count, f->seq) ? FENCE_BUSY : FENCE_DONE;
    }
    leave(m, 0);
    return s;
}

static void check_late(struct model *m, const struct model_fence *f)
{
    if (!f->recorded)
        model_blame(m, "a fence is relied on that was not recorded");
    for (uint32_t i = 0; i < m->work_count && !m->late_allowed; i++)
        if (captured_by(&m->works[i], f->seq) && !captured_by(&m->works[i], f->freed_seq))
            model_blame(m, "work submitted after the frees is waited for");
}

static int row_fence_order(struct backend *b, uint64_t fence)
{
    bool fails;
    struct model *m;
    struct model_fence *f = begin(b, MODEL_ROW_fence_order, fence, &m, &fails);
    if (!f || m->broken || fails)
        return leave(m, fails ? m->plan.code : MODEL_BROKEN);
    if (!m->backend.has_order)
        model_blame(m, "order is asked of a backend that has none");
    if (m->captures)
        return leave(m, MODEL_REFUSED);
    check_late(m, f);
    for (int s = 0; s < MODEL_STREAMS; s++)
        m->barrier[s] = later(m->barrier[s], f->seq[s]);
    return leave(m, 0);
}

/* A wait so short may be for anything: it ends by itself. */
#define BRIEF_NS UINT64_C(1000000000)

static int row_fence_wait(struct backend *b, uint64_t fence, uint64_t timeout_ns)
{
    bool fails;
    struct model *m;
    struct model_fence *f = begin(b, MODEL_ROW_fence_wait, fence, &m, &fails);
    if (!f || m->broken || fails)
        return leave(m, fails ? m->plan.code : MODEL_BROKEN);
    if (timeout_ns > BRIEF_NS)
        check_late(m, f);
    uint64_t end = later(end_of(m, m->work_count, f->seq), m->now_ns);
    if (end == MODEL_FOREVER && !m->late_allowed && timeout_ns > BRIEF_NS)
        model_blame(m, "the host waits for a kernel that never ends");
    bool timeout = end - m->now_ns > timeout_ns;
    if (!timeout || timeout_ns < MODEL_FOREVER - m->now_ns)
        m->now_ns = timeout ? m->now_ns + timeout_ns : end;
    retire(m);
    return leave(m, timeout ? MODEL_TIMEOUT : 0);
}

/* Time passes, but no capture ends by itself: a hook may end it. */
static bool row_fence_await(struct backend *b, uint64_t timeout_ns)
{
    struct model *m = (struct model *)(void *)b;
    if (m->hook)
        m->hook(m, MODEL_ROW_fence_await);
    enter(b);
    bool fails = model_row_fails(m, MODEL_ROW_fence_await);
    if (m->captures && !m->own_capture)
        m->now_ns += timeout_ns;
    retire(m);
    bool may = !m->captures && !fails;
    leave(m, 0);
    return may;
}

/* The driver's own free waits for all of it, too. */
static void row_drain(struct backend *b)
{
    struct model *m = enter(b);
    if (!m->broken && !m->captures && !model_wait_all(m) && !m->late_allowed)
        model_blame(m, "a free waits for a kernel that never ends");
    leave(m, 0);
}

const struct backend_ops model_fence_rows = {
    .fence_create = row_fence_create,
    .fence_destroy = row_fence_destroy,
    .fence_record = row_fence_record,
    .fence_query = row_fence_query,
    .fence_order = row_fence_order,
    .fence_wait = row_fence_wait,
    .fence_await = row_fence_await,
    .drain = row_drain,
};
