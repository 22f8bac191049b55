/* SPDX-License-Identifier: BSD-2-Clause */
/* A race detector over ranges: a set of segments, each with its last writer and the reads and atomic
 * accesses since. Segments whose accesses the host has seen complete are dropped when they are met. */
#include "tests/sim/hazard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/memory.h"
#include "tests/sim/owner.h"

/* One submitted access, shared by the segments that remember it. */
struct touch {
    unsigned references;
    unsigned slot;
    uint64_t seq;
    uint64_t owner; /* 0: unknown */
    enum access_kind kind;
    const char *name;
    uint64_t stream_id;
    uint64_t addr, size;
    struct touch *reported; /* the last partner, so that one pair is reported once */
};

struct segment {
    struct range range; /* first */
    struct touch *writer;
    struct touch **readers; /* and atomic accesses */
    unsigned reader_count, reader_capacity;
};

static struct ranges segments = {.seed = 11};
static uint64_t count;

static void touch_release(struct touch *touch)
{
    if (touch != NULL && --touch->references == 0)
        free(touch);
}

static struct segment *segment_add(uint64_t lo, uint64_t hi)
{
    struct segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        abort();
    segment->range.lo = lo;
    segment->range.hi = hi;
    range_insert(&segments, &segment->range);
    return segment;
}

static void segment_clear_readers(struct segment *segment)
{
    for (unsigned i = 0; i < segment->reader_count; i++)
        touch_release(segment->readers[i]);
    segment->reader_count = 0;
}

static void segment_drop(struct segment *segment)
{
    range_remove(&segments, &segment->range);
    segment_clear_readers(segment);
    touch_release(segment->writer);
    free(segment->readers);
    free(segment);
}

static void segment_add_reader(struct segment *segment, struct touch *touch)
{
    /* A later read of the same stream stands for the earlier one. */
    for (unsigned i = 0; i < segment->reader_count; i++) {
        struct touch *old = segment->readers[i];
        if (old->slot == touch->slot && old->kind == touch->kind) {
            segment->readers[i] = touch;
            touch->references++;
            touch_release(old);
            return;
        }
    }
    if (segment->reader_count == segment->reader_capacity) {
        segment->reader_capacity = segment->reader_capacity * 2 + 4;
        segment->readers =
            realloc(segment->readers, segment->reader_capacity * sizeof *segment->readers);
        if (segment->readers == NULL)
            abort();
    }
    segment->readers[segment->reader_count++] = touch;
    touch->references++;
}

/* Cuts a segment that reaches over addr in two. */
static void cut(uint64_t addr)
{
    struct segment *low = (struct segment *)range_find(&segments, addr);
    if (low == NULL || low->range.lo == addr)
        return;
    uint64_t hi = low->range.hi;
    low->range.hi = addr;
    struct segment *high = segment_add(addr, hi);
    high->writer = low->writer;
    if (high->writer != NULL)
        high->writer->references++;
    for (unsigned i = 0; i < low->reader_count; i++)
        segment_add_reader(high, low->readers[i]);
}

static bool ordered(const struct touch *earlier, const struct vector *clock)
{
    return vector_get(clock, earlier->slot) >= earlier->seq;
}

/* All that the segment remembers is known to the host as complete. */
static bool settled(const struct segment *segment)
{
    if (segment->writer != NULL && !ordered(segment->writer, &stream_host_clock))
        return false;
    for (unsigned i = 0; i < segment->reader_count; i++)
        if (!ordered(segment->readers[i], &stream_host_clock))
            return false;
    return true;
}

static void describe(char *out, size_t size, const struct touch *touch)
{
    static const char *const verbs[] = {"reads", "writes", "updates"};
    snprintf(out, size, "%s on stream %llu %s [%#llx, +%llu)%s", touch->name,
             (unsigned long long)touch->stream_id, verbs[touch->kind], (unsigned long long)touch->addr,
             (unsigned long long)touch->size, touch->owner != 0 ? "" : " (unannounced)");
}

static void report(struct touch *earlier, struct touch *later, const char *call)
{
    char first[160], second[160] = "";
    if (later != NULL && earlier->reported == later)
        return;
    earlier->reported = later;
    if (++count > config.hazard_max)
        return;
    describe(first, sizeof first, earlier);
    if (later != NULL)
        describe(second, sizeof second, later);
    fprintf(stderr, "sim: hazard: %s, not ordered before %s\n", first, later != NULL ? second : call);
}

static bool conflicts(const struct touch *earlier, const struct touch *later)
{
    if (earlier->kind == ACCESS_READ && later->kind == ACCESS_READ)
        return false;
    if (earlier->kind == ACCESS_ATOMIC && later->kind == ACCESS_ATOMIC)
        return false;
    return earlier->owner == 0 || earlier->owner != later->owner;
}

static void check(struct segment *segment, struct touch *later, const struct vector *clock)
{
    if (segment->writer != NULL && !ordered(segment->writer, clock) && conflicts(segment->writer, later))
        report(segment->writer, later, NULL);
    for (unsigned i = 0; i < segment->reader_count; i++)
        if (!ordered(segment->readers[i], clock) && conflicts(segment->readers[i], later))
            report(segment->readers[i], later, NULL);
}

static void remember(struct segment *segment, struct touch *touch)
{
    if (touch->kind != ACCESS_WRITE) {
        segment_add_reader(segment, touch);
        return;
    }
    segment_clear_readers(segment);
    touch_release(segment->writer);
    segment->writer = touch;
    touch->references++;
}

static bool enabled(void)
{
    static int known = -1;
    if (known < 0)
        known = config.hazard == NULL || strcmp(config.hazard, "off") != 0;
    return known;
}

/* Only memory of devices: the host's own accesses to other memory are not seen. */
static bool watched(uint64_t addr)
{
    struct memory *memory = memory_find(addr);
    return memory != NULL && memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED;
}

static void touch_range(CUstream stream, const struct command *command, const struct access *access)
{
    struct touch *touch = calloc(1, sizeof *touch);
    if (touch == NULL)
        abort();
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
        if (segment != NULL && segment->range.lo == at) {
            if (settled(segment)) {
                segment_drop(segment);
                continue;
            }
            check(segment, touch, &stream->clock);
            remember(segment, touch);
            at = segment->range.hi;
        } else {
            uint64_t end = segment != NULL && segment->range.lo < hi ? segment->range.lo : hi;
            remember(segment_add(at, end), touch);
            at = end;
        }
    }
    touch_release(touch);
}

void hazard_command(CUstream stream, const struct command *command)
{
    struct access accesses[COMMAND_ACCESSES_MAX];
    unsigned n = enabled() ? command_accesses(command, accesses) : 0;
    if (n == 0)
        return;
    vector_set(&stream->clock, stream->slot, ++stream->seq);
    for (unsigned i = 0; i < n; i++)
        if (watched(accesses[i].addr))
            touch_range(stream, command, &accesses[i]);
}

void hazard_release(uint64_t lo, uint64_t hi, const char *call)
{
    cut(lo);
    cut(hi);
    for (struct segment *segment = (struct segment *)range_from(&segments, lo);
         segment != NULL && segment->range.lo < hi;
         segment = (struct segment *)range_from(&segments, lo)) {
        if (segment->writer != NULL && !ordered(segment->writer, &stream_host_clock))
            report(segment->writer, NULL, call);
        for (unsigned i = 0; i < segment->reader_count; i++)
            if (!ordered(segment->readers[i], &stream_host_clock))
                report(segment->readers[i], NULL, call);
        segment_drop(segment);
    }
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
    return count;
}

void hazard_reset(void)
{
    count = 0;
}
