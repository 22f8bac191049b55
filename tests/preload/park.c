/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device memory of the process is on the host, and whatever it does then is as without that:
 * results, codes and bytes. Each call that uses the memory brings it back; what uses none does not.
 */
#include "tests/preload/park_world.h"

#include "tests/preload/conditional.h"

#include <sys/resource.h>

/* ---- Calls that use the memory */

static int host_copy(void)
{
    uint32_t from = 9, to = 0;
    return cuMemcpy((CUdeviceptr)(uintptr_t)&to, (CUdeviceptr)(uintptr_t)&from, 4) || to != 9;
}

static int upload(void)
{
    here[0] = 5;
    return gpu_put(b, here, BYTES) || gpu_put_async(b, here, 64, stream);
}

static int download(void)
{
    return gpu_get(here, a, BYTES) || here[0] != VALUE || here[WORDS - 1] != VALUE;
}

static int download_async(void)
{
    return gpu_get_async(here, a, BYTES, stream) || gpu_stream_sync(stream) || here[7] != VALUE;
}

static int copy_of_any_kind(void)
{
    return cuMemcpy((CUdeviceptr)(uintptr_t)here, a, 64) || here[3] != VALUE;
}

static int move(void)
{
    return gpu_move(b, a, BYTES) || scene_wrong_words(b, WORDS, VALUE, NULL);
}

static int set_bytes(void)
{
    return gpu_memset(b, 1, BYTES) || scene_wrong_words(b, WORDS, 0x1010101, NULL);
}

static int kernel(void)
{
    return gpu_copy(b, a, WORDS, stream) || scene_wrong_words(b, WORDS, VALUE, stream);
}

/* One kernel sees all memory, and not only what its stream or its arguments name. */
static int second_stream(void)
{
    CUstream other = NEW_STREAM(true);
    int rc = gpu_fill(b, WORDS, 3, other) || gpu_stream_sync(other);
    return rc || wrong_a() || gpu_stream_destroy(other);
}

static int capture_of_work(void)
{
    CUgraph graph;
    CUgraphExec exec = NULL;
    int rc = gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) ||
             gpu_copy(b, a, WORDS, stream) || gpu_memset_async(b, 0, 4, stream) ||
             gpu_capture_end(stream, &graph) || gpu_graph_instantiate(&exec, graph);
    EXPECT(!rc);
    park(); /* the launch, too */
    return gpu_graph_launch(exec, stream) || gpu_stream_sync(stream) ||
           scene_wrong_words(b + 4, WORDS - 1, VALUE, NULL) || gpu_graph_destroy(graph, exec);
}

static int graph_nodes(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode set, copy;
    CUDA_MEMSET_NODE_PARAMS fives = {
        .dst = b, .elementSize = 4, .value = 5, .width = 1, .height = 1};
    CUDA_MEMCPY3D get = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = b,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = here,
                         .WidthInBytes = 4,
                         .Height = 1,
                         .Depth = 1};
    int rc =
        cuGraphCreate(&graph, 0) || cuGraphAddMemsetNode(&set, graph, NULL, 0, &fives, context);
    park();
    rc = rc || cuGraphAddMemcpyNode(&copy, graph, &set, 1, &get, context);
    park();
    rc = rc || cuGraphMemsetNodeSetParams(set, &fives);
    park();
    rc = rc || cuGraphMemcpyNodeSetParams(copy, &get) || gpu_graph_instantiate(&exec, graph);
    park();
    rc = rc || cuGraphExecMemsetNodeSetParams(exec, set, &fives, context);
    park();
    rc = rc || cuGraphExecMemcpyNodeSetParams(exec, copy, &get, context);
    return rc || gpu_graph_launch(exec, stream) || gpu_stream_sync(stream) || here[0] != 5 ||
           gpu_graph_destroy(graph, exec);
}

static int export_of_it(void)
{
    CUipcMemHandle handle;
    uint64_t block = NEW_BLOCK(MIB);
    int rc = gpu_ipc_export(&handle, block);
    return rc || gpu_free(block);
}

