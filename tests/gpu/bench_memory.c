/* SPDX-License-Identifier: BSD-2-Clause
 *
 * How fast the GPU and the copy engines reach device memory, by how that memory was made. Reads one
 * request a line on stdin:
 *   free                     bytes that the driver calls free        -> BYTES
 *   make SLOT FORM BYTES     memory in one of SLOTS places           -> made NS ADDRESS
 *   measure SLOT             one round of all figures                -> the numbers of measure()
 *   drop SLOT                gives the memory back to its allocator  -> dropped NS
 * NS is what the request took. Forms:
 *   malloc         one block of cuMemAlloc
 *   blocks:SIZE    the same, after blocks of that size, as many bytes together, came and went
 *   churn          the same, after blocks of 1 to 64 MiB came and went in a random order
 *   mapped:CHUNK   physical chunks of that size, mapped side by side, from a multiple of 1 GiB on
 *   shifted:CHUNK  the same, 2 MiB further on
 * Every range is one contiguous range of addresses. The allocator is malloc.
 */
#include "tests/gpu/bench_allocator.h"
#include "tests/gpu/bench_gpu.h"
#include "tests/gpu/bench_stat.h"
#include "tests/gpu/driver.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

enum {
    SLOTS = 16,
    /* One run before those that are timed fills the caches of translations. */
    RUNS = 3,
    /* 2^26 loads in all: above 10 ms on an H100. */
    GATHER_BLOCKS = 2048,
    GATHER_THREADS = 256,
    GATHER_LOADS = 128,
    /* One after the other, of one thread: some 8 ms. */
    CHASE_LOADS = 8192,
    /* Pieces of a host copy, spread over the range. */
    PIECES = 4,
    CHURN_BLOCKS_MAX = 1 << 16,
};

/* gather: each thread loads k words (a multiple of 4) at random places of n words at p.
 * chase:  one thread loads k words one after the other; each place depends on the word before.
 * stream: copies n pieces of 16 bytes.
 * The kernels store what the loads give at o, so that the compiler keeps them: chase always, gather
 * in the unlikely case that the words add up to one value. The random numbers are those of a linear
 * congruential generator, of whose upper bits the place is made; s is its start. */
#define NEXT_PLACE(load)                                                                           \
    "mul.hi.u64 %d11, %d6, %d5;\n"                                                                 \
    "shl.b64 %d11, %d11, 2;\n"                                                                     \
    "add.u64 %d12, %d4, %d11;\n"                                                                   \
    "ld.global.u32 " load ", [%d12];\n"                                                            \
    "mad.lo.u64 %d6, %d6, %d13, %d14;\n"
#define PREPARE                                                                                    \
    "{\n.reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %d<16>;\n"                                   \
    "mov.u32 %r1, %ctaid.x;\n"                                                                     \
    "mov.u32 %r2, %ntid.x;\n"                                                                      \
    "mov.u32 %r3, %tid.x;\n"                                                                       \
    "mov.u32 %r4, %nctaid.x;\n"                                                                    \
    "mul.wide.u32 %d1, %r1, %r2;\n"                                                                \
    "cvt.u64.u32 %d3, %r3;\n"                                                                      \
    "add.u64 %d1, %d1, %d3;\n"                                                                     \
    "mul.wide.u32 %d2, %r4, %r2;\n"                                                                \
    "ld.param.u64 %d4, [p];\n"                                                                     \
    "ld.param.u64 %d5, [n];\n"
