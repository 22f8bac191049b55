/* SPDX-License-Identifier: BSD-2-Clause */
/* Ten threads read the process's page of live state, as other processes do, while 64 threads
 * allocate and free. Whatever a reader takes for one state is one: its text is whole, and says the
 * same as the table of GPUs beside it. Bare, there are no readers. */
#include "tests/preload/scene.h"

#include <dirent.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

enum { ALLOCATORS = 64, READERS = 10, STATES = 5, PAGE_BYTES = 98304 };
/* Places in the page, in bytes (shim/page/layout.h). */
enum {
    SEQUENCE = 128,
    BODY_BYTES = 156,
    BELL = 256,
    WATCHED_UNTIL_NS = 264,
    ALLOCATED_BYTES = 4096 + 24, /* of the first GPU */
    BODY = 40960,
};

static char *page;
static atomic_int readers_left;
static atomic_bool over;

static int allocate(int index)
{
    uint64_t live[4] = {0};
    for (unsigned i = 0; !atomic_load(&over) || i < 20; i++) {
        uint64_t *one = &live[i % 4];
        if (*one)
            REQUIRE(gpu_free(*one));
        REQUIRE(gpu_malloc(one, (1 + (i * 7 + (unsigned)index) % 64) * 4 * KIB));
        if (i % 64 == 63)
            scene_sleep_ms(1); /* so that 64 threads leave the readers some time */
    }
    FREE_ALL(live, 4);
    return 0;
}

static uint64_t get64(int place)
{
    return __atomic_load_n((uint64_t *)(void *)(page + place), __ATOMIC_ACQUIRE);
}

/* Asks for a new state, and says that a reader looks on. */
static void ring(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t until_ns = (uint64_t)(t.tv_sec + 5) * 1000000000u;
    __atomic_store_n((uint64_t *)(void *)(page + WATCHED_UNTIL_NS), until_ns, __ATOMIC_SEQ_CST);
    __atomic_fetch_add((uint32_t *)(void *)(page + BELL), 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, page + BELL, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The number behind the first such name in the text. */
static uint64_t field(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : UINT64_MAX;
}

static bool is_whole(const char *body, size_t size_bytes, uint64_t allocated_bytes)
{
    return size_bytes > 2 && body[0] == '{' && !memcmp(body + size_bytes - 2, "}\n", 2) &&
           field(body, "\"pid\":") == (uint64_t)getpid() &&
           field(body, "\"allocated_bytes\":") == allocated_bytes;
}

static int look_on(void)
{
    char *body = malloc(PAGE_BYTES - BODY + 1);
    uint64_t seen = 0;
    int states = 0, wrong = 0;
    EXPECT(body);
    while (states < STATES) {
        uint64_t before = get64(SEQUENCE), allocated = get64(ALLOCATED_BYTES);
        size_t size_bytes = *(volatile uint32_t *)(void *)(page + BODY_BYTES);
        if (before == seen || before % 2 || size_bytes > PAGE_BYTES - BODY) {
            ring();
            scene_sleep_ms(1);
            continue;
        }
        memcpy(body, page + BODY, size_bytes);
        body[size_bytes] = '\0';
        __sync_synchronize();
        if (get64(SEQUENCE) != before)
            continue;
        wrong += !is_whole(body, size_bytes, allocated);
        seen = before;
        states++;
    }
    free(body);
    if (atomic_fetch_sub(&readers_left, 1) == 1)
        atomic_store(&over, true);
    return wrong;
}

static bool map_page(const char *folder)
{
    DIR *entries = opendir(folder);
    char path[PATH_MAX] = "";
    for (const struct dirent *e; entries && (e = readdir(entries));)
        if (strlen(e->d_name) > 5 && !strcmp(e->d_name + strlen(e->d_name) - 5, ".page"))
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (entries)
        closedir(entries);
    int fd = *path ? open(path, O_RDWR) : -1;
    if (fd < 0)
        return false;
    void *at = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    page = at;
    return at != MAP_FAILED;
}

static int body(int index, void *context)
{
    if (index >= ALLOCATORS)
        return look_on();
    REQUIRE(gpu_open(0));
    return allocate(index);
}

int main(void)
{
    scene_start(1, 120);
    uint64_t first = NEW_BLOCK(MIB);
    int readers = 0;
    if (scene_preloaded()) {
        EXPECT(getenv("GPUCACHE_DIR"));
        for (int waits = 0; !page && waits < 1000; waits++)
            if (!map_page(getenv("GPUCACHE_DIR")))
                scene_sleep_ms(10);
        EXPECT(page);
        readers = READERS;
    }
    atomic_store(&readers_left, readers);
    atomic_store(&over, readers == 0);
    int wrong = scene_threads(ALLOCATORS + readers, body, NULL);
    printf("%d threads, %d wrong states\n", ALLOCATORS, wrong);
    REQUIRE(gpu_free(first));
    return wrong != 0;
}
