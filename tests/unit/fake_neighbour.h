/* SPDX-License-Identifier: BSD-2-Clause */
/* Neighbours that are no processes: pages in a folder, and a thread for each page that serves it.
 */
#ifndef TESTS_UNIT_FAKE_NEIGHBOUR_H
#define TESTS_UNIT_FAKE_NEIGHBOUR_H

#include "shim/page/layout.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/unit/proc.h"

/* What a neighbour does with a request. PARKS: replies after PARK_US, and has said before that it
 * parks for it. That is soon enough for one that waits at no doorbell meanwhile. */
enum manner { REPLIES, HANGS, DEAF, TRUNCATES, PARKS };
enum { PARK_US = 60000 };

struct fake {
    char name[32], path[128];
    struct page *page;
    _Atomic enum manner manner;
    _Atomic uint64_t has_bytes;
    atomic_int asked; /* counted once `ask` is there */
    atomic_bool ends;
    atomic_int tid;
    pthread_t thread;
    char ask[PAGE_ASK_BYTES + 1]; /* the first request */
};

static char folder[64]; /* of the pages */
static const unsigned char uuid[16] = "0123456789abcdef";
static struct fake fakes[24];
static int num_fakes;
static unsigned last_pid;

static inline long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *t)
{
    return syscall(SYS_futex, word, operation, value, t, NULL, 0);
}

static void reply(struct fake *f, struct page_slot *s)
{
    uint64_t wanted = 0;
    if (!atomic_load(&f->asked))
        memcpy(f->ask, s->ask, PAGE_ASK_BYTES);
    atomic_fetch_add(&f->asked, 1);
    const char *bytes = strstr(s->ask, " bytes=");
    if (!strncmp(s->ask, "flush ", 6)) {
        wanted = UINT64_MAX;
    } else {
        assert_non_null(bytes);
        wanted = strtoull(bytes + 7, NULL, 10);
    }
    s->reply_value = wanted < f->has_bytes ? wanted : f->has_bytes;
    f->has_bytes -= s->reply_value;
    s->reply_code = PAGE_REPLY_DONE;
    uint32_t sequence = __atomic_load_n(&s->ask_sequence, __ATOMIC_SEQ_CST);
    __atomic_store_n(&s->reply_sequence, sequence, __ATOMIC_SEQ_CST);
    futex(&s->reply_sequence, FUTEX_WAKE, 8, NULL);
}

static void *serve(void *arg)
{
    struct fake *f = arg;
    atomic_store(&f->tid, (int)syscall(SYS_gettid));
    while (!atomic_load(&f->ends)) {
        uint32_t doorbell = __atomic_load_n(&f->page->doorbell, __ATOMIC_SEQ_CST);
        for (int i = 0; i < PAGE_SLOTS; i++) {
            struct page_slot *s = &f->page->slots[i];
            if (__atomic_load_n(&s->ask_sequence, __ATOMIC_SEQ_CST) ==
                    __atomic_load_n(&s->reply_sequence, __ATOMIC_SEQ_CST) ||
                !s->ask_bytes)
                continue;
            if (f->manner == TRUNCATES) {
                atomic_fetch_add(&f->asked, 1);
                assert_int_equal(truncate(f->path, 0), 0);
                return NULL;
            }
            if (f->manner == PARKS)
                usleep(PARK_US);
            if (f->manner == REPLIES || f->manner == PARKS)
                reply(f, s);
            if (f->manner == PARKS)
                __atomic_add_fetch(&s->parks_sequence, 1, __ATOMIC_SEQ_CST);
        }
        futex(&f->page->doorbell, FUTEX_WAIT, doorbell, NULL);
    }
    return NULL;
}

static inline struct fake *add(enum manner manner, uint64_t idle_bytes)
{
    struct fake *f = &fakes[num_fakes++];
    unsigned pid = ++last_pid;
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "5-%u-9.page", pid);
    snprintf(f->path, sizeof f->path, "%s/5-%u-9.page", folder, pid);
    int fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(struct page)), 0);
    f->page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(f->page != MAP_FAILED);
    close(fd);
    f->manner = manner;
    f->has_bytes = idle_bytes;
    *f->page = (struct page){.magic = "GPUCACH",
                             .version = PAGE_VERSION,
                             .size_bytes = sizeof(struct page),
                             .pid = pid,
                             .start_ticks = 9,
                             .pid_namespace = 5,
                             .uid = geteuid(),
                             .num_gpus = 2};
    memcpy(f->page->magic, PAGE_MAGIC, sizeof f->page->magic);
    memset(f->page->gpus[0].uuid, 'x', 16);
    memcpy(f->page->gpus[1].uuid, uuid, 16);
    for (int i = 0; i < PAGE_SLOTS; i++)
        f->page->slots[i].parks_sequence = manner == PARKS; /* the number of the first request */
    f->page->gpus[1].idle_bytes = f->page->gpus[1].reserved_bytes = idle_bytes;
    if (manner != DEAF) {
        f->thread = started(serve, f);
        /* It waits at the doorbell: on a busy machine it may take longer to come there than a
         * request waits for it. */
        while (!atomic_load(&f->tid))
            usleep(1000);
        assert_true(await_task_state(getpid(), atomic_load(&f->tid), 'S'));
    }
    return f;
}

static inline void end_fakes(void)
{
    for (int i = 0; i < num_fakes; i++) {
        atomic_store(&fakes[i].ends, true);
        if (fakes[i].manner != DEAF && fakes[i].manner != TRUNCATES) {
            __atomic_add_fetch(&fakes[i].page->doorbell, 1, __ATOMIC_SEQ_CST);
            futex(&fakes[i].page->doorbell, FUTEX_WAKE, 1, NULL);
        }
        if (fakes[i].thread)
            pthread_join(fakes[i].thread, NULL);
        munmap(fakes[i].page, sizeof(struct page));
    }
    num_fakes = 0;
}

#endif
