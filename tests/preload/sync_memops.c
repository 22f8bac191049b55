/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * SYNC_MEMOPS, which only the driver's own allocations can have. With segments it is set, and ends
 * with its block: the next block of that memory does not have it. In an arena the program gets the
 * driver's error, and one line that names the cure. Taking it off where it is not set always
 * succeeds. The program starts itself again, once for each backing.
 */
#include "tests/preload/scene.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static const char inner_variable[] = "SCENE_INNER";

static int set(uint64_t block, unsigned value)
{
    return (int)cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block);
}

static unsigned get(uint64_t block)
{
    unsigned value = 9;
    REQUIRE(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    return value;
}

/* What the block has, and on the simulated driver whether its memory has it in fact. */
static unsigned has(uint64_t block)
{
    int (*of_memory)(uint64_t) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *symbol = driver != NULL ? dlsym(driver, "simSyncMemops") : NULL;
    memcpy(&of_memory, &symbol, sizeof of_memory);
    EXPECT(of_memory == NULL || get(block) == 0 || of_memory(block) == 1);
    dlclose(driver);
    return get(block);
}

/* Small ones, side by side: what one of them gives up, its neighbours keep. */
static void neighbours(void)
{
    enum { LEFT, MIDDLE, RIGHT, BLOCKS };
    uint64_t at[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        REQUIRE(gpu_malloc(&at[i], 3000));
    REQUIRE(set(at[LEFT], 1));
    REQUIRE(set(at[MIDDLE], 1));
    printf("neighbours: %u %u %u", has(at[LEFT]), has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[MIDDLE], 0));
    REQUIRE(set(at[RIGHT], 0));
    printf("; off again %u %u %u", has(at[LEFT]), has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[RIGHT], 1));
    REQUIRE(gpu_free(at[LEFT]));
    REQUIRE(set(at[MIDDLE], 0));
    printf("; one is freed %u %u", has(at[MIDDLE]), has(at[RIGHT]));
    REQUIRE(set(at[MIDDLE], 1));
    REQUIRE(gpu_free(at[RIGHT]));
    printf("; another %u\n", has(at[MIDDLE]));
    REQUIRE(gpu_free(at[MIDDLE]));
}

static int with_segments(void)
{
    static const size_t sizes[] = {5000, 100000, 6 * MIB};
    scene_start(1, 60);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t block = 0;
        uint64_t neighbour = 0;
        int still = 0;
        REQUIRE(gpu_malloc(&neighbour, sizes[i]));
        REQUIRE(gpu_malloc(&block, sizes[i]));
        printf("%zu bytes: off %d", sizes[i], set(block, 0));
        printf(", on %d", set(block + 512, 1));
        printf(", it is %u, its neighbour %u", get(block), get(neighbour));
        REQUIRE(gpu_free(block));
        REQUIRE(gpu_free(neighbour));
        for (int again = 0; again < 40; again++) {
            uint64_t other = 0;
            REQUIRE(gpu_malloc(&other, sizes[i]));
            /* A large block goes back to the driver, which may give it out again; a small one
             * stays. */
            still += get(other) != 0 || (sizes[i] <= MIB && scene_preloaded() && other == block);
            REQUIRE(gpu_free(other));
        }
        printf("; after it: %d\n", still);
    }
    neighbours();
    printf("of nothing: %d\n", set(0x1234000, 1));
    return 0;
}

/* What natively succeeds and cannot here is said in words, not printed. */
static int with_arena(void)
{
    uint64_t block = 0;
    int refused = 0;
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, 6 * MIB));
    printf("arena: off %d", set(block, 0));
    for (int i = 0; i < 3; i++)
        refused += set(block, 1) == CUDA_ERROR_NOT_SUPPORTED;
    printf(", on is refused %d times", scene_preloaded() ? refused : 3);
    REQUIRE(gpu_free(block));
    printf(", free\n");
    return 0;
}

static int run(const char *what, const char *log)
{
    char value[64];
    snprintf(value, sizeof value, "warn:%s", log);
    REQUIRE(setenv("GPUCACHE_LOG", value, 1));
    REQUIRE(setenv("GPUCACHE_BACKING", what, 1));
    return scene_again(inner_variable, what);
}

int main(void)
{
    char log[] = "/tmp/scene-memops-XXXXXX";
    char line[512];
    int said = 0;
    const char *inner = getenv(inner_variable);
    if (inner != NULL)
        return strcmp(inner, "arena") == 0 ? with_arena() : with_segments();
    EXPECT(mkstemp(log) >= 0);
    int rc = run("segment", log);
    if (rc == 0)
        rc = run("arena", log);
    FILE *file = fopen(log, "r");
    EXPECT(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        said +=
            strstr(line, "SYNC_MEMOPS") != NULL && strstr(line, "GPUCACHE_BACKING=segment") != NULL;
    fclose(file);
    unlink(log);
    if (rc == 0)
        printf("the cure is named %d times\n", scene_preloaded() ? said : 1);
    return rc;
}
