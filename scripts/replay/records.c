/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See records.h.
 */
#include "scripts/replay/records.h"

#include "shim/trace/format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_WORDS (TRACE_CHUNK_BYTES / sizeof(uint64_t))
#define HEAD_WORDS (sizeof(struct trace_chunk) / sizeof(uint64_t))
#define FIELD(word, shift, mask) ((word) >> (shift) & (mask))

/* EMPTY_MOST: chunks in a row; behind them is nothing. */
enum { GPUS_MOST = 64, EMPTY_MOST = 4096 };

static uint64_t chunk[CHUNK_WORDS]; /* read by one thread */

void *records_grown(void *all, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return all;
    *room = *room ? *room * 2 : 1024;
    void *more = realloc(all, *room * size);
    if (!more)
        free(all);
    return more;
}

static void add(struct records *d, const struct record *one)
{
    d->all = records_grown(d->all, d->count, &d->room, sizeof *d->all);
    if (!d->all) {
        d->short_of_memory = true;
        d->count = d->room = 0;
        return;
    }
    if (d->count && one->ticks < d->all[d->count - 1].ticks) {
        d->runs = records_grown(d->runs, d->run_count, &d->run_room, sizeof *d->runs);
        if (!d->runs) {
            d->short_of_memory = true;
            d->run_count = d->run_room = 0;
            return;
        }
        d->runs[d->run_count++] = d->count;
    }
    d->all[d->count++] = *one;
}

static void note_gpu(struct records *d, uint64_t device, uint64_t size_bytes)
{
    d->gpus |= UINT64_C(1) << device % GPUS_MOST;
    if (size_bytes > d->gpu_bytes)
        d->gpu_bytes = size_bytes;
}

static bool matters(unsigned kind)
{
    switch (kind) {
    case TRACE_ALLOC_FAST:
    case TRACE_ALLOC:
    case TRACE_ALLOC_DRIVER:
    case TRACE_LIVE:
    case TRACE_FREE:
    case TRACE_FREE_ASYNC:
    case TRACE_CONTEXT:
    case TRACE_CONTEXT_END:
        return true;
    default:
        return false;
    }
}

static void take(struct records *d, unsigned kind, uint64_t who, uint64_t ticks, uint64_t addr,
                 uint64_t size_bytes)
{
    uint64_t context = FIELD(who, 56, 0xff);
    if (!matters(kind) || size_bytes >> RECORD_SIZE_BITS || d->short_of_memory ||
        ticks < d->start_ticks)
        return;
    if (kind == TRACE_CONTEXT)
        note_gpu(d, addr, size_bytes);
    add(d, &(struct record){ticks, addr,
                            size_bytes | context << RECORD_SIZE_BITS | (uint64_t)kind << 56});
}

/* The records of a chunk of so many words, up to the first that is not there or torn. */
static void read_records(struct records *d, size_t words, uint64_t ticks)
{
    uint64_t base = 0;
    for (size_t at = HEAD_WORDS; at + 2 <= words;) {
        uint64_t first = chunk[at], what = chunk[at + 1];
        unsigned kind = FIELD(what, 24, 0xff);
        if (!what)
            break;
        ticks += FIELD(first, 0, UINT32_MAX) << TRACE_STEP_SHIFT;
        if (kind < TRACE_WIDE) {
            uint64_t unit = FIELD(first, 32, UINT32_MAX) + base;
            take(d, kind, what, ticks, unit << TRACE_UNIT_SHIFT, FIELD(what, 0, 0xffffff));
            at += 2;
            continue;
        }
        uint64_t text_bytes = FIELD(first, 32, UINT32_MAX);
        size_t behind = at + 4 + (text_bytes + 15) / 16 * 2;
        if (text_bytes > TRACE_TEXT_MAX || behind > words)
            break;
        uint64_t a = chunk[at + 2], b = chunk[at + 3];
        kind -= TRACE_WIDE;
        if (kind == TRACE_BASE)
            base = a;
        else if (kind == TRACE_TIME)
            ticks = a;
        else
            take(d, kind, what, ticks, a, b);
        at = behind;
    }
}

