/* SPDX-License-Identifier: BSD-2-Clause */
/* A race detector over ranges: a set of segments, each with the accesses that a later one may still
 * conflict with. It forgets an access when the host has seen it complete, or when a later access
 * that is ordered behind it stands for it. */
#include "tests/sim/hazard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/alloc.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/memory.h"
#include "tests/sim/owner.h"

#define PRINTED_MAX 20u /* reports that are printed; all are counted */

/* One submitted access. The segments that remember it share it. */
struct touch {
    unsigned references;
    unsigned slot;
    uint64_t seq;
    uint64_t owner;       /* 0: unknown */
    uint64_t followed_by; /* another owner's access is ordered behind it: that owner */
    enum access_kind kind;
    const char *name;
    uint64_t stream_id;
    uint64_t addr, size;
    struct touch *reported; /* the last partner, so that one pair is reported once */
};

struct segment {
    struct range range; /* first */
    struct touch **touches;
    unsigned count, capacity;
};

static struct ranges segments = {.seed = 11};
static uint64_t hazards;

static void touch_release(struct touch *touch)
{
    if (--touch->references == 0)
        free(touch);
}

static struct segment *segment_add(uint64_t lo, uint64_t hi)
{
    return range_add(&segments, sizeof(struct segment), lo, hi);
}

static void segment_drop(struct segment *segment)
{
    for (unsigned i = 0; i < segment->count; i++)
        touch_release(segment->touches[i]);
    free(segment->touches);
    range_delete(&segments, &segment->range);
}

static void remember(struct segment *segment, struct touch *touch)
{
    if (segment->count == segment->capacity) {
        segment->capacity = segment->capacity * 2 + 2;
        segment->touches =
            never_null(realloc(segment->touches, segment->capacity * sizeof *segment->touches));
    }
    segment->touches[segment->count++] = touch;
    touch->references++;
}

/* Cuts the segment that contains addr in two. */
static void cut(uint64_t addr)
{
    struct segment *low = (struct segment *)range_find(&segments, addr);
    if (low == NULL || low->range.lo == addr)
        return;
    uint64_t hi = low->range.hi;
    low->range.hi = addr;
    struct segment *high = segment_add(addr, hi);
    for (unsigned i = 0; i < low->count; i++)
        remember(high, low->touches[i]);
}

static bool ordered(const struct touch *earlier, const struct vector *clock)
{
    return vector_get(clock, earlier->slot) >= earlier->seq;
}

static void describe(char *out, size_t size, const struct touch *touch)
{
    static const char *const verbs[] = {"reads", "writes", "updates"};
    snprintf(out, size, "%s on stream %llu %s [%#llx, +%llu)%s", touch->name,
             (unsigned long long)touch->stream_id, verbs[touch->kind],
             (unsigned long long)touch->addr, (unsigned long long)touch->size,
             touch->owner != 0 ? "" : " (unannounced)");
}

/* later is NULL if a call takes the memory away. */
static void report(struct touch *earlier, struct touch *later, const char *call)
{
    char first[160], second[160] = "";
    if (later != NULL && earlier->reported == later)
        return;
    earlier->reported = later;
    if (++hazards > PRINTED_MAX)
        return;
    describe(first, sizeof first, earlier);
    if (later != NULL)
        describe(second, sizeof second, later);
    fprintf(stderr, "sim: hazard: %s, not ordered before %s\n", first,
            later != NULL ? second : call);
}

static bool conflicts(const struct touch *earlier, const struct touch *later)
{
    if (earlier->kind == later->kind && earlier->kind != ACCESS_WRITE)
        return false;
    return earlier->owner == 0 || earlier->owner != later->owner;
}

/* later is ordered behind earlier. Take a third access that conflicts with earlier and is not
 * ordered behind it. It is not ordered behind later either. Returns whether the checker would
 * report it as a conflict with later for certain, so that later stands for earlier. */