#define PREPARE_RANDOM                                                                             \
    PREPARE                                                                                        \
    "ld.param.u64 %d7, [k];\n"                                                                     \
    "ld.param.u64 %d6, [s];\n"                                                                     \
    "ld.param.u64 %d8, [o];\n"                                                                     \
    "mov.u64 %d13, 6364136223846793005;\n"                                                         \
    "mov.u64 %d14, 1442695040888963407;\n"                                                         \
    "mov.u32 %r5, 0;\n"                                                                            \
    "mad.lo.u64 %d6, %d1, 0x9E3779B97F4A7C15, %d6;\n"                                              \
    "shr.u64 %d9, %d6, 29;\n"                                                                      \
    "xor.b64 %d6, %d6, %d9;\n"                                                                     \
    "mul.lo.u64 %d6, %d6, 0xBF58476D1CE4E5B9;\n"                                                   \
    "shr.u64 %d9, %d6, 32;\n"                                                                      \
    "xor.b64 %d6, %d6, %d9;\n"

/* clang-format off */
static const char memory_ptx[] =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"

    ".visible .entry gather(.param .u64 p, .param .u64 n, .param .u64 k, .param .u64 s,\n"
    ".param .u64 o)\n"
    PREPARE_RANDOM
    "LOOP:\n"
    NEXT_PLACE("%r6")
    NEXT_PLACE("%r7")
    NEXT_PLACE("%r8")
    NEXT_PLACE("%r9")
    "add.u32 %r6, %r6, %r7;\n"
    "add.u32 %r8, %r8, %r9;\n"
    "add.u32 %r6, %r6, %r8;\n"
    "add.u32 %r5, %r5, %r6;\n"
    "sub.u64 %d7, %d7, 4;\n"
    "setp.gt.s64 %p1, %d7, 0;\n"
    "@%p1 bra LOOP;\n"
    "setp.ne.u32 %p1, %r5, 0x5bd1e995;\n"
    "@%p1 ret;\n"
    "st.global.u32 [%d8], %r5;\n"
    "ret;\n}\n"

    ".visible .entry chase(.param .u64 p, .param .u64 n, .param .u64 k, .param .u64 s,\n"
    ".param .u64 o)\n"
    PREPARE_RANDOM
    "LOOP:\n"
    NEXT_PLACE("%r6")
    "cvt.u64.u32 %d9, %r6;\n"
    "add.u64 %d6, %d6, %d9;\n"
    "sub.u64 %d7, %d7, 1;\n"
    "setp.gt.s64 %p1, %d7, 0;\n"
    "@%p1 bra LOOP;\n"
    "cvt.u32.u64 %r5, %d6;\n"
    "st.global.u32 [%d8], %r5;\n"
    "ret;\n}\n"

    ".visible .entry stream(.param .u64 p, .param .u64 n, .param .u64 q)\n"
    PREPARE
    "ld.param.u64 %d8, [q];\n"
    "LOOP:\n"
    "setp.ge.u64 %p1, %d1, %d5;\n"
    "@%p1 bra DONE;\n"
    "shl.b64 %d11, %d1, 4;\n"
    "add.u64 %d12, %d8, %d11;\n"
    "ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%d12];\n"
    "add.u64 %d12, %d4, %d11;\n"
    "st.global.v4.u32 [%d12], {%r6, %r7, %r8, %r9};\n"
    "add.u64 %d1, %d1, %d2;\n"
    "bra LOOP;\n"
    "DONE:\n"
    "ret;\n}\n";
/* clang-format on */

struct slot {
    CUdeviceptr base;
    uint64_t size_bytes;
    /* of mapped memory; 0 chunks for a block of cuMemAlloc */
    CUmemGenericAllocationHandle *chunks;
    uint64_t chunk_count, chunk_bytes;
    CUdeviceptr range;
    uint64_t range_bytes;
};

static struct memory {
    CUfunction gather, chase, stream;
    CUdeviceptr out; /* a word that the kernels may write */
    void *host;      /* pinned */
    uint64_t host_bytes;
    CUcontext own, other; /* other: of device 1, if both devices reach each other */
    CUdeviceptr peer;     /* host_bytes there */
    uint64_t seed;
    struct slot slots[SLOTS];
} memory;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* xorshift64*: enough to mix sizes and orders. */
static uint64_t random_u64(void)
{
    memory.seed ^= memory.seed >> 12;
    memory.seed ^= memory.seed << 25;
    memory.seed ^= memory.seed >> 27;
    return memory.seed * UINT64_C(0x2545F4914F6CDD1D);
}

