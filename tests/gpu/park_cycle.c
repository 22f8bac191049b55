/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A process whose device memory is parked or flushed from outside. It says "started" once it has
 * memory. Then it reads one line at a time and answers each with one line:
 *   fill MIB   so much in blocks of mixed sizes     -> bytes
 *   touch      one launch of a kernel               -> ns until the launch returned
 *   check      the contents of all blocks           -> sound, or the number of wrong words
 *   change     frees every second block, and fills new ones; counts all blocks up -> changed
 *   refill     fills all blocks anew                 -> changed
 *   drop       frees every second block             -> bytes that stay and that went
 *   poke       changes one byte of one block        -> changed; check knows of it
 *   rss                                             -> KiB of host memory
 *   end        frees everything, exit               -> ended
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS_MAX = 4096 };

static CUfunction fill_kernel, check_kernel;
static CUdeviceptr errors;
static struct block {
    CUdeviceptr addr;
    uint64_t words;
    uint32_t value;
} blocks[BLOCKS_MAX];
static unsigned num_blocks;
static uint32_t next_value = 1;

static void launch(CUfunction kernel, void **parameters)
{
    DRIVER_CHECK(driver.cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

static void fill(struct block *b)
{
    b->value = next_value++ * 2654435761u;
    launch(fill_kernel, (void *[]){&b->addr, &b->words, &b->value});
}

static void take(struct block *b, size_t size)
{
    b->words = size / 4;
    DRIVER_CHECK(driver.cuMemAlloc_v2(&b->addr, size));
    fill(b);
}

/* Most of the memory in blocks of 256 MiB, and some in each smaller size from 512 bytes on. */
static size_t fill_all(size_t bytes)
{
    size_t sum = 0;

    for (unsigned i = 0; sum < bytes && num_blocks < BLOCKS_MAX; i++) {
        size_t size = (size_t)512 << (i % 20);

        if (size > bytes - sum || i >= 60)
            size = bytes - sum < ((size_t)256 << 20) ? bytes - sum : (size_t)256 << 20;
        take(&blocks[num_blocks++], size);
        sum += size;
    }
    DRIVER_CHECK(driver.cuCtxSynchronize());
    return sum;
}

static void change(void)
{
    for (unsigned i = 0; i < num_blocks; i++) {
        if (i % 2) {
            fill(&blocks[i]);
            continue;
        }
        DRIVER_CHECK(driver.cuMemFree_v2(blocks[i].addr));
        take(&blocks[i], blocks[i].words * 4);
    }
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

static void refill(void)
{
    for (unsigned i = 0; i < num_blocks; i++)
        fill(&blocks[i]);
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

static void drop(void)
{
    unsigned left = 0;
    size_t bytes[2] = {0, 0};

    for (unsigned i = 0; i < num_blocks; i++) {
        bytes[i % 2] += blocks[i].words * 4;
        if (i % 2)
            DRIVER_CHECK(driver.cuMemFree_v2(blocks[i].addr));
        else
            blocks[left++] = blocks[i];
    }
    num_blocks = left;
    printf("%zu %zu\n", bytes[0], bytes[1]);
}

/* One byte that is not as its block was filled. */
static CUdeviceptr poked_at;
static uint8_t poked;

static void poke(void)
{
    const struct block *b = &blocks[num_blocks / 2];

    poked_at = b->addr + b->words * 2 + 1;
    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&poked, poked_at, 1));
    poked ^= 0x40;
    DRIVER_CHECK(driver.cuMemcpyHtoD_v2(poked_at, &poked, 1));
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

static bool lacks_poked_byte(void)
{
    uint8_t byte;

    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&byte, poked_at, 1));
    return byte != poked;
}

static void say_check(void)
{
    uint32_t wrong;

    DRIVER_CHECK(driver.cuMemsetD32_v2(errors, 0, 1));
    for (unsigned i = 0; i < num_blocks; i++)
        launch(check_kernel,
               (void *[]){&blocks[i].addr, &blocks[i].words, &blocks[i].value, &errors});
    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&wrong, errors, sizeof wrong));
    if (poked_at && lacks_poked_byte())
        puts("a byte that was changed is as before");
    else if (wrong != (poked_at ? 1 : 0))
        printf("%u wrong words\n", wrong);
    else
        puts("sound");
}

static void touch(void)
{
    uint64_t words = 1, start_ns = driver_now_ns();
    uint32_t value = 0;

    launch(fill_kernel, (void *[]){&errors, &words, &value});
    printf("%llu\n", (unsigned long long)(driver_now_ns() - start_ns));
    DRIVER_CHECK(driver.cuCtxSynchronize());
}

static void say_rss(void)
{
    unsigned long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file || fscanf(file, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    printf("%lu\n", resident * ((unsigned long)sysconf(_SC_PAGESIZE) / 1024));
}

static void start(void)
{
    CUmodule module;

    driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill_kernel, module, "fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&check_kernel, module, "check"));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&errors, 4));
    DRIVER_CHECK(driver.cuMemsetD32_v2(errors, 0, 1));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    puts("started");
    fflush(stdout);
}

int main(void)
{
    char line[64];
    size_t mib;

    start();
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "fill %zu", &mib) == 1) {
            printf("%zu\n", fill_all(mib << 20));
        } else if (!strncmp(line, "touch", 5)) {
            touch();
        } else if (!strncmp(line, "check", 5)) {
            say_check();
        } else if (!strncmp(line, "change", 6)) {
            change();
            puts("changed");
        } else if (!strncmp(line, "refill", 6)) {
            refill();
            puts("changed");
        } else if (!strncmp(line, "drop", 4)) {
            drop();
        } else if (!strncmp(line, "poke", 4)) {
            poke();
            puts("changed");
        } else if (!strncmp(line, "rss", 3)) {
            say_rss();
        } else {
            for (unsigned i = 0; i < num_blocks; i++)
                DRIVER_CHECK(driver.cuMemFree_v2(blocks[i].addr));
            puts("ended");
            return 0;
        }
        fflush(stdout);
    }
    return 2;
}
