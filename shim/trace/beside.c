/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See beside.h. The lock guards the list. What is gone stays in it until the list is full. Then the
 * records are played from the first on, and those that say nothing any more are dropped.
 */
#include "shim/trace/beside.h"

#include "shim/stats/counters.h"
#include "shim/trace/fast.h"
#include "shim/trace/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
    LOCK_TRIES = 100,
    FIRST_SIZE = 1 << 10,
    FAILED_NEAR = 64, /* so many records at most stand between a free and its FREE_FAILED */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct trace_beside *list;
static size_t list_size, list_count;
static uint32_t list_trace;              /* whose it is */
static size_t num_offered, next_look[2]; /* of what goes, and of what comes, in a full list */

static void *make_pages(size_t size_bytes)
{
    void *made = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return made == MAP_FAILED ? NULL : made;
}

/* --- what records say, played in their order ------------------------------------------------- */

#define NEVER UINT64_MAX

/* Of a record. Others are told by their number and 1; 0: none. */
struct played {
    uint64_t end_ticks; /* PASSED: when the memory was gone. PASSED_MAP: when the address was */
    uint32_t part;      /* PASSED, whose memory it is of */
    uint32_t handles, mapped, hold; /* PASSED: how often each, and the last PASSED_HOLD */
    uint32_t given_up;              /* PASSED: the PASSED_FREE of its last handle */
    uint32_t hold_before;           /* PASSED_HOLD */
    uint32_t next, before;          /* of a list of those that are there */
    bool says_nothing;
};

struct play {
    struct trace_beside *r;
    struct played *its; /* one for each */
    size_t size_bytes;  /* of all memory here */
    uint32_t *names,
        *addrs; /* open addressing: the last PASSED of a name, PASSED_MAP of an address */
    size_t mask;
    uint64_t since;            /* what has ended before is to be dropped */
    uint32_t mappings, ending; /* PASSED_MAP, and PASSED that ends with the contexts: their lists */
    uint64_t num_mappings, addr_bits; /* of those that are there; all bits of what was mapped */
};

static bool is_lasting(const struct trace_beside *r) /* though no context is left */
{
    return r->group == COUNTER_VMM || r->group == COUNTER_HOST;
}

static bool has_address(const struct trace_beside *r) /* which FREE and FREE_ASYNC name */
{
    return r->group == COUNTER_ASYNC || r->group == COUNTER_MANAGED;
}

static bool is_device_memory(const struct trace_beside *r)
{
    return r->group == COUNTER_ASYNC || r->group == COUNTER_VMM || r->group == COUNTER_ARRAY;
}

/* The place of what has this `a`, or the free one where it would be. */
static uint32_t *number_at(const struct play *p, uint32_t *table, uint64_t a)
{
    size_t at = (size_t)(a * UINT64_C(0x9e3779b97f4a7c15) >> 32) & p->mask;
    while (table[at] && p->r[table[at] - 1].a != a)
        at = (at + 1) & p->mask;
    return &table[at];
}

/* Its number and 1; 0: there is none that is there. */
static uint32_t find_there(const struct play *p, uint32_t *table, uint64_t a)
{
    uint32_t found = *number_at(p, table, a);
    return found && p->its[found - 1].end_ticks == NEVER ? found : 0;
}

static void add_there(struct play *p, uint32_t *first, uint32_t number)
{
    struct played *its = &p->its[number - 1];
    its->next = *first;
    its->before = 0;
    if (its->next)
        p->its[its->next - 1].before = number;
    *first = number;
}

static void set_end(struct play *p, uint32_t *first, uint32_t number, uint64_t ticks)
{
    struct played *its = &p->its[number - 1];
    if (its->end_ticks != NEVER)
        return;
    its->end_ticks = ticks;
    if (its->next)
        p->its[its->next - 1].before = its->before;
    if (its->before)
        p->its[its->before - 1].next = its->next;
    else if (*first == number)
        *first = its->next;
}

static void end_if_gone(struct play *p, uint32_t part, uint64_t ticks)
{
    const struct played *its = &p->its[part - 1];
    if (!its->handles && !its->mapped)
        set_end(p, &p->ending, part, ticks);
}