/* The driver would not know the address. */
static int question_about_kind(void)
{
    return scene_device_of(a + 8) != 0;
}

static int question_about_range(void)
{
    return !scene_lies_in(a + 8, a, BYTES);
}

static int question_about_attributes(void)
{
    unsigned long long id = 1, before = 2;
    CUmemorytype type = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID};
    wake();
    REQUIRE(cuPointerGetAttribute(&before, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
    park();
    return cuPointerGetAttributes(2, which, (void *[]){&type, &id}, a) ||
           type != CU_MEMORYTYPE_DEVICE || id != before;
}

ACT(each_use_wakes)
{
    static const struct {
        const char *name;
        int (*use)(void);
    } uses[] = {
#define USE(function) {#function, function}
        USE(host_copy),
        USE(upload),
        USE(download),
        USE(download_async),
        USE(copy_of_any_kind),
        USE(move),
        USE(set_bytes),
        USE(kernel),
        USE(second_stream),
        USE(capture_of_work),
        USE(graph_nodes),
        USE(export_of_it),
        USE(question_about_kind),
        USE(question_about_range),
        USE(question_about_attributes),
    };
    int failures = 0;
    begin(1);
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        asker_ask("park");
        expect_parked(true);
        uint64_t wakes = asker_figure("num_wakes");
        int failed = uses[i].use();
        bool woke = !asker_page() || (asker_figure("num_wakes") > wakes && !is_parked());
        uint32_t wrong = wrong_a();
        if (failed || !woke || wrong)
            printf("%s: %d, %s, %u wrong words\n", uses[i].name, failed,
                   woke ? "woke" : "did not wake", wrong);
        failures += failed || !woke || wrong;
    }
    return failures;
}

ACT(what_uses_no_memory_does_not_wake)
{
    CUevent event;
    uint64_t blocks[8];
    void *pinned;
    size_t free_before, free_now, total;
    bool is_device = true;
    int device, failures = 0;
    begin(1);
    REQUIRE(gpu_event_create(&event));
    REQUIRE(gpu_event_record(event, stream));
    REQUIRE(gpu_host_alloc(&pinned, MIB));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_mem_info(&free_before, &total));
    park();
    for (int i = 0; i < 200; i++) {
        failures += gpu_event_query(event) || gpu_stream_query(stream) || gpu_event_sync(event) ||
                    gpu_stream_sync(stream) || gpu_sync() || gpu_event_record(event, stream) ||
                    gpu_stream_wait(stream, event);
        failures += gpu_mem_info(&free_now, &total) != 0;
        /* What is on the host counts as taken. */
        failures += free_now > free_before || free_before - free_now > 16 * MIB;
        NEW_BLOCKS(blocks, 8, 64 * KIB << (i % 4));
        FREE_ALL(blocks, 8);
    }
    REQUIRE(gpu_pointer_is_device(&is_device, &device, (uint64_t)(uintptr_t)pinned));
    failures += is_device;
    (void)gpu_pointer_is_device(&is_device, &device, (uint64_t)(uintptr_t)here);
    REQUIRE(gpu_stream_destroy(NEW_STREAM(true)));
    expect_parked(true);
    return failures + (wrong_a() != 0);
}

/* ---- Blocks, graphs, threads */

/* Each part has a value of its own, so that none can take another's place. */
static uint64_t part_words(uint64_t block_words, uint64_t at)
{
    const uint64_t part = 3 * MIB / 4 + 128; /* crosses borders of chunks and pieces */
    return block_words - at < part ? block_words - at : part;
}

/* On the simulated driver, over many chunks; on another one, up to 8 GiB. */
static uint64_t large_bytes(void)
{
    size_t total, most = 8 * KIB * MIB;
    REQUIRE(gpu_mem_info(NULL, &total));
    most = total / 16 < most ? total / 16 / MIB * MIB : most;
    return scene_simulated() ? 100 * MIB : most;
}

