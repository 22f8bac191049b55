/* SPDX-License-Identifier: BSD-2-Clause */
/* A process with GPU work that ends only when it is told. It does what its standard input says,
 * line by line, and prints a line after each:
 *   hold IDLE BUSY   allocates so many MiB twice, frees the first, starts a kernel that waits for a
 *                    flag, and frees the second
 *   one IDLE BUSY    the same, with all work on one stream, whose order is enough for the pool
 *   let              sets the flag */
#include "tests/preload/scene.h"

/* Work of two streams: the order of one does not tell what is complete. */
static void use(uint64_t block, CUstream stream, bool one)
{
    REQUIRE(gpu_fill(block, 1024, 1, stream));
    if (!one)
        REQUIRE(gpu_fill(block + 4096, 1024, 1, NULL));
}

int main(void)
{
    char line[64];
    unsigned idle_mib, busy_mib;
    uint32_t *held = NULL;
    scene_start(1, 100);
    CUstream stream = NEW_STREAM(false);
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        bool one = sscanf(line, "one %u %u", &idle_mib, &busy_mib) == 2;
        if (one || sscanf(line, "hold %u %u", &idle_mib, &busy_mib) == 2) {
            uint64_t idle = NEW_BLOCK(idle_mib * MIB), busy = NEW_BLOCK(busy_mib * MIB);
            use(busy, stream, one);
            REQUIRE(gpu_sync());
            REQUIRE(gpu_free(idle));
            held = scene_hold(stream);
            REQUIRE(gpu_free(busy));
        } else if (strncmp(line, "let", 3) == 0) {
            scene_let_go(held);
        }
        puts("done");
    }
    if (held)
        scene_let_go(held);
    REQUIRE(gpu_stream_sync(stream));
    return 0;
}
