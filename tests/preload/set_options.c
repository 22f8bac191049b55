/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Options change, by requests through the process's own page, while threads allocate, ask how much
 * memory is free, and end and make contexts. Nobody's bytes change, and nothing fails.
 */
#include "tests/preload/scene.h"

#include "shim/page/layout.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* The page of this process: the only file of its folder. */
static struct page *find_page(void)
{
    const char *folder = getenv("GPUCACHE_DIR");
    for (int waits = 0; folder && waits < 3000; waits++) {
        DIR *names = opendir(folder);
        for (const struct dirent *name; names && (name = readdir(names));) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s", folder, name->d_name);
            /* One that is still being made has more behind the suffix, and may be empty. */
            const char *suffix = strstr(name->d_name, PAGE_SUFFIX);
            bool is_page = suffix && strcmp(suffix, PAGE_SUFFIX) == 0;
            int fd = is_page ? open(path, O_RDWR | O_CLOEXEC) : -1;
            if (fd < 0)
                continue;
            void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            EXPECT(page != MAP_FAILED);
            close(fd);
            closedir(names);
            return page;
        }
        if (names)
            closedir(names);
        scene_sleep_ms(10);
    }
    return NULL;
}

/* Asks through the first slot; ends the program unless all is done. */
static void ask(struct page *page, const char *text)
{
    struct page_slot *slot = &page->slots[0];
    uint32_t sequence = slot->ask_sequence + 1;
    memcpy(slot->ask, text, strlen(text));
    slot->ask_bytes = (uint32_t)strlen(text);
    __atomic_store_n(&slot->ask_sequence, sequence, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&page->doorbell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &page->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
    for (int waits = 0; __atomic_load_n(&slot->reply_sequence, __ATOMIC_SEQ_CST) != sequence;
         waits++) {
        EXPECT(waits < 30000);
        scene_sleep_ms(1);
    }
    if (slot->reply_code != PAGE_REPLY_DONE)
        fprintf(stderr, "%s: %.*s\n", text, (int)slot->reply_bytes, slot->reply);
    EXPECT(slot->reply_code == PAGE_REPLY_DONE);
}

static int change_options(void)
{
    static const char *const words[] = {"auto", "order", "ready", "wait"};
    struct page *page = scene_preloaded() ? find_page() : NULL;
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
        ask(page, text);
    }
    if (page)
        ask(page, "set LOG=warn MAX_RESERVED=none STATS=off");
    atomic_store(&over, true);
    return 0;
}

static int play(int index, void *context)
{
    (void)context;
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