/* The place of the first chunk from `at` on that has data. Negative: there is none. A file may have
 * holes of any size. */
static off_t behind_hole(int fd, off_t at)
{
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? -1 : at; /* some file systems do not tell */
    return at + (data - at) / TRACE_CHUNK_BYTES * TRACE_CHUNK_BYTES;
}

/* Of the chunks that begin before the start, or of all others. Returns whether it left some. */
static bool read_chunks(struct records *d, int fd, bool is_older)
{
    bool has_left = false;
    unsigned empty = 0;
    for (off_t at = TRACE_HEADER_BYTES; at >= 0 && empty < EMPTY_MOST;) {
        struct trace_chunk head;
        ssize_t got = pread(fd, chunk, sizeof chunk, at);
        if (got < (ssize_t)sizeof head)
            break;
        memcpy(&head, chunk, sizeof head);
        at += TRACE_CHUNK_BYTES;
        if (head.magic != TRACE_CHUNK_MAGIC) {
            empty++;
            at = behind_hole(fd, at);
            continue;
        }
        empty = 0;
        if ((head.ticks < d->start_ticks) != is_older) {
            has_left = true;
            continue;
        }
        if (head.ns > d->last_ns) {
            d->last_ns = head.ns;
            d->last_ticks = head.ticks;
        }
        read_records(d, (size_t)got / sizeof(uint64_t), head.ticks);
    }
    return has_left;
}

static const char *read_header(struct records *d, int fd)
{
    struct trace_header h;
    if (pread(fd, &h, sizeof h, 0) != sizeof h || memcmp(h.magic, TRACE_MAGIC, sizeof h.magic))
        return "it is no trace of libgpucache";
    if (h.byte_order != TRACE_BYTE_ORDER || h.version != TRACE_VERSION ||
        h.chunk_bytes != TRACE_CHUNK_BYTES)
        return "it is a trace of another version";
    d->start_ticks = h.start_ticks;
    d->start_ns = h.start_ns;
    d->last_ticks = h.last_ticks;
    d->last_ns = h.last_ns;
    return NULL;
}

/* Merges [from, middle) and [middle, end) into `to`, earlier ones first. */
static void merge(const struct record *all, struct record *to, size_t from, size_t middle,
                  size_t end)
{
    size_t left = from, right = middle;
    for (size_t at = from; at < end; at++) {
        bool first = left < middle && (right >= end || all[left].ticks <= all[right].ticks);
        to[at] = all[first ? left++ : right++];
    }
}

/* Runs that are in order become half as many, until there is one. */
static bool sort(struct records *d)
{
    struct record *other = d->run_count ? malloc(d->count * sizeof *other) : NULL;
    if (d->run_count && !other)
        return false;
    while (d->run_count) {
        size_t kept = 0, from = 0;
        for (size_t i = 0; i <= d->run_count; i += 2) {
            size_t middle = i < d->run_count ? d->runs[i] : d->count;
            size_t end = i + 1 < d->run_count ? d->runs[i + 1] : d->count;
            merge(d->all, other, from, middle, end);
            if (end < d->count)
                d->runs[kept++] = end;
            from = end;
        }
        d->run_count = kept;
        struct record *sorted = other;
        other = d->all;
        d->all = sorted;
    }
    free(other);
    return true;
}

const char *records_read(struct records *d, const char *path)
{
    *d = (struct records){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return "it cannot be opened";
    const char *why = read_header(d, fd);
    if (!why && read_chunks(d, fd, false))
        read_chunks(d, fd, true); /* of the same time are those first that a dump begins with */
    close(fd);
    if (!why && (d->short_of_memory || !sort(d)))
        why = "there is too little memory for it";
    return why;
}

void records_finish(struct records *d)
{
    free(d->all);
    free(d->runs);
    *d = (struct records){0};
}
