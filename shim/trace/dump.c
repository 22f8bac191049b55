/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See dump.h. `dumping` guards all variables here. It is taken before the lock of the rings.
 */
#include "shim/trace/dump.h"

#include "shim/process/clock.h"
#include "shim/stats/counters.h"
#include "shim/trace/beside.h"
#include "shim/trace/fast.h"
#include "shim/trace/file.h"
#include "shim/trace/objects.h"
#include "shim/trace/ring.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXTS_KNOWN = 256, SITES = 1 << 12, HOLDERS = 256, NUMBER_BYTES = 12 };

static pthread_mutex_t dumping = PTHREAD_MUTEX_INITIALIZER;
static char target[PATH_MAX], path[PATH_MAX + NUMBER_BYTES]; /* patterns */
static atomic_uint num_dumps;                                /* of this process */
static char problem[TRACE_WHY_BYTES];                        /* "": none so far */
static struct trace_header header;
static uint32_t dump_number; /* for struct trace_owner */
static uint32_t dump_trace;
static uint64_t end_bytes; /* of the file so far */
/* The file's own records. */
static struct trace_thread writer, *before;
static union {
    struct trace_chunk chunk;
    char bytes[TRACE_CHUNK_BYTES];
} page;
static int64_t grown[CONTEXTS_KNOWN];  /* device memory that the rings' records took, by context */
static uint64_t start_ticks, start_ns; /* from here on no ring lacks a record */
static uint64_t until_ticks;           /* later records are not this dump's */
static bool start_is_sure;
/* Live bytes by call site. Place 0: those that have no other. */
static struct {
    uint64_t caller, bytes;
} sites[SITES];
static struct trace_holder holders[HOLDERS];
static size_t num_holders;
static uint64_t of_driver_bytes;

void trace_dump_set_path(const char *name)
{
    if (trace_lock(&dumping, 1000)) {
        snprintf(target, sizeof target, "%s", name);
        pthread_mutex_unlock(&dumping);
    }
}

/* A chunk's place in the file is a multiple of its size behind the header; the rest of it stays a
 * hole. */
static void put_chunk(const void *chunk, size_t used_bytes)
{
    if (!problem[0])
        trace_copy_put(end_bytes, chunk, used_bytes, problem);
    end_bytes += TRACE_CHUNK_BYTES;
}

/* The writer's chunk is full. */
static struct trace_chunk *next_page(void)
{
    if (writer.chunk)
        put_chunk(&page, sizeof page);
    memset(&page, 0, sizeof page);
    return &page.chunk;
}

static void look_at_start(const struct trace_chunk *chunk, size_t used_bytes, bool lost_before)
{
    (void)used_bytes;
    bool is_better = start_is_sure ? chunk->ticks > start_ticks : chunk->ticks < start_ticks;
    if (lost_before ? is_better || !start_is_sure : is_better && !start_is_sure) {
        start_ticks = chunk->ticks;
        start_ns = chunk->ns;
        start_is_sure = lost_before;
    }
}

/* The file begins a tick before the oldest record, or, if a ring lacks some, before the first that
 * it has: so the chunks of what was live then are the only ones of this time, by which the reader
 * knows them. The other rings' older records are told by what was live then. */
static void find_start(void)
{
    until_ticks = start_ticks = trace_ticks();
    start_ns = clock_now_ns();
    start_is_sure = false;
    trace_ring_each(dump_trace, until_ticks, look_at_start);
    start_ticks--;
}

/* With the last pair of times. */
static void write_header(void)
{
    static const char none[TRACE_HEADER_BYTES - sizeof header];
    header.last_ticks = trace_ticks();
    header.last_ns = clock_now_ns();
    if (!problem[0])
        trace_copy_put(0, &header, sizeof header, problem);
    if (!problem[0])
        trace_copy_put(sizeof header, none, sizeof none, problem);
}

/* It is in the file from the start on: a program that is out of memory may end in the dump. */
static void begin_header(void)
{
    trace_fill_header(&header);
    header.start_unix_ns -= header.start_ns - start_ns;
    header.start_ns = start_ns;
    header.start_ticks = start_ticks;
    write_header();
}

/* A table with open addressing; a caller that finds no place counts as not known. */
static void count_caller(uint64_t caller, uint64_t size_bytes)
{
    size_t at = (size_t)(caller * UINT64_C(0x9e3779b97f4a7c15) >> 52), tries = 0;
    while (caller && sites[at].caller != caller && (sites[at].caller || at == 0) && tries++ < 64)
        at = (at + 1) % SITES;
    if (!caller || (sites[at].caller && sites[at].caller != caller))
        at = 0;
    if (at)
        sites[at].caller = caller;
    sites[at].bytes += size_bytes;
}

