/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks that something outside may know of, by a dma-buf or by tokens. The program gets those as
 * natively, for small blocks by the pages in which they lie, and none of freed memory. Once freed,
 * the memory is never handed out again.
 */
#include "tests/preload/scene.h"

#include <unistd.h>

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
        REQUIRE(gpu_malloc(&block[i], size_bytes));
        found += block[i] < freed + size_bytes && freed < block[i] + size_bytes;
    }
    for (int i = 0; i < TRIES; i++)
        REQUIRE(gpu_free(block[i]));
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
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_malloc(&at[i], size_bytes));
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
    uint64_t odd = 0;
    uint64_t block[SIZES];
    REQUIRE(gpu_malloc(&odd, 2 * MIB + 512));
    printf("whole:");
    for (int i = 0; i < SIZES; i++) {
        REQUIRE(gpu_malloc(&block[i], sizes[i]));
        printf(" %d", dma_buf(block[i], sizes[i]));
    }
    printf("\n");
    for (int i = 0; i < SIZES; i++)
        REQUIRE(gpu_free(block[i]));
    REQUIRE(gpu_free(odd));
}

int main(void)
{
    static const size_t sizes[] = {700, 5000, 100000, 1 * MIB, 6 * MIB};
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    int supported = 0;
    scene_start(1, 60);
    REQUIRE(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
    printf("dma-buf: %d\n", supported);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        REQUIRE(gpu_malloc(&block, sizes[i]));
        printf("%zu bytes: %d", sizes[i], dma_buf_of(block, sizes[i]));
        printf(", odd size %d", dma_buf(block & ~(PAGE - 1), 700));
        printf(", free %d", gpu_free(block));
        look_for(block, sizes[i]);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        unsigned set = 9;
        REQUIRE(gpu_malloc(&block, sizes[i]));
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
