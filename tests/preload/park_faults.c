/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Each call of the driver that a park and a wake make fails once, at its first, second, third ..
 * time. No byte is lost: the park is refused, or the memory comes back; the program goes on, and
 * sees no error, since the wake tries again.
 */
#include "tests/preload/park.h"

#include "tests/sim/sim.h"

#include <dlfcn.h>

enum { WORDS = 256 * 1024, BLOCKS = 6, MOST = 40 };

/* Symbols whose failure is one of the library's steps. */
static const char *const symbols[] = {
    "cuMemHostRegister_v2", "cuMemHostUnregister",
    "cuStreamCreate",       "cuStreamDestroy_v2",
    "cuStreamSynchronize",  "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2", "cuCtxRecordEvent",
    "cuEventQuery",         "cuEventCreate",
    "cuMemUnmap",           "cuMemRelease",
    "cuMemCreate",          "cuMemMap",
    "cuMemSetAccess",       "cuCtxPushCurrent_v2",
    "cuMemGetInfo_v2",
};

static uint64_t blocks[BLOCKS];

static uint32_t wrong_words(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < BLOCKS; i++)
        wrong += scene_wrong_words(blocks[i], WORDS << i % 3, i + 1, NULL);
    return wrong;
}

/* A park and a use, in which the nth call fails. False: there are fewer calls. */
static bool walk(const char *symbol, unsigned nth, int code)
{
    __typeof__(simCallCount) *count = (__typeof__(count))dlsym(RTLD_DEFAULT, "simCallCount");
    __typeof__(simFail) *fail = (__typeof__(fail))dlsym(RTLD_DEFAULT, "simFail");
    __typeof__(simFailClear) *clear = (__typeof__(clear))dlsym(RTLD_DEFAULT, "simFailClear");
    uint64_t before = count(symbol);
    EXPECT(before != UINT64_MAX);
    REQUIRE(fail(symbol, nth, code));
    int parked = asker_ask("park frameworks=0");
    int woke = asker_ask("wake");
    uint64_t calls = count(symbol) - before;
    uint32_t first;
    int rc = gpu_get(&first, blocks[0], 4);
    clear(NULL);
    uint32_t wrong = rc ? 0 : wrong_words();
    if (rc || first != 1 || wrong ||
        (parked != PAGE_REPLY_DONE && parked != PAGE_REPLY_REFUSED &&
         parked != PAGE_REPLY_PARTLY)) {
        printf("%s, call %u: park %d, wake %d, the use %d, %u wrong words: %s\n", symbol, nth,
               parked, woke, rc, wrong, asker_reply());
        exit(1);
    }
    return calls >= nth;
}

static int no_byte_is_lost(void)
{
    unsigned walked = 0;
    scene_start(1, 600);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        blocks[i] = NEW_BLOCK(4 * WORDS << i % 3);
        REQUIRE(gpu_fill(blocks[i], WORDS << i % 3, i + 1, NULL));
    }
    REQUIRE(gpu_sync());
    if (!asker_page())
        return 0;
    if (!scene_simulated())
        return SCENE_SKIP;
    park();
    wake();
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        for (int code = 1; code <= 2; code++)
            for (unsigned nth = 1; nth < MOST && walk(symbols[i], nth, code); nth++)
                walked++;
    EXPECT(walked > 50);
    park();
    return wrong_words() != 0;
}

/* The driver has no memory for long: the use gets its error, nothing is lost, and a later one is
 * right. */
static int without_memory_the_use_fails_and_later_ones_are_right(void)
{
    uint32_t first = 0;
    scene_start(1, 600);
    blocks[0] = NEW_BLOCK(4 * WORDS);
    REQUIRE(gpu_fill(blocks[0], WORDS, 1, NULL));
    REQUIRE(gpu_sync());
    if (!asker_page())
        return 0;
    if (!scene_simulated())
        return SCENE_SKIP;
    __typeof__(simFailSpec) *fail = (__typeof__(fail))dlsym(RTLD_DEFAULT, "simFailSpec");
    __typeof__(simFailClear) *clear = (__typeof__(clear))dlsym(RTLD_DEFAULT, "simFailClear");
    expect_code(asker_ask("set PARK_WAIT=300ms"), PAGE_REPLY_DONE);
    park();
    REQUIRE(fail("cuMemCreate:1+:2"));
    EXPECT(gpu_get(&first, blocks[0], 4) == CUDA_ERROR_OUT_OF_MEMORY);
    expect_parked(true);
    EXPECT(gpu_get(&first, blocks[0], 4) == CUDA_ERROR_OUT_OF_MEMORY);
    clear(NULL);
    return scene_wrong_words(blocks[0], WORDS, 1, NULL) != 0;
}

SCENE_ACTS(ACT(no_byte_is_lost), ACT(without_memory_the_use_fails_and_later_ones_are_right))
