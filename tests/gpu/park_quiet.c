/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Whether the GPU has ended with a process's memory once (1) no thread is inside a call that
 * submits work and (2) an event that cuCtxRecordEvent then recorded is complete. To park, memory is
 * unmapped at that moment.
 *
 * The question: is there a kind of work that then still runs? Threads submit work of all kinds (
 * park_quiet_*.c) into an arena. The main thread closes the gate, waits until no thread is
 * inside, records the event, waits for it and unmaps the arena at once. Through a second mapping of
 * the same memory it looks whether all submissions have written what they had to. It maps the arena
 * again and opens the gate. What came late would meet no memory (error 700) or is found by the next
 * look.
 * What it means: no wrong word and no error: rules 2 and 3 of a park hold for these kinds. Else the
 * kind that fails alone names the hole: a park must wait for it in another way, or is refused while
 * the process uses that kind.
 *
 *   park_quiet [--seconds S] [--rounds N] [--alone S] [--match REGEX] [--without REGEX]
 *              [--cubin FILE] [--broken] [--stay] [--sync]
 * prints a line for each kind alone (S seconds each, default 0.4; 0: none) and one for all together
 * that did not fail alone (S seconds, default 15). --broken does not wait for the event, nor unmap,
 * and must find wrong words. --stay does not unmap, --sync waits by cuCtxSynchronize: an error that
 * comes then, too, is none of the event's or the mapping's. Exit status: 0 quiet, 1 a hole, 77 not
 * possible here.
 */
#include "tests/gpu/park_quiet.h"

#include "tests/gpu/child.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <regex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 8, KINDS_MAX = 64, ALL = -1 };

static const struct kind *kinds[KINDS_MAX];
static size_t num_kinds;
static bool is_left_out[KINDS_MAX]; /* failed alone, so not played with the others */

#define PAGE ((size_t)2 << 20)
#define DRAIN_NS UINT64_C(5000000000)
#define QUIET_NS UINT64_C(10000000000)

static struct {
    double seconds, alone_s;
    unsigned rounds;
    const char *cubin;
    regex_t match, without;
    bool has_without, is_broken, stays, syncs;
} options = {.seconds = 15, .alone_s = 0.4, .rounds = 1000000};

/* A thread of the program: its lanes, and whether it is inside a call that submits. */
static struct worker {
    _Alignas(64) atomic_bool is_inside;
    struct lane lanes[KINDS_MAX];
    unsigned count, seed;
    uint64_t submitted;
} workers[THREADS];

/* The memory, mapped twice. The first half of the bytes is written, the second half is read. */
static struct {
    CUdeviceptr at, shadow;
    CUmemGenericAllocationHandle handle;
    size_t bytes, written_bytes;
    uint32_t *seen; /* pinned: the first half, as looked at */
} arena;

static atomic_bool closed, ended;
static atomic_uint turn; /* counts openings */
static atomic_uint next_value = 1;
static CUcontext context;
static CUstream look_stream;
static CUevent quiet_event;
static __typeof__(cuCtxRecordEvent) *record_event;
static const char *playing;

/* --- figures --------------------------------------------------------------------------------- */

static struct {
    unsigned rounds;
    uint64_t drain_ns, quiet_ns; /* the longest */
} figures;

static void print_row(const char *verdict)
{
    uint64_t submitted = 0;

    for (unsigned i = 0; i < THREADS; i++)
        submitted += workers[i].submitted;
    printf("%-30s  %6u  %9" PRIu64 "  %9.3f  %9.3f  %s\n", playing, figures.rounds, submitted,
           (double)figures.drain_ns / 1e6, (double)figures.quiet_ns / 1e6, verdict);
    fflush(stdout);
}

/* Ends the process: the first hole is enough, and an error of the driver stays. */
static void hole(const char *format, const char *name, unsigned a, unsigned b)
{
    char verdict[256];

    snprintf(verdict, sizeof verdict, format, name, a, b);
    print_row(verdict);
    _Exit(1);
}

static void must(CUresult rc, const char *what)
{
    if (rc)
        hole("HOLE: %s answers %u in round %u", what, rc, figures.rounds);
}

