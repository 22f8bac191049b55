/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Freed blocks whose memory serves another block at once, while work from before the free still
 * runs. Whatever the program asks of the freed addresses, there is no device memory: neither while
 * that work runs, nor after it, nor when the memory went back. A cache may have kept the addresses,
 * with or without memory behind them.
 */
#include "tests/preload/scene.h"

#define BLOCK_BYTES (4 * MIB)
enum { BLOCKS = 20, WORK_MS = 300 };

struct questions {
    int kind, kind_of_many, range, access, handle, dma_buf, ipc, memops, tokens;
};

static void ask(struct questions *q, CUdeviceptr address)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUpointer_attribute types[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    CUmemGenericAllocationHandle handle = 0;
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    CUipcMemHandle ipc;
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    unsigned long long access = 0;
    unsigned type = 0, on = 1;
    void *answers[] = {&type};
    bool is_device = false;
    int device = -1, descriptor = -1;
    q->kind += gpu_pointer_is_device(&is_device, &device, address) == 0 && is_device;
    REQUIRE(cuPointerGetAttributes(1, types, answers, address));
    q->kind_of_many += type == CU_MEMORYTYPE_DEVICE;
    q->range += cuMemGetAddressRange(&base, &size_bytes, address) == CUDA_SUCCESS;
    q->access += cuMemGetAccess(&access, &here, address) == CUDA_SUCCESS;
    q->handle += cuMemRetainAllocationHandle(&handle, (void *)address) == CUDA_SUCCESS;
    q->dma_buf +=
        cuMemGetHandleForAddressRange(&descriptor, address, MIB,
                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) == CUDA_SUCCESS;
    q->ipc += cuIpcGetMemHandle(&ipc, address) == CUDA_SUCCESS;
    q->memops +=
        cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) == CUDA_SUCCESS;
    q->tokens +=
        cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address) == CUDA_SUCCESS;
}

/* Leaves out what belongs to a later block, which natively may come to the same addresses. */
static void ask_of_all(const char *when, const uint64_t freed[BLOCKS], uint64_t later,
                       size_t later_bytes)
{
    struct questions q = {0};
    for (int i = 0; i < BLOCKS; i++) {
        if (freed[i] < later + later_bytes && later < freed[i] + BLOCK_BYTES)
            continue;
        ask(&q, freed[i]);
        ask(&q, freed[i] + MIB);
    }
    printf("%s: kind %d and %d, range %d, access %d, handle %d, dma-buf %d, IPC %d, "
           "SYNC_MEMOPS %d, tokens %d\n",
           when, q.kind, q.kind_of_many, q.range, q.access, q.handle, q.dma_buf, q.ipc, q.memops,
           q.tokens);
}

int main(void)
{
    uint64_t freed[BLOCKS], kept[BLOCKS], later = 0, last = 0;
    const size_t later_bytes = BLOCKS * BLOCK_BYTES;
    scene_start(1, 60);
    /* Every other one is kept, so that the freed ones are not one range. */
    for (int i = 0; i < BLOCKS; i++) {
        REQUIRE(gpu_malloc(&freed[i], BLOCK_BYTES));
        REQUIRE(gpu_malloc(&kept[i], BLOCK_BYTES));
    }
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_fill(freed[i], BLOCK_BYTES / 4, 5, NULL));
    REQUIRE(gpu_spin(WORK_MS * MS_NS, NULL));
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_free(freed[i]));
    REQUIRE(gpu_malloc(&later, later_bytes));
    ask_of_all("while the work runs", freed, later, later_bytes);
    REQUIRE(gpu_sync());
    ask_of_all("after it", freed, later, later_bytes);
    /* More than there is: the cache looks for what it can use. */
    REQUIRE(gpu_free(later));
    REQUIRE(gpu_malloc(&last, 2 * later_bytes));
    ask_of_all("later", freed, last, 2 * later_bytes);
    REQUIRE(gpu_memset(last, 3, 2 * later_bytes));
    printf("%zu wrong bytes\n", scene_wrong_bytes(last, 2 * later_bytes, 3));
    REQUIRE(gpu_free(last));
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_free(kept[i]));
    return 0;
}
