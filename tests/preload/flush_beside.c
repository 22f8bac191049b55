/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Idle memory goes back below a kernel that runs until the host raises a flag, on request and when other
 * sizes are needed: nothing waits for the kernel, which uses none of it.
 */
#include "tests/preload/scene.h"
#include "tests/preload/observer.h"

enum { IDLE = 6 };

static void *flag;
static CUstream forever;

static void use_and_free(uint64_t bytes)
{
    uint64_t idle[IDLE];
    for (int i = 0; i < IDLE; i++) {
        REQUIRE(gpu_malloc(&idle[i], bytes));
        REQUIRE(gpu_memset(idle[i], 1, 64 * KIB));
    }
    REQUIRE(gpu_sync());
    for (int i = 0; i < IDLE; i++)
        REQUIRE(gpu_free(idle[i]));
}

static void start_kernel(void)
{
    *(volatile uint32_t *)flag = 0;
    REQUIRE(gpu_wait_flag((uint64_t)(uintptr_t)flag, forever));
}

static void end_kernel(void)
{
    printf("running: %s\n",
           gpu_stream_query(forever) == CUDA_ERROR_NOT_READY ? "still" : "no more");
    *(volatile uint32_t *)flag = 1;
    REQUIRE(gpu_stream_sync(forever));
    gpu_last_error();
}

int main(void)
{
    uint64_t small = 0;
    uint64_t other = 0;
    struct observer observer;
    observer_start(&observer);
    scene_start(1, 120);
    REQUIRE(gpu_stream_create(&forever, false));
    REQUIRE(gpu_host_alloc(&flag, 4));
    REQUIRE(gpu_malloc(&small, 4096));
    size_t before = observer_free_bytes(&observer);

    use_and_free(64 * MIB);
    start_kernel();
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "1", 1));
    REQUIRE(gpu_malloc(&other, 8192));
    printf("on request: others see it %s\n",
           observer_free_bytes(&observer) + 32 * MIB >= before ? "free" : "taken");
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
    end_kernel();
    REQUIRE(gpu_free(other));

    use_and_free(64 * MIB);
    start_kernel();
    REQUIRE(gpu_malloc(&other, 300 * MIB));
    printf("for another size: others see it %s\n",
           observer_free_bytes(&observer) + (300 + 160) * MIB >= before ? "free" : "taken");
    end_kernel();
    REQUIRE(gpu_free(other));
    REQUIRE(gpu_free(small));
    REQUIRE(gpu_host_free(flag));
    observer_stop(&observer);
    return 0;
}
