/* SPDX-License-Identifier: BSD-2-Clause
 *
 * How long one request keeps the pool's lock in the states that make it long. The pool runs over
 * the model of a GPU, and each scene fills it first. One line for each scene:
 *
 *   scene= lock_us= held_us=
 *
 * lock_us is the longest time that the request held the lock at a stretch. held_us is the sum: the
 * time of the request without the driver's calls. Both are processor time of the requesting thread:
 * they include page faults and exclude other programs. A figure is the least of several rounds.
 */
#include "pool/magazine.h"
#include "pool/state.h"
#include "tests/bench/arguments.h"
#include "tests/bench/latency_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rounds of a scene that takes too long, to one of others. */
enum { MORE_ROUNDS = 10 };

struct scene {
    const char *name;
    void (*play)(const struct scene *scene, uint64_t scale);
    double at_most_us;   /* of the test: several times what it takes, and less than it took */
    uint64_t size_bytes; /* of the memory or of a block, as the function says */
    uint64_t more;       /* the same */
};

/* Of size_bytes in chunks of 64 MiB every second one went back to the driver; the rest is idle. */
static void window(const struct scene *scene, uint64_t scale)
{
    uint64_t bytes = scene->size_bytes;
    run.config.idle_timeout_ns = 100 * SECOND_NS; /* chunks are stamped with their last use */
    start(bytes + GIB(2), (uint32_t)(bytes / MIB(64)), BACKING_ARENA);
    fill(bytes / MIB(64), MIB(64));
    give_every(0, 2);
    work(0);
    pool_tick(run.pool, NULL);
    model_advance(run.model, 2 * SECOND_NS);
    give_every(1, 2);
    work(0);
    trim(0, SECOND_NS);
    take_measured(MIB(96));
}

/* So many slabs hold one object each. */
static void slabs(const struct scene *scene, uint64_t scale)
{
    uint64_t count = 32000 / scale * 128;
    start(GIB(128), (uint32_t)count, BACKING_ARENA);
    fill(count, 512);
    for (uint32_t i = 0; i < count; i++)
        if (i % 128)
            give(run.addr[i]);
    settle();
    take_measured(GIB(1));
}

/* 10^6 frees of size_bytes have become ready since the latest request. One of them serves the
 * request for `more` bytes, or none does. */
static void retire(const struct scene *scene, uint64_t scale)
{
    uint64_t count = 1000000 / scale;
    start(GIB(128), (uint32_t)count, BACKING_ARENA);
    fill(count, scene->size_bytes);
    work(SECOND_NS);
    give_every(0, 1);
    work(0);
    model_advance(run.model, 2 * SECOND_NS);
    take_measured(scene->more);
}

static void find_in(uint64_t addr, bool live)
{
    struct pool_block block;
    measure_begin();
    if ((pool_lookup(addr, &block) == POOL_OK) != live)
        fail("a block is found while it lives");
    measure_end();
    finish();
}

/* The byte at offset `more` of a block of size_bytes. */
static void find(const struct scene *scene, uint64_t scale)
{
    start(scene->size_bytes + GIB(1), 1, BACKING_ARENA);
    find_in(take(scene->size_bytes) + scene->more, true);
}

/* The last byte of a block of size_bytes that was freed. */
static void find_freed(const struct scene *scene, uint64_t scale)
{
    start(scene->size_bytes + GIB(1), 1, BACKING_ARENA);
    uint64_t addr = take(scene->size_bytes);
    give(addr);
    find_in(addr + scene->size_bytes - 1, false);
}

static void find_among_small(const struct scene *scene, uint64_t scale)
{
    uint64_t count = GIB(16) / MIB(1) / scale;
    start(GIB(32), (uint32_t)count, BACKING_ARENA);
    fill(count, MIB(1));
    give_every(0, 1);
    settle();
    find_in(run.addr[count - 1] + 5, false);
}

/* Half of the memory is free, in ranges of 2 MiB that chunks reach beyond. */
static void holes_in_chunks(const struct scene *scene, uint64_t scale)
{
    uint64_t count = GIB(64) / MIB(2) / scale;
    start(GIB(130), (uint32_t)count * 2 + 40, BACKING_ARENA);
    fill(count * 2, MIB(2));
    give_every(0, 2);
    settle();
    measure_begin();
    fill(40, MIB(3));
    measure_end();
    finish();
}

/* Half of the memory is idle chunks of 64 MiB, between live ones, and is wanted in one piece. */
static void moves(const struct scene *scene, uint64_t scale)
{
    uint64_t count = GIB(64) / MIB(64);
    start(GIB(129), (uint32_t)count * 2, BACKING_ARENA);
    fill(count * 2, MIB(64));
    give_every(0, 2);
    settle();
    take_measured(GIB(64));
}

