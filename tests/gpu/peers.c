/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Two GPUs: device 0 reads and writes device 1's blocks. They are blocks from before access was
 * given, from after that, and from after a flush and a reuse. Prints what it found. Status 77 with
 * one GPU.
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

enum { BLOCKS = 6 };

static struct peers {
    CUcontext context[2];
    CUfunction fill, check;
    CUdeviceptr errors;
} peers;

static size_t block_bytes(unsigned i)
{
    static const size_t sizes[] = {1024, 256 << 10, 2 << 20, 5 << 20, 24 << 20, 512};

    return sizes[i];
}

static void launch(CUfunction kernel, void **parameters)
{
    DRIVER_CHECK(driver.cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}

static void use_device(int i)
{
    DRIVER_CHECK(driver.cuCtxSetCurrent(peers.context[i]));
}

static void take(CUdeviceptr *blocks)
{
    use_device(1);
    for (unsigned i = 0; i < BLOCKS; i++)
        DRIVER_CHECK(driver.cuMemAlloc_v2(&blocks[i], block_bytes(i)));
}

static void give(const CUdeviceptr *blocks)
{
    use_device(1);
    for (unsigned i = 0; i < BLOCKS; i++)
        DRIVER_CHECK(driver.cuMemFree_v2(blocks[i]));
}

/* Device 0's kernels write and read the blocks of device 1; device 1 looks at the first word. */
static void use_from_afar(const char *when, const CUdeviceptr *blocks, uint32_t value)
{
    uint32_t wrong, seen, wrong_here = 0;

    use_device(0);
    DRIVER_CHECK(driver.cuMemsetD32_v2(peers.errors, 0, 1));
    for (unsigned i = 0; i < BLOCKS; i++, value++) {
        CUdeviceptr block = blocks[i];
        uint64_t words = block_bytes(i) / 4;

        launch(peers.fill, (void *[]){&block, &words, &value});
        launch(peers.check, (void *[]){&block, &words, &value, &peers.errors});
    }
    DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&wrong, peers.errors, sizeof wrong));
    use_device(1);
    for (unsigned i = BLOCKS; i-- > 0;) {
        value--;
        DRIVER_CHECK(driver.cuMemcpyDtoH_v2(&seen, blocks[i] + block_bytes(i) - 4, sizeof seen));
        wrong_here += seen != value;
    }
    printf("%s: %u words wrong from device 0, %u blocks wrong on device 1\n", when, wrong,
           wrong_here);
}

static void ignore_signal(int number)
{
}

static void flush(void)
{
    struct timespec pause = {.tv_nsec = 200000000};

    raise(SIGUSR1);
    nanosleep(&pause, NULL);
}

int main(void)
{
    CUdeviceptr before[BLOCKS], after[BLOCKS];
    CUmodule module;
    int count, can = 0;

    signal(SIGUSR1, ignore_signal);
    peers.context[0] = driver_start(0);
    DRIVER_CHECK(driver.cuDeviceGetCount(&count));
    if (count < 2) {
        puts("one GPU only");
        return EXIT_SKIP;
    }
    DRIVER_CHECK(driver.cuDeviceCanAccessPeer(&can, 0, 1));
    if (!can) {
        puts("no peer access between the GPUs");
        return EXIT_SKIP;
    }
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&peers.fill, module, "fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&peers.check, module, "check"));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&peers.errors, 4));
    DRIVER_CHECK(driver.cuDevicePrimaryCtxRetain(&peers.context[1], 1));

    take(before);
    use_device(0);
    printf("enable: %d\n", (int)driver.cuCtxEnablePeerAccess(peers.context[1], 0));
    printf("enable again: %d\n", (int)driver.cuCtxEnablePeerAccess(peers.context[1], 0));
    take(after);
    use_from_afar("blocks from before", before, 100);
    use_from_afar("blocks from after", after, 200);
    give(after);
    flush();
    take(after);
    use_from_afar("after a flush", after, 300);
    give(after);
    take(after);
    use_from_afar("used again", after, 400);
    use_device(0);
    DRIVER_CHECK(driver.cuMemcpyPeer(after[3], peers.context[1], before[3], peers.context[1],
                                     block_bytes(3)));
    DRIVER_CHECK(driver.cuCtxSynchronize());
    printf("disable: %d\n", (int)driver.cuCtxDisablePeerAccess(peers.context[1]));
    printf("disable again: %d\n", (int)driver.cuCtxDisablePeerAccess(peers.context[1]));
    give(before);
    give(after);
    return 0;
}
