/* SPDX-License-Identifier: BSD-2-Clause */
/* What the driver says of blocks, and the attribute that a program sets. */
#include "tests/preload/scene.h"

/* The pointer attributes that libraries key their own caches by: where an allocation begins and
 * ends, its number, its context and kind. They are asked one by one and all at once. The blocks
 * are two that lie side by side, and one that is reissued at an earlier address. */

static unsigned long long describe(const char *what, uint64_t block, size_t size_bytes,
                                   uint64_t address)
{
    CUdeviceptr start = 0;
    size_t range_bytes = 0;
    unsigned long long id = 0;
    CUcontext context = NULL;
    unsigned mapped = 0, managed = 7;
    CUdeviceptr device = 0;
    CUcontext current = CURRENT_CONTEXT();
    REQUIRE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
    REQUIRE(cuPointerGetAttribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
    REQUIRE(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    printf("%s: start %s, %s; ", what, start == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size");

    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_CONTEXT,    CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    };
    void *answers[] = {&range_bytes, &start, &context, &mapped, &managed, &device};
    REQUIRE(cuPointerGetAttributes(sizeof asked / sizeof *asked, asked, answers, address));
    printf("together: start %s, %s, %s context, mapped %u, managed %u, pointer %s\n",
           start == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size",
           context == current ? "its" : "another", mapped, managed,
           device == address ? "right" : "wrong");
    return id;
}

/* What kind of memory it is, as who would export or register it asks. */
static void describe_kind(uint64_t address)
{
    static const struct {
        const char *name;
        CUpointer_attribute which;
    } words[] = {
        {"legacy IPC", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
        {"device", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
        {"RDMA", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE},
        {"access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS},
        {"SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS},
        {"type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
    };
    unsigned long long types = 9;
    CUmemoryPool pool = NULL;
    CUmemGenericAllocationHandle handle = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                   CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    void *answers[] = {&types, &pool};
    printf("  kind:");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        unsigned value = 0;
        REQUIRE(cuPointerGetAttribute(&value, words[i].which, address));
        printf(" %s %u,", words[i].name, value);
    }
#if CUDA_VERSION >= 12080
    unsigned capable = 0;
    int rc = (int)cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE,
                                        address);
    printf(" decompression %d %u,", rc, capable);
#endif
    REQUIRE(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
    printf(" handles %llu", types);
    types = 9;
    REQUIRE(cuPointerGetAttributes(2, asked, answers, address));
    printf(" and %llu, pool %s, handle to be had: %d\n", types, pool == NULL ? "none" : "some",
           (int)cuMemRetainAllocationHandle(&handle, (void *)address));
}

/* The mapping that the block lies in, and the number of its memory: one answer from all of its
 * bytes. Returns the number. */
static unsigned long long describe_mapping(uint64_t block, size_t size_bytes)
{
    const size_t offsets[] = {0, size_bytes / 2, size_bytes - 1};
    CUdeviceptr base[3] = {0};
    size_t mapped_bytes[3] = {0};
    unsigned long long id[3] = {0};
    int codes = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                   CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                   CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID};
    bool one = true;
    for (int i = 0; i < 3; i++) {
        CUdeviceptr again_base = 0;
        size_t again_bytes = 0;
        unsigned long long again_id = 0;
        void *answers[] = {&again_base, &again_bytes, &again_id};
        codes |= (int)cuPointerGetAttribute(&base[i], asked[0], block + offsets[i]);
        codes |= (int)cuPointerGetAttribute(&mapped_bytes[i], asked[1], block + offsets[i]);
        codes |= (int)cuPointerGetAttribute(&id[i], asked[2], block + offsets[i]);
        codes |= (int)cuPointerGetAttributes(3, asked, answers, block + offsets[i]);
        one = one && base[i] == base[0] && mapped_bytes[i] == mapped_bytes[0] && id[i] == id[0] &&
              again_base == base[i] && again_bytes == mapped_bytes[i] && again_id == id[i];
    }
    printf(
        "  mapping: %d, %s answer, %s the block, %s pages\n", codes, one ? "one" : "more than one",
        base[0] <= block && block + size_bytes <= base[0] + mapped_bytes[0] ? "covers" : "misses",
        base[0] % (2 * MIB) == 0 && mapped_bytes[0] % (2 * MIB) == 0 ? "whole" : "no");
    return id[0];
}

static void from_another_context(uint64_t address)
{
    CUcontext owner = NULL;
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    CUcontext mine = CURRENT_CONTEXT(), other = NEW_CONTEXT();
    REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address + 100));
    REQUIRE(cuMemGetAddressRange(&base, &size_bytes, address + 100));
    printf("from another context: its context is %s, base %s, %zu bytes\n",
           owner == mine ? "the first" : "another", base == address ? "right" : "wrong",
           size_bytes);
    uint64_t block = NEW_BLOCK(3000);
    REQUIRE(cuCtxSetCurrent(mine));
    REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    printf("and the other way round: %s\n", owner == other ? "the other" : "not the other");
    REQUIRE(gpu_free(block));
    REQUIRE(cuCtxDestroy(other));
}

ACT(attributes)
{
    static const size_t sizes[] = {768, 96 * KIB, 2 * MIB, 6 * MIB};
    scene_start(1, 60);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t a = NEW_BLOCK(sizes[i]), b = NEW_BLOCK(sizes[i]);
        printf("%zu bytes\n", sizes[i]);
        unsigned long long id_a = describe("  base", a, sizes[i], a);
        unsigned long long id_b = describe("  other", b, sizes[i], b + sizes[i] - 1);
        printf("  numbers %s\n", id_a != id_b ? "differ" : "are one");
        describe_kind(a);
        describe_kind(b + sizes[i] / 2);
        unsigned long long memory_a = describe_mapping(a, sizes[i]);
        unsigned long long memory_b = describe_mapping(b, sizes[i]);
        bool large = sizes[i] >= 2 * MIB; /* natively small blocks share memory */
        if (large)
            printf("  memory %s\n", memory_a != memory_b ? "of its own" : "shared");
        REQUIRE(gpu_free(a));
        a = NEW_BLOCK(sizes[i]);
        printf("  reissued: %s number\n",
               describe("  base", a, sizes[i], a) != id_a ? "a new" : "the old");
        if (large)
            printf("  reissued: %s memory\n",
                   describe_mapping(a, sizes[i]) != memory_a ? "new" : "the same");
        REQUIRE(gpu_free(a));
        REQUIRE(gpu_free(b));
    }
    uint64_t block = NEW_BLOCK(5 * MIB);
    from_another_context(block);
    return 0;
}

/* SYNC_MEMOPS, which only the driver's own allocations can have. With segments it is set, and ends
 * with its block: the next block of that memory does not have it. In an arena the program gets the
 * driver's error, and one line that names the cure. Taking it off where it is not set always
 * succeeds. The program starts itself again, once for each backing. */

static const char inner_variable[] = "SCENE_INNER";

static int set(uint64_t block, unsigned value)
{
    return (int)cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block);
}

static unsigned get(uint64_t block)
{
    unsigned value = 9;
    REQUIRE(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    return value;
}

/* What the block has, and on the simulated driver whether its memory has it in fact. */
static unsigned has(uint64_t block)
{
    EXPECT(!scene_simulated() || get(block) == 0 || SIM(simSyncMemops)(block) == 1);
    return get(block);
}

/* Small ones, side by side: what one of them gives up, its neighbours keep. */
static void neighbours(void)
{
    enum { LEFT, MIDDLE, RIGHT, BLOCKS };
    uint64_t at[BLOCKS];
    NEW_BLOCKS(at, BLOCKS, 3000);
    REQUIRE(set(at[LEFT], 1));
    REQUIRE(set(at[MIDDLE], 1));
    printf("neighbours: %u %u %u", has(at[LEFT]), has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[MIDDLE], 0));
    REQUIRE(set(at[RIGHT], 0));
    printf("; off again %u %u %u", has(at[LEFT]), has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[RIGHT], 1));
    REQUIRE(gpu_free(at[LEFT]));
    REQUIRE(set(at[MIDDLE], 0));
    printf("; one is freed %u %u", has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[MIDDLE], 1));
    REQUIRE(gpu_free(at[RIGHT]));
    printf("; another %u\n", has(at[MIDDLE]));
    REQUIRE(gpu_free(at[MIDDLE]));
}

