/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See owners.h. A table with open addressing. Places of blocks that were freed long ago are dropped
 * when it grows.
 */
#include "shim/trace/owners.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_PLACES = 1 << 12, MOST_PLACES = 1 << 20 };
_Static_assert(TRACE_OWNERS_MAX == MOST_PLACES / 4 * 3, "three of four places are taken at most");

static struct trace_owner *places;
static size_t num_places, num_used; /* num_places: a power of two */
static uint64_t keep_since;
/* While there is a copy: the table that it is of. */
static struct trace_owner *kept_places;
static size_t kept_num_places, kept_num_used;

static struct trace_owner *make_places(size_t count)
{
    void *made = mmap(NULL, count * sizeof(struct trace_owner), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return made == MAP_FAILED ? NULL : made;
}

/* The address's place, or the free one where it would be. There is a free place. */
static struct trace_owner *place_of(uint64_t addr)
{
    size_t at = (size_t)((addr >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (num_places - 1);
    while (places[at].addr && places[at].addr != addr)
        at = (at + 1) & (num_places - 1);
    return &places[at];
}

static bool stays(const struct trace_owner *o, uint64_t since)
{
    return o->addr && (o->live || o->ticks >= since);
}

static size_t count_since(uint64_t since)
{
    size_t count = 0;
    for (size_t i = 0; i < num_places; i++)
        count += stays(&places[i], since);
    return count;
}

/* Makes room for one more. False: there is none. */
static bool grow(void)
{
    struct trace_owner *before = places;
    uint64_t since = keep_since;
    size_t size = num_places, staying = count_since(since);
    if (staying >= MOST_PLACES / 2) {
        since = UINT64_MAX;
        staying = count_since(since);
    }
    size_t wanted = size ? size : FIRST_PLACES;
    while (wanted < MOST_PLACES && staying * 2 >= wanted)
        wanted *= 2;
    struct trace_owner *made = staying < wanted / 4 * 3 ? make_places(wanted) : NULL;
    if (!made)
        return false;
    places = made;
    num_places = wanted;
    num_used = staying;
    for (size_t i = 0; i < size; i++)
        if (stays(&before[i], since))
            *place_of(before[i].addr) = before[i];
    if (before)
        munmap(before, size * sizeof *before);
    return true;
}

void trace_owners_keep_since(uint64_t ticks)
{
    keep_since = ticks;
}

bool trace_owners_copy(void)
{
    struct trace_owner *made = num_places ? make_places(num_places) : NULL;
    if (num_places && !made)
        return false;
    if (made)
        memcpy(made, places, num_places * sizeof *made);
    kept_places = places;
    kept_num_places = num_places;
    kept_num_used = num_used;
    places = made;
    return true;
}

void trace_owners_back(void)
{
    trace_owners_forget();
    places = kept_places;
    num_places = kept_num_places;
    num_used = kept_num_used;
}

struct trace_owner *trace_owners_find(uint64_t addr)
{
    struct trace_owner *o = num_places ? place_of(addr) : NULL;
    return o && o->addr ? o : NULL;
}

struct trace_owner *trace_owners_at(uint64_t addr)
{
    struct trace_owner *o = trace_owners_find(addr);
    if (o || !addr)
        return o;
    if (num_used >= num_places / 4 * 3 && !grow())
        return NULL;
    o = place_of(addr);
    o->addr = addr;
    num_used++;
    return o;
}

struct trace_owner *trace_owners_next(const struct trace_owner *after)
{
    for (size_t i = after ? (size_t)(after - places) + 1 : 0; i < num_places; i++)
        if (places[i].addr)
            return &places[i];
    return NULL;
}

void trace_owners_forget(void)
{
    if (places)
        munmap(places, num_places * sizeof *places);
    places = NULL;
    num_places = num_used = 0;
}
