/* SPDX-License-Identifier: BSD-2-Clause */
/* A device gets access to another one's memory while that memory comes and goes, and after it. */
#include "tests/preload/scene.h"

/* Access is given and taken away while memory of the device comes and goes. */

enum { COMERS = 4, ENABLES = 8 };

struct coming {
    CUcontext owner;
    uint64_t block;
    atomic_bool ends;
};

static int come_and_go(int index, void *context)
{
    struct coming *c = context;
    int failed = 0;
    REQUIRE(gpu_open(index < COMERS ? 0 : 1));
    for (size_t i = (size_t)index; index < COMERS && !atomic_load(&c->ends); i++)
        TAKE_AND_GIVE((32 + i * 7 % 64) * MIB);
    for (int i = 0; i < ENABLES && index == COMERS; i++) {
        uint32_t word = 0;
        int rc = cuCtxEnablePeerAccess(c->owner, 0);
        failed += rc != 0 || cuMemcpyDtoH(&word, c->block, sizeof word) != 0 || word != 7;
        if (rc == 0)
            REQUIRE(cuCtxDisablePeerAccess(c->owner));
    }
    atomic_store(&c->ends, atomic_load(&c->ends) || index == COMERS);
    return failed;
}

ACT(access_is_given_while_memory_goes_back)
{
    static struct coming c;
    bool can = false;
    REQUIRE(setenv("GPUCACHE_MAX_IDLE", "0", 1));
    REQUIRE(setenv("GPUCACHE_IDLE_TIMEOUT", "1ms", 1));
    REQUIRE(setenv("SIM_REALTIME", "1", 0));
    REQUIRE(setenv("SIM_COST_cuMemCreate", "300000", 0));
    REQUIRE(setenv("SIM_COST_cuMemMap", "50000", 0));
    REQUIRE(setenv("SIM_COST_cuMemSetAccess", "50000", 0));
    scene_start(2, 120);
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can) {
        printf("no peers\n");
        return 0;
    }
    REQUIRE(gpu_open(0));
    c.owner = CURRENT_CONTEXT();
    c.block = NEW_FILLED(16 * MIB, 7, NULL);
    REQUIRE(gpu_sync());
    int failed = scene_threads(COMERS + 1, come_and_go, &c);
    printf("%d failed\n", failed);
    return failed != 0;
}

/* Memory moves while a kernel runs, so its old addresses go later than it comes to the new ones.
 * After that the other device gets access, loses it, and gets it again. */

enum { PIECES = 8, PIECE_MIB = 64 };

ACT(memory_that_moved_behind_work_is_reached)
{
    const uint64_t words = PIECES / 2 * PIECE_MIB * MIB / 4;
    uint64_t piece[PIECES];
    uint32_t wrong = 0, left = 0;
    scene_start_peers(120);
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    NEW_BLOCKS(piece, PIECES, PIECE_MIB * MIB);
    REQUIRE(gpu_spin_fill(piece[0], 1024, 1, 200 * MS_NS, stream));
    for (int i = 0; i < PIECES; i += 2)
        REQUIRE(gpu_free(piece[i])); /* of no use for a block of two pieces where they are */
    uint64_t big = NEW_FILLED(words, 7, NULL);
    REQUIRE(gpu_sync());
    uint64_t after = NEW_BLOCK(2 * PIECE_MIB * MIB); /* by then the old addresses may go */

    CUcontext owner = CURRENT_CONTEXT();
    for (int round = 0; round < 3; round++) {
        REQUIRE(gpu_open(1));
        int enabled = cuCtxEnablePeerAccess(owner, 0);
        printf("enable: %d\n", enabled);
        uint64_t copy = NEW_FILLED(words, 0, NULL);
        REQUIRE(gpu_copy(copy, big, words, NULL));
        REQUIRE(gpu_sync());
        wrong += scene_wrong_words(copy, words, 7, NULL);
        REQUIRE(gpu_free(copy));
        printf("disable: %d\n", cuCtxDisablePeerAccess(owner));
        for (uint64_t at = 0; at < words * 4; at += 2 * MIB)
            left += scene_is_mapped_for(1, big + at);
        REQUIRE(gpu_open(0));
    }
    printf("%u wrong words, %u pieces still in reach\n", wrong, left);
    REQUIRE(gpu_free(big));
    REQUIRE(gpu_free(after));
    return wrong + left != 0;
}
