/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See trace.h.
 */
#include "tests/bench/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <lzma.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A live block while the trace is read, in a tree by the pointer that the program saw. */
struct held {
    uint64_t pointer;
    uint32_t alloc;
};

static int by_pointer(const void *a, const void *b)
{
    uint64_t x = ((const struct held *)a)->pointer, y = ((const struct held *)b)->pointer;
    return (x > y) - (x < y);
}

static char *read_all(FILE *f, size_t *size_bytes)
{
    size_t room = 1 << 16, n = 0, got;
    char *data = malloc(room);
    while ((got = fread(data + n, 1, room - n, f))) {
        n += got;
        if (n == room)
            data = realloc(data, room *= 2);
    }
    *size_bytes = n;
    return data;
}

/* The text of an xz file; NULL: it is none. */
static char *unpack(const uint8_t *packed, size_t packed_bytes, size_t *size_bytes)
{
    lzma_stream xz = LZMA_STREAM_INIT;
    size_t room = packed_bytes * 8 + 4096;
    uint8_t *text = malloc(room);
    lzma_ret rc = lzma_stream_decoder(&xz, UINT64_MAX, LZMA_CONCATENATED);
    xz.next_in = packed;
    xz.avail_in = packed_bytes;
    xz.next_out = text;
    xz.avail_out = room;
    while (rc == LZMA_OK) {
        rc = lzma_code(&xz, LZMA_FINISH);
        if (!xz.avail_out) {
            text = realloc(text, room * 2);
            xz.next_out = text + room;
            xz.avail_out = room;
            room *= 2;
        }
    }
    *size_bytes = (size_t)xz.total_out;
    lzma_end(&xz);
    if (rc == LZMA_STREAM_END)
        return (char *)text;
    free(text);
    return NULL;
}

static char *read_text(const char *path, size_t *size_bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return NULL;
    }
    char *data = read_all(f, size_bytes), *text = data;
    fclose(f);
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".xz")) {
        text = unpack((uint8_t *)data, *size_bytes, size_bytes);
        free(data);
        if (!text)
            fprintf(stderr, "%s: not an xz file, or a broken one\n", path);
    }
    if (text) {
        text = realloc(text, *size_bytes + 1);
        text[*size_bytes] = '\0';
    }
    return text;
}

struct row {
    unsigned thread;
    char action[16];
    uint64_t time_ns, pointer, size_bytes, stream;
};

/* The time is that of a day, down to microseconds, or nanoseconds in one number. */
static bool parse_time(const char *text, uint64_t *time_ns)
{
    unsigned h, m, s, us;
    if (!strchr(text, ':'))
        return sscanf(text, "%" SCNu64, time_ns) == 1;
    if (sscanf(text, "%u:%u:%u:%u", &h, &m, &s, &us) != 4)
        return false;
    *time_ns = (((h * UINT64_C(60) + m) * 60 + s) * 1000000 + us) * 1000;
    return true;
}

static bool parse(const char *line, struct row *r)
{
    char time[32];
    return sscanf(line, "%u,%31[0-9:],%15[a-z],%" SCNx64 ",%" SCNu64 ",%" SCNx64, &r->thread, time,
                  r->action, &r->pointer, &r->size_bytes, &r->stream) >= 5 &&
           parse_time(time, &r->time_ns);
}

/* Threads or streams, in order of appearance. */
struct ids {
    uint64_t seen[1024];
    uint32_t count;
};

static uint32_t number_of(struct ids *ids, uint64_t id)
{
    for (uint32_t i = 0; i < ids->count; i++)
        if (ids->seen[i] == id)
            return i;
    if (ids->count < 1024)
        ids->seen[ids->count++] = id;
    return ids->count - 1;
}

static bool action_of(const struct row *r, enum trace_action *action)
{
    static const struct {
        const char *name;
        enum trace_action action;
    } names[] = {{"allocate", TRACE_ALLOCATE}, {"free", TRACE_FREE}, {"deallocate", TRACE_FREE}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(r->action, names[i].name)) {
            *action = names[i].action;
            return true;
        }
    return false;
}

/* The block that a row allocates or frees. *keep: the row has an effect. False: a second live block
 * at one address. */
static bool follow_block(struct trace *t, const struct row *r, void **tree, struct trace_event *e,
                         bool *keep)
{
    struct held key = {.pointer = r->pointer, .alloc = t->count};
    struct held **found = tfind(&key, tree, by_pointer), *held = found ? *found : NULL;
    bool frees = e->action == TRACE_FREE;
    *keep = frees ? held != NULL : r->size_bytes && r->pointer;
    if (!*keep)
        return true;
    if (!frees && held)
        return false;
    e->alloc = frees ? held->alloc : t->count;
    if (frees) {
        e->size_bytes = t->events[held->alloc].size_bytes;
        tdelete(&key, tree, by_pointer);
        free(held);
    } else {
        held = malloc(sizeof *held);
        *held = key;
        tsearch(held, tree, by_pointer);
    }
    return true;
}

/* Adds one row; false: not understood. */
static bool add(struct trace *t, const struct row *r, void **tree, struct ids *threads,
                struct ids *streams)
{
    struct trace_event *e = &t->events[t->count];
    bool keep = true;
    *e = (struct trace_event){.size_bytes = r->size_bytes, .time_ns = r->time_ns};
    if (!action_of(r, &e->action))
        return false;
    e->thread = number_of(threads, r->thread);
    e->stream = number_of(streams, r->stream);
    if (!follow_block(t, r, tree, e, &keep))
        return false;
    t->count += keep;
    return true;
}

bool trace_read(struct trace *t, const char *path)
{
    size_t size_bytes, lines = 1;
    uint32_t number = 0;
    struct ids threads = {.count = 0}, streams = {.count = 0};
    void *tree = NULL;
    bool good = true;
    char *text = read_text(path, &size_bytes), *rest = text;
    *t = (struct trace){0};
    if (!text)
        return false;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    t->events = calloc(lines, sizeof *t->events);
    for (char *line; good && (line = strsep(&rest, "\n"));) {
        struct row row = {.stream = 0};
        if (++number == 1 || !*line)
            continue; /* column names */
        good = parse(line, &row) && add(t, &row, &tree, &threads, &streams);
        if (!good)
            fprintf(stderr, "%s:%u: not understood: %s\n", path, number, line);
    }
    t->threads = threads.count;
    t->streams = streams.count;
    while (tree) {
        struct held *held = *(struct held **)tree;
        tdelete(held, &tree, by_pointer);
        free(held);
    }
    free(text);
    return good;
}

void trace_finish(struct trace *t)
{
    free(t->events);
    *t = (struct trace){0};
}