/* --- making memory -------------------------------------------------------------------------- */

static void take_and_free_blocks(uint64_t size_bytes, uint64_t block_bytes)
{
    uint64_t count = size_bytes / block_bytes;
    CUdeviceptr *blocks = calloc(count + 1, sizeof *blocks);

    for (uint64_t i = 0; i < count; i++)
        DRIVER_CHECK(driver.cuMemAlloc_v2(&blocks[i], block_bytes));
    for (uint64_t i = 0; i < count; i++)
        DRIVER_CHECK(driver.cuMemFree_v2(blocks[i]));
    free(blocks);
}

/* Keeps up to half of the size alive and takes four times the size in all. */
static void churn(uint64_t size_bytes)
{
    static struct {
        CUdeviceptr block;
        uint64_t size_bytes;
    } live[CHURN_BLOCKS_MAX];
    uint64_t count = 0, live_bytes = 0, taken_bytes = 0;

    while (taken_bytes < 4 * size_bytes) {
        uint64_t want_bytes = MIB + random_u64() % (min_u64(63 * MIB, size_bytes / 8));

        while (count && (live_bytes + want_bytes > size_bytes / 2 || count == CHURN_BLOCKS_MAX)) {
            uint64_t i = random_u64() % count;

            DRIVER_CHECK(driver.cuMemFree_v2(live[i].block));
            live_bytes -= live[i].size_bytes;
            live[i] = live[--count];
        }
        DRIVER_CHECK(driver.cuMemAlloc_v2(&live[count].block, want_bytes));
        live[count++].size_bytes = want_bytes;
        live_bytes += want_bytes;
        taken_bytes += want_bytes;
    }
    while (count)
        DRIVER_CHECK(driver.cuMemFree_v2(live[--count].block));
}

static void map(struct slot *slot, uint64_t chunk_bytes, uint64_t shift_bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access[2];

    for (int device = 0; device < 2; device++) {
        access[device] = (CUmemAccessDesc){.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        access[device].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[device].location.id = device;
    }
    prop.location = access[0].location;
    slot->chunk_bytes = chunk_bytes;
    slot->chunks = calloc(slot->size_bytes / chunk_bytes + 1, sizeof *slot->chunks);
    slot->range_bytes = slot->size_bytes + 2 * GIB;
    DRIVER_CHECK(driver.cuMemAddressReserve(&slot->range, slot->range_bytes, 0, 0, 0));
    slot->base = (slot->range + GIB - 1) / GIB * GIB + shift_bytes;
    for (uint64_t at = 0; at < slot->size_bytes; at += chunk_bytes) {
        CUmemGenericAllocationHandle *chunk = &slot->chunks[slot->chunk_count++];
        uint64_t now_bytes = min_u64(chunk_bytes, slot->size_bytes - at);

        DRIVER_CHECK(driver.cuMemCreate(chunk, now_bytes, &prop, 0));
        DRIVER_CHECK(driver.cuMemMap(slot->base + at, now_bytes, 0, *chunk, 0));
    }
    DRIVER_CHECK(driver.cuMemSetAccess(slot->base, slot->size_bytes, access, memory.other ? 2 : 1));
}

/* The number behind the colon of a form; a form without one ends the program. */
static uint64_t form_bytes(const char *form)
{
    const char *colon = strchr(form, ':');
    uint64_t bytes = colon ? strtoull(colon + 1, NULL, 10) : 0;

    if (!bytes) {
        fprintf(stderr, "bench: no such form: %s\n", form);
        exit(2);
    }
    return bytes;
}

static void make(struct slot *slot, const char *form, uint64_t size_bytes)
{
    *slot = (struct slot){.size_bytes = size_bytes};
    if (!strncmp(form, "mapped:", 7)) {
        map(slot, form_bytes(form), 0);
    } else if (!strncmp(form, "shifted:", 8)) {
        map(slot, form_bytes(form), 2 * MIB);
    } else {
        if (!strcmp(form, "churn"))
            churn(size_bytes);
        else if (strcmp(form, "malloc"))
            take_and_free_blocks(size_bytes, form_bytes(form));
        DRIVER_CHECK(driver.cuMemAlloc_v2(&slot->base, size_bytes));
    }
    /* The pages exist, and chase stays random whatever lay there before. */
    DRIVER_CHECK(driver.cuMemsetD32_v2(slot->base, 0, size_bytes / 4));
    gpu_synchronize();
}

static void drop(struct slot *slot)
{
    if (slot->chunks) {
        DRIVER_CHECK(driver.cuMemUnmap(slot->base, slot->size_bytes));
        while (slot->chunk_count)
            DRIVER_CHECK(driver.cuMemRelease(slot->chunks[--slot->chunk_count]));
        DRIVER_CHECK(driver.cuMemAddressFree(slot->range, slot->range_bytes));
        free(slot->chunks);
    } else {
        DRIVER_CHECK(driver.cuMemFree_v2(slot->base));
    }
    *slot = (struct slot){0};
}

/* --- measuring ------------------------------------------------------------------------------ */

static void launch(CUfunction kernel, unsigned blocks, unsigned threads, void **parameters)
{
    DRIVER_CHECK(
        driver.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL));
}

