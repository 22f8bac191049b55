/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See neighbour_use.h. The lock is that of neighbour_page.h.
 */
#include "shim/share/neighbour_use.h"

#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/share/neighbour_page.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How long a thread waits for others that ask, to learn what neighbours wait for. */
#define NEEDS_WAIT_NS SEC_NS
/* The same, to list what they hold. */
#define LIST_WAIT_NS (100 * MS_NS)

/* A look at all other processes of a GPU. */
struct look {
    const struct page_id *self;
    const unsigned char *uuid;
    unsigned pages_read;
    void (*take)(struct look *l, const struct page_id *its, const struct page_gpu *g);
    uint64_t since_ns; /* of take_needs */
    struct neighbour_needs *needs;
    struct neighbour_held *held; /* of take_held; the largest first */
    uint64_t held_bytes;         /* .. of all */
    size_t count, most;
};

static bool read_neighbour(void *arg, int folder, const char *name)
{
    struct look *l = arg;
    struct page_id its;
    if (!neighbour_page_is_of_another(name, l->self, &its) ||
        l->pages_read++ >= NEIGHBOUR_PAGES_MAX || !neighbour_page_read(folder, name, &its))
        return true;
    const struct page_gpu *g = neighbour_page_gpu(l->uuid);
    if (g)
        l->take(l, &its, g);
    return true;
}

static void read_neighbours(const char *path, struct look *l, uint64_t wait_ns)
{
    struct stat folder_stat;
    const char *why;
    if (!neighbour_page_lock(clock_now_ns() + wait_ns))
        return;
    int folder = page_dir_open(path, &why);
    if (folder >= 0 && !kernel_fstat(folder, &folder_stat)) {
        neighbour_page_each(folder, read_neighbour, l);
        kernel_close_own(folder, &folder_stat);
    }
    neighbour_page_unlock();
}

static void take_needs(struct look *l, const struct page_id *its, const struct page_gpu *g)
{
    const struct page_park *park = &neighbour_page.parks[g - neighbour_page.gpus];
    struct neighbour_needs *out = l->needs;
    if (neighbour_page.needs_since_ns && neighbour_page.needs_since_ns < l->since_ns &&
        __builtin_add_overflow(out->older_bytes, park->needs_bytes, &out->older_bytes))
        out->older_bytes = UINT64_MAX;
    if (g->reserved_bytes > out->most_bytes) {
        out->most_bytes = g->reserved_bytes;
        out->most_pid = its->pid;
    }
}

void neighbour_use_needs(const char *path, const struct page_id *self, const unsigned char *uuid,
                         uint64_t since_ns, struct neighbour_needs *out)
{
    int saved_errno = errno, cancel = cancel_forbid();
    struct look l = {
        .self = self, .uuid = uuid, .take = take_needs, .since_ns = since_ns, .needs = out};
    *out = (struct neighbour_needs){0};
    read_neighbours(path, &l, NEEDS_WAIT_NS);
    cancel_allow(cancel);
    errno = saved_errno;
}

static void read_name(struct neighbour_held *its)
{
    char place[32], text[PROC_TEXT_BYTES];
    snprintf(place, sizeof place, "/proc/%d/comm", its->pid);
    proc_text_read(place, text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(its->name, sizeof its->name, "%.15s", text);
}

/* Adds it in its place, if it is one of the largest. */
static size_t insert_held(struct neighbour_held *out, size_t count, size_t most,
                          const struct neighbour_held *its)
{
    size_t at = count < most ? count : most;
    for (; at > 0 && out[at - 1].bytes < its->bytes; at--)
        if (at < most)
            out[at] = out[at - 1];
    if (at < most)
        out[at] = *its;
    return count < most ? count + 1 : most;
}

static void take_held(struct look *l, const struct page_id *its, const struct page_gpu *g)
{
    const struct neighbour_held held = {.pid = (int)its->pid,
                                        .bytes = g->reserved_bytes + g->async_idle_bytes};
    l->held_bytes += held.bytes;
    if (held.bytes && its->pid_namespace == l->self->pid_namespace)
        l->count = insert_held(l->held, l->count, l->most, &held);
}

size_t neighbour_use_list(const char *folder_name, const struct page_id *self,
                          const unsigned char *uuid, struct neighbour_held *out, size_t most,
                          uint64_t *all_bytes)
{
    int saved_errno = errno, cancel = cancel_forbid();
    struct look l = {.self = self, .uuid = uuid, .take = take_held, .held = out, .most = most};
    read_neighbours(folder_name, &l, LIST_WAIT_NS);
    for (size_t i = 0; i < l.count; i++)
        read_name(&out[i]);
    if (all_bytes)
        *all_bytes = l.held_bytes;
    cancel_allow(cancel);
    errno = saved_errno;
    return l.count;
}
