/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies and memsets in all directions, synchronous and not, from pageable and from pinned memory.
 * Blocks are freed while their last copy is still in flight. */
#include "tests/preload/scene.h"

enum { ROUNDS = 30 };

static size_t differing(const unsigned char *bytes, unsigned char value, size_t n)
{
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += bytes[i] != value;
    return wrong;
}

static size_t play(CUstream stream, unsigned char *host, unsigned char *back, size_t size_bytes)
{
    size_t wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char value = (unsigned char)(round + 1);
        memset(host, value, size_bytes);
        uint64_t a = NEW_BLOCK(size_bytes), b = NEW_BLOCK(size_bytes);
        REQUIRE(gpu_put_async(a, host, size_bytes, stream));
        REQUIRE(gpu_move_async(b, a, size_bytes, stream));
        REQUIRE(gpu_free(a));
        REQUIRE(gpu_malloc(&a, size_bytes));
        REQUIRE(gpu_memset_async(a, 0xee, size_bytes, stream));
        REQUIRE(gpu_get_async(back, b, size_bytes, stream));
        REQUIRE(gpu_stream_sync(stream));
        wrong += differing(back, value, size_bytes);
        wrong += scene_wrong_bytes(a, size_bytes, 0xee);
        REQUIRE(gpu_free(b));
        REQUIRE(gpu_free(a));
    }
    return wrong;
}

static size_t play_sync(unsigned char *host, size_t size_bytes)
{
    size_t wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char value = (unsigned char)(100 + round);
        memset(host, value, size_bytes);
        uint64_t a = NEW_BLOCK(size_bytes);
        REQUIRE(gpu_put(a, host, size_bytes));
        uint64_t b = NEW_BLOCK(size_bytes);
        REQUIRE(gpu_move(b, a, size_bytes));
        REQUIRE(gpu_free(a));
        wrong += scene_wrong_bytes(b, size_bytes, value);
        REQUIRE(gpu_memset(b, value ^ 0x55, size_bytes));
        wrong += scene_wrong_bytes(b, size_bytes, value ^ 0x55);
        REQUIRE(gpu_free(b));
    }
    return wrong;
}

int main(void)
{
    const size_t size_bytes = 32 * KIB + 12;
    void *pinned = NULL, *pinned_back = NULL;
    size_t wrong = 0;
    scene_start(1, 120);
    unsigned char *pageable = malloc(size_bytes);
    unsigned char *pageable_back = malloc(size_bytes);
    EXPECT(pageable != NULL && pageable_back != NULL);
    REQUIRE(gpu_host_alloc(&pinned, size_bytes));
    REQUIRE(gpu_host_alloc(&pinned_back, size_bytes));
    CUstream stream = NEW_STREAM(false);

    size_t here = play_sync(pageable, size_bytes);
    printf("synchronous: %zu wrong bytes\n", here);
    wrong += here;
    here = play(stream, pinned, pinned_back, size_bytes);
    printf("asynchronous, pinned: %zu wrong bytes\n", here);
    wrong += here;
    here = play(NULL, pageable, pageable_back, size_bytes);
    printf("asynchronous, pageable: %zu wrong bytes\n", here);
    wrong += here;

    REQUIRE(gpu_stream_destroy(stream));
    REQUIRE(gpu_host_free(pinned));
    REQUIRE(gpu_host_free(pinned_back));
    free(pageable);
    free(pageable_back);
    return wrong != 0;
}
