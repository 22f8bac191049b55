/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A process beside one that is parked (part_beside.py). A thread launches a kernel of one word
 * every 50 us and waits for it. It says "started". Then it answers lines of its input:
 *   begin   forgets the launches so far              -> begun
 *   end     the launches since then, in ns           -> COUNT MEDIAN P999 MOST
 */
#include "tests/gpu/driver.h"
#include "tests/preload/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD_NS = 50000, LAUNCHES_MAX = 4 << 20 };

static CUcontext context;
static CUfunction fill_kernel;
static CUdeviceptr word;
static uint32_t took_ns[LAUNCHES_MAX];
static atomic_uint num_taken; /* written by the thread; set to 0 while it is at rest */
static atomic_bool is_measuring, is_at_rest;

static void launch(void)
{
    uint64_t words = 1;
    uint32_t value = 1;

    DRIVER_CHECK(driver.cuLaunchKernel(fill_kernel, 1, 1, 1, 32, 1, 1, 0, NULL,
                                       (void *[]){&word, &words, &value}, NULL));
    DRIVER_CHECK(driver.cuStreamSynchronize(NULL));
}

static void *measure(void *unused)
{
    uint64_t next_ns = driver_now_ns();

    DRIVER_CHECK(driver.cuCtxSetCurrent(context));
    for (;;) {
        uint64_t start_ns = driver_now_ns(), ns;
        unsigned at = atomic_load(&num_taken);

        launch();
        ns = driver_now_ns() - start_ns;
        if (atomic_load(&is_measuring) && at < LAUNCHES_MAX) {
            took_ns[at] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
            atomic_store(&num_taken, at + 1);
        }
        atomic_store(&is_at_rest, !atomic_load(&is_measuring));
        next_ns += PERIOD_NS;
        if (next_ns < driver_now_ns())
            next_ns = driver_now_ns();
        while (driver_now_ns() < next_ns)
            ;
    }
    return unused;
}

static int in_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void say_launches(void)
{
    unsigned count;

    atomic_store(&is_measuring, false);
    atomic_store(&is_at_rest, false);
    while (!atomic_load(&is_at_rest))
        ;
    count = atomic_load(&num_taken);
    qsort(took_ns, count, sizeof took_ns[0], in_order);
    printf("%u %u %u %u\n", count, count ? took_ns[count / 2] : 0,
           count ? took_ns[(uint64_t)count * 999 / 1000] : 0, count ? took_ns[count - 1] : 0);
}

int main(void)
{
    char line[64];
    pthread_t thread;
    CUmodule module;

    context = driver_start(0);
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&fill_kernel, module, "fill"));
    DRIVER_CHECK(driver.cuMemAlloc_v2(&word, 4));
    launch();
    if (pthread_create(&thread, NULL, measure, NULL))
        return 2;
    puts("started");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "begin", 5)) {
            atomic_store(&num_taken, 0);
            atomic_store(&is_measuring, true);
            puts("begun");
        } else {
            say_launches();
        }
        fflush(stdout);
    }
    return 0;
}
