/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Replays recorded programs on the pool over the model of a GPU. It prints how much memory the pool
 * took, how much the program held, and how long a call took. One line for each trace:
 *
 *   trace= events= peak_live= peak_reserved= ratio= ns_per_event= p99_ns=
 *
 * peak_live is what the program asked for, unrounded. Unless --busy is given, work completes at
 * once, some is submitted between any two events, and no time passes. With --slow driver calls take
 * their time, and the line goes on with
 *
 *   moves= driver_ms= done_ms=
 *
 * chunks that were moved, time in driver calls, and when all work was done.
 */
#include "scripts/replay/player.h"
#include "tests/bench/arguments.h"
#include "tests/bench/trace.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEVICE_BYTES (UINT64_C(140) << 30)
/* Pieces of work that a program can have in flight: with more, a real driver's launch waits. */
#define QUEUE_DEPTH 1024

static struct options {
    enum pool_backing backing;
    bool json, threads, busy, single, slow, explain, check, frees_wait;
    unsigned streams;
    double work_ms; /* --busy: each block is used by work of this length up to its free */
    double load;    /* --busy: or, if not 0, work is submitted for this part of the time */
    double rate;    /* --busy: or, if not 0, of so many GB each second of what is freed */
    double speed;   /* the program runs so many times as fast as it was recorded */
    enum pool_reuse reuse;
    double max_ratio;
} options = {.backing = BACKING_ARENA, .streams = 1, .work_ms = 1, .speed = 1};

struct run {
    const struct trace *trace;
    struct player on;
    _Atomic uint64_t *addr;                   /* by the index of the allocating event */
    uint32_t *ns;                             /* by event; NULL: not timed */
    uint64_t creates, maps, allows, segments; /* driver calls */
    uint64_t early_moves;                     /* of chunks, in the first half of the trace */
    uint64_t unmaps;                          /* --slow: calls */
    uint64_t end_ns;                          /* when all work was done, since the start */
    _Atomic bool failed;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void wait_for_queue(struct model *m)
{
    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool full = m->work_count >= QUEUE_DEPTH;
        uint64_t wait_ns =
            full && m->works[0].end_ns > m->now_ns ? m->works[0].end_ns - m->now_ns : 1;
        pthread_mutex_unlock(&m->lock);
        if (!full)
            return;
        model_advance(m, wait_ns);
    }
}

static unsigned stream_of(const struct run *r, uint32_t at)
{
    if (r->trace->streams > 1)
        return r->trace->events[at].stream % MODEL_STREAMS;
    return at % options.streams;
}

/* Lets the time since the event before pass. The program has submitted work meanwhile: what it
 * frees was in use up to now. With --load the streams share the GPU. */
static void keep_busy(struct run *r, uint32_t at, const struct trace_event *e)
{
    unsigned stream = stream_of(r, at), streams = options.streams;
    uint64_t passed_ns = at && e->time_ns > e[-1].time_ns ? e->time_ns - e[-1].time_ns : 0;
    uint64_t work_ns = (uint64_t)(options.work_ms * 1e6);
    if (r->trace->streams > 1)
        streams = r->trace->streams;
    player_submit(&r->on, stream);
    passed_ns = (uint64_t)((double)passed_ns / options.speed);
    if (passed_ns)
        model_advance(r->on.model, passed_ns);
    if (options.rate > 0)
        work_ns = (uint64_t)((double)e->size_bytes / options.rate * streams);
    if (options.load > 0)
        work_ns = (uint64_t)((double)passed_ns * options.load * streams);
    if (options.load > 0 ? !work_ns : e->action != TRACE_FREE)
        return;
    wait_for_queue(r->on.model);
    model_submit(r->on.model, stream, work_ns, r->addr[e->alloc],
                 e->action == TRACE_FREE ? e->size_bytes : 0, e->alloc + 1);
}

/* One event; 0: failed. */
static bool play(struct run *r, uint32_t at)
{
    const struct trace_event *e = &r->trace->events[at];
    uint64_t addr = 0;
    /* --threads: the other thread has not made this block yet. Its work comes before its free. */
    while (e->action == TRACE_FREE &&
           !(addr = atomic_load_explicit(&r->addr[e->alloc], memory_order_acquire)))
        sched_yield();
    if (options.busy)
        keep_busy(r, at, e);
    else
        player_submit(&r->on, 0);
    if (e->action > TRACE_FREE)
        return true;
    if (e->action == TRACE_ALLOCATE) {
        int code = 0;
        if (pool_alloc(r->on.pool, e->size_bytes, &addr, &code) != POOL_OK)
            return false;
        atomic_store_explicit(&r->addr[at], addr, memory_order_release);
        return true;
    }
    return player_free(addr);
}

static uint64_t moves(struct run *r)
{
    struct pool_stats stats;
    pool_stats(r->on.pool, &stats);
    return stats.num_chunk_moves;
}