/* --- the threads ----------------------------------------------------------------------------- */

/* A lane with a part that this round has not written; NULL: there is none. */
static struct lane *free_lane(struct worker *w)
{
    unsigned first = w->count ? (unsigned)rand_r(&w->seed) % w->count : 0;

    for (unsigned i = 0; i < w->count; i++) {
        struct lane *l = &w->lanes[(first + i) % w->count];
        if (l->used < PARTS)
            return l;
    }
    return NULL;
}

static void await_turn(unsigned seen)
{
    while (turn == seen && !ended)
        usleep(50);
}

static void *work(void *arg)
{
    struct worker *w = arg;

    must(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    while (!ended) {
        unsigned seen = turn;
        struct lane *l;
        CUresult rc;

        atomic_store(&w->is_inside, true);
        if (atomic_load(&closed) || !(l = free_lane(w))) {
            atomic_store(&w->is_inside, false);
            await_turn(seen);
            continue;
        }
        l->values[l->used] = atomic_fetch_add(&next_value, 1);
        rc = l->kind->submit(l, l->used, l->values[l->used]);
        l->used++;
        w->submitted++;
        if (rc)
            hole("HOLE: a submission of %s answers %u in round %u", l->kind->name, rc,
                 figures.rounds);
        atomic_store_explicit(&w->is_inside, false, memory_order_release);
    }
    return NULL;
}

/* --- the closer ------------------------------------------------------------------------------ */

static bool is_drained(void)
{
    for (unsigned i = 0; i < THREADS; i++)
        if (atomic_load(&workers[i].is_inside))
            return false;
    return true;
}

static void longest(uint64_t *most_ns, uint64_t start_ns)
{
    uint64_t ns = driver_now_ns() - start_ns;

    if (ns > *most_ns)
        *most_ns = ns;
}

static void drain(void)
{
    uint64_t start_ns = driver_now_ns();

    while (!is_drained()) {
        if (driver_now_ns() - start_ns > DRAIN_NS)
            hole("HOLE: %s%u s later a thread is still inside, round %u", "", DRAIN_NS / 1000000000,
                 figures.rounds);
        sched_yield();
    }
    longest(&figures.drain_ns, start_ns);
}

static void await_quiet(void)
{
    uint64_t start_ns = driver_now_ns();
    CUresult rc;

    must(record_event(context, quiet_event), "cuCtxRecordEvent");
    while ((rc = driver.cuEventQuery(quiet_event)) == CUDA_ERROR_NOT_READY) {
        if (driver_now_ns() - start_ns > QUIET_NS)
            hole("HOLE: %s%u s later work still runs, round %u", "", QUIET_NS / 1000000000,
                 figures.rounds);
        usleep(10);
    }
    must(rc, "the event's query");
    longest(&figures.quiet_ns, start_ns);
}

static CUresult map(CUdeviceptr at)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult rc = driver.cuMemMap(at, arena.bytes, 0, arena.handle, 0);

    return rc ? rc : driver.cuMemSetAccess(at, arena.bytes, &access, 1);
}

static unsigned wrong_words(const uint32_t *at, size_t bytes, uint32_t v)
{
    unsigned wrong = 0;

    for (size_t i = 0; i < bytes / 4; i++)
        wrong += at[i] != v;
    return wrong;
}

static void check_lane(const struct lane *l)
{
    size_t bytes = l->kind->part_bytes;

    for (unsigned part = 0; part < PARTS; part++) {
        const uint32_t *seen = arena.seen + (lane_part(l, part) - arena.at) / 4;
        unsigned wrong = wrong_words(seen, bytes, l->values[part]);

        if (!wrong && l->kind->is_pinned_too && part < l->used)
            wrong = wrong_words(l->pinned + part * bytes / 4, bytes, l->values[part]);
        if (wrong)
            hole("HOLE: %s: %u words are wrong, round %u", l->kind->name, wrong, figures.rounds);
    }
}