/* The first block of a pool. */
static void first(const struct scene *scene, uint64_t scale)
{
    start(GIB(129), 1, BACKING_ARENA);
    take_measured(GIB(128) / scale);
}

/* All of the blocks of size_bytes that an arena of 128 GiB holds; of segments `more` blocks. */
static void flush(const struct scene *scene, uint64_t scale)
{
    uint64_t count = (scene->more ? scene->more : GIB(128) / scene->size_bytes) / scale;
    start(GIB(129), (uint32_t)count, scene->more ? BACKING_SEGMENT : BACKING_ARENA);
    fill(count, scene->size_bytes);
    give_every(0, 1);
    settle();
    measure_begin();
    trim(0, 0);
    measure_end();
    finish();
}

/* 10^5 chunks: segments of 2 MiB, one half for large blocks and one for small ones. */
static void segments(const struct scene *scene, uint64_t scale)
{
    uint64_t count = 50000 / scale;
    start(GIB(240), (uint32_t)count * 3, BACKING_SEGMENT);
    fill(count, MIB(2));
    fill(count * 2, MIB(1));
    measure_begin();
    for (int i = 0; i < 100; i++)
        take(i % 2 ? MIB(3) : MIB(1));
    measure_end();
    finish();
}

/* Blocks that were shared with other processes lie between others that live. */
static void dead(const struct scene *scene, uint64_t scale)
{
    uint64_t count = 100000 / scale;
    start(GIB(128), (uint32_t)count, BACKING_ARENA);
    fill(count, KIB(64));
    for (uint32_t i = 0; i < count; i += 2)
        pool_expose(run.addr[i]);
    give_every(0, 2);
    work(0);
    model_advance(run.model, SECOND_NS);
    settle();
    take_measured(MIB(64));
}

#define THREADS 64
static pthread_barrier_t taken, filled, asked;

static void *fill_magazine(void *unused)
{
    uint64_t addr[2048];
    unsigned count = 0;
    for (uint64_t units = 1; units <= 64; units += units < 16 ? 1 : units < 32 ? 2 : 4)
        for (int i = 0; i < 8; i++)
            addr[count++] = take(units * 512);
    for (unsigned i = 0; i < 32 * 7; i++)
        addr[count++] = take(KIB(33) + i / 7 * 512);
    pthread_barrier_wait(&taken); /* a request that misses empties the magazines of all */
    while (count)
        if (pool_free(addr[--count]) != POOL_OK)
            fail("no free");
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&asked);
    return NULL;
}

/* The magazines of 64 threads are full. */
static void threads(const struct scene *scene, uint64_t scale)
{
    pthread_t ids[THREADS];
    start(GIB(16), 1, BACKING_ARENA);
    pthread_barrier_init(&taken, NULL, THREADS);
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    pthread_barrier_init(&asked, NULL, THREADS + 1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, fill_magazine, NULL);
    pthread_barrier_wait(&filled);
    uint64_t cached = 0;
    for (const struct list *n = run.pool->magazines.next; n != &run.pool->magazines; n = n->next)
        cached += magazine_units(list_entry(n, struct magazine, link)) * UNIT_BYTES;
    if (cached < THREADS * MIB(4))
        fail("the magazines are not full");
    measure_begin();
    take(GIB(1));
    measure_end();
    pthread_barrier_wait(&asked);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    finish();
}

/* The worst of all requests and frees while 10^6 small blocks are made and given back. */
static void small(const struct scene *scene, uint64_t scale)
{
    uint64_t count = 1000000 / scale;
    start(GIB(128), (uint32_t)count, BACKING_ARENA);
    measure_begin();
    for (uint64_t i = 0; i < count; i++)
        run.addr[i] = take(512 * (1 + i % 100));
    for (uint64_t i = 0; i < count; i++)
        give(run.addr[i * 7919 % count]);
    measure_end();
    sum_ns /= 2 * count;
    finish();
}

static uint64_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &all, &resident) != 2)
        fail("no /proc/self/statm");
    fclose(file);
    return (uint64_t)resident * 4096;
}

/* Host memory of a live block in parts of the block; the pool's alone, as the model's grew
 * before. */
static double host_part(uint64_t size_bytes)
{
    uint32_t count = (uint32_t)(GIB(2) / size_bytes);
    start(GIB(16), count, BACKING_ARENA);
    memset(run.addr, 1, count * sizeof *run.addr);
    take(GIB(2));
    take(512);
    uint64_t before = resident_bytes();
    fill(count, size_bytes);
    double bytes = (double)(resident_bytes() - before) / count;
    finish();
    return bytes / (double)size_bytes;
}

