/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Peer access is a matter of contexts: two of device 0 may be allowed on device 1, and one's ban or end
 * is not the other's; a context that was reset starts without any; for memory of before and after, small
 * and large.
 */
#include "tests/preload/scene.h"

static uint64_t small;
static uint64_t large;
static const uint64_t words = 16 * KIB;

/* What the driver says of the access of the current context's device (always all, for its own memory), and
 * whether mapped memory is really open to device 0 as it should be. */
static void tell(const char *what, bool open)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    unsigned flags[2] = {9, 9};
    unsigned long long access[2] = {9, 9};
    bool right = true;
    REQUIRE(cuPointerGetAttribute(&flags[0], CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, small));
    REQUIRE(cuPointerGetAttribute(&flags[1], CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, large));
    /* Memory that is not mapped has no such rights. */
    if (cuMemGetAccess(&access[0], &location, small) == CUDA_SUCCESS)
        right &= (access[0] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == open;
    if (cuMemGetAccess(&access[1], &location, large) == CUDA_SUCCESS)
        right &= (access[1] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == open;
    printf("%s: small %u, large %u, %s\n", what, flags[0], flags[1], right ? "right" : "wrong");
}

static uint32_t reach(uint32_t value)
{
    uint64_t own = 0;
    REQUIRE(gpu_malloc(&own, words * 4));
    REQUIRE(gpu_fill(own, words, value, NULL));
    REQUIRE(gpu_copy(large, own, words, NULL));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(large, words, value, NULL);
    REQUIRE(gpu_free(own));
    return wrong;
}

int main(void)
{
    CUcontext first = NULL;
    CUcontext second = NULL;
    CUcontext peer = NULL;
    bool can = false;
    uint32_t wrong = 0;
    scene_start(2, 60);
    REQUIRE(gpu_peer_can(&can, 0, 1));
    if (!can)
        scene_skip("the devices are no peers");
    REQUIRE(gpu_open(1));
    REQUIRE(cuCtxGetCurrent(&peer));
    REQUIRE(gpu_malloc(&small, 4096));
    REQUIRE(gpu_malloc(&large, 8 * MIB));
    REQUIRE(gpu_memset(large, 0, 8 * MIB));
    REQUIRE(gpu_sync());
    REQUIRE(cuCtxCreate(&second, NULL, 0, 0));
    REQUIRE(gpu_open(0));
    REQUIRE(cuCtxGetCurrent(&first));

    tell("before", false);
    printf("first enables: %d\n", gpu_peer_enable(1));
    tell("first", true);
    wrong += reach(1);
    REQUIRE(cuCtxSetCurrent(second));
    printf("second enables: %d\n", gpu_peer_enable(1));
    wrong += reach(2);
    REQUIRE(cuCtxSetCurrent(first));
    printf("first disables: %d\n", gpu_peer_disable(1));
    REQUIRE(cuCtxSetCurrent(second));
    tell("second", true);
    wrong += reach(3);
    REQUIRE(cuCtxSetCurrent(peer));
    REQUIRE(gpu_free(large));
    REQUIRE(gpu_malloc(&large, 40 * MIB));
    REQUIRE(cuCtxSetCurrent(second));
    tell("second, a new block", true);
    wrong += reach(4);

    /* The first one again; the second one's end leaves it what it has. */
    REQUIRE(cuCtxSetCurrent(first));
    printf("first enables again: %d\n", gpu_peer_enable(1));
    REQUIRE(cuCtxDestroy(second));
    tell("first, alone", true);
    wrong += reach(5);
    printf("reset: %d\n", gpu_reset());
    REQUIRE(gpu_open(0));
    tell("after the reset", false);
    printf("enables: %d\n", gpu_peer_enable(1));
    wrong += reach(6);
    printf("disables: %d\n", gpu_peer_disable(1));
    printf("disables again: %d\n", gpu_peer_disable(1));
    tell("in the end", false);
    printf("%u wrong words\n", wrong);
    return wrong != 0;
}
