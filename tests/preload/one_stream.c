/* SPDX-License-Identifier: BSD-2-Clause */
/* When the order of one stream is enough, and what ends that. */
#include "tests/preload/kernels.h"
#include "tests/preload/scene.h"

/* The program uses one stream for a while, so that the order of that stream alone makes freed
 * memory ready. Then it uses another stream at once, while work of the first runs on memory that
 * was freed. It does so between all kinds of streams, with a stream that is destroyed before the
 * next one is made, with a graph, and with two threads whose per-thread streams differ. */

static const uint64_t words = 16 * KIB;

/* The stream is alone, and then has a late writer whose block is freed. */
static void run_and_free_late(CUstream stream)
{
    scene_run_alone(stream, true);
    scene_free_late(words, 3 * MS_NS, stream);
}

/* A late writer on one stream, its block freed and taken again, the new owner's work on another. */
static uint32_t hand_over(CUstream from, CUstream to, uint32_t value)
{
    run_and_free_late(from);
    uint64_t block = NEW_FILLED(words, value, to);
    REQUIRE(gpu_stream_sync(from));
    uint32_t wrong = scene_wrong_words(block, words, value, to);
    REQUIRE(gpu_free(block));
    return wrong;
}

/* The stream is destroyed with the late writer in flight; the next may have its handle. */
static uint32_t destroy_between(bool blocking)
{
    CUstream stream = NEW_STREAM(blocking);
    run_and_free_late(stream);
    REQUIRE(gpu_stream_destroy(stream));
    stream = NEW_STREAM(blocking);
    uint64_t block = NEW_FILLED(words, 7, stream);
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(block, words, 7, stream);
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_stream_destroy(stream));
    return wrong;
}

static uint32_t with_graph(CUstream from, CUstream to)
{
    run_and_free_late(from);
    uint64_t block = NEW_BLOCK(words * 4);
    REQUIRE(gpu_capture_begin(to, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(block, words, 9, to));
    CUgraph graph = END_CAPTURE(to);
    CUgraphExec exec = NEW_EXEC(graph);
    REQUIRE(gpu_graph_launch(exec, to));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(block, words, 9, to);
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_free(block));
    return wrong;
}

static int other_thread(int index, void *context)
{
    uint64_t *block = context;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(block, words * 4));
    REQUIRE(gpu_fill(*block, words, 11, CU_STREAM_PER_THREAD));
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    return 0;
}

static uint32_t with_thread(void)
{
    uint64_t block = 0;
    run_and_free_late(CU_STREAM_PER_THREAD);
    scene_threads(1, other_thread, &block);
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    uint32_t wrong = scene_wrong_words(block, words, 11, CU_STREAM_PER_THREAD);
    REQUIRE(gpu_free(block));
    return wrong;
}

ACT(one_stream)
{
    uint32_t wrong = 0;
    scene_start(1, 120);
    CUstream first = NEW_STREAM(false), second = NEW_STREAM(true);
    /* First, as all that follows shows that one stream is enough again after a capture. */
    uint32_t graph = with_graph(first, second);
    printf("graph: %u wrong words\n", graph);
    CUstream streams[] = {CU_STREAM_LEGACY, first, second, CU_STREAM_PER_THREAD};
    for (int i = 0; i < 4; i++) {
        uint32_t here = hand_over(streams[i], streams[(i + 1) % 4], 100 + (uint32_t)i);
        printf("hand over %d: %u wrong words\n", i, here);
        wrong += here;
    }
    uint32_t destroyed = destroy_between(false) + destroy_between(true);
    printf("destroyed: %u wrong words\n", destroyed);
    uint32_t thread = with_thread();
    printf("another thread: %u wrong words\n", thread);
    REQUIRE(gpu_stream_destroy(first));
    REQUIRE(gpu_stream_destroy(second));
    REQUIRE(gpu_sync());
    return wrong + destroyed + graph + thread != 0;
}

/* A thread leaves the stream for another one. A signal handler stops it in a call of the driver,
 * and submits work to a third one, on memory that work of the first still uses. */

static CUstream third;
static uint64_t handed_on;
static atomic_bool handled;

static void submit_there(int number)
{
    SIM(simLetGo)("cuCtxRecordEvent"); /* the thread goes on behind the handler */
    REQUIRE(cuMemsetD32Async((CUdeviceptr)handed_on, 9, words, third));
    atomic_store(&handled, true);
}

static void *signal_there(void *thread)
{
    scene_await_held(1);
    if (!scene_handles(*(pthread_t *)thread, SIGUSR2, &handled))
        printf("the handler is stuck\n");
    return NULL;
}

ACT(signal_leaves)
{
    scene_start(1, 60);
    if (!scene_simulated())
        return SCENE_SKIP;
    CUstream first = NEW_STREAM(false), second = NEW_STREAM(false);
    third = NEW_STREAM(false);
    uint64_t other = NEW_BLOCK(words * 4);
    run_and_free_late(first);
    handed_on = NEW_BLOCK(words * 4);
    REQUIRE(gpu_free(NEW_BLOCK(MIB))); /* to be recorded */
    EXPECT(signal(SIGUSR2, submit_there) != SIG_ERR);
    pthread_t self = pthread_self(), signaller = self;
    if (scene_preloaded()) {
        REQUIRE(SIM(simHold)("cuCtxRecordEvent"));
        signaller = NEW_THREAD(signal_there, &self);
    } else {
        REQUIRE(raise(SIGUSR2)); /* the driver bears no handler in the midst of its own work */
    }
    REQUIRE(cuMemsetD32Async((CUdeviceptr)other, 8, words, second));
    if (scene_preloaded())
        REQUIRE(pthread_join(signaller, NULL));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(handed_on, words, 9, third);
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}