static void play_passed(struct play *p, uint32_t number)
{
    const struct trace_beside *r = &p->r[number - 1];
    uint32_t before = find_there(p, p->names, r->a);
    if (before) { /* what freed it is not known */
        p->its[before - 1].handles = 0;
        end_if_gone(p, before, r->ticks);
    }
    *number_at(p, p->names, r->a) = number;
    p->its[number - 1] = (struct played){.end_ticks = NEVER, .part = number, .handles = 1};
    if (!is_lasting(r))
        add_there(p, &p->ending, number);
}

static void play_hold(struct play *p, uint32_t number)
{
    uint64_t ticks = p->r[number - 1].ticks;
    struct played *its = &p->its[number - 1];
    its->part = find_there(p, p->names, p->r[number - 1].a);
    its->says_nothing = !its->part;
    if (!its->part)
        return;
    struct played *part = &p->its[its->part - 1];
    if (part->handles++) {
        its->hold_before = part->hold;
        part->hold = number;
    } else { /* it was mapped alone: as if it had never been given up */
        its->says_nothing = p->its[part->given_up - 1].says_nothing = ticks < p->since;
    }
}

/* A PASSED_HOLD and its end say nothing together. */
static void play_given_up(struct play *p, uint32_t number)
{
    uint64_t ticks = p->r[number - 1].ticks;
    struct played *its = &p->its[number - 1];
    its->part = find_there(p, p->names, p->r[number - 1].a);
    struct played *part = its->part ? &p->its[its->part - 1] : NULL;
    its->says_nothing = !part || !part->handles;
    if (its->says_nothing)
        return;
    uint32_t hold = part->hold;
    if (--part->handles) {
        part->hold = p->its[hold - 1].hold_before;
        its->says_nothing = p->its[hold - 1].says_nothing = ticks < p->since;
    } else {
        part->given_up = number;
    }
    end_if_gone(p, its->part, ticks);
}

static void play_free(struct play *p, uint32_t number)
{
    struct played *its = &p->its[number - 1];
    its->part = find_there(p, p->names, p->r[number - 1].a);
    its->says_nothing = !its->part || !has_address(&p->r[its->part - 1]);
    if (!its->says_nothing) {
        p->its[its->part - 1].handles = 0;
        end_if_gone(p, its->part, p->r[number - 1].ticks);
    }
}

static void unmap(struct play *p, uint32_t number, uint64_t ticks)
{
    uint32_t part = p->its[number - 1].part;
    set_end(p, &p->mappings, number, ticks);
    p->num_mappings--;
    p->its[part - 1].mapped--;
    end_if_gone(p, part, ticks);
}

static void play_map(struct play *p, uint32_t number)
{
    const struct trace_beside *r = &p->r[number - 1];
    struct played *its = &p->its[number - 1];
    its->part = find_there(p, p->names, r->b);
    its->says_nothing = !its->part;
    if (!its->part)
        return;
    uint32_t before = find_there(p, p->addrs, r->a);
    if (before) /* what unmapped it is not known */
        unmap(p, before, r->ticks);
    *number_at(p, p->addrs, r->a) = number;
    its->end_ticks = NEVER;
    add_there(p, &p->mappings, number);
    p->num_mappings++;
    p->addr_bits |= r->a;
    p->its[its->part - 1].mapped++;
}

/* What begins there. The driver maps at multiples of a granule, as a rule of 2 MiB. So few
 * addresses come into question, and if they are more than the mappings, those are gone through. */
static void unmap_between(struct play *p, uint64_t at, uint64_t end_at, uint64_t ticks)
{
    uint64_t granule = p->addr_bits & -p->addr_bits; /* 0: nothing is mapped, but at 0 */
    uint64_t first = granule ? (at + granule - 1) & -granule : at;
    if (first < at || first >= end_at)
        return;
    if (granule && (end_at - first) / granule < p->num_mappings) {
        for (uint64_t left = (end_at - first - 1) / granule + 1; left; left--, first += granule) {
            uint32_t its = find_there(p, p->addrs, first);
            if (its)
                unmap(p, its, ticks);
        }
        return;
    }
    for (uint32_t i = p->mappings, next; i; i = next) {
        next = p->its[i - 1].next;
        if (p->r[i - 1].a >= at && p->r[i - 1].a < end_at)
            unmap(p, i, ticks);
    }
}