static void play_all(struct run *r, uint32_t thread)
{
    for (uint32_t i = 0; i < r->trace->count && !r->failed; i++) {
        if (options.threads && r->trace->events[i].thread != thread)
            continue;
        uint64_t start = r->ns ? now_ns() : 0;
        if (!play(r, i)) {
            fprintf(stderr, "event %u failed\n", i);
            r->failed = true;
        }
        if (r->ns)
            r->ns[i] = (uint32_t)(now_ns() - start);
        if (i == r->trace->count / 2)
            r->early_moves = moves(r);
        const char *words = options.check && i % 64 == 0 ? pool_check(r->on.pool) : NULL;
        if (words) {
            fprintf(stderr, "after event %u: %s\n", i, words);
            r->failed = true;
        }
    }
}

struct thread {
    pthread_t id;
    struct run *run;
    uint32_t number;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    play_all(t->run, t->number);
    return NULL;
}

static void play_threads(struct run *r)
{
    uint32_t n = options.threads ? r->trace->threads : 1;
    struct thread *threads = calloc(n, sizeof *threads);
    for (uint32_t i = 0; i < n; i++) {
        threads[i] = (struct thread){.run = r, .number = i};
        if (n == 1)
            play_all(r, i);
        else
            pthread_create(&threads[i].id, NULL, thread_main, &threads[i]);
    }
    for (uint32_t i = 0; i < n && n > 1; i++)
        pthread_join(threads[i].id, NULL);
    free(threads);
}

/* Plays the trace on a new pool; nanoseconds in all. */
static uint64_t run(struct run *r, const struct trace *t, uint32_t *ns, struct pool_stats *stats)
{
    *r = (struct run){.trace = t, .ns = ns};
    struct player_gpu gpu = {.bytes = DEVICE_BYTES,
                             .slow = options.slow,
                             .single = options.single,
                             .frees_waits = options.frees_wait};
    struct pool_config config;
    pool_config_init(&config);
    config.reuse = options.reuse;
    config.backing = options.backing;
    r->addr = calloc(t->count, sizeof *r->addr);
    player_begin(&r->on, &gpu, &config);
    uint64_t start = now_ns(), begin_ns = model_now(r->on.model);
    play_threads(r);
    uint64_t took = now_ns() - start;
    model_drain(r->on.model);
    r->end_ns = model_now(r->on.model) - begin_ns;
    pool_stats(r->on.pool, stats);
    const char *words = player_error(&r->on);
    if (words) {
        fprintf(stderr, "broken: %s\n", words);
        r->failed = true;
    }
    r->creates = model_calls(r->on.model, MODEL_ROW_create);
    r->maps = model_calls(r->on.model, MODEL_ROW_map);
    r->allows = model_calls(r->on.model, MODEL_ROW_allow);
    r->unmaps = r->on.driver.unmaps;
    r->segments = model_calls(r->on.model, MODEL_ROW_segment_alloc);
    player_end(&r->on);
    free(r->addr);
    return took;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* What reserved memory was used for at its peak, as parts of what the program held then. */
static void explain(const struct pool_stats *s)
{
    enum kind { GAUGE, PEAK, COUNTER, AT_PEAK };
    enum unit { BYTES, COUNT, NS };
#define POOL_STAT(field, kind, unit, help)                                                         \
    if ((kind) == AT_PEAK && (unit) == BYTES)                                                      \
        printf("    %-32s %14llu  %6.2f %%\n", #field, (unsigned long long)s->field,               \
               100.0 * (double)s->field / (double)s->at_peak_requested_bytes);                     \
    else if ((kind) == AT_PEAK)                                                                    \
        printf("    %-32s %14llu\n", #field, (unsigned long long)s->field);
#include "pool/stats.def"
#undef POOL_STAT
}

static const char *name_of(const char *path)
{
    static char name[256];
    const char *slash = strrchr(path, '/');
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : path);
    char *dot = strstr(name, ".csv");
    if (dot)
        *dot = '\0';
    return name;
}

static bool replay(const char *path)
{
    struct trace t;
    struct run r;
    struct pool_stats stats, ignored;
    if (!trace_read(&t, path))
        return false;
    if (!t.count) {
        fprintf(stderr, "%s: no events\n", path);
        trace_finish(&t);
        return false;
    }
    uint32_t *ns = calloc(t.count, sizeof *ns);
    uint64_t took = run(&r, &t, NULL, &stats);
    struct run first = r;
    bool good = !r.failed;
    if (good)
        run(&r, &t, ns, &ignored);
    good = good && !r.failed;
    qsort(ns, t.count, sizeof *ns, by_size);
    double ratio = (double)stats.reserved_peak_bytes / (double)stats.requested_peak_bytes;
    printf(options.json
               ? "{\"trace\": \"%s\", \"events\": %u, \"peak_live\": %llu, \"peak_reserved\": "
                 "%llu, \"ratio\": %.4f, \"ns_per_event\": %.1f, \"p99_ns\": %u"
               : "trace=%s events=%u peak_live=%llu peak_reserved=%llu ratio=%.4f "
                 "ns_per_event=%.1f p99_ns=%u",
           name_of(path), t.count, (unsigned long long)stats.requested_peak_bytes,
           (unsigned long long)stats.reserved_peak_bytes, ratio, (double)took / t.count,
           ns[t.count - 1 - t.count / 100]);
    if (options.slow)
        printf(options.json ? ", \"moves\": %llu, \"driver_ms\": %.1f, \"done_ms\": %.1f"
                            : " moves=%llu driver_ms=%.1f done_ms=%.1f",
               (unsigned long long)stats.num_chunk_moves, (double)first.on.driver.spent_ns / 1e6,
               (double)first.end_ns / 1e6);
    printf(options.json ? "}\n" : "\n");
    if (options.explain) {
        explain(&stats);
        printf("    chunks moved: %llu, of these %llu in the first half\n",
               (unsigned long long)stats.num_chunk_moves, (unsigned long long)first.early_moves);
        printf("    driver calls: %llu create, %llu map, %llu allow, %llu unmap, "
               "%llu segment alloc, %llu given back\n",
               (unsigned long long)first.creates, (unsigned long long)first.maps,
               (unsigned long long)first.allows, (unsigned long long)first.unmaps,
               (unsigned long long)first.segments, (unsigned long long)stats.num_device_free);
        printf("    all work done after %.1f ms\n", (double)first.end_ns / 1e6);
        printf("    fences: %llu recorded, %llu questions, %llu orders, %llu waits\n",
               (unsigned long long)stats.num_fences, (unsigned long long)stats.num_fence_queries,
               (unsigned long long)stats.num_fence_orders,
               (unsigned long long)stats.num_fence_waits);
    }
    if (good && options.max_ratio > 0 && ratio > options.max_ratio) {
        fprintf(stderr, "%s: the ratio is above %.4f\n", path, options.max_ratio);
        good = false;
    }
    free(ns);
    trace_finish(&t);
    return good;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [OPTION]... TRACE[.csv|.csv.xz]...\n"
            "  --backing arena|segment  where memory comes from (arena)\n"
            "  --json                   one JSON object for each trace\n"
            "  --threads                each thread of the trace in a thread of its own\n"
            "  --busy                   submitted work completes late, by the trace's clock\n"
            "  --work MS                with --busy: each takes so long (1)\n"
            "  --load L                 or: work is submitted for this part of the time\n"
            "  --rate G                 or: the work on a block takes a second for each G GB\n"
            "  --streams N              with --busy: work goes to N streams in turn (1), where\n"
            "                           the trace has none of its own\n"
            "                           for it, at most 1 (1)\n"
            "  --speed F                the program is F times as fast as it was recorded\n"
            "  --reuse order|ready|wait what to do with pending memory (auto)\n"
            "  --frees-wait             a segment goes back when all work is done (old drivers)\n"
            "  --single                 the program uses the legacy default stream alone\n"
            "  --slow                   driver calls take their time\n"
            "  --explain                what was reserved and not live, at the peak\n"
            "  --check                  pool_check() after every 64th event\n"
            "  --max-ratio R            fail if peak_reserved / peak_live is above R\n",
            name);
    return 2;
}

