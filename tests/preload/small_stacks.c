/* SPDX-License-Identifier: BSD-2-Clause */
/* A program whose threads have the smallest stack that there is; with a real driver, which needs
 * more by itself, a small one. One makes the first allocation of all, and one allocates with a full
 * device. One asks what can be asked, and one shares memory. One sets an option of the environment,
 * and one ends the process. */
#include "tests/preload/scene.h"

#include <limits.h>

static uint64_t block;

static void *allocate(void *unused)
{
    REQUIRE(gpu_open(0));
    block = NEW_BLOCK(4 * MIB);
    REQUIRE(gpu_fill(block, MIB, 3, NULL));
    REQUIRE(gpu_free(block));
    block = NEW_BLOCK(4 * MIB);
    return NULL;
}

static void *fill_the_device(void *unused)
{
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t too_much = 0;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
    EXPECT(gpu_malloc(&too_much, total_bytes + MIB) != 0);
    gpu_last_error();
    return NULL;
}

static void *ask(void *unused)
{
    uint64_t base = 0;
    size_t pitch_bytes = 0;
    REQUIRE(gpu_open(0));
    EXPECT(scene_lies_in(block + 5, block, 4 * MIB) && scene_device_of(block) == 0);
    REQUIRE(gpu_malloc_pitch(&base, &pitch_bytes, 1000, 10));
    REQUIRE(gpu_free(base));
    return NULL;
}

static void *work(void *unused)
{
    CUevent event = NULL;
    REQUIRE(gpu_open(0));
    CUstream stream = NEW_STREAM(false);
    uint64_t other = NEW_BLOCK(4 * MIB);
    REQUIRE(gpu_fill(other, MIB, 4, stream));
    REQUIRE(gpu_copy(block, other, MIB, stream));
    uint64_t n_words = MIB;
    uint32_t value = 5;
    void *params[] = {&other, &n_words, &value};
    REQUIRE(gpu_launch_early(GPU_FILL, stream, params));
    REQUIRE(gpu_event_create(&event));
    REQUIRE(gpu_event_record(event, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_event_destroy(event));
    REQUIRE(gpu_free(other));
    REQUIRE(gpu_stream_destroy(stream));
    return NULL;
}

static void *share(void *unused)
{
    CUipcMemHandle handle;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_ipc_export(&handle, block));
    return NULL;
}

/* The value is not understood, and warned of. */
static void *request(void *unused)
{
    REQUIRE(gpu_open(0));
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "some", 1));
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", "1", 1));
    uint64_t other = NEW_BLOCK(64 * KIB);
    REQUIRE(gpu_free(other));
    return NULL;
}

static void *leave(void *unused)
{
    exit(0);
}

/* The simulated driver is known by its names, once it is loaded. */
static size_t stack_bytes(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    size_t bytes = scene_simulated() ? (size_t)PTHREAD_STACK_MIN : 256 * KIB;
    if (driver)
        dlclose(driver);
    return bytes;
}

static void in_a_small_stack(void *(*body)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&attr));
    REQUIRE(pthread_attr_setstacksize(&attr, stack_bytes()));
    REQUIRE(pthread_create(&thread, &attr, body, NULL));
    REQUIRE(pthread_join(thread, NULL));
}

int main(void)
{
    static const struct {
        const char *name;
        void *(*body)(void *);
    } steps[] = {{"the first allocation", allocate},
                 {"a full device", fill_the_device},
                 {"questions", ask},
                 {"work", work},
                 {"a shared block", share},
                 {"a request", request},
                 {"the end", leave}};
    scene_watchdog(60);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        printf("%s\n", steps[i].name);
        fflush(stdout);
        in_a_small_stack(steps[i].body);
    }
    return 1;
}