/* Looks through the second mapping, on a stream that waits for no other. */
static void check(void)
{
    must(driver.cuMemcpyDtoHAsync_v2(arena.seen, arena.shadow, arena.written_bytes, look_stream),
         "the look at the memory");
    must(driver.cuStreamSynchronize(look_stream), "the wait for the look");
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned j = 0; j < workers[i].count; j++)
            check_lane(&workers[i].lanes[j]);
}

static void close_and_look(void)
{
    atomic_store(&closed, true);
    drain();
    if (!options.is_broken && !options.syncs)
        await_quiet();
    else if (options.syncs)
        must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    if (!options.is_broken && !options.stays)
        must(driver.cuMemUnmap(arena.at, arena.bytes), "cuMemUnmap");
    check();
    if (!options.is_broken && !options.stays)
        must(map(arena.at), "the mapping");
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned j = 0; j < workers[i].count; j++)
            workers[i].lanes[j].used = 0;
    figures.rounds++;
    atomic_store(&closed, false);
    atomic_fetch_add(&turn, 1);
}

/* --- one case -------------------------------------------------------------------------------- */

static bool is_matched(const char *name)
{
    return !regexec(&options.match, name, 0, NULL, 0) &&
           (!options.has_without || regexec(&options.without, name, 0, NULL, 0));
}

static bool is_wanted(size_t kind, int which)
{
    return which == ALL ? is_matched(kinds[kind]->name) && !is_left_out[kind]
                        : kind == (size_t)which;
}

static size_t lane_bytes(size_t kind)
{
    return PARTS * kinds[kind]->part_bytes;
}

static void make_arena(int which)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

    for (size_t kind = 0; kind < num_kinds; kind++)
        if (is_wanted(kind, which))
            arena.written_bytes += THREADS * lane_bytes(kind);
    arena.bytes = (2 * arena.written_bytes + PAGE - 1) / PAGE * PAGE;
    DRIVER_CHECK(driver.cuMemAddressReserve(&arena.at, arena.bytes, 0, 0, 0));
    DRIVER_CHECK(driver.cuMemAddressReserve(&arena.shadow, arena.bytes, 0, 0, 0));
    DRIVER_CHECK(driver.cuMemCreate(&arena.handle, arena.bytes, &prop, 0));
    DRIVER_CHECK(map(arena.at));
    DRIVER_CHECK(map(arena.shadow));
    DRIVER_CHECK(driver.cuMemsetD32_v2(arena.at, 0, arena.bytes / 4));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    DRIVER_CHECK(driver.cuMemAllocHost_v2((void **)&arena.seen, arena.written_bytes));
}

/* The lane's first submission, which writes the zeros that are there. Anything but success means
 * that the kind is not possible here, and why_not says so. */
static char why_not[64] = "what it needs is not here";

static bool is_possible(struct lane *l)
{
    CUresult rc;

    if (!l->pageable || (l->kind->prepare && !l->kind->prepare(l)))
        return false;
    rc = l->kind->submit(l, 0, 0);
    if (rc)
        snprintf(why_not, sizeof why_not, "the first submission answers %d", (int)rc);
    return !rc;
}

static bool make_lane(struct lane *l, size_t kind, size_t offset)
{
    *l = (struct lane){.kind = kinds[kind],
                       .at = arena.at + offset,
                       .source = arena.at + arena.written_bytes + offset,
                       .pageable = malloc(kinds[kind]->part_bytes)};
    DRIVER_CHECK(driver.cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuStreamCreate(&l->other, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuMemAllocHost_v2((void **)&l->pinned, lane_bytes(kind)));
    return is_possible(l);
}

static unsigned make_lanes(int which)
{
    size_t offset = 0;
    unsigned count = 0;

    for (unsigned i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];

        w->seed = i + 1;
        for (size_t kind = 0; kind < num_kinds; kind++) {
            if (!is_wanted(kind, which))
                continue;
            if (make_lane(&w->lanes[w->count], kind, offset))
                w->count++;
            offset += lane_bytes(kind);
        }
        count += w->count;
    }
    return count;
}