/* In the order of the answer: loads a nanosecond, nanoseconds of a dependent load, then bytes a
 * nanosecond (GB/s): of the kernel that copies and of the driver's copy, each read and written byte
 * counted, and of copies from and to pinned host memory, to and from a peer. */
enum figure { GATHER, CHASE, STREAM, COPY, FROM_HOST, TO_HOST, TO_PEER, FROM_PEER, FIGURES };

/* A piece of the range, copied from or to the host or the peer. */
static CUresult copy_piece(const struct slot *slot, enum figure figure, uint64_t i)
{
    uint64_t piece_bytes = memory.host_bytes / PIECES;
    CUdeviceptr piece = slot->base + slot->size_bytes / PIECES * i;
    CUdeviceptr peer = memory.peer + piece_bytes * i;
    char *host = (char *)memory.host + piece_bytes * i;

    switch (figure) {
    case FROM_HOST:
        return driver.cuMemcpyHtoDAsync_v2(piece, host, piece_bytes, NULL);
    case TO_HOST:
        return driver.cuMemcpyDtoHAsync_v2(host, piece, piece_bytes, NULL);
    case TO_PEER:
        return driver.cuMemcpyPeer(peer, memory.other, piece, memory.own, piece_bytes);
    default:
        return driver.cuMemcpyPeer(piece, memory.own, peer, memory.other, piece_bytes);
    }
}

/* The copies are of the first half of the range onto the second. */
static void run(const struct slot *slot, enum figure figure)
{
    uint64_t words = slot->size_bytes / 4, half_bytes = slot->size_bytes / 2;
    uint64_t pieces = half_bytes / 16, seed = random_u64();
    uint64_t loads = figure == GATHER ? GATHER_LOADS : CHASE_LOADS;
    CUdeviceptr from = slot->base, to = slot->base + half_bytes;
    void *random[] = {&from, &words, &loads, &seed, &memory.out};

    if (figure == GATHER)
        launch(memory.gather, GATHER_BLOCKS, GATHER_THREADS, random);
    else if (figure == CHASE)
        launch(memory.chase, 1, 1, random);
    else if (figure == STREAM)
        launch(memory.stream, GATHER_BLOCKS, GATHER_THREADS, (void *[]){&to, &pieces, &from});
    else if (figure == COPY)
        DRIVER_CHECK(driver.cuMemcpyDtoDAsync_v2(to, from, half_bytes, NULL));
    for (uint64_t i = 0; i < PIECES && figure > COPY; i++)
        DRIVER_CHECK(copy_piece(slot, figure, i));
}