static void note_owner(enum trace_kind kind, const struct trace_owner *o)
{
    trace_note(kind, &(const struct trace_event){.a = o->addr,
                                                 .b = o->size_bytes,
                                                 .caller = (const void *)(uintptr_t)o->caller});
}

static enum trace_kind kind_of(const struct trace_owner *o)
{
    return o->kind == TRACE_ALLOC_DRIVER ? TRACE_ALLOC_DRIVER : TRACE_LIVE;
}

static void take_older(const struct trace_seen *r)
{
    if (r->ticks < start_ticks)
        trace_ring_own(r, 0);
}

static void take_older_chunk(const struct trace_chunk *chunk, size_t used_bytes, bool lost_before)
{
    (void)lost_before;
    trace_ring_read(chunk, used_bytes, take_older);
}

/* Memory beside the pool: of before the start here, and else by the rings. */
static void take_beside(const struct trace_beside *r)
{
    bool comes = r->kind == TRACE_PASSED;
    if (r->is_held)
        count_caller(r->more, r->b);
    if (r->is_held && r->group != COUNTER_ASYNC)
        of_driver_bytes += r->b;
    if (r->ticks < start_ticks)
        trace_note(
            (enum trace_kind)r->kind,
            &(const struct trace_event){.a = r->a,
                                        .b = r->b,
                                        .aux = r->group,
                                        .caller = comes ? (void *)(uintptr_t)r->more : NULL});
}

/* What was live at the start and is freed since then, or its place is another block's, is told
 * here; what is live still, by trace_dump_live. An older record may have come only now: its thread
 * looked at the clock and then had to wait for a processor. */
static void take_seen(const struct trace_seen *r)
{
    take_older(r);
    if (r->ticks < start_ticks)
        return;
    struct trace_owner was = trace_ring_own(r, dump_number);
    if (was.addr && was.seen != dump_number)
        note_owner(kind_of(&was), &was);
    if (r->kind == TRACE_CREATE || r->kind == TRACE_SEGMENT)
        grown[r->context] += (int64_t)r->b;
    else if (r->kind == TRACE_RELEASE)
        grown[r->context] -= (int64_t)r->b;
}

static void take_chunk(const struct trace_chunk *chunk, size_t used_bytes, bool lost_before)
{
    (void)lost_before;
    trace_ring_read(chunk, used_bytes, take_seen);
    put_chunk(chunk, used_bytes);
}

static void name_file(char out[sizeof path], unsigned number)
{
    char behind[NUMBER_BYTES] = "";
    if (number > 1)
        snprintf(behind, sizeof behind, ".%u", number);
    snprintf(out, sizeof path, "%s%s", target, behind);
}

static bool begin_dump(void)
{
    unsigned number = atomic_fetch_add(&num_dumps, 1) + 1;
    name_file(path, number);
    trace_copy_begin(path, problem);
    if (!trace_owners_copy()) {
        snprintf(problem, sizeof problem, "there is no host memory");
        trace_copy_end(false);
        return false;
    }
    end_bytes = TRACE_HEADER_BYTES;
    dump_number++;
    memset(grown, 0, sizeof grown);
    memset(sites, 0, sizeof sites);
    num_holders = 0;
    of_driver_bytes = 0;
    find_start();
    begin_header();
    free(writer.paths);
    memset(&writer, 0, sizeof writer);
    writer.next_chunk = next_page;
    writer.ticks = start_ticks;
    writer.still_ns = start_ns;
    before = trace_mine;
    trace_mine = &writer;
    if (!trace_beside_each(dump_trace, start_ticks, take_beside))
        trace_count_lost();
    trace_ring_each(dump_trace, until_ticks, take_older_chunk);
    trace_ring_each(dump_trace, until_ticks, take_chunk);
    return true;
}

bool trace_dump_is_left(void)
{
    return atomic_load(&num_dumps) < TRACE_DUMPS_MOST;
}

bool trace_dump_may_begin(char why[TRACE_WHY_BYTES])
{
    static char next[sizeof path];
    int saved_errno = errno;
    bool may = trace_dump_is_left();
    snprintf(why, TRACE_WHY_BYTES, "%s", may ? "" : "the process has made its last one");
    if (may && trace_lock(&dumping, 1000)) {
        name_file(next, atomic_load(&num_dumps) + 1);
        pthread_mutex_unlock(&dumping); /* a dump would not wait for it */
        may = trace_copy_may_begin(next, why);
    }
    errno = saved_errno;
    return may;
}

