/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Freed blocks whose memory serves another block at once, while work from before the free still
 * runs. Whatever the program asks of the freed addresses, or does with them, there is no device
 * memory: neither while that work runs, nor after it, nor when the memory went back. A cache may
 * have kept the addresses, with or without memory behind them.
 */
#include "tests/preload/scene.h"

#include <string.h>

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