ACT(a_large_block_and_half_free_slabs_come_back)
{
    enum { SMALL = 600 };
    static uint64_t small[SMALL];
    uint64_t words, parts[8], large, wrong = 0;
    uint32_t value = 0;
    begin(1);
    words = large_bytes() / 4;
    for (unsigned i = 0; i < SMALL; i++)
        small[i] = NEW_FILLED(128, i, NULL);
    NEW_BLOCKS(parts, 8, words / 4);
    FREE_ALL(parts, 8);
    large = NEW_BLOCK(words * 4); /* in many chunks, where memory is idle */
    for (uint64_t at = 0; at < words; at += part_words(words, at))
        REQUIRE(gpu_fill(large + 4 * at, part_words(words, at), ++value, NULL));
    for (unsigned i = 0; i < SMALL; i += 2)
        REQUIRE(gpu_free(small[i]));
    REQUIRE(gpu_sync());
    park();
    EXPECT(!asker_page() || asker_figure("away_bytes") > 4 * words);
    value = 0;
    for (uint64_t at = 0; at < words; at += part_words(words, at))
        wrong += scene_wrong_words(large + 4 * at, part_words(words, at), ++value, NULL);
    for (unsigned i = 1; i < SMALL; i += 2)
        wrong += scene_wrong_words(small[i], 128, i, NULL);
    return wrong != 0 || wrong_a();
}

ACT(blocks_come_and_go_meanwhile)
{
    enum { BLOCKS = 60 };
    uint64_t blocks[BLOCKS];
    int failures = 0;
    begin(1);
    for (int round = 0; round < 5; round++) {
        for (unsigned i = 0; i < BLOCKS; i++) {
            blocks[i] = NEW_BLOCK((size_t)4 * KIB << i % 11);
            REQUIRE(gpu_fill(blocks[i], KIB << i % 11, i, NULL));
        }
        REQUIRE(gpu_sync());
        park();
        /* Others take their places, and memory of before is freed whole. */
        for (unsigned i = 0; i < BLOCKS; i += 2)
            REQUIRE(gpu_free(blocks[i]));
        for (unsigned i = 0; i < BLOCKS; i += 4)
            blocks[i] = NEW_BLOCK((size_t)4 * KIB << i % 11);
        if (round % 2)
            asker_ask("flush wait=0"); /* leaves what is away alone */
        for (unsigned i = 0; i < BLOCKS; i += 4)
            REQUIRE(gpu_fill(blocks[i], KIB << i % 11, 1000 + i, NULL));
        for (unsigned i = 0; i < BLOCKS; i += i % 4 ? 2 : 1) {
            if (i % 4 == 2)
                continue;
            failures +=
                scene_wrong_words(blocks[i], KIB << i % 11, i % 4 ? i : 1000 + i, NULL) != 0;
            REQUIRE(gpu_free(blocks[i]));
        }
    }
    return failures + (wrong_a() != 0);
}

static void CUDA_CB count_call(void *calls)
{
    atomic_fetch_add((atomic_uint *)calls, 1);
}

/* A kernel, a memset, a copy, a host function, and where the driver has it a node with a condition,
 * whose body writes the other block. */
ACT(a_graph_replays_after_many_parks)
{
    static atomic_uint calls;
    CUgraph graph, body;
    CUgraphExec exec;
    int failures = 0;
    begin(1);
    uint64_t c = NEW_FILLED(WORDS, 0, NULL);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(gpu_copy(b, a, WORDS, stream));
    REQUIRE(gpu_memset_async(b, 0xff, 64, stream));
    REQUIRE(gpu_get_async(here, b, BYTES, stream));
    REQUIRE(cuLaunchHostFunc(stream, count_call, &calls));
    graph = END_CAPTURE(stream);
    if ((body = add_conditional(graph))) {
        REQUIRE(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0,
                                            CU_STREAM_CAPTURE_MODE_GLOBAL));
        REQUIRE(gpu_fill(c, WORDS, 8, stream));
        REQUIRE(gpu_capture_end(stream, &body));
    }
    exec = NEW_EXEC(graph);
    unsigned rounds = scene_simulated() ? 10 : 1000;
    for (unsigned i = 1; i <= rounds; i++) {
        park();
        REQUIRE(gpu_graph_launch(exec, stream));
        REQUIRE(gpu_stream_sync(stream));
        failures += here[0] != UINT32_MAX || here[16] != VALUE || here[WORDS - 1] != VALUE;
        failures += atomic_load(&calls) != i;
        failures += scene_wrong_words(c, WORDS, body ? 8 : 0, stream) != 0;
        memset(here, 0, BYTES);
        REQUIRE(gpu_fill(c, WORDS, 0, stream));
    }
    return failures + (wrong_a() != 0);
}