/* ns of one run, the median. */
static double time_ns(const struct slot *slot, enum figure figure)
{
    double ns[RUNS];

    for (int i = -1; i < RUNS; i++) {
        uint64_t start_ns;

        gpu_synchronize();
        start_ns = gpu_now_ns();
        run(slot, figure);
        gpu_synchronize();
        if (i >= 0)
            ns[i] = (double)(gpu_now_ns() - start_ns);
    }
    return stat_median(ns, RUNS);
}

/* 0 without a peer. */
static void measure(const struct slot *slot)
{
    for (enum figure figure = 0; figure < FIGURES; figure++) {
        double ns = figure < TO_PEER || memory.other ? time_ns(slot, figure) : 0;
        double loads = (double)GATHER_BLOCKS * GATHER_THREADS * GATHER_LOADS;
        double amount = figure == GATHER ? loads
                        : figure <= COPY ? (double)slot->size_bytes
                                         : (double)memory.host_bytes;

        printf("%s%.6g", figure ? " " : "",
               figure == CHASE ? ns / CHASE_LOADS
               : ns > 0        ? amount / ns
                               : 0);
    }
    puts("");
}

/* --- the program ---------------------------------------------------------------------------- */

static void find_peer(void)
{
    int count, there, back;

    DRIVER_CHECK(driver.cuDeviceGetCount(&count));
    if (count < 2)
        return;
    DRIVER_CHECK(driver.cuDeviceCanAccessPeer(&there, 0, 1));
    DRIVER_CHECK(driver.cuDeviceCanAccessPeer(&back, 1, 0));
    if (!there || !back)
        return;
    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&memory.other, 1));
    DRIVER_CHECK(driver.cuCtxSetCurrent(memory.other));
    DRIVER_CHECK(driver.cuCtxEnablePeerAccess(memory.own, 0));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&memory.peer, memory.host_bytes));
    DRIVER_CHECK(driver.cuCtxSetCurrent(memory.own));
    DRIVER_CHECK(driver.cuCtxEnablePeerAccess(memory.other, 0));
}

static void start(const struct allocator *allocator)
{
    CUmodule module;
    size_t free_bytes, total_bytes;

    (void)allocator; /* this program calls the driver itself */
    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&memory.own, 0));
    DRIVER_CHECK(driver.cuModuleLoadData(&module, memory_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&memory.gather, module, "gather"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&memory.chase, module, "chase"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&memory.stream, module, "stream"));
    DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
    memory.seed = 88172645463325252;
    memory.host_bytes = min_u64(256 * MIB, total_bytes / 256 / 4096 * 4096);
    memory.host = gpu_malloc_host(memory.host_bytes);
    DRIVER_CHECK(driver.cuMemAlloc_v2(&memory.out, 512));
    find_peer();
}

static struct slot *read_slot(void)
{
    unsigned slot;

    if (scanf("%u", &slot) != 1 || slot >= SLOTS)
        exit(2);
    return &memory.slots[slot];
}

static bool answer(void)
{
    uint64_t start_ns, size_bytes;
    struct slot *slot;
    char word[16], form[32];

    if (scanf("%15s", word) != 1)
        return false;
    start_ns = gpu_now_ns();
    if (!strcmp(word, "free")) {
        printf("%zu\n", gpu_mem_info());
        return true;
    }
    slot = read_slot();
    if (!strcmp(word, "make")) {
        if (scanf("%31s %" SCNu64, form, &size_bytes) != 2)
            exit(2);
        make(slot, form, size_bytes);
        printf("made %" PRIu64 " 0x%llx\n", gpu_now_ns() - start_ns, slot->base);
    } else if (!strcmp(word, "measure")) {
        measure(slot);
    } else {
        drop(slot);
        printf("dropped %" PRIu64 "\n", gpu_now_ns() - start_ns);
    }
    return true;
}

const struct part part_memory = {"memory", start, answer};
