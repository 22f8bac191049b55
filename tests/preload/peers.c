/* SPDX-License-Identifier: BSD-2-Clause */
/* Two devices in one program, and access of one to the memory of the other. */
#include "tests/preload/scene.h"

/* A program has blocks of two devices at once. It uses and frees each while its own or the other
 * device is current. Each device has its own free memory. */

enum { TURNS = 12, DEVICES = 2 };

static int on_device(int index, void *context)
{
    const uint64_t words = 8 * KIB;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(index % DEVICES));
    for (int i = 0; i < TURNS; i++) {
        uint64_t block = NEW_FILLED(words, (uint32_t)(index * 100 + i), NULL);
        wrong += scene_device_of(block) != index % DEVICES;
        wrong += scene_wrong_words(block, words, (uint32_t)(index * 100 + i), NULL);
        REQUIRE(gpu_free(block));
    }
    return (int)wrong;
}

ACT(each_device_has_its_own_memory)
{
    const uint64_t words = 32 * KIB;
    uint64_t block[DEVICES];
    uint32_t wrong = 0;
    size_t free_bytes[DEVICES];
    scene_start(DEVICES, 120);
    for (int round = 0; round < TURNS; round++) {
        for (int i = 0; i < DEVICES; i++) {
            REQUIRE(gpu_open(i));
            block[i] = NEW_FILLED(words, (uint32_t)(round * 2 + i), NULL);
        }
        for (int i = 0; i < DEVICES; i++) {
            REQUIRE(gpu_open(i));
            wrong += scene_wrong_words(block[i], words, (uint32_t)(round * 2 + i), NULL);
        }
        for (int i = 0; i < DEVICES; i++) {
            /* Odd rounds free each block while the other device is current. */
            REQUIRE(gpu_open(round % 2 == 0 ? i : DEVICES - 1 - i));
            REQUIRE(gpu_free(block[i]));
        }
    }
    printf("in turn: %u wrong words\n", wrong);

    for (int i = 0; i < DEVICES; i++) {
        REQUIRE(gpu_open(i));
        free_bytes[i] = FREE_BYTES();
    }
    REQUIRE(gpu_open(0));
    block[0] = NEW_BLOCK(300 * MIB);
    size_t during = FREE_BYTES();
    printf("device 0 %s them\n", during + 300 * MIB <= free_bytes[0] + 2 * MIB ? "misses" : "has");
    REQUIRE(gpu_open(1));
    during = FREE_BYTES();
    printf("device 1 %s them\n", during + 100 * MIB <= free_bytes[1] ? "misses" : "has");
    REQUIRE(gpu_free(block[0]));

    int threads = scene_threads(6, on_device, NULL);
    printf("in threads: %d wrong words\n", threads);
    return wrong + (uint32_t)threads != 0;
}

/* Without peer access a copy by the driver still works. With it a kernel and a copy of one device
 * read and write the other one's memory, in earlier and later blocks. To enable or disable it twice
 * gives the driver's errors. */

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

/* Device 0 is current: the driver copies to and from the other device and between the two, access
 * or not. */
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

ACT(access_goes_for_blocks_of_before_and_after)
{
    const uint64_t words = 16 * KIB;
    bool can = false;
    uint32_t wrong = 0;
    scene_start(2, 60);
    REQUIRE(gpu_peer_can(&can, 0, 1));
    REQUIRE(gpu_open(1));
    uint64_t before = NEW_BLOCK(words * 4);
    REQUIRE(gpu_memset(before, 0, words * 4));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    uint64_t own = NEW_BLOCK(words * 4);

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
        uint64_t after = NEW_BLOCK((words + round * 100) * 4);
        REQUIRE(gpu_open(0));
        wrong += use_peer(own, after, words, round + 10);
        /* The owner frees it; its bytes may come back as another block, for the peer to use. */
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_free(after));
        after = NEW_BLOCK(words * 4);
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
    return wrong != 0;
}

/* Peer access belongs to a pair of contexts. Two contexts of device 0 may have access to device 1.
 * If one of them loses it or ends, the other keeps it. A context that was reset starts without
 * access. This is tried with earlier and later blocks, small and large. */

static uint64_t small;
static uint64_t large;
static const uint64_t peer_words = 16 * KIB;

/* What the driver says of the access of the current context's device (always all, for its own
 * memory). Also looks whether device 0 reaches mapped memory as it should. */
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
    uint64_t own = NEW_FILLED(peer_words, value, NULL);
    REQUIRE(gpu_copy(large, own, peer_words, NULL));
    REQUIRE(gpu_sync());
    uint32_t wrong = scene_wrong_words(large, peer_words, value, NULL);
    REQUIRE(gpu_free(own));
    return wrong;
}

