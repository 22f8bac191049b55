/* SPDX-License-Identifier: BSD-2-Clause */
/* Work goes to two streams in turn, a run to each, and all of it is complete at the end of a run.
 * So in each run the order of one stream is found enough. Then the program loads a library that
 * submits work in ways of its own (the argument, a stand-in), and goes on. From there on no run is
 * alone. */
#include "tests/preload/scene.h"

enum { RUN = 100, RUNS = 3 };

static void run(CUstream stream)
{
    for (uint32_t i = 0; i < RUN; i++) {
        uint64_t block = NEW_BLOCK(64 * KIB);
        REQUIRE(gpu_fill(block, 64, i, stream));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_stream_sync(stream));
    }
}

int main(int argc, char **argv)
{
    CUstream streams[2];
    scene_start(1, 120);
    NEW_STREAMS(streams, 2, false);
    for (int i = 0; i <= RUNS; i++) /* the first stream is the single one from the start */
        run(streams[i % 2]);
    void *encoder = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    printf("loaded: %d\n", encoder != NULL);
    for (int i = 0; i < RUNS; i++)
        run(streams[i % 2]);
    for (int i = 0; i < 2; i++)
        REQUIRE(gpu_stream_destroy(streams[i]));
    return encoder == NULL;
}
