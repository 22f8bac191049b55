/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A process that holds GPU memory. It reads one word a line on stdin and answers each with one
 * line: start  context and kernels          -> started fill   live and idle-to-be blocks   -> bytes
 * of both free   all of the second kind       -> freed check  contents of the live blocks  ->
 * sound, or the number of wrong words again  allocate, fill, check, free  -> sound, or the number
 * of wrong words end    free everything, exit        -> ended
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <stdio.h>
#include <string.h>

enum { LIVE = 24, IDLE = 40 };

static struct hold {
    CUfunction fill, check;
    CUdeviceptr errors;
    CUdeviceptr live[LIVE], idle[IDLE];
} hold;

/* Small and large ones, mixed. */
static size_t block_bytes(unsigned i)
{
    static const size_t sizes[] = {512, 40 << 10, 1 << 20, 3 << 20, 33 << 20};

    return sizes[i % (sizeof sizes / sizeof *sizes)];
}

static void launch(CUfunction kernel, void **parameters)
{
    DRIVER_CHECK(driver.cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

static size_t take(CUdeviceptr *blocks, unsigned count, uint32_t value)
{
    size_t sum = 0;

    for (unsigned i = 0; i < count; i++, value++) {
        uint64_t words = block_bytes(i) / 4;

        DRIVER_CHECK(driver.cuMemAlloc_v2(&blocks[i], block_bytes(i)));
        launch(hold.fill, (void *[]){&blocks[i], &words, &value});
        sum += block_bytes(i);
    }
    return sum;
}

static void give(const CUdeviceptr *blocks, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        DRIVER_CHECK(driver.cuMemFree_v2(blocks[i]));
}

static void say_check(const CUdeviceptr *blocks, unsigned count, uint32_t value)
{
    uint32_t wrong;

    DRIVER_CHECK(driver.cuMemsetD32_v2(hold.errors, 0, 1));
    for (unsigned i = 0; i < count; i++, value++) {
        CUdeviceptr block = blocks[i];
        uint64_t words = block_bytes(i) / 4;

        launch(hold.check, (void *[]){&block, &words, &value, &hold.errors});
    }
    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&wrong, hold.errors, sizeof wrong));
    if (wrong)
        printf("%u wrong words\n", wrong);
    else
        puts("sound");
}

static void start(void)
{
    CUmodule module;

    driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&hold.fill, module, "fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&hold.check, module, "check"));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&hold.errors, 4));
    DRIVER_CHECK(driver.cuMemsetD32_v2(hold.errors, 0, 1));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    puts("started");
}

int main(void)
{
    char word[32];

    while (scanf("%31s", word) == 1) {
        if (!strcmp(word, "start")) {
            start();
        } else if (!strcmp(word, "fill")) {
            /* Live and idle-to-be ones side by side, so that neither kind has chunks of its own. */
            size_t idle = take(hold.idle, IDLE / 2, 1000);
            size_t live = take(hold.live, LIVE, 2000);

            idle += take(hold.idle + IDLE / 2, IDLE / 2, 1000);
            printf("%zu %zu\n", live, idle);
        } else if (!strcmp(word, "free")) {
            give(hold.idle, IDLE);
            puts("freed");
        } else if (!strcmp(word, "check")) {
            say_check(hold.live, LIVE, 2000);
        } else if (!strcmp(word, "again")) {
            take(hold.idle, IDLE, 3000);
            say_check(hold.idle, IDLE, 3000);
            give(hold.idle, IDLE);
        } else {
            give(hold.live, LIVE);
            puts("ended");
            return 0;
        }
        fflush(stdout);
    }
    return 2;
}
