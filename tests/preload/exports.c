/* SPDX-License-Identifier: BSD-2-Clause */
/* Addresses that are known outside, or that have been freed. */
#include "tests/preload/scene.h"

/* Blocks that something outside may know of, by a dma-buf or by tokens. The program gets those as
 * natively, for small blocks by the pages in which they lie, and none of freed memory. Once freed,
 * the memory is never handed out again. */

#define PAGE ((uint64_t)4096)

static int dma_buf(uint64_t from, uint64_t size_bytes)
{
    int descriptor = -1;
    int rc = (int)cuMemGetHandleForAddressRange(&descriptor, from, size_bytes,
                                                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (rc == 0)
        REQUIRE(close(descriptor));
    return rc;
}

static int dma_buf_of(uint64_t block, size_t size_bytes)
{
    uint64_t from = block & ~(PAGE - 1);
    return dma_buf(from, ((block + size_bytes + PAGE - 1) & ~(PAGE - 1)) - from);
}

/* Whether blocks of the size overlap the freed one again. Natively they may. */
static void look_for(uint64_t freed, size_t size_bytes)
{
    enum { TRIES = 64 };
    uint64_t block[TRIES];
    int found = 0;
    for (int i = 0; i < TRIES; i++) {
        block[i] = NEW_BLOCK(size_bytes);
        found += block[i] < freed + size_bytes && freed < block[i] + size_bytes;
    }
    FREE_ALL(block, TRIES);
    /* What goes back to the driver may come from there again, as other memory at the same address.
     */
    bool ours = scene_preloaded() && size_bytes <= 32 * KIB;
    printf("; used again: %d\n", ours ? found : 0);
}

/* Freed memory beside live memory. Blocks of a mebibyte and more natively have pages of their own,
 * which go with them. The simulator's pages go when their last small block does; where a real
 * driver has its own small blocks is not known. */
static void ask_of_freed(size_t size_bytes)
{
    enum { LEFT, MIDDLE, RIGHT, BLOCKS };
    uint64_t at[BLOCKS];
    bool large = size_bytes >= MIB;
    NEW_BLOCKS(at, BLOCKS, size_bytes);
    printf("%zu bytes: live %d", size_bytes, dma_buf_of(at[MIDDLE], size_bytes));
    if (scene_simulated() && !large) /* and of all that is around it */
        printf(", its page %d", dma_buf(at[MIDDLE] & ~(uint64_t)(2 * MIB - 1), 2 * MIB));
    REQUIRE(gpu_free(at[MIDDLE]));
    if (large)
        printf("; freed %d", dma_buf_of(at[MIDDLE], size_bytes));
    /* From a live block into the freed one behind it, if it is right behind. */
    bool follows = at[MIDDLE] == at[LEFT] + size_bytes && size_bytes % (2 * MIB) == 0;
    if (scene_simulated() && large)
        printf("; begun in a live block %d",
               follows ? dma_buf(at[LEFT], 2 * size_bytes) : (int)CUDA_ERROR_INVALID_VALUE);
    REQUIRE(gpu_free(at[LEFT]));
    REQUIRE(gpu_free(at[RIGHT]));
    if (large || scene_simulated())
        printf("; all freed %d %d", dma_buf_of(at[LEFT], size_bytes),
               dma_buf_of(at[RIGHT], size_bytes));
    printf("\n");
}

/* Network cards register an allocation by exactly its address and size. Others lie before it. */
static void ask_for_whole(void)
{
    static const size_t sizes[] = {2 * MIB,       3 * MIB, 4 * MIB, 6 * MIB, 2 * MIB + 64 * KIB,
                                   5 * MIB + PAGE};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t block[SIZES];
    uint64_t odd = NEW_BLOCK(2 * MIB + 512);
    printf("whole:");
    for (int i = 0; i < SIZES; i++) {
        block[i] = NEW_BLOCK(sizes[i]);
        printf(" %d", dma_buf(block[i], sizes[i]));
    }
    printf("\n");
    FREE_ALL(block, SIZES);
    REQUIRE(gpu_free(odd));
}

ACT(exports)
{
    static const size_t sizes[] = {700, 5000, 100000, 1 * MIB, 6 * MIB};
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    int supported = 0;
    scene_start(1, 60);
    REQUIRE(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
    printf("dma-buf: %d\n", supported);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = NEW_BLOCK(sizes[i]);
        printf("%zu bytes: %d", sizes[i], dma_buf_of(block, sizes[i]));
        printf(", odd size %d", dma_buf(block & ~(PAGE - 1), 700));
        printf(", free %d", gpu_free(block));
        look_for(block, sizes[i]);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned set = 9;
        uint64_t block = NEW_BLOCK(sizes[i]);
        int rc = (int)cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, block);
        REQUIRE(cuPointerGetAttribute(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
        printf("%zu bytes: tokens %d, SYNC_MEMOPS %u", sizes[i], rc, set);
        printf(", free %d", gpu_free(block));
        look_for(block, sizes[i]);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ask_of_freed(sizes[i]);
    ask_for_whole();
    return 0;
}

/* Freed blocks whose memory serves another block at once, while work from before the free still
 * runs. Whatever the program asks of the freed addresses, or does with them, there is no device
 * memory: neither while that work runs, nor after it, nor when the memory went back. A cache may
 * have kept the addresses, with or without memory behind them. */

#define BLOCK_BYTES (4 * MIB)
enum { BLOCKS = 20, WORK_MS = 300 };

/* An answer is the code of the call; of many attributes it is the kind of memory, 0: none. */
struct answer {
    const char *question;
    int code;
};
enum { QUESTIONS = 11 };

static void ask(struct answer answers[QUESTIONS], CUdeviceptr at)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    CUmemGenericAllocationHandle handle = 0;
    CUmemRangeHandleType dma_buf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    CUipcMemHandle ipc;
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    unsigned long long access = 0;
    unsigned type = 0, on = 1;
    void *types[] = {&type};
    bool is_device = false;
    int device = -1, descriptor = -1;
    REQUIRE(cuPointerGetAttributes(1, asked, types, at));
    const struct answer all[QUESTIONS] = {
        {"kind", gpu_pointer_is_device(&is_device, &device, at)},
        {"kind among many", (int)type},
        {"range", (int)cuMemGetAddressRange(&base, &size_bytes, at)},
        {"access", (int)cuMemGetAccess(&access, &here, at)},
        {"handle", (int)cuMemRetainAllocationHandle(&handle, (void *)at)},
        {"dma-buf", (int)cuMemGetHandleForAddressRange(&descriptor, at, MIB, dma_buf, 0)},
        {"IPC", (int)cuIpcGetMemHandle(&ipc, at)},
        {"SYNC_MEMOPS", (int)cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at)},
        {"tokens", (int)cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, at)},
        {"free", (int)cuMemFree(at)},
        {"free in stream order", (int)cuMemFreeAsync(at, NULL)},
    };
    memcpy(answers, all, sizeof all);
}