static int launch_in_thread(int index, void *arg)
{
    pthread_barrier_t *together = arg;
    CUstream own;
    REQUIRE(gpu_open(0));
    own = NEW_STREAM(false);
    pthread_barrier_wait(together);
    return gpu_fill(b + (uint64_t)index * 4096, KIB, (uint32_t)index, own) || gpu_stream_sync(own);
}

ACT(many_threads_wake_once)
{
    pthread_barrier_t together;
    int failures;
    begin(1);
    REQUIRE(pthread_barrier_init(&together, NULL, 10));
    park();
    uint64_t wakes = asker_figure("num_wakes");
    failures = scene_threads(10, launch_in_thread, &together);
    EXPECT(!asker_page() || asker_figure("num_wakes") == wakes + 1);
    for (uint32_t i = 0; i < 10; i++)
        failures += scene_wrong_words(b + i * 4096, KIB, i, NULL) != 0;
    return failures + (wrong_a() != 0);
}

static void *download_until_cancelled(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    while (here) {
        REQUIRE(gpu_get(here, a, BYTES));
        if (!scene_simulated()) /* that one's copies are cancellation points */
            pthread_testcancel();
    }
    return NULL;
}

ACT(a_thread_cancelled_in_a_copy_keeps_no_park_away)
{
    if (scene_sanitized()) /* a cancelled thread leaves marks on its stack */
        return SCENE_SKIP;
    begin(1);
    for (int i = 0; i < 5; i++) {
        pthread_t thread = NEW_THREAD(download_until_cancelled, NULL);
        scene_sleep_ms(10);
        REQUIRE(pthread_cancel(thread));
        REQUIRE(pthread_join(thread, NULL));
        park();
    }
    return wrong_a() != 0;
}

static void *park_again(void *unused)
{
    asker_ask("park");
    return NULL;
}

/* Many open files: it takes a while until a park knows that none of them is a network card's. */
ACT(a_use_comes_while_a_second_park_begins)
{
    enum { FILES = 4000, ROUNDS = 8 };
    struct rlimit limit;
    int files[FILES];
    begin(1);
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit));
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < FILES; i++)
        files[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < ROUNDS; i++) {
        park();
        pthread_t thread = NEW_THREAD(park_again, NULL);
        usleep(500 + i * 1000);
        EXPECT(wrong_a() == 0);
        REQUIRE(pthread_join(thread, NULL));
    }
    for (int i = 0; i < FILES; i++)
        close(files[i]);
    limit.rlim_cur = before;
    return setrlimit(RLIMIT_NOFILE, &limit) || wrong_a() != 0;
}

/* Whoever has the use's answer finds the copy that it left. A sanitizer's build takes a second for
 * each round. */
ACT(a_drop_right_after_a_use_drops)
{
    int rounds = scene_sanitized() ? 10 : 100;
    begin(1);
    expect_code(asker_ask("set PARK=retain:1G"), PAGE_REPLY_DONE);
    for (int i = 0; i < rounds; i++) {
        park();
        REQUIRE(gpu_fill(b, WORDS, 7, NULL));
        expect_code(asker_ask("wake drop=1"), PAGE_REPLY_DONE);
        EXPECT(!asker_page() || asker_figure("retained_bytes") == 0);
    }
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 7, NULL);
}