ACT(access_is_a_matter_of_contexts)
{
    uint32_t wrong = 0;
    scene_start_peers(60);
    REQUIRE(gpu_open(1));
    CUcontext peer = CURRENT_CONTEXT();
    small = NEW_BLOCK(4096);
    large = NEW_BLOCK(8 * MIB);
    REQUIRE(gpu_memset(large, 0, 8 * MIB));
    REQUIRE(gpu_sync());
    CUcontext second = NEW_CONTEXT();
    REQUIRE(gpu_open(0));
    CUcontext first = CURRENT_CONTEXT();

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
    large = NEW_BLOCK(40 * MIB);
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
    printf("%u wrong peer_words\n", wrong);
    return wrong != 0;
}

/* A copy without peer access reaches a third device. Before that device gets its block, MANY
 * contexts of the second device get one each. */

enum { MANY = 70 };

ACT(many_contexts_of_one_device_hide_no_other_device)
{
    const uint64_t words = 16 * KIB;
    CUcontext own[MANY];
    uint64_t block[3];
    REQUIRE(setenv("SIM_DEVICES", "3", 0));
    scene_start(3, 120);
    for (int i = 0; i < MANY; i++) {
        REQUIRE(cuCtxCreate(&own[i], NULL, 0, 1));
        NEW_BLOCK(64 * KIB);
        REQUIRE(cuCtxPopCurrent(NULL));
    }
    for (int i = 2; i >= 0; i -= 2) {
        REQUIRE(gpu_open(i));
        block[i] = NEW_FILLED(words, 3 + (uint32_t)i, NULL);
        REQUIRE(gpu_sync());
    }
    printf("copy there %d", gpu_move(block[2], block[0], words * 4));
    printf(", back %d", gpu_move(block[0], block[2], words * 4));
    uint32_t wrong = scene_wrong_words(block[0], words, 3, NULL);
    printf(", %u wrong words\n", wrong);
    for (int i = 0; i < MANY; i++)
        REQUIRE(cuCtxDestroy(own[i]));
    return wrong != 0;
}

/* Some contexts of each device have access to some of other devices, and each copies a block of
 * every device to the host. */

enum { DEVICES_MOST = 16, CONTEXTS_EACH = 3 };

ACT(each_of_many_contexts_copies_from_every_device)
{
    const uint64_t words = 16 * KIB;
    static CUcontext own[DEVICES_MOST * CONTEXTS_EACH];
    static uint64_t block[DEVICES_MOST * CONTEXTS_EACH];
    int devices = 0, made = 0, enabled = 0, failed = 0;
    REQUIRE(setenv("SIM_DEVICES", "16", 0));
    scene_start(2, 300);
    REQUIRE(gpu_device_count(&devices));
    devices = devices < DEVICES_MOST ? devices : DEVICES_MOST;
    for (int d = 0; d < devices; d++)
        for (int i = 0; i < CONTEXTS_EACH; i++, made++) {
            if (i == 0)
                REQUIRE(gpu_open(d));
            own[made] = i == 0 ? CURRENT_CONTEXT() : NEW_CONTEXT();
            block[made] = NEW_FILLED(words, (uint32_t)made, NULL);
            REQUIRE(gpu_sync());
        }
    for (int k = 0; k < made; k++) {
        REQUIRE(cuCtxSetCurrent(own[k]));
        for (int i = k % 2; i < made; i += 2)
            enabled += cuCtxEnablePeerAccess(own[i], 0) == CUDA_SUCCESS;
    }
    for (int k = 0; k < made; k++) {
        REQUIRE(cuCtxSetCurrent(own[k]));
        for (int i = 0; i < made; i++) {
            uint32_t word = UINT32_MAX;
            int rc = cuMemcpyDtoH(&word, block[i] + 4096, sizeof word);
            failed += rc != 0 || word != (uint32_t)i;
        }
    }
    printf("%d contexts, %d enabled, %d copies failed\n", made, enabled, failed);
    return failed != 0;
}

/* Threads copy blocks of another device for the first time, each one a moment after the one
 * before. With many blocks they meet in the midst of what the first copy takes, with one block
 * behind it. */

enum { BESIDE = 4, BLOCKS = 48 };

struct first_copies {
    pthread_barrier_t begin;
    uint64_t block[BLOCKS];
    int device, count; /* the current one; of blocks of the other one */
};

