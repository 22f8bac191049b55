/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/preload/asker.h"

#include "tests/preload/scene.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static char reply[PAGE_REPLY_BYTES + 1];

/* NULL: it is not there yet. One that is still being made has more behind the suffix, and may be
 * empty. */
static struct page *open_page(const char *folder)
{
    void *page = NULL;
    DIR *names = opendir(folder);
    for (const struct dirent *name; !page && names && (name = readdir(names));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, name->d_name);
        const char *suffix = strstr(name->d_name, PAGE_SUFFIX);
        bool is_page = suffix && strcmp(suffix, PAGE_SUFFIX) == 0;
        int fd = is_page ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        EXPECT(page != MAP_FAILED);
        close(fd);
    }
    if (names)
        closedir(names);
    return page;
}

struct page *asker_page(void)
{
    static struct page *page;
    const char *folder = getenv("GPUCACHE_DIR");
    for (int waits = 0; !page && folder && strcmp(folder, "none") && waits < 3000; waits++) {
        page = open_page(folder);
        if (!page)
            scene_sleep_ms(10);
    }
    return page;
}

/* Through the first slot. */
int asker_ask(const char *words)
{
    struct page *page = asker_page();
    if (!page)
        return -1;
    struct page_slot *slot = &page->slots[0];
    uint32_t sequence = slot->ask_sequence + 1;
    memcpy(slot->ask, words, strlen(words));
    slot->ask_bytes = (uint32_t)strlen(words);
    __atomic_store_n(&slot->ask_sequence, sequence, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&slot->reply_sequence, __ATOMIC_SEQ_CST) != sequence) {
        __atomic_fetch_add(&page->doorbell, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &page->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
        scene_sleep_ms(1);
    }
    memcpy(reply, slot->reply, PAGE_REPLY_BYTES);
    reply[slot->reply_bytes < PAGE_REPLY_BYTES ? slot->reply_bytes : PAGE_REPLY_BYTES] = 0;
    return (int)slot->reply_code;
}

const char *asker_reply(void)
{
    return reply;
}

const char *asker_body(void)
{
    static char body[PAGE_BODY_BYTES + 1];
    const struct page *page = asker_page();
    for (;; scene_sleep_ms(1)) {
        uint64_t before = __atomic_load_n(&page->sequence, __ATOMIC_SEQ_CST);
        uint32_t size_bytes = __atomic_load_n(&page->body_bytes, __ATOMIC_SEQ_CST);
        if (before % 2 || size_bytes > PAGE_BODY_BYTES)
            continue;
        memcpy(body, page->body, size_bytes);
        body[size_bytes] = 0;
        __sync_synchronize();
        if (__atomic_load_n(&page->sequence, __ATOMIC_SEQ_CST) == before)
            return body;
    }
}

uint64_t asker_figure(const char *name)
{
    char quoted[100];
    if (asker_ask("look") != PAGE_REPLY_DONE)
        return 0;
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(asker_body(), quoted);
    EXPECT(at);
    return strtoull(at + strlen(quoted), NULL, 10);
}
