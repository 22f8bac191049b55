/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peer access: off, a copy by the driver still works; on, a kernel and a copy of one device read
 * and write the other one's memory, blocks of before and after alike; on twice and off twice give
 * their errors.
 */
#include "tests/preload/scene.h"

#include <string.h>

static uint32_t use_peer(uint64_t own, uint64_t peer, uint64_t words, uint32_t value)
{
    REQUIRE(gpu_fill(own, words, value, NULL));
    REQUIRE(gpu_copy(peer, own, words, NULL));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(peer, words, value, NULL);
    REQUIRE(gpu_fill(own, words, 0, NULL));
    REQUIRE(gpu_move(own, peer, words * 4));
    REQUIRE(gpu_sync());
    return wrong + scene_wrong_words(own, words, value, NULL);
}

/* Device 0 is current: the driver copies to and from the other device and between the two, access or not. */
static void copy_without(uint64_t own, uint64_t peer, uint64_t words)
{
    static uint32_t host[16 * KIB];
    size_t wrong = 0;
    REQUIRE(gpu_fill(own, words, 5, NULL));
    REQUIRE(gpu_sync());
    printf("without access: copy there %d", gpu_move(peer, own, words * 4));
    printf(" and back %d", gpu_move(own, peer, words * 4));
    printf(", on a stream %d", gpu_move_async(peer, own, words * 4, NULL));
    REQUIRE(gpu_sync());
    printf(", to the host %d", gpu_get_async(host, peer, words * 4, NULL));
    REQUIRE(gpu_sync());
    for (uint64_t i = 0; i < words; i++)
        wrong += host[i] != 5;
    memset(host, 6, sizeof host);
    printf(", from the host %d", gpu_put_async(peer, host, words * 4, NULL));
    REQUIRE(gpu_sync());
    printf(", back %d", gpu_move(own, peer, words * 4));
    REQUIRE(gpu_sync());
    printf(", wrong %zu and %u\n", wrong, scene_wrong_words(own, words, 0x06060606, NULL));
}

int main(void)
{
    const uint64_t words = 16 * KIB;
    bool can = false;
    uint64_t own = 0;
    uint64_t before = 0;
    uint64_t after = 0;
    uint32_t wrong = 0;
    scene_start(2, 60);
    REQUIRE(gpu_peer_can(&can, 0, 1));
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_malloc(&before, words * 4));
    REQUIRE(gpu_memset(before, 0, words * 4));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&own, words * 4));

    copy_without(own, before, words);
    if (!can) {
        printf("no peers\n");
        return 0;
    }
    printf("disable before enable: %d\n", gpu_peer_disable(1));
    printf("last error %d\n", gpu_last_error());
    for (uint32_t round = 1; round <= 3; round++) {
        printf("enable: %d\n", gpu_peer_enable(1));
        printf("enable again: %d\n", gpu_peer_enable(1));
        gpu_last_error();
        wrong += use_peer(own, before, words, round);
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_malloc(&after, (words + round * 100) * 4));
        REQUIRE(gpu_open(0));
        wrong += use_peer(own, after, words, round + 10);
        /* The owner frees it; its bytes may come back as another block, for the peer to use. */
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_free(after));
        REQUIRE(gpu_malloc(&after, words * 4));
        REQUIRE(gpu_open(0));
        wrong += use_peer(own, after, words, round + 20);
        printf("disable: %d\n", gpu_peer_disable(1));
        copy_without(own, after, words);
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_free(after));
        REQUIRE(gpu_open(0));
    }
    printf("%u wrong words\n", wrong);
    REQUIRE(gpu_free(own));
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_free(before));
    return wrong != 0;
}