static int play(void *arg)
{
    int which = *(int *)arg;
    double seconds = which == ALL ? options.seconds : options.alone_s;
    unsigned seed = 7;
    uint64_t end_ns;
    pthread_t threads[THREADS];

    playing = which == ALL ? "all together" : kinds[which]->name;
    context = driver_start(0);
    *(void **)&record_event = dlsym(driver.handle, "cuCtxRecordEvent");
    if (!record_event) {
        print_row("skip: the driver has no events of contexts");
        return EXIT_SKIP;
    }
    quiet_load(options.cubin);
    DRIVER_CHECK(driver.cuStreamCreate(&look_stream, CU_STREAM_NON_BLOCKING));
    DRIVER_CHECK(driver.cuEventCreate(&quiet_event, CU_EVENT_DISABLE_TIMING));
    make_arena(which);
    if (!make_lanes(which)) {
        char verdict[80];

        snprintf(verdict, sizeof verdict, "skip: %s", why_not);
        print_row(verdict);
        return EXIT_SKIP;
    }
    DRIVER_CHECK(driver.cuCtxSynchronize());
    end_ns = driver_now_ns() + (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &workers[i]);
    while (driver_now_ns() < end_ns && figures.rounds < options.rounds) {
        usleep(100 + (unsigned)rand_r(&seed) % 1500);
        close_and_look();
    }
    ended = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    must(driver.cuCtxSynchronize(), "the last wait");
    print_row("ok");
    return 0;
}

/* --- the table ------------------------------------------------------------------------------- */

static int row(int which, double seconds)
{
    int status = child_run(play, &which, (unsigned)seconds + 45);

    if (status > EXIT_SKIP || status == 2)
        printf("%-30s  HOLE: %s\n", which == ALL ? "all together" : kinds[which]->name,
               child_words(status));
    return status;
}

static void compile(regex_t *to, const char *word)
{
    if (regcomp(to, word, REG_EXTENDED | REG_NOSUB))
        exit(2);
}

static void read_options(int argc, char **argv)
{
    compile(&options.match, "");
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(argv[i], "--broken") || !strcmp(argv[i], "--stay") ||
            !strcmp(argv[i], "--sync")) {
            options.is_broken |= !strcmp(argv[i], "--broken");
            options.stays |= !strcmp(argv[i], "--stay");
            options.syncs |= !strcmp(argv[i], "--sync");
            continue;
        }
        if (!strcmp(argv[i], "--seconds"))
            options.seconds = atof(value);
        else if (!strcmp(argv[i], "--rounds"))
            options.rounds = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "--alone"))
            options.alone_s = atof(value);
        else if (!strcmp(argv[i], "--match"))
            compile(&options.match, value);
        else if (!strcmp(argv[i], "--without"))
            compile(&options.without, value), options.has_without = true;
        else if (!strcmp(argv[i], "--cubin"))
            options.cubin = value;
        else
            exit(2);
        i++;
    }
}

static void take_kinds(const struct kind *list)
{
    for (; list->name && num_kinds < KINDS_MAX; list++)
        kinds[num_kinds++] = list;
}

int main(int argc, char **argv)
{
    int status = EXIT_SKIP;

    read_options(argc, argv);
    take_kinds(kernel_kinds);
    take_kinds(copy_kinds);
    take_kinds(graph_kinds);
    printf("%-30s  %6s  %9s  %9s  %9s  %s\n", "kind", "rounds", "works", "drain ms", "quiet ms",
           "verdict");
    for (size_t kind = 0; kind < num_kinds && options.alone_s > 0; kind++) {
        int one;

        if (!is_wanted(kind, ALL))
            continue;
        one = row((int)kind, options.alone_s);
        is_left_out[kind] = one && one != EXIT_SKIP;
        if (one != EXIT_SKIP)
            status = status == EXIT_SKIP || one ? one : status;
    }
    if (options.seconds > 0) {
        int one = row(ALL, options.seconds);

        if (one != EXIT_SKIP)
            status = status == EXIT_SKIP || one ? one : status;
    }
    return status == 0 || status == EXIT_SKIP ? status : 1;
}