/* Prints the answers, which are the same of all freed addresses. Leaves out what belongs to a later
 * block, which natively may come to these addresses. */
static void ask_of_all(const char *when, const uint64_t freed[BLOCKS], uint64_t later,
                       size_t later_bytes)
{
    struct answer answers[QUESTIONS], first[QUESTIONS];
    int asked = 0, others = 0;
    for (int i = 0; i < 2 * BLOCKS; i++) {
        uint64_t address = freed[i / 2] + (i % 2 ? MIB : 0);
        if (freed[i / 2] < later + later_bytes && later < freed[i / 2] + BLOCK_BYTES)
            continue;
        ask(answers, address);
        if (asked++ == 0)
            memcpy(first, answers, sizeof first);
        for (int k = 0; k < QUESTIONS; k++)
            others += answers[k].code != first[k].code;
    }
    printf("%s:", when);
    for (int k = 0; k < QUESTIONS && asked != 0; k++)
        printf(" %s %d,", first[k].question, first[k].code);
    printf(" %d others\n", others);
}

ACT(moved)
{
    uint64_t freed[BLOCKS];
    const size_t later_bytes = BLOCKS * BLOCK_BYTES;
    scene_start(1, 60);
    /* Every other one is kept, so that the freed ones are not one range. */
    for (int i = 0; i < BLOCKS; i++) {
        freed[i] = NEW_BLOCK(BLOCK_BYTES);
        NEW_BLOCK(BLOCK_BYTES);
    }
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_fill(freed[i], BLOCK_BYTES / 4, 5, NULL));
    REQUIRE(gpu_spin(WORK_MS * MS_NS, NULL));
    FREE_ALL(freed, BLOCKS);
    uint64_t later = NEW_BLOCK(later_bytes);
    ask_of_all("while the work runs", freed, later, later_bytes);
    REQUIRE(gpu_sync());
    ask_of_all("after it", freed, later, later_bytes);
    /* More than there is: the cache looks for what it can use. */
    REQUIRE(gpu_free(later));
    uint64_t last = NEW_BLOCK(2 * later_bytes);
    ask_of_all("later", freed, last, 2 * later_bytes);
    REQUIRE(gpu_memset(last, 3, 2 * later_bytes));
    printf("%zu wrong bytes\n", scene_wrong_bytes(last, 2 * later_bytes, 3));
    return 0;
}
