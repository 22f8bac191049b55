/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device is nearly full for a long time. Blocks of all sizes come and go in random order, with up
 * to 80 % of its memory live. Every allocation has to succeed, as it does natively, however the
 * idle memory is cut up.
 */
#include "tests/preload/scene.h"

enum { SLOTS = 256, STEPS = 3000 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

int main(void)
{
    static struct {
        uint64_t ptr;
        size_t size_bytes;
    } slots[SLOTS];
    uint32_t random = 2024;
    size_t free_bytes = 0;
    size_t live_bytes = 0;
    int refused = 0;
    int skipped = 0;
    scene_start(1, 200);
    REQUIRE(gpu_mem_info(&free_bytes, NULL));
    const size_t most_bytes = free_bytes / 10 * 8;
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = next_random(&random) % SLOTS;
        if (slots[i].ptr != 0) {
            REQUIRE(gpu_free(slots[i].ptr));
            live_bytes -= slots[i].size_bytes;
            slots[i].ptr = 0;
        }
        /* Many small ones, few large ones, up to a twentieth of the device. */
        uint32_t shift = next_random(&random) % 12;
        size_t size_bytes = 1 + (free_bytes / 20 >> shift) * (next_random(&random) % 1000) / 1000;
        if (live_bytes + size_bytes > most_bytes) {
            skipped++;
            continue;
        }
        if (gpu_malloc(&slots[i].ptr, size_bytes) != 0) {
            slots[i].ptr = 0;
            refused++;
            continue;
        }
        slots[i].size_bytes = size_bytes;
        live_bytes += size_bytes;
        REQUIRE(gpu_memset_async(slots[i].ptr, 1, size_bytes < 512 ? size_bytes : 512, NULL));
    }
    printf("%d refused\n", refused);
    EXPECT(skipped > 0);
    for (int i = 0; i < SLOTS; i++)
        REQUIRE(gpu_free(slots[i].ptr));
    return refused != 0;
}
