/* SPDX-License-Identifier: BSD-2-Clause */
/* Options change, by requests through the process's own page, while threads allocate, ask how much
 * memory is free, and end and make contexts. Nobody's bytes change, and nothing fails. */
#include "tests/preload/asker.h"
#include "tests/preload/scene.h"

enum { ALLOCATORS = 3, ROUNDS = 60, BLOCKS = 8 };

static atomic_bool over;

static int allocate(int index)
{
    uint64_t blocks[BLOCKS] = {0};
    uint32_t wrong = 0;
    CUstream stream = NEW_STREAM(false);
    for (uint32_t i = 0; !atomic_load(&over); i++) {
        for (int b = 0; b < BLOCKS; b++) {
            uint64_t words = (1 + (i + (uint32_t)b) % 5) * 64 * KIB;
            uint32_t value = (uint32_t)index * 1000 + i + (uint32_t)b;
            REQUIRE(gpu_malloc(&blocks[b], words * 4));
            REQUIRE(gpu_fill(blocks[b], words, value, stream));
        }
        for (int b = 0; b < BLOCKS; b++) {
            uint64_t words = (1 + (i + (uint32_t)b) % 5) * 64 * KIB;
            wrong += scene_wrong_words(blocks[b], words, (uint32_t)index * 1000 + i + (uint32_t)b,
                                       stream);
            REQUIRE(gpu_free(blocks[b]));
        }
    }
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_stream_destroy(stream));
    return wrong != 0;
}

static int ask_for_free_memory(void)
{
    size_t free_bytes, total_bytes, sane = 1;
    REQUIRE(gpu_open(0));
    while (!atomic_load(&over)) {
        REQUIRE(gpu_mem_info(&free_bytes, &total_bytes));
        sane &= free_bytes <= total_bytes;
    }
    return !sane;
}

/* Pools that come while options change. */
static int live_again(void)
{
    int count = 0;
    REQUIRE(gpu_device_count(&count));
    while (count > 1 && !atomic_load(&over)) {
        uint64_t block = 0;
        REQUIRE(gpu_open(1));
        for (int i = 0; i < 20; i++) {
            REQUIRE(gpu_malloc(&block, MIB));
            REQUIRE(gpu_free(block));
        }
        REQUIRE(gpu_reset());
    }
    return 0;
}

/* Ends the program unless all is done. */
static void ask(const char *text)
{
    int code = asker_ask(text);
    if (code != PAGE_REPLY_DONE)
        fprintf(stderr, "%s: %s\n", text, asker_reply());
    EXPECT(code == PAGE_REPLY_DONE);
}

static int change_options(void)
{
    static const char *const words[] = {"auto", "order", "ready", "wait"};
    struct page *page = asker_page();
    const char *folder = getenv("GPUCACHE_DIR");
    EXPECT(!scene_preloaded() || page);
    for (int i = 0; page && i < ROUNDS; i++) {
        char text[PAGE_ASK_BYTES];
        snprintf(text, sizeof text,
                 "set MAX_IDLE=%dM,1=%dM MAX_RESERVED=%s MIN_FREE=%d%% IDLE_TIMEOUT=%dms REUSE=%s "
                 "MEMINFO=%d LOG=info:%s.log-%d STATS=%s EMPTY_CACHE=%s EMPTY_CACHE_FILE=%s-%d",
                 i % 3 * 8, i % 2 * 4, i % 2 ? "none" : "50%", i % 4 * 30, i % 3 * 20, words[i % 4],
                 i % 2, folder, i % 3, i % 2 ? "exit:/dev/null" : "off",
                 i % 5 ? "every:5ms" : "oom", folder, i);
        ask(text);
    }
    if (page)
        ask("set LOG=warn MAX_RESERVED=none STATS=off");
    atomic_store(&over, true);
    return 0;
}

static int play(int index, void *context)
{
    if (index == 0)
        return change_options();
    if (index == 1)
        return ask_for_free_memory();
    if (index == 2)
        return live_again();
    REQUIRE(gpu_open(0));
    return allocate(index);
}

int main(void)
{
    scene_start(1, 120);
    uint64_t block = NEW_BLOCK(4096);
    printf("failures: %d\n", scene_threads(3 + ALLOCATORS, play, NULL));
    REQUIRE(gpu_free(block));
    return 0;
}