/* It may be of several mappings, which follow each other as a rule. */
static void play_unmap(struct play *p, uint32_t number)
{
    const struct trace_beside *r = &p->r[number - 1];
    uint64_t at = r->a, end_at = r->a + r->b;
    uint32_t first = find_there(p, p->addrs, at);
    p->its[number - 1].says_nothing = r->ticks < p->since;
    for (uint32_t its = first; its && at < end_at; its = find_there(p, p->addrs, at)) {
        unmap(p, its, r->ticks);
        at += p->r[its - 1].more;
    }
    if (at < end_at)
        unmap_between(p, at, end_at, r->ticks);
}

static void play_context_end(struct play *p, uint32_t number)
{
    uint64_t ticks = p->r[number - 1].ticks;
    p->its[number - 1].says_nothing = ticks < p->since;
    for (uint32_t i = p->ending, next; i; i = next) {
        next = p->its[i - 1].next;
        p->its[i - 1].handles = 0;
        end_if_gone(p, i, ticks);
    }
}

static void play_one(struct play *p, uint32_t number)
{
    switch ((enum trace_kind)p->r[number - 1].kind) {
    case TRACE_PASSED:
        play_passed(p, number);
        break;
    case TRACE_PASSED_HOLD:
        play_hold(p, number);
        break;
    case TRACE_PASSED_FREE:
        play_given_up(p, number);
        break;
    case TRACE_PASSED_MAP:
        play_map(p, number);
        break;
    case TRACE_PASSED_UNMAP:
        play_unmap(p, number);
        break;
    case TRACE_CONTEXT_END:
        play_context_end(p, number);
        break;
    case TRACE_FREE:
    case TRACE_FREE_ASYNC:
        play_free(p, number);
        break;
    default: /* a free that failed */
        p->its[number - 1].says_nothing = true;
    }
}

/* An address that memory had counts as long as the memory is told: one that it has no more may be
 * needed to say that the memory was there. */
static bool is_needed(const struct play *p, uint32_t number)
{
    const struct played *its = &p->its[number - 1];
    bool has_ended = its->part && p->its[its->part - 1].end_ticks < p->since;
    bool is_unmapped = p->r[number - 1].kind == TRACE_PASSED_MAP && its->end_ticks < p->since;
    return !its->says_nothing && !has_ended && !is_unmapped;
}

/* Drops the records that say nothing of the time from `since` on. Returns how many are left. No
 * host memory: all. */
static size_t drop_old(struct trace_beside *r, size_t count, uint64_t since)
{
    size_t places = 1, left = 0;
    while (places < 2 * count)
        places *= 2;
    struct play p = {.r = r, .mask = places - 1, .since = since};
    p.size_bytes = count * sizeof *p.its + 2 * places * sizeof *p.names;
    p.its = count ? make_pages(p.size_bytes) : NULL;
    if (!p.its)
        return count;
    p.names = (uint32_t *)(p.its + count);
    p.addrs = p.names + places;
    for (uint32_t number = 1; number <= count; number++)
        play_one(&p, number);
    for (uint32_t number = 1; number <= count; number++)
        if (is_needed(&p, number)) {
            r[left] = r[number - 1];
            r[left++].is_held = r[number - 1].kind == TRACE_PASSED &&
                                is_device_memory(&r[number - 1]) &&
                                p.its[number - 1].end_ticks == NEVER;
        }
    munmap(p.its, p.size_bytes);
    return left;
}

/* --- the list -------------------------------------------------------------------------------- */

static void forget_list(void)
{
    if (list)
        munmap(list, list_size * sizeof *list);
    list = NULL;
    list_size = list_count = num_offered = next_look[false] = next_look[true] = 0;
}

static void grow_list(void)
{
    size_t size = list_size ? list_size * 2 : FIRST_SIZE;
    struct trace_beside *made = make_pages(size * sizeof *made);
    if (!made)
        return;
    if (list) {
        memcpy(made, list, list_count * sizeof *made);
        munmap(list, list_size * sizeof *list);
    }
    list = made;
    list_size = size;
}

