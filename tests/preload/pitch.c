/* SPDX-License-Identifier: BSD-2-Clause */
/* Pitched allocations: the pitch is the driver's, the rows are the program's, the size is theirs.
 */
#include "tests/preload/scene.h"

int main(void)
{
    static const struct {
        size_t width_bytes;
        size_t height;
    } shapes[] = {{1, 1},   {4, 100},  {100, 7},  {511, 3},
                  {512, 3}, {513, 64}, {4096, 1}, {100000, 5}};
    int wrong = 0;
    scene_start(1, 60);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint64_t block = 0;
            uint64_t base = 0;
            size_t pitch_bytes = 0;
            size_t size_bytes = 0;
            REQUIRE(
                gpu_malloc_pitch(&block, &pitch_bytes, shapes[i].width_bytes, shapes[i].height));
            size_t all_bytes = pitch_bytes * shapes[i].height;
            REQUIRE(gpu_memset(block, 7, all_bytes));
            wrong += scene_wrong_bytes(block, all_bytes, 7) != 0;
            REQUIRE(gpu_address_range(&base, &size_bytes, block));
            printf("%zu x %zu: pitch %zu, base %s\n", shapes[i].width_bytes, shapes[i].height,
                   pitch_bytes, base == block ? "right" : "wrong");
            REQUIRE(gpu_free(block));
        }
    }
    return wrong;
}
