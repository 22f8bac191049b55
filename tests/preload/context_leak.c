/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Very many contexts one after the other, each with memory of several sizes, some of it left to its
 * end: the process does not grow with them.
 */
#include "tests/preload/scene.h"

#include <unistd.h>

/* The first ones may leave what the others then use. A simulated context leaves a few hundred
 * bytes, under a sanitizer some thousand. */
enum { FIRST = 50, CONTEXTS = 800, CONTEXTS_REAL = 60, SIZES = 6, GROWN_MAX_BYTES = 8192 };

static size_t resident_bytes(void)
{
    unsigned long all = 0;
    unsigned long resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    EXPECT(file != NULL && fscanf(file, "%lu %lu", &all, &resident) == 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void use_one(uint32_t number)
{
    static const size_t sizes[SIZES] = {512, 5000, 40 * KIB, 700 * KIB, 3 * MIB, 9 * MIB};
    CUcontext context = NULL;
    uint64_t blocks[2 * SIZES];
    uint32_t host = 0;
    REQUIRE(cuCtxCreate(&context, NULL, 0, 0));
    for (int i = 0; i < 2 * SIZES; i++)
        REQUIRE(gpu_malloc(&blocks[i], sizes[i % SIZES]));
    REQUIRE(gpu_put(blocks[0], &number, sizeof number));
    REQUIRE(gpu_get(&host, blocks[0], sizeof host));
    EXPECT(host == number);
    for (int i = 0; i < SIZES; i++)
        REQUIRE(gpu_free(blocks[i]));
    REQUIRE(cuCtxDestroy(context));
}

int main(void)
{
    size_t before = 0;
    scene_start(1, 200);
    uint32_t contexts = scene_simulated() ? CONTEXTS : CONTEXTS_REAL;
    for (uint32_t number = 0; number < contexts; number++) {
        if (number == FIRST)
            before = resident_bytes();
        use_one(number);
    }
    size_t after = resident_bytes();
    size_t grown = after > before ? (after - before) / (contexts - FIRST) : 0;
    /* A real driver keeps what it likes. */
    bool much = scene_simulated() && grown > GROWN_MAX_BYTES;
    printf("the process has grown %s with each\n", much ? "much" : "by next to nothing");
    if (much)
        printf("%zu bytes\n", grown);
    return much;
}
