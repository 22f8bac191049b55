/* SPDX-License-Identifier: BSD-2-Clause */
/* GPUCACHE_REDZONE. A write past the end of a block, also a late one by a kernel, is reported once
 * when the block is freed. The report has the block's size and the place. A write inside is not
 * reported. The memory is never handed out again. The program makes these faults under the cache
 * only, because bare another block or nothing lies there. The program starts itself again, and
 * reads the report of that process. */
#include "tests/preload/scene.h"

static const char inner_variable[] = "SCENE_INNER";

enum { ZONE_BYTES = 1000 /* rounded up to 1024 */ };

/* Where the fault lies, behind the end of the block, and how long it is. */
static const struct fault {
    size_t size_bytes, offset, length;
    bool late;
} faults[] = {
    {1, 0, 1, false},           {5000, 0, 4, true},         {5000, 1020, 4, false},
    {24 * KIB, 100, 50, false}, {100000, 1, 1, false},      {100000, 0, 1024, true},
    {2 * MIB, 512, 8, true},    {6 * MIB + 4, 0, 1, false},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void stay_inside(CUstream stream)
{
    for (int i = 0; i < FAULTS; i++) {
        uint64_t base = 0;
        size_t size_bytes = 0;
        uint64_t block = NEW_BLOCK(faults[i].size_bytes);
        REQUIRE(gpu_address_range(&base, &size_bytes, block + faults[i].size_bytes - 1));
        EXPECT(base == block && size_bytes == faults[i].size_bytes);
        REQUIRE(gpu_memset_async(block, 0, faults[i].size_bytes, stream));
        REQUIRE(gpu_spin_fill(block, faults[i].size_bytes / 4, 1, 100000, stream));
        REQUIRE(gpu_free(block));
    }
}

static void go_beyond(CUstream stream)
{
    for (int i = 0; i < FAULTS; i++) {
        const struct fault *f = &faults[i];
        uint64_t block = NEW_BLOCK(f->size_bytes);
        uint64_t at = block + f->size_bytes + f->offset;
        if (scene_preloaded() && f->late)
            REQUIRE(gpu_spin_fill(at, f->length / 4, 0, 1000000, stream));
        else if (scene_preloaded())
            REQUIRE(gpu_memset(at, 0, f->length));
        REQUIRE(gpu_free(block));
        for (int again = 0; again < 40; again++) {
            uint64_t other = NEW_BLOCK(f->size_bytes);
            /* A large one's memory may have gone back to the driver, and its address come from
             * there. */
            EXPECT(other != block || !scene_preloaded() || f->size_bytes > 32 * KIB);
            REQUIRE(gpu_free(other));
        }
    }
}

/* A capture may not be disturbed: nothing is looked at, and nothing is spoilt. */
static void capture(CUstream stream)
{
    uint64_t before = NEW_BLOCK(4096);
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    TAKE_AND_GIVE(4096);
    REQUIRE(gpu_free(before));
    REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
}

static int inner(void)
{
    scene_start(1, 60);
    CUstream stream = NEW_STREAM(false);
    stay_inside(stream);
    go_beyond(stream);
    capture(stream);
    stay_inside(stream);
    REQUIRE(gpu_stream_destroy(stream));
    return 0;
}

static unsigned count(const char *path, const char *words)
{
    return scene_count(scene_text(path), words);
}

static unsigned count_fault(const char *path, const struct fault *f)
{
    char words[256];
    snprintf(words, sizeof words, "block of %zu bytes", f->size_bytes);
    if (count(path, words) == 0)
        return 0;
    snprintf(words, sizeof words,
             ": %zu of the 1024 bytes behind it changed, the first at offset %zu;", f->length,
             f->size_bytes + f->offset);
    return count(path, words);
}

int main(void)
{
    char log[] = "/tmp/scene-redzone-XXXXXX";
    char stats[] = "/tmp/scene-redzone-XXXXXX", value[64];
    int wrong = 0;
    if (getenv(inner_variable) != NULL)
        return inner();
    EXPECT(mkstemp(log) >= 0 && mkstemp(stats) >= 0);
    snprintf(value, sizeof value, "%d", ZONE_BYTES);
    REQUIRE(setenv("GPUCACHE_REDZONE", value, 1));
    snprintf(value, sizeof value, "warn:%s", log);
    REQUIRE(setenv("GPUCACHE_LOG", value, 1));
    snprintf(value, sizeof value, "exit-json:%s", stats);
    REQUIRE(setenv("GPUCACHE_STATS", value, 1));
    int status = scene_again(inner_variable, "1");
    if (status == 0) {
        for (int i = 0; i < FAULTS; i++) {
            unsigned seen = scene_preloaded() ? count_fault(log, &faults[i]) : 1;
            printf("%zu bytes, %zu behind: %u\n", faults[i].size_bytes, faults[i].offset, seen);
            wrong += seen != 1;
        }
        unsigned all = scene_preloaded() ? count(log, "past the end") : FAULTS;
        snprintf(value, sizeof value, "\"num_redzone_hits\":%d", FAULTS);
        printf("%u in all, counted %u times\n", all, scene_preloaded() ? count(stats, value) : 1);
        wrong += all != FAULTS;
    }
    unlink(log);
    unlink(stats);
    return status != 0 ? status : wrong != 0;
}
