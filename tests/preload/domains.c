/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory synchronisation domains. A kernel's memory operations belong to its domain. The cache must
 * not rely on the order of one stream between kernels of two domains. The program starts itself
 * again for each way to set a domain. The new process works on one stream for a while. Its
 * statistics tell whether its memory was ordered by fences.
 */
#include "tests/preload/kernels.h"
#include "tests/preload/scene.h"

#include <string.h>
#include <unistd.h>

/* Where one stream is enough, fences are looked at until that is found, some dozens of times. */
enum { ROUNDS = 2560, MANY_LOOKS = 400 };

static const char inner_variable[] = "SCENE_INNER";

static CUlaunchAttributeValue remote_domain(void)
{
    return (CUlaunchAttributeValue){.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
}

static void set_nothing(CUstream stream)
{
    (void)stream;
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
    CUstream other = NULL;
    REQUIRE(gpu_stream_create(&other, false));
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
    uint64_t block = 0, words = 64;
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
    void *params[] = {&block, &words, &value};
    REQUIRE(cuModuleLoadData(&module, kernels_ptx));
    REQUIRE(cuModuleGetFunction(&fill, module, "fill"));
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(cuLaunchKernelEx(&config, fill, params, NULL));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(cuGraphGetNodes(graph, &node, &nodes));
    if (late)
        printf("attribute %d of a node: %d\n", (int)attribute.id,
               (int)cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
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
    CUstream stream = NULL;
    uint64_t block = 0;
    int domains = 0;
    scene_start(1, 60);
    REQUIRE(cuDeviceGetAttribute(&domains, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 0));
    if (domains < 2)
        scene_skip("one memory synchronisation domain");
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_malloc(&block, MIB));
    REQUIRE(gpu_free(block));
    way->set(stream);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        REQUIRE(gpu_malloc(&block, MIB));
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
    static char text[65536];
    char stats[] = "/tmp/scene-domains-XXXXXX";
    char value[64];
    int descriptor = mkstemp(stats);
    EXPECT(descriptor >= 0);
    snprintf(value, sizeof value, "exit-json:%s", stats);
    REQUIRE(setenv("GPUCACHE_STATS", value, 1));
    snprintf(value, sizeof value, "%d", index);
    int status = scene_again(inner_variable, value);
    FILE *file = fdopen(descriptor, "r");
    EXPECT(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    unlink(stats);
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

int main(void)
{
    const char *index = getenv(inner_variable);
    if (index != NULL)
        return inner(&ways[atoi(index)]);
    int rc = 0;
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways) && rc == 0; i++)
        rc = play(i);
    return rc;
}
