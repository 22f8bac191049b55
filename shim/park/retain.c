/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See retain.h; the numbers below are those of its steps.
 */
#include "shim/park/retain.h"

#include "pool/bits.h"
#include "shim/park/hasher.h"

#include <stdio.h>
#include <sys/mman.h>

#define NO_PLACE UINT32_MAX

/* What the store has at a place. */
struct place {
    struct hash hash;
    uint64_t key; /* of the hash; 0: not known */
    bool is_away;
};

/* A page of this park. */
struct page {
    uint64_t addr;
    struct hash hash;
    uint64_t key; /* 0: not hashed */
    uint32_t place;
    bool has_bytes;
};

static struct place *places;
static struct page *pages;
static size_t max_pages, num_pages;
static uint64_t until_ns; /* 0: memory is away, or nothing is kept yet */
static size_t next_row;   /* that retain_place looks at for a place to give away */

static void *map_table(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, size, MADV_DONTFORK);
    return p;
}

bool retain_begin(const struct store *s)
{
    max_pages = s->size_bytes / HASH_PAGE_BYTES;
    places = map_table(max_pages * sizeof *places);
    pages = map_table(max_pages * sizeof *pages);
    if (!places || !pages)
        retain_end();
    return places;
}

void retain_end(void)
{
    if (places)
        munmap(places, max_pages * sizeof *places);
    if (pages)
        munmap(pages, max_pages * sizeof *pages);
    places = NULL;
    pages = NULL;
    num_pages = 0;
    until_ns = 0;
}

bool retain_is_on(void)
{
    return places;
}

void retain_list_begin(void)
{
    num_pages = 0;
    next_row = 0;
}

bool retain_list(uint64_t addr, uint64_t size_bytes)
{
    uint64_t end = addr + size_bytes;

    for (addr -= addr % HASH_PAGE_BYTES; addr < end; addr += HASH_PAGE_BYTES) {
        if (num_pages && pages[num_pages - 1].addr == addr)
            continue;
        if (num_pages == max_pages)
            return false;
        pages[num_pages++] = (struct page){.addr = addr, .place = NO_PLACE};
    }
    return true;
}

size_t retain_num_pages(void)
{
    return num_pages;
}

/* Pages from `first` on that lie one behind the other. */
static size_t count_run(size_t first)
{
    size_t n = 1;

    while (first + n < num_pages && n < HASHER_PAGES &&
           pages[first + n].addr == pages[first].addr + n * HASH_PAGE_BYTES)
        n++;
    return n;
}

void retain_hash(struct context *c, size_t first, bool (*goes_on)(void))
{
    static struct hash hashes[HASHER_PAGES];

    for (size_t n; first < num_pages && goes_on(); first += n) {
        n = count_run(first);
        uint64_t key = hasher_run(c, pages[first].addr, n, hashes);
        for (size_t i = 0; i < n && key; i++) {
            pages[first + i].hash = hashes[i];
            pages[first + i].key = key;
        }
    }
}

static struct place *place_of_row(const struct store_row *row)
{
    return &places[row->offset / HASH_PAGE_BYTES];
}

void retain_match(struct store *s)
{
    for (struct page *p = pages; p < pages + num_pages; p++) {
        const struct store_row *row = store_find(s, p->addr, p->addr + 1);

        if (!row)
            continue;
        struct place *q = place_of_row(row);
        p->place = (uint32_t)(q - places);
        p->has_bytes = p->key && p->key == q->key && hash_is_equal(&p->hash, &q->hash);
        q->is_away = true; /* step 4 */
    }
}

bool retain_has_bytes(size_t page)
{
    return pages[page].has_bytes;
}

/* The offset of a place that no page needs, for another one. */
static const struct store_row *take_unneeded(struct store *s, uint64_t addr)
{
    for (; next_row < s->num_rows; next_row++)
        if (!retain_is_away(&s->rows[next_row]))
            return store_rename(s, next_row++, addr);
    return NULL;
}

bool retain_place(struct store *s, size_t page, struct store_row *to, char *why, size_t why_bytes)
{
    struct page *p = &pages[page];

    if (p->place == NO_PLACE) {
        const struct store_row *row = take_unneeded(s, p->addr);
        if (!row)
            row = store_add(s, p->addr, HASH_PAGE_BYTES);
        if (!row) {
            snprintf(why, why_bytes, "the program took more memory meanwhile");
            return false;
        }
        p->place = (uint32_t)(place_of_row(row) - places);
        places[p->place].is_away = true;
    }
    if (!store_make_usable(s, why, why_bytes))
        return false;
    places[p->place].key = 0; /* step 1 */
    *to = (struct store_row){p->addr, HASH_PAGE_BYTES, p->place * HASH_PAGE_BYTES};
    return true;
}

void retain_saved(size_t first, size_t end)
{
    for (const struct page *p = pages + first; p < pages + end; p++) {
        places[p->place].hash = p->hash;
        places[p->place].key = p->key;
    }
}

void retain_undo(void)
{
    for (const struct page *p = pages; p < pages + num_pages; p++)
        if (p->place != NO_PLACE)
            places[p->place].is_away = false;
    num_pages = 0;
}

void retain_left(bool (*is_away)(uint64_t addr))
{
    for (const struct page *p = pages; p < pages + num_pages; p++)
        if (p->place != NO_PLACE && !is_away(p->addr))
            places[p->place].is_away = false;
    until_ns = 0;
    num_pages = 0;
}

bool retain_is_away(const struct store_row *row)
{
    return place_of_row(row)->is_away;
}

void retain_keep(struct store *s, uint64_t most_bytes, uint64_t now_ns)
{
    until_ns = until_ns ? until_ns : now_ns + RETAIN_NS;
    for (size_t i = 0; i < s->used_bytes / HASH_PAGE_BYTES; i++) {
        places[i].is_away = false;
        if ((i + 1) * HASH_PAGE_BYTES > most_bytes)
            places[i].key = 0;
    }
    num_pages = 0;
    store_shrink(s, most_bytes - most_bytes % HASH_PAGE_BYTES);
}

bool retain_is_over(uint64_t now_ns)
{
    return now_ns >= until_ns;
}
