/* SPDX-License-Identifier: BSD-2-Clause */
/* Single blocks beside other kinds of memory, what is said of them, and a reset. */
#include "tests/preload/scene.h"

/* Pitched allocations: the pitch is the driver's, the rows are the program's, the size is theirs.
 */

ACT(pitch)
{
    static const struct {
        size_t width_bytes, height;
    } shapes[] = {{1, 1},   {4, 100},  {100, 7},  {511, 3},
                  {512, 3}, {513, 64}, {4096, 1}, {100000, 5}};
    int wrong = 0;
    scene_start(1, 60);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint64_t block = 0, base = 0;
            size_t pitch_bytes = 0, size_bytes = 0;
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

/* What the driver says of a pointer into device memory: the allocation in which it lies, its kind
 * and its device. The pointer is the allocation's base, its middle or its last byte. Of a freed
 * one the driver says nothing. */

static void describe(const char *what, uint64_t block, size_t size_bytes, uint64_t address)
{
    uint64_t base = 0;
    size_t range_bytes = 0;
    bool is_device = false;
    int device = -1;
    int rc = gpu_address_range(&base, &range_bytes, address);
    printf("%s: %d, base %s, %s", what, rc, base == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size");
    gpu_last_error();
    rc = gpu_pointer_is_device(&is_device, &device, address);
    printf("; attributes %d, %s memory of device %d\n", rc, is_device ? "device" : "no device",
           device);
}

ACT(pointers)
{
    static const size_t sizes[] = {512, 5000, 1 * MIB, 2 * MIB, 7 * MIB, 40 * MIB};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t blocks[SIZES];
    scene_start(1, 60);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SIZES; i++)
            blocks[i] = NEW_BLOCK(sizes[i]);
        for (int i = 0; i < SIZES; i++) {
            printf("%zu bytes\n", sizes[i]);
            describe("  base", blocks[i], sizes[i], blocks[i]);
            describe("  middle", blocks[i], sizes[i], blocks[i] + sizes[i] / 2);
            describe("  last", blocks[i], sizes[i], blocks[i] + sizes[i] - 1);
        }
        /* Behind the end, as far as rounding goes, there is no block. */
        describe("one past the end", blocks[1], sizes[1], blocks[1] + sizes[1]);
        describe("rounded up", blocks[1], sizes[1], blocks[1] + 5119);
        FREE_ALL(blocks, SIZES);
    }

    void *host = NULL;
    bool is_device = true;
    int device = -1;
    uint64_t base = 0;
    size_t size_bytes = 0;
    REQUIRE(gpu_host_alloc(&host, 4096));
    printf("host: %d, %s memory\n",
           gpu_pointer_is_device(&is_device, &device, (uint64_t)(uintptr_t)host),
           is_device ? "device" : "no device");
    printf("freed: %d\n", gpu_address_range(&base, &size_bytes, blocks[SIZES - 1] + 4096));
    printf("wild: %d\n", gpu_address_range(&base, &size_bytes, 0x1234000));
    printf("no arguments: %d\n", gpu_address_range(&base, NULL, 0x1234000));
    return 0;
}

/* Allocating, launching and freeing leave errno as it was, once the first calls are done. */

ACT(errno_kept)
{
    int changed = 0;
    scene_start(1, 60);
    for (int i = 0; i < 200; i++) {
        size_t free_bytes = 0, total_bytes = 0;
        size_t size_bytes = (size_t)(1 + i % 20) * 300 * KIB;
        errno = EXDEV;
        uint64_t block = NEW_BLOCK(size_bytes);
        /* The driver itself may change it on a call that really reaches it. */
        changed += i >= 20 && scene_preloaded() && errno != EXDEV;
        errno = EXDEV;
        REQUIRE(gpu_fill(block, 16, 1, NULL));
        changed += i >= 20 && scene_preloaded() && scene_simulated() && errno != EXDEV;
        errno = EXDEV;
        REQUIRE(gpu_free(block));
        changed += i >= 20 && scene_preloaded() && errno != EXDEV;
        REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
    }
    printf("changed %d times\n", changed);
    return changed != 0;
}

/* The stream-ordered allocator beside the plain one. Its own blocks pass through. A plain block
 * may be freed in stream order, and a stream-ordered block plainly. */

enum { ROUNDS = 30 };

ACT(free_async)
{
    const uint64_t words = 8 * KIB;
    uint32_t wrong = 0;
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t ordered = 0, both = 0;
        uint64_t plain = NEW_BLOCK(words * 4);
        REQUIRE(gpu_malloc_async(&ordered, words * 4, stream));
        REQUIRE(gpu_malloc_async(&both, words * 4, stream));
        REQUIRE(gpu_fill(ordered, words, round, stream));
        REQUIRE(gpu_copy(plain, ordered, words, stream));
        REQUIRE(gpu_free_async(ordered, stream));
        REQUIRE(gpu_fill(both, words, round + 1, stream));
        wrong += scene_wrong_words(plain, words, round, stream);
        wrong += scene_wrong_words(both, words, round + 1, stream);
        REQUIRE(gpu_spin_fill(plain, words, 0xbad, 10000, stream));
        REQUIRE(gpu_free_async(plain, stream));
        REQUIRE(gpu_free(both));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_stream_destroy(stream));
    printf("last error %d\n", gpu_last_error());
    return wrong != 0;
}

/* cudaDeviceReset with live and with idle blocks, and a life after it: the memory is back, the old
 * pointers are dead, new ones are good. */

ACT(reset)
{
    const uint64_t words = 32 * KIB;
    uint32_t wrong = 0;
    size_t first_free = 0, total = 0;
    scene_start(1, 60);
    for (int round = 0; round < 4; round++) {
        uint64_t live[3];
        size_t free_bytes = 0;
        REQUIRE(gpu_mem_info(&free_bytes, &total));
        if (round == 0)
            first_free = free_bytes;
        printf("round %d: %s is free\n", round,
               free_bytes + 32 * MIB >= first_free ? "all" : "less");
        for (int i = 0; i < 3; i++) {
            live[i] = NEW_BLOCK((uint64_t)(1 + i) * 4 * MIB);
            REQUIRE(gpu_fill(live[i], words, (uint32_t)i, NULL));
        }
        TAKE_AND_GIVE(48 * MIB);
        for (int i = 0; i < 3; i++)
            wrong += scene_wrong_words(live[i], words, (uint32_t)i, NULL);
        printf("reset: %d\n", gpu_reset());
        REQUIRE(gpu_open(0));
        printf("free of a block of before: %d\n", gpu_free(live[0]));
        gpu_last_error();
    }
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
