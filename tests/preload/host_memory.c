/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory is short for the library alone: from the N-th mmap of it on, or at that one only,
 * there is none. The driver has device memory, so every call of the program succeeds. A process for
 * each N. Bare, nothing is refused. */
#include "tests/preload/scene.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { MOST = 12, BLOCKS = 400 };

static unsigned calls, refused_from, refused_to;

static bool is_refused(const void *caller)
{
    Dl_info info;
    if (!refused_from || !dladdr(caller, &info) || !info.dli_fname ||
        !strstr(info.dli_fname, "libgpucache"))
        return false;
    calls++;
    return calls >= refused_from && calls <= refused_to;
}

/* In place of the C library's, under both of its names, which a header may make one. */
#define MMAP(name)                                                                                 \
    void *own_##name(void *addr, size_t size, int prot, int flags, int fd,                         \
                     off_t offset) __asm__(#name);                                                 \
    void *own_##name(void *addr, size_t size, int prot, int flags, int fd, off_t offset)           \
    {                                                                                              \
        if (!is_refused(__builtin_return_address(0)))                                              \
            return (void *)syscall(SYS_mmap, addr, size, prot, flags, fd, offset);                 \
        errno = ENOMEM;                                                                            \
        return MAP_FAILED;                                                                         \
    }
MMAP(mmap)
MMAP(mmap64)

static uint32_t use(uint64_t block, size_t size_bytes, uint32_t value)
{
    REQUIRE(gpu_fill(block, size_bytes / 4, value, NULL));
    return scene_wrong_words(block, size_bytes / 4, value, NULL);
}

static int play(void)
{
    static const size_t sizes[] = {512, 3 * KIB, 20 * KIB, 32 * KIB, 40 * KIB, 600 * KIB, 3 * MIB};
    static uint64_t blocks[BLOCKS];
    const size_t kinds = sizeof sizes / sizeof *sizes;
    uint32_t wrong = 0;
    scene_start(1, 60);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < BLOCKS; i++)
            blocks[i] = NEW_BLOCK(sizes[i % (i < 100 ? kinds : kinds - 2)]);
        for (uint32_t i = 0; i < BLOCKS; i += 41)
            wrong += use(blocks[i], 512, round * BLOCKS + i);
        uint64_t pitched, async;
        size_t pitch, free_bytes, total_bytes;
        EXPECT(scene_lies_in(blocks[1] + 100, blocks[1], sizes[1]));
        EXPECT(scene_device_of(blocks[2] + 8) == 0);
        REQUIRE(gpu_malloc_pitch(&pitched, &pitch, 1000, 100));
        REQUIRE(gpu_malloc_async(&async, 5 * MIB, NULL));
        REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
        REQUIRE(gpu_free_async(async, NULL));
        REQUIRE(gpu_free(pitched));
        for (uint32_t i = 0; i < BLOCKS; i++)
            REQUIRE(round == 1 ? gpu_free_async(blocks[i], NULL) : gpu_free(blocks[i]));
    }
    return wrong != 0;
}

static bool goes_well(unsigned from, unsigned to)
{
    pid_t child = scene_fork();
    if (child == 0) {
        refused_from = from;
        refused_to = to;
        exit(play());
    }
    return scene_wait(child) == 0;
}

int main(void)
{
    unsigned failed = 0;
    scene_watchdog(200);
    for (unsigned n = 1; n <= MOST; n++) {
        bool once = goes_well(n, n), for_good = goes_well(n, UINT32_MAX);
        printf("%u: %s, %s\n", n, once ? "well" : "failed", for_good ? "well" : "failed");
        failed += !once + !for_good;
    }
    return failed != 0;
}