/* What goes finds room longer than what comes. */
static size_t most_records(bool comes)
{
    return comes ? list_size / 4 * 3 : list_size;
}

/* Room for one more. A list that is nearly full of what is live, and cannot grow, is not looked
 * through at each record. A thread that records nothing for long keeps its ring, so what is gone is
 * dropped although a ring has records of it, if there is no other room. */
static bool has_list_room(bool comes)
{
    if (list_count < most_records(comes))
        return true;
    if (num_offered < next_look[comes])
        return false;
    list_count = drop_old(list, list_count, trace_ring_oldest());
    if (list_count >= list_size / 2 && list_size < TRACE_BESIDE_MAX)
        grow_list();
    size_t most = most_records(comes), step = list_size / 8; /* from one look to the next */
    if (list_count + step > most)
        list_count = drop_old(list, list_count, UINT64_MAX);
    next_look[comes] = list_count + step > most ? num_offered + step : 0;
    return list_count < most;
}

/* The thread's latest free of it was none. */
static void void_free(uint64_t a)
{
    for (size_t i = list_count; i > 0 && list_count - i < FAILED_NEAR; i--) {
        struct trace_beside *r = &list[i - 1];
        bool frees = r->kind == TRACE_FREE || r->kind == TRACE_FREE_ASYNC ||
                     r->kind == TRACE_PASSED_FREE || r->kind == TRACE_PASSED_UNMAP;
        if (frees && r->a == a) {
            r->kind = TRACE_FREE_FAILED;
            break;
        }
    }
}

static bool add_to_list(const struct trace_beside *r, uint32_t trace)
{
    bool comes =
        r->kind == TRACE_PASSED || r->kind == TRACE_PASSED_HOLD || r->kind == TRACE_PASSED_MAP;
    if (list_trace != trace) {
        list_trace = trace;
        forget_list();
    }
    num_offered++;
    if (r->kind == TRACE_FREE_FAILED)
        void_free(r->a);
    else if (has_list_room(comes))
        list[list_count++] = *r;
    else
        return false;
    return true;
}

/* The thread's state says when it made the record. If that was lost, no ring has it, and an earlier
 * time does no harm. */
static void keep_record(struct trace_beside *r)
{
    uint32_t trace = atomic_load(&trace_now);
    int saved_errno = errno;
    r->ticks = trace_mine->ticks;
    if (!trace_is_ring(trace))
        return;
    bool locked = trace_lock(&list_lock, LOCK_TRIES);
    bool is_over = atomic_load(&trace_now) != trace; /* and the list may be another's */
    if (!locked || (!is_over && !add_to_list(r, trace)))
        trace_count_lost();
    if (locked)
        pthread_mutex_unlock(&list_lock);
    errno = saved_errno;
}

void trace_note_beside(enum trace_kind kind, const struct trace_event *event, uint64_t mapped_bytes)
{
    if (kind == TRACE_PASSED || kind == TRACE_FREE_FAILED)
        trace_note_call(kind, event);
    else
        trace_note(kind, event);
    keep_record(&(struct trace_beside){.a = event->a,
                                       .b = event->b,
                                       .more = kind == TRACE_PASSED_MAP ? mapped_bytes
                                                                        : (uintptr_t)event->caller,
                                       .group = event->aux,
                                       .kind = (uint8_t)kind});
}

void trace_beside_keep(enum trace_kind kind, uint64_t a)
{
    keep_record(&(struct trace_beside){.a = a, .kind = (uint8_t)kind});
}

/* Of a copy: what f does may take long. */
bool trace_beside_each(uint32_t trace, uint64_t since_ticks,
                       void (*f)(const struct trace_beside *record))
{
    if (!trace_lock(&list_lock, LOCK_TRIES))
        return false;
    size_t count = list_trace == trace ? list_count : 0, size_bytes = count * sizeof *list;
    struct trace_beside *copy = count ? make_pages(size_bytes) : NULL;
    if (copy)
        memcpy(copy, list, size_bytes);
    pthread_mutex_unlock(&list_lock);
    if (!copy)
        return !count;
    size_t left = drop_old(copy, count, since_ticks);
    for (size_t i = 0; i < left; i++)
        f(&copy[i]);
    munmap(copy, size_bytes);
    return true;
}