bool trace_dump_begin(struct trace_dump_told *told)
{
    int saved_errno = errno;
    *told = (struct trace_dump_told){0};
    if (pthread_mutex_trylock(&dumping))
        return false;
    problem[0] = '\0';
    dump_trace = atomic_load(&trace_now);
    bool begun = false;
    if (dump_trace && trace_is_ring(dump_trace) && trace_dump_is_left() && trace_ring_lock()) {
        begun = begin_dump();
        snprintf(told->name, sizeof told->name, "%s", trace_copy_name());
        if (!begun)
            trace_ring_unlock();
    }
    snprintf(told->why, sizeof told->why, "%s", problem);
    if (!begun)
        pthread_mutex_unlock(&dumping);
    errno = saved_errno;
    return begun;
}

void trace_dump_live(uint64_t addr, uint64_t size_bytes, unsigned context)
{
    const struct trace_owner *known = trace_owners_find(addr);
    if (known && !known->live && known->ticks)
        return; /* it is being freed */
    uint64_t caller = known ? known->caller : 0;
    count_caller(caller, size_bytes);
    if (!known || known->seen != dump_number)
        trace_note(TRACE_LIVE,
                   &(const struct trace_event){.a = addr,
                                               .b = size_bytes,
                                               .caller = (const void *)(uintptr_t)caller,
                                               .context = context});
}

/* What was held at the start. */
void trace_dump_held(uint64_t size_bytes, unsigned context)
{
    int64_t held = (int64_t)size_bytes - grown[context % CONTEXTS_KNOWN];
    if (held > 0)
        TRACE(HELD, .b = (uint64_t)held, .context = context);
}

static void tell_driver_blocks(void)
{
    for (struct trace_owner *o = NULL; (o = trace_owners_next(o));) {
        if (!o->live || o->kind != TRACE_ALLOC_DRIVER)
            continue;
        count_caller(o->caller, o->size_bytes);
        of_driver_bytes += o->size_bytes;
        if (o->seen != dump_number)
            note_owner(TRACE_ALLOC_DRIVER, o);
    }
}

static void add_holder(const char *name, uint64_t bytes)
{
    size_t i = 0;
    while (i < num_holders && strcmp(holders[i].name, name) != 0)
        i++;
    if (!bytes || i == HOLDERS)
        return;
    if (i == num_holders) {
        holders[num_holders++].bytes = 0;
        snprintf(holders[i].name, sizeof holders[i].name, "%s", name);
    }
    holders[i].bytes += bytes;
}

static void take_object(const struct trace_object *o, const char *line)
{
    (void)line;
    uint64_t bytes = 0;
    char name[sizeof holders[0].name];
    const char *slash = strrchr(o->path, '/');
    trace_object_note(o);
    for (size_t i = 1; i < SITES; i++)
        if (sites[i].caller >= o->start && sites[i].caller < o->end) {
            bytes += sites[i].bytes;
            sites[i].bytes = 0;
        }
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : o->path);
    add_holder(name, bytes);
}

void trace_dump_now(void)
{
    tell_driver_blocks();
    trace_objects_each(take_object);
    uint64_t rest = 0;
    for (size_t i = 0; i < SITES; i++)
        rest += sites[i].bytes;
    add_holder("code that is not known", rest);
    writer.still_ns = 0;
}

uint64_t trace_dump_of_driver(void)
{
    return of_driver_bytes;
}

size_t trace_dump_holders(struct trace_holder *out, size_t most)
{
    size_t count = 0;
    for (; count < most; count++) {
        struct trace_holder *best = NULL;
        for (size_t i = 0; i < num_holders; i++)
            if (holders[i].bytes && (!best || holders[i].bytes > best->bytes))
                best = &holders[i];
        if (!best)
            break;
        out[count] = *best;
        best->bytes = 0;
    }
    return count;
}

bool trace_dump_end(struct trace_dump_told *told)
{
    int saved_errno = errno;
    trace_note_lost(); /* a thread that waits for the rings too long loses a record */
    TRACE(END, .a = 0);
    trace_mine = before;
    if (writer.chunk)
        put_chunk(&page, (size_t)((const char *)writer.next - (const char *)&page));
    write_header();
    trace_copy_end(!problem[0]);
    trace_owners_back();
    trace_ring_unlock();
    snprintf(told->why, sizeof told->why, "%s", problem);
    bool written = !problem[0];
    pthread_mutex_unlock(&dumping);
    errno = saved_errno;
    return written;
}