static bool reuse_of(const char *word)
{
    static const struct {
        const char *word;
        enum pool_reuse reuse;
    } known[] = {
        {"order", REUSE_ORDER}, {"ready", REUSE_READY}, {"wait", REUSE_WAIT}, {"auto", REUSE_AUTO}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(word, known[i].word)) {
            options.reuse = known[i].reuse;
            return true;
        }
    return false;
}

static bool backing_of(const char *word)
{
    options.backing = *word == 'a' ? BACKING_ARENA : BACKING_SEGMENT;
    return !strcmp(word, "arena") || !strcmp(word, "segment");
}

int main(int argc, char **argv)
{
    static const struct argument arguments[] = {
        {"backing", .check = backing_of},
        {"reuse", .check = reuse_of},
        {"json", .flag = &options.json},
        {"threads", .flag = &options.threads},
        {"busy", .flag = &options.busy},
        {"single", .flag = &options.single},
        {"explain", .flag = &options.explain},
        {"frees-wait", .flag = &options.frees_wait},
        {"slow", .flag = &options.slow},
        {"check", .flag = &options.check},
        {"streams", .count = &options.streams, .most = MODEL_STREAMS},
        {"work", .real = &options.work_ms, .most = 1e9},
        {"load", .real = &options.load, .most = 1e9},
        {"rate", .real = &options.rate, .most = 1e9},
        {"speed", .real = &options.speed, .most = 1e9},
        {"max-ratio", .real = &options.max_ratio, .most = 1e9},
        {0},
    };
    bool good = true;

    if (!arguments_parse(argc, argv, arguments) || optind == argc)
        return usage(argv[0]);
    for (int i = optind; i < argc; i++)
        good &= replay(argv[i]);
    return good ? 0 : 1;
}