/* Memory synchronisation domains. A kernel's memory operations belong to its domain. The cache
 * must not rely on the order of one stream between kernels of two domains. The program starts
 * itself again for each way to set a domain. The new process works on one stream for a while. Its
 * statistics tell whether its memory was ordered by fences. */

/* Where one stream is enough, fences are looked at until that is found, some dozens of times. */
enum { ROUNDS = 2560, MANY_LOOKS = 400 };

static const char inner_variable[] = "SCENE_INNER";

static CUlaunchAttributeValue remote_domain(void)
{
    return (CUlaunchAttributeValue){.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
}

static void set_nothing(CUstream stream)
{
}

static void set_others(CUstream stream)
{
    CUlaunchAttributeValue value = {.priority = 0};
    REQUIRE(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    REQUIRE(cuStreamCopyAttributes(stream, stream));
}

static void set_domain(CUstream stream)
{
    CUlaunchAttributeValue value = remote_domain();
    REQUIRE(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
}

static void set_map(CUstream stream)
{
    CUlaunchAttributeValue value = {.memSyncDomainMap = {.default_ = 1, .remote = 0}};
    REQUIRE(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
}

static void copy_domain(CUstream stream)
{
    CUstream other = NEW_STREAM(false);
    set_domain(other);
    REQUIRE(cuStreamCopyAttributes(stream, other));
    REQUIRE(gpu_stream_destroy(other));
}

/* A graph with a kernel that has the attribute, from its launch or late, run before the work to
 * come. */
static void capture_one(CUstream stream, CUlaunchAttribute attribute, bool late)
{
    size_t nodes = 1;
    CUgraphNode node = NULL;
    CUgraph graph;
    CUgraphExec exec;
    CUmodule module;
    CUfunction fill;
    uint64_t block = 0, n_words = 64;
    uint32_t value = 5;
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attribute,
                             .numAttrs = late ? 0 : 1};
    void *params[] = {&block, &n_words, &value};
    REQUIRE(cuModuleLoadData(&module, kernels_ptx));
    REQUIRE(cuModuleGetFunction(&fill, module, "fill"));
    block = NEW_BLOCK(4096);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(cuLaunchKernelEx(&config, fill, params, NULL));
    graph = END_CAPTURE(stream);
    REQUIRE(cuGraphGetNodes(graph, &node, &nodes));
    if (late)
        printf("attribute %d of a node: %d\n", (int)attribute.id,
               (int)cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value));
    exec = NEW_EXEC(graph);
    REQUIRE(gpu_graph_launch(exec, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_graph_destroy(graph, exec));
    REQUIRE(gpu_free(block));
    REQUIRE(cuModuleUnload(module));
}

static void capture_others(CUstream stream)
{
    capture_one(stream, (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_IGNORE}, false);
    capture_one(stream, (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY}, true);
}

static void capture_domain(CUstream stream)
{
    capture_one(
        stream,
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, .value = remote_domain()},
        false);
}

static void set_node_domain(CUstream stream)
{
    capture_one(
        stream,
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, .value = remote_domain()},
        true);
}

static const struct way {
    const char *name;
    void (*set)(CUstream stream);
    bool fenced;
} ways[] = {
    {"nothing", set_nothing, false},
    {"other attributes", set_others, false},
    {"a domain", set_domain, true},
    {"a map of domains", set_map, true},
    {"a copied domain", copy_domain, true},
    {"other attributes of a graph's kernel", capture_others, false},
    {"the domain of a captured kernel", capture_domain, true},
    {"the domain of a graph's kernel", set_node_domain, true},
};

static int inner(const struct way *way)
{
    int domains = 0;
    scene_start(1, 60);
    REQUIRE(cuDeviceGetAttribute(&domains, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 0));
    if (domains < 2)
        scene_skip("one memory synchronisation domain");
    CUstream stream = NEW_STREAM(false);
    uint64_t block = NEW_BLOCK(MIB);
    REQUIRE(gpu_free(block));
    way->set(stream);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        block = NEW_BLOCK(MIB);
        REQUIRE(gpu_fill(block, 64, i, stream));
        REQUIRE(gpu_free(block));
        if (i % 64 == 63)
            REQUIRE(gpu_stream_sync(stream));
    }
    REQUIRE(gpu_stream_destroy(stream));
    fflush(stdout);
    return 0;
}

static int count_of(const char *text, const char *field)
{
    const char *at = strstr(text, field);
    EXPECT(at != NULL);
    return atoi(at + strlen(field));
}

static int play(int index)
{
    char value[16];
    int status;
    snprintf(value, sizeof value, "%d", index);
    const char *text = scene_again_report(inner_variable, value, &status);
    if (status != 0)
        return status;
    bool fenced = ways[index].fenced;
    if (scene_preloaded()) {
        int looks =
            count_of(text, "\"num_fence_queries\":") + count_of(text, "\"num_fence_orders\":");
        fenced = looks >= MANY_LOOKS;
        if (fenced != ways[index].fenced)
            fprintf(stderr, "%s: fences looked at %d times\n", ways[index].name, looks);
    }
    printf("%s: %s\n", ways[index].name, fenced ? "fences" : "the order of one stream");
    return 0;
}

ACT(domains)
{
    const char *index = getenv(inner_variable);
    if (index != NULL)
        return inner(&ways[atoi(index)]);
    int rc = 0;
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways) && rc == 0; i++)
        rc = play(i);
    return rc;
}