static int tell_host_memory(double at_most_percent)
{
    static const uint64_t sizes[] = {512,     KIB(4), KIB(32), KIB(33),
                                     KIB(64), MIB(1), MIB(2),  MIB(64)};
    int status = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double percent = 100 * host_part(sizes[i]);
        bool fails = sizes[i] >= KIB(32) && percent > at_most_percent;
        printf("size=%llu host_bytes=%.0f percent=%.3f%s\n", (unsigned long long)sizes[i],
               percent / 100 * (double)sizes[i], percent, fails ? " TOO MUCH" : "");
        status |= fails;
    }
    return status;
}

static const struct scene scenes[] = {
    {"window-16", window, 60, GIB(16), 0},
    {"window-32", window, 120, GIB(32), 0},
    {"window-64", window, 240, GIB(64), 0},
    {"window-128", window, 500, GIB(128), 0},
    {"slabs", slabs, 300, 0, 0},
    {"retire-serving", retire, 400, KIB(64), KIB(64)},
    {"retire-growing", retire, 1500, KIB(64), GIB(1)},
    {"retire-objects", retire, 800, 512, MIB(64)},
    {"find", find, 100, GIB(128), GIB(128) - 1},
    {"find-between", find, 60, GIB(128), GIB(64) - 1},
    {"find-freed", find_freed, 100, GIB(128), 0},
    {"find-among-small", find_among_small, 60, 0, 0},
    {"holes-in-chunks", holes_in_chunks, 600, 0, 0},
    {"moves", moves, 1000, 0, 0},
    {"first", first, 2000, 0, 0},
    {"flush-large", flush, 1000, GIB(1), 0},
    {"flush-fine", flush, 500, MIB(64), 0},
    {"segments", segments, 500, 0, 0},
    {"segments-flush", flush, 600, MIB(2), 50000},
    {"dead", dead, 1000, 0, 0},
    {"threads", threads, 350, 0, 0},
    {"small", small, 2000, 0, 0},
};

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [OPTION]...\n"
            "  --only SCENE           scenes whose name begins so\n"
            "  --scale N              an N-th of the blocks, at most 1000 (1)\n"
            "  --rounds N             the least of so many, at most 1000 (3)\n"
            "  --check                fail where the lock is held longer than the scene may\n"
            "  --host-memory PERCENT  only the host memory of live blocks, and fail above that\n",
            name);
    return 2;
}

/* Does the name of a scene begin so? */
static bool is_scene(const char *words)
{
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (!strncmp(scenes[i].name, words, strlen(words)))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    static unsigned scale = 1, rounds = 3;
    static double host_percent = 0;
    static bool check = false;
    static const char *only = "";
    static const struct argument arguments[] = {
        {"scale", .count = &scale, .most = 1000},
        {"only", .text = &only, .check = is_scene},
        {"check", .flag = &check},
        {"rounds", .count = &rounds, .most = 1000},
        {"host-memory", .real = &host_percent, .most = 100},
        {0},
    };
    int status = 0;

    if (!arguments_parse(argc, argv, arguments) || optind != argc)
        return usage(argv[0]);
    pool_config_init(&run.config);
    if (host_percent > 0)
        return tell_host_memory(host_percent);
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        uint64_t least_ns = UINT64_MAX, held_ns = UINT64_MAX;
        if (strncmp(scenes[i].name, only, strlen(only)) != 0)
            continue;
        /* An interrupt counts as the thread's time. What is too long for the code is so each time.
         */
        uint64_t enough_ns = check ? (uint64_t)(scenes[i].at_most_us * 1000) : UINT64_MAX;
        for (unsigned round = 0;
             round < rounds || (least_ns > enough_ns && round < MORE_ROUNDS * rounds); round++) {
            scenes[i].play(&scenes[i], scale);
            least_ns = longest_ns < least_ns ? longest_ns : least_ns;
            held_ns = sum_ns < held_ns ? sum_ns : held_ns;
        }
        double us = (double)least_ns / 1000;
        printf("scene=%s lock_us=%.1f held_us=%.1f\n", scenes[i].name, us, (double)held_ns / 1000);
        fflush(stdout);
        if (check && us > scenes[i].at_most_us) {
            fprintf(stderr, "%s: the lock was held for %.1f us, at most %.1f are allowed\n",
                    scenes[i].name, us, scenes[i].at_most_us);
            status = 1;
        }
    }
    return status;
}