static int copy_first(int index, void *context)
{
    struct first_copies *f = context;
    int failed = 0;
    REQUIRE(gpu_open(f->device));
    pthread_barrier_wait(&f->begin);
    scene_sleep_ms((unsigned)index);
    for (int i = 0; i < f->count; i++) {
        int at = index % 2 == 0 ? i : f->count - 1 - i;
        uint32_t word = UINT32_MAX;
        int rc = cuMemcpyDtoH(&word, f->block[at], sizeof word);
        failed += rc != 0 || word != (uint32_t)at;
    }
    return failed;
}

ACT(first_copies_of_threads_do_not_fail)
{
    static struct first_copies f;
    int failed = 0;
    REQUIRE(setenv("SIM_REALTIME", "1", 0));
    REQUIRE(setenv("SIM_COST_cuMemSetAccess", "200000", 0));
    REQUIRE(setenv("SIM_COST_cuCtxGetDevice", "3000000", 0));
    scene_start(2, 120);
    pthread_barrier_init(&f.begin, NULL, BESIDE);
    for (f.device = 0; f.device < 2; f.device++) {
        f.count = f.device == 0 ? BLOCKS : 1;
        REQUIRE(gpu_open(1 - f.device));
        for (int i = 0; i < f.count; i++)
            f.block[i] = NEW_FILLED(MIB, (uint32_t)i, NULL);
        REQUIRE(gpu_sync());
        failed += scene_threads(BESIDE, copy_first, &f);
    }
    printf("%d copies failed\n", failed);
    return failed != 0;
}

/* A block of one device comes while a copy from another one gives access to all devices. */

static void *make_block(void *out)
{
    uint64_t *block = out;
    REQUIRE(gpu_open(1));
    *block = NEW_BLOCK(64 * KIB);
    return NULL;
}

ACT(a_block_that_comes_while_access_is_given_is_reached)
{
    pthread_t maker;
    uint64_t made = 0;
    uint32_t word = 0, ones = UINT32_MAX;
    REQUIRE(setenv("SIM_DEVICES", "3", 0));
    REQUIRE(setenv("SIM_REALTIME", "1", 0));
    REQUIRE(setenv("SIM_COST_cuMemSetAccess", "100000000", 0));
    scene_start(3, 120);
    REQUIRE(gpu_open(2));
    uint64_t block = NEW_FILLED(16, 3, NULL);
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    REQUIRE(pthread_create(&maker, NULL, make_block, &made));
    scene_sleep_ms(50);
    printf("copies: %d", cuMemcpyDtoH(&word, block, sizeof word));
    REQUIRE(pthread_join(maker, NULL));
    printf(" and %d", cuMemcpyHtoD(made, &ones, sizeof ones));
    printf(" and %d\n", cuMemcpyDtoH(&ones, made, sizeof ones));
    return word != 3 || ones != UINT32_MAX;
}

/* Threads make contexts, copy blocks of another device in each, and end it, so access of their
 * device is granted and taken away all the time. */

enum { MAKERS = 8, MAKERS_MS = 2000 };

static int copy_in_own_contexts(int index, void *context)
{
    const struct first_copies *f = context;
    int failed = 0;
    uint64_t begin_ns = scene_now_ns();
    for (unsigned round = 0; scene_now_ns() - begin_ns < MAKERS_MS * MS_NS && !failed; round++) {
        CUcontext own;
        REQUIRE(cuCtxCreate(&own, NULL, 0, 1));
        for (unsigned i = 0; i < 3; i++) {
            unsigned at = (round * 3 + i * 7 + (unsigned)index) % BLOCKS;
            uint32_t word = UINT32_MAX;
            int rc = cuMemcpyDtoH(&word, f->block[at], sizeof word);
            failed += rc != 0 || word != at;
        }
        REQUIRE(cuCtxDestroy(own));
    }
    return failed;
}

ACT(first_copies_beside_ends_of_contexts_do_not_fail)
{
    static struct first_copies f;
    REQUIRE(setenv("SIM_REALTIME", "1", 0));
    REQUIRE(setenv("SIM_COST_cuMemSetAccess", "10000", 0));
    scene_start(2, 120);
    REQUIRE(gpu_open(0));
    for (int i = 0; i < BLOCKS; i++)
        f.block[i] = NEW_FILLED(MIB, (uint32_t)i, NULL);
    REQUIRE(gpu_sync());
    int failed = scene_threads(MAKERS, copy_in_own_contexts, &f);
    printf("%d copies failed\n", failed);
    return failed != 0;
}