static int with_segments(void)
{
    static const size_t sizes[] = {5000, 100000, 6 * MIB};
    scene_start(1, 60);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int still = 0;
        uint64_t neighbour = NEW_BLOCK(sizes[i]), block = NEW_BLOCK(sizes[i]);
        printf("%zu bytes: off %d", sizes[i], set(block, 0));
        printf(", on %d", set(block + 512, 1));
        printf(", it is %u, its neighbour %u", get(block), get(neighbour));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_free(neighbour));
        for (int again = 0; again < 40; again++) {
            uint64_t other = NEW_BLOCK(sizes[i]);
            /* A large block goes back to the driver, which may give it out again; a small one
             * stays. */
            still += get(other) != 0 || (sizes[i] <= MIB && scene_preloaded() && other == block);
            REQUIRE(gpu_free(other));
        }
        printf("; after it: %d\n", still);
    }
    neighbours();
    printf("of nothing: %d\n", set(0x1234000, 1));
    return 0;
}

/* What natively succeeds and cannot here is said in words, not printed. */
static int with_arena(void)
{
    int refused = 0;
    scene_start(1, 60);
    uint64_t block = NEW_BLOCK(6 * MIB);
    printf("arena: off %d", set(block, 0));
    for (int i = 0; i < 3; i++)
        refused += set(block, 1) == CUDA_ERROR_NOT_SUPPORTED;
    printf(", on is refused %d times", scene_preloaded() ? refused : 3);
    REQUIRE(gpu_free(block));
    printf(", free\n");
    return 0;
}

static int run(const char *what, const char *log)
{
    char value[64];
    snprintf(value, sizeof value, "warn:%s", log);
    REQUIRE(setenv("GPUCACHE_LOG", value, 1));
    REQUIRE(setenv("GPUCACHE_BACKING", what, 1));
    return scene_again(inner_variable, what);
}

ACT(sync_memops)
{
    char log[] = "/tmp/scene-memops-XXXXXX";
    const char *inner = getenv(inner_variable);
    if (inner != NULL)
        return strcmp(inner, "arena") == 0 ? with_arena() : with_segments();
    EXPECT(mkstemp(log) >= 0);
    int rc = run("segment", log);
    if (rc == 0)
        rc = run("arena", log);
    unsigned said =
        scene_count(scene_text(log),
                    "SYNC_MEMOPS, which mapped memory lacks: run it with GPUCACHE_BACKING=segment");
    unlink(log);
    if (rc == 0)
        printf("the cure is named %u times\n", scene_preloaded() ? said : 1);
    return rc;
}