static bool stands_for(const struct touch *later, struct touch *earlier)
{
    if (later->kind != ACCESS_WRITE && later->kind != earlier->kind)
        return false;
    if (later->owner == 0 || later->owner == earlier->owner)
        return true;
    /* (1) later does not stand for earlier towards more accesses of its own ownership. (2) But once
     * a second owner follows, the ownership of the first one that followed has ended. Its access
     * then stands for earlier. */
    if (earlier->followed_by != 0 && earlier->followed_by != later->owner)
        return true;
    earlier->followed_by = later->owner;
    return false;
}

static void meet(struct segment *segment, struct touch *later, const struct vector *clock)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < segment->count; i++) {
        struct touch *earlier = segment->touches[i];
        bool same = earlier->slot == later->slot && earlier->seq == later->seq;
        bool before = same || ordered(earlier, clock);
        if (!before && conflicts(earlier, later))
            report(earlier, later, NULL);
        if (ordered(earlier, &stream_host_clock) || (before && stands_for(later, earlier)))
            touch_release(earlier);
        else
            segment->touches[kept++] = earlier;
    }
    segment->count = kept;
    remember(segment, later);
}

static bool enabled(void)
{
    static int known = -1;
    if (known < 0)
        known = config.hazard == NULL || strcmp(config.hazard, "off") != 0;
    return known;
}

/* Watches memory of devices only: the checker does not see the accesses of the host to other
 * memory. */
static bool watched(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    return memory != NULL && memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED;
}

static void touch_range(CUstream stream, const struct command *command, const struct access *access)
{
    struct touch *touch = never_null(calloc(1, sizeof *touch));
    *touch = (struct touch){.references = 1,
                            .slot = stream->slot,
                            .seq = stream->seq,
                            .owner = owner_of(access->addr, access->size),
                            .kind = access->kind,
                            .name = command_name(command),
                            .stream_id = stream->id,
                            .addr = access->addr,
                            .size = access->size};
    uint64_t lo = access->addr, hi = lo + access->size;
    cut(lo);
    cut(hi);
    for (uint64_t at = lo; at < hi;) {
        struct segment *segment = (struct segment *)range_from(&segments, at);
        if (segment == NULL || segment->range.lo != at) {
            uint64_t end = segment != NULL && segment->range.lo < hi ? segment->range.lo : hi;
            segment = segment_add(at, end);
        }
        meet(segment, touch, &stream->clock);
        at = segment->range.hi;
    }
    touch_release(touch);
}

void hazard_command(CUstream stream, const struct command *command)
{
    struct access accesses[COMMAND_ACCESSES_MAX];
    unsigned n = enabled() ? command_accesses(command, accesses) : 0;
    if (n == 0)
        return;
    ++stream->seq;
    for (unsigned i = 0; i < n; i++)
        if (watched(accesses[i].addr))
            touch_range(stream, command, &accesses[i]);
    vector_set(&stream->clock, stream->slot, stream->seq);
}

void hazard_release(uint64_t lo, uint64_t hi, const char *call)
{
    for (struct segment *segment = (struct segment *)range_from(&segments, lo);
         segment != NULL && segment->range.lo < hi;
         segment = (struct segment *)range_from(&segments, segment->range.hi))
        for (unsigned i = 0; i < segment->count; i++)
            if (!ordered(segment->touches[i], &stream_host_clock))
                report(segment->touches[i], NULL, call);
    hazard_forget(lo, hi);
}

void hazard_forget(uint64_t lo, uint64_t hi)
{
    cut(lo);
    cut(hi);
    for (struct segment *segment = (struct segment *)range_from(&segments, lo);
         segment != NULL && segment->range.lo < hi;
         segment = (struct segment *)range_from(&segments, lo))
        segment_drop(segment);
}

uint64_t hazard_count(void)
{
    return hazards;
}

void hazard_reset(void)
{
    hazards = 0;
}
