/* SPDX-License-Identifier: BSD-2-Clause */
/* What the program has freed is free for every call that takes memory of the device, of any kind.
 * The program fills a device and frees all. Then it takes half of the device, or a little, by each
 * means that there is. (answers.c: that of another device stays there.) */
#include "tests/preload/idle_oom.h"

CUcontext primary;
int wrong;

enum { BLOCKS = 4096 };

static uint64_t blocks[BLOCKS];

size_t free_bytes(void)
{
    return FREE_BYTES();
}

static int fill_with(int n, size_t block_bytes)
{
    while (n < BLOCKS && gpu_malloc(&blocks[n], block_bytes) == 0)
        n++;
    return n;
}

void fill_and_free(bool late)
{
    size_t most = free_bytes() / 32 / (2 * MIB) * (2 * MIB);
    int n = fill_with(fill_with(0, most), 2 * MIB);
    for (int i = 0; i < n; i++)
        REQUIRE(gpu_memset_async(blocks[i], i, 4, NULL));
    if (late)
        REQUIRE(gpu_spin_fill(blocks[0], 1024, 7, 2 * MS_NS, NULL));
    FREE_ALL(blocks, n);
}

/* Eight threads at once take a tenth each. */
static int take_tenth(int index, void *bytes)
{
    CUmemAllocationProp prop = physical_prop();
    CUmemGenericAllocationHandle handle = 0;
    int rc = cuMemCreate(&handle, *(size_t *)bytes, &prop, 0);
    scene_sleep_ms(rc == 0 ? 20 : 0);
    if (rc == 0)
        REQUIRE(cuMemRelease(handle));
    return rc;
}

static void take_in_threads(void)
{
    int sum = 0;
    for (int round = 0; round < 20; round++) {
        fill_and_free(false);
        size_t tenth = free_bytes() / 10 / (2 * MIB) * (2 * MIB);
        sum += scene_threads(8, take_tenth, &tenth);
    }
    printf("physical, by eight threads: %d\n", sum);
    wrong += sum != 0;
}

/* A call that the driver refuses is made once more if there was idle memory to give back, and only
 * then. */
static void refuse_once(bool idle)
{
    for (size_t i = 0; scene_simulated() && i < NUM_MEANS; i++) {
        const char *symbol = means[i].symbol;
        /* The launch allocates by itself. */
        if (symbol == NULL || (!idle && means[i].take == take_launch))
            continue;
        if (idle)
            TAKE_AND_GIVE(8 * MIB);
        bool again = idle && scene_preloaded();
        uint64_t before = SIM(simCallCount)(symbol);
        REQUIRE(SIM(simFail)(symbol, 1, CUDA_ERROR_OUT_OF_MEMORY));
        int rc = means[i].take();
        uint64_t made = SIM(simCallCount)(symbol) - before;
        if (rc != (again ? 0 : CUDA_ERROR_OUT_OF_MEMORY) || made != (again ? 2 : 1)) {
            printf("%s with%s idle memory: %d after %d calls\n", symbol, idle ? "" : "out", rc,
                   (int)made);
            wrong++;
        }
    }
}

int main(void)
{
    scene_start(1, 200);
    primary = CURRENT_CONTEXT();
    for (size_t i = 0; i < NUM_MEANS; i++) {
        fill_and_free(false);
        int rc = means[i].take();
        printf("%s: %d\n", means[i].name, rc);
        wrong += rc != 0;
    }
    fill_and_free(true);
    int rc = take_physical();
    printf("physical, freed behind work: %d\n", rc);
    wrong += rc != 0;
    take_in_threads();
    refuse_once(true);
    /* Everything goes back; what did just now may be why a call is made again. */
    wrong += take_pieces() != 0;
    scene_sleep_ms(300);
    refuse_once(false);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
