/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One round of the canary. Old blocks with late work in flight are freed. New ones are taken, and
 * written to at once from another place. In the end neither may have disturbed the other. No lock:
 * everything belongs to the calling worker.
 */
#include "tests/gpu/canary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLD_BLOCKS = 4, NEW_BLOCKS = 12, GRAPHS = 2 + NEW_BLOCKS };

#define TEXT(name, text) text,
static const char *const stream_text[] = {STREAM_KINDS(TEXT)};
static const char *const use_text[] = {USE_KINDS(TEXT)};
static const char *const request_text[] = {REQUEST_KINDS(TEXT)};

struct round {
    enum stream_kind old_kind, new_kind;
    enum use_kind use;
    enum request_kind request;
    bool late_reader;   /* else a late writer */
    bool fresh_streams; /* made for this round */
    bool orphan;        /* the old stream is destroyed with its work in flight */
    CUstream old_stream, new_stream;
    size_t size_bytes; /* of one old block */
    unsigned old_count, new_count;
    size_t new_size_bytes;
    uint32_t old_value, late_value, new_value;
    CUdeviceptr old_block[OLD_BLOCKS], new_block[NEW_BLOCKS];
    CUgraphExec graph[GRAPHS]; /* kept until their work has ended */
    unsigned graphs;
};

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static CUstream stream_make(enum stream_kind kind)
{
    CUstream stream = NULL;

    if (kind == STREAM_PER_THREAD)
        return CU_STREAM_PER_THREAD;
    if (kind == STREAM_BLOCKING)
        DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    else if (kind != STREAM_LEGACY)
        DRIVER_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static bool stream_can_be_fresh(enum stream_kind kind)
{
    return kind != STREAM_LEGACY && kind != STREAM_PER_THREAD;
}

static CUstream stream_of(struct worker *worker, const struct round *round, enum stream_kind kind)
{
    if (round->fresh_streams && stream_can_be_fresh(kind))
        return stream_make(kind);
    if (!worker->stream[kind])
        worker->stream[kind] = stream_make(kind);
    return worker->stream[kind];
}

/* Between graph_begin and graph_end the work of a graph stream is captured, then launched as one
 * graph. Relaxed, as a capture that leaves the calls of other threads legal. */
static void graph_begin(enum stream_kind kind, CUstream stream)
{
    if (kind == STREAM_GRAPH)
        DRIVER_CHECK(driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static void graph_end(struct round *round, enum stream_kind kind, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;

    if (kind != STREAM_GRAPH)
        return;
    DRIVER_CHECK(driver.cuStreamEndCapture(stream, &graph));
    DRIVER_CHECK(driver.cuGraphInstantiateWithFlags(&exec, graph, 0));
    DRIVER_CHECK(driver.cuGraphDestroy(graph));
    DRIVER_CHECK(driver.cuGraphLaunch(exec, stream));
    round->graph[round->graphs++] = exec;
}

static void launch(CUfunction kernel, CUstream stream, size_t words, void **parameters)
{
    size_t blocks = (words + 255) / 256;

    /* Few thread blocks, so that old and new work can run side by side. */
    DRIVER_CHECK(driver.cuLaunchKernel(kernel, blocks < 32 ? (unsigned)blocks : 32, 1, 1, 256, 1, 1,
                                       0, stream, parameters, NULL));
}

static void launch_fill(const struct worker *worker, CUstream stream, CUdeviceptr block,
                        size_t words, uint32_t value)
{
    uint64_t count = words;

    launch(worker->canary->fill, stream, words, (void *[]){&block, &count, &value});
}

/* Only the first of several delays: the others queue behind it. */
static void launch_late(const struct worker *worker, const struct round *round, unsigned i)
{
    const struct canary *canary = worker->canary;
    uint64_t words = round->size_bytes / 4, late_ns = i == 0 ? canary->options.late_ns : 0;
    CUdeviceptr block = round->old_block[i];
    uint32_t old = round->old_value, late = round->late_value;
    CUdeviceptr errors = worker->errors;

    if (round->late_reader)
        launch(canary->spin_check, round->old_stream, words,
               (void *[]){&block, &words, &old, &errors, &late_ns});
    else
        launch(canary->spin_fill, round->old_stream, words,
               (void *[]){&block, &words, &late, &late_ns});
}

/* The new owner's first access. */
static void use_block(struct worker *worker, struct round *round, CUdeviceptr block)
{
    size_t size_bytes = round->new_size_bytes, words = size_bytes / 4;
    CUstream stream = round->new_stream;
    CUdeviceptr source = worker->source;
    uint64_t count = words;

    graph_begin(round->new_kind, stream);
    switch (round->use) {
    case USE_FILL_KERNEL:
        launch_fill(worker, stream, block, words, round->new_value);
        break;
    case USE_COPY_KERNEL:
        launch(worker->canary->copy, stream, words, (void *[]){&block, &source, &count});
        break;
    case USE_MEMSET_ASYNC:
        DRIVER_CHECK(driver.cuMemsetD32Async(block, round->new_value, words, stream));
        break;
    case USE_MEMSET_SYNC:
        DRIVER_CHECK(driver.cuMemsetD32_v2(block, round->new_value, words));
        break;
    case USE_HTOD_PAGEABLE:
        DRIVER_CHECK(driver.cuMemcpyHtoD_v2(block, worker->pageable, size_bytes));
        break;
    case USE_HTOD_ASYNC:
        DRIVER_CHECK(driver.cuMemcpyHtoDAsync_v2(block, worker->pinned, size_bytes, stream));
        break;
    case USE_DTOD_SYNC:
        DRIVER_CHECK(driver.cuMemcpyDtoD_v2(block, source, size_bytes));
        break;
    case USE_DTOD_ASYNC:
        DRIVER_CHECK(driver.cuMemcpyDtoDAsync_v2(block, source, size_bytes, stream));
        break;
    case USE_KIND_COUNT:
        break;
    }
    graph_end(round, round->new_kind, stream);
}

/* Fills the place that the chosen use copies from. Done before the old work is in flight: nothing
 * here may wait for it. */
static void prepare_source(struct worker *worker, const struct round *round)
{
    size_t words = round->new_size_bytes / 4;

    if (round->use == USE_HTOD_PAGEABLE || round->use == USE_HTOD_ASYNC) {
        uint32_t *host = round->use == USE_HTOD_ASYNC ? worker->pinned : worker->pageable;

        for (size_t i = 0; i < words; i++)
            host[i] = round->new_value;
    } else if (round->use != USE_FILL_KERNEL && round->use != USE_MEMSET_ASYNC &&
               round->use != USE_MEMSET_SYNC) {
        launch_fill(worker, NULL, worker->source, words, round->new_value);
        DRIVER_CHECK(driver.cuStreamSynchronize(NULL));
    }
}

static void choose(struct worker *worker, struct round *round)
{
    const struct canary_options *options = &worker->canary->options;
    static const uint32_t sizes[] = {
        4, 256, 512, 4096, 65536, 1 << 20, 2u << 20, 3u << 20, (4u << 20) + 512, 8u << 20};
    uint64_t bits = random_next(&worker->random);

    memset(round, 0, sizeof *round);
    if (!options->legacy_only) {
        round->old_kind = (bits & 0xff) % STREAM_KIND_COUNT;
        round->new_kind = (bits >> 8 & 0xff) % STREAM_KIND_COUNT;
        round->fresh_streams = (bits >> 16 & 3) == 0;
        round->orphan =
            round->fresh_streams && stream_can_be_fresh(round->old_kind) && (bits >> 18 & 1);
    }
    round->use = (bits >> 24 & 0xff) % USE_KIND_COUNT;
    if (round->new_kind == STREAM_GRAPH &&
        (round->use == USE_MEMSET_SYNC || round->use == USE_HTOD_PAGEABLE ||
         round->use == USE_DTOD_SYNC))
        round->use = USE_MEMSET_ASYNC; /* a capture takes no synchronous call */
    round->late_reader = bits >> 32 & 1;
    round->request = (bits >> 33 & 7) < 5   ? REQUEST_SAME
                     : (bits >> 33 & 7) < 7 ? REQUEST_COALESCED
                                            : REQUEST_SMALLER;
    round->size_bytes = sizes[(bits >> 40 & 0xff) % (sizeof sizes / sizeof *sizes)];
    if (round->size_bytes > options->size_bytes)
        round->size_bytes = options->size_bytes;
    round->old_count = round->request == REQUEST_COALESCED ? OLD_BLOCKS : 1;
    round->new_count = round->request == REQUEST_SAME ? NEW_BLOCKS : 4;
    round->new_size_bytes = round->size_bytes;
    if (round->request == REQUEST_COALESCED)
        round->new_size_bytes *= OLD_BLOCKS;
    else if (round->request == REQUEST_SMALLER && round->size_bytes > 4)
        round->new_size_bytes = round->size_bytes / 8 * 4;
    bits = random_next(&worker->random);
    round->old_value = (uint32_t)bits | 1;
    round->late_value = ~round->old_value;
    round->new_value = (uint32_t)(bits >> 32) << 1 | 1;
    if (round->new_value == round->old_value || round->new_value == round->late_value)
        round->new_value += 2;
}

static bool is_old_memory(const struct round *round, CUdeviceptr block)
{
    for (unsigned i = 0; i < round->old_count; i++) {
        if (block < round->old_block[i] + round->size_bytes &&
            round->old_block[i] < block + round->new_size_bytes)
            return true;
    }
    return false;
}

/* Takes new blocks until old memory comes back, and uses every one at once. */
static void reuse(struct worker *worker, struct round *round, CUevent old_work)
{
    struct canary *canary = worker->canary;
    unsigned wanted = round->new_count;
    bool back = false;

    round->new_count = 0;
    while (round->new_count < wanted && !back) {
        CUdeviceptr block = canary_alloc(canary, round->new_size_bytes);

        back = is_old_memory(round, block);
        round->new_block[round->new_count++] = block;
        if (back) {
            atomic_fetch_add(&canary->reused, 1);
            if (driver.cuEventQuery(old_work) == CUDA_ERROR_NOT_READY)
                atomic_fetch_add(&canary->in_flight, 1);
        }
        if (!round->new_stream)
            round->new_stream = stream_of(worker, round, round->new_kind);
        use_block(worker, round, block);
    }
}

static void report(struct worker *worker, const struct round *round, const uint32_t errors[2])
{
    fprintf(stderr,
            "canary: %s (%u words) after: %s stream, late %s of %zu bytes, %u freed; "
            "then %s asked for, %s, %s stream%s\n",
            errors[0] ? "new data seen by old work" : "new data overwritten",
            errors[0] ? errors[0] : errors[1], stream_text[round->old_kind],
            round->late_reader ? "reader" : "writer", round->size_bytes, round->old_count,
            request_text[round->request], use_text[round->use], stream_text[round->new_kind],
            round->fresh_streams ? ", streams made for the round" : "");
    atomic_fetch_add(errors[0] ? &worker->canary->seen_early : &worker->canary->overwritten, 1);
}

/* Waits for both sides and looks at what they left. */
static void verify(struct worker *worker, struct round *round, CUevent old_work)
{
    uint64_t words = round->new_size_bytes / 4;
    uint32_t value = round->new_value, errors[2];
    CUdeviceptr counter = worker->errors + 4;

    DRIVER_CHECK(driver.cuEventSynchronize(old_work));
    DRIVER_CHECK(driver.cuStreamSynchronize(round->new_stream));
    DRIVER_CHECK(driver.cuStreamSynchronize(NULL));
    for (unsigned i = 0; i < round->new_count; i++) {
        CUdeviceptr block = round->new_block[i];

        launch(worker->canary->check, NULL, words, (void *[]){&block, &words, &value, &counter});
    }
    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(errors, worker->errors, sizeof errors));
    if (errors[0] || errors[1])
        report(worker, round, errors);
}

/* The program uses one stream for a while, so that a pool may rely on its order. It frees blocks
 * with work in flight, which the round then takes. In the middle it waits for all work once: a pool
 * needs that before it relies on the order. */
static void run_up(struct worker *worker, const struct round *round)
{
    unsigned long runs = worker->canary->options.runs;

    for (unsigned long i = 0; i < runs; i++) {
        CUdeviceptr block = canary_alloc(worker->canary, round->size_bytes);

        launch_fill(worker, round->old_stream, block,
                    round->size_bytes / 4 < 512 ? round->size_bytes / 4 : 512, (uint32_t)i);
        canary_free(worker->canary, block, round->size_bytes);
        if (i == runs / 2)
            DRIVER_CHECK(driver.cuStreamSynchronize(round->old_stream));
    }
}

void canary_round(struct worker *worker)
{
    struct round round;
    CUevent old_work;

    choose(worker, &round);
    if (worker->canary->options.empty)
        setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
    /* A memset of device memory returns before it is done, and the streams do not wait for it. */
    DRIVER_CHECK(driver.cuMemsetD32_v2(worker->errors, 0, 2));
    DRIVER_CHECK(driver.cuStreamSynchronize(NULL));
    prepare_source(worker, &round);
    round.old_stream = stream_of(worker, &round, round.old_kind);
    run_up(worker, &round);
    DRIVER_CHECK(driver.cuEventCreate(&old_work, CU_EVENT_DISABLE_TIMING));

    for (unsigned i = 0; i < round.old_count; i++) {
        round.old_block[i] = canary_alloc(worker->canary, round.size_bytes);
        launch_fill(worker, round.old_stream, round.old_block[i], round.size_bytes / 4,
                    round.old_value);
    }
    graph_begin(round.old_kind, round.old_stream);
    for (unsigned i = 0; i < round.old_count; i++)
        launch_late(worker, &round, i);
    graph_end(&round, round.old_kind, round.old_stream);
    DRIVER_CHECK(driver.cuEventRecord(old_work, round.old_stream));
    if (round.orphan)
        DRIVER_CHECK(driver.cuStreamDestroy_v2(round.old_stream));

    for (unsigned i = 0; i < round.old_count; i++)
        canary_free(worker->canary, round.old_block[i], round.size_bytes);
    reuse(worker, &round, old_work);
    verify(worker, &round, old_work);

    for (unsigned i = 0; i < round.new_count; i++)
        canary_free(worker->canary, round.new_block[i], round.new_size_bytes);
    for (unsigned i = 0; i < round.graphs; i++)
        DRIVER_CHECK(driver.cuGraphExecDestroy(round.graph[i]));
    if (round.fresh_streams && stream_can_be_fresh(round.old_kind) && !round.orphan)
        DRIVER_CHECK(driver.cuStreamDestroy_v2(round.old_stream));
    if (round.fresh_streams && stream_can_be_fresh(round.new_kind))
        DRIVER_CHECK(driver.cuStreamDestroy_v2(round.new_stream));
    DRIVER_CHECK(driver.cuEventDestroy_v2(old_work));
}
