/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The canary's source of blocks: the driver, or a pseudo-pool. The pseudo-pool hands freed blocks
 * out again at once and ignores work in flight. With it the canary must fail, which proves that it
 * can. Lock: pool_lock, never held over a driver call.
 */
#include "tests/gpu/canary.h"

#include <pthread.h>

enum { POOL_SLOTS = 256 };

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool_slot {
    CUdeviceptr block; /* 0: the slot is empty */
    size_t size_bytes;
} pool_slots[POOL_SLOTS];

static CUdeviceptr pool_take(size_t size_bytes)
{
    CUdeviceptr block = 0;

    pthread_mutex_lock(&pool_lock);
    for (size_t i = 0; i < POOL_SLOTS && !block; i++) {
        if (pool_slots[i].block && pool_slots[i].size_bytes == size_bytes) {
            block = pool_slots[i].block;
            pool_slots[i].block = 0;
        }
    }
    pthread_mutex_unlock(&pool_lock);
    return block;
}

static bool pool_put(CUdeviceptr block, size_t size_bytes)
{
    bool put = false;

    pthread_mutex_lock(&pool_lock);
    for (size_t i = 0; i < POOL_SLOTS && !put; i++) {
        if (!pool_slots[i].block) {
            pool_slots[i] = (struct pool_slot){.block = block, .size_bytes = size_bytes};
            put = true;
        }
    }
    pthread_mutex_unlock(&pool_lock);
    return put;
}

CUdeviceptr canary_alloc(const struct canary *canary, size_t size_bytes)
{
    CUdeviceptr block = 0;

    if (canary->options.broken)
        block = pool_take(size_bytes);
    if (!block)
        DRIVER_CHECK(driver.cuMemAlloc_v2(&block, size_bytes));
    return block;
}

void canary_free(const struct canary *canary, CUdeviceptr block, size_t size_bytes)
{
    if (!canary->options.broken || !pool_put(block, size_bytes))
        DRIVER_CHECK(driver.cuMemFree_v2(block));
}
