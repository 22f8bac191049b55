/* SPDX-License-Identifier: BSD-2-Clause */
/* Cases of pages. A process has one page, so each case runs in a process of its own: CASE(name)
 * { ... } is a test of cmocka whose body runs in a child, with REQUIRE in place of asserts. */
#ifndef TESTS_UNIT_PAGE_CASE_H
#define TESTS_UNIT_PAGE_CASE_H

#include "shim/page/page.h"
#include "shim/page/server.h"
#include "shim/process/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/unit/proc.h"

enum { SKIP = 77, NOBODY = 65534 };

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static char root[64]; /* of the case */
static char dir[80];  /* of the pages: root/pages, not made yet */

/* Plays a case in a child, which ends with 0, or SKIP. */
static inline void play(void (*body)(void))
{
    strcpy(root, "/tmp/page-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(dir, sizeof dir, "%s/pages", root);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = child_status(child);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP)
        skip();
    assert_int_equal(status, 0);
}

#define CASE(name)                                                                                 \
    static void play_##name(void);                                                                 \
    TEST(name)                                                                                     \
    {                                                                                              \
        play(play_##name);                                                                         \
    }                                                                                              \
    static void play_##name(void)

/* A path in the directory of pages. */
static inline const char *path_of(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static struct page_gpu one_gpu = {.uuid = "0123456789abcde", .idle_bytes = 7};

static inline struct page_state state_of(const char *body)
{
    return (struct page_state){
        .body = body, .body_bytes = strlen(body), .gpus = &one_gpu, .num_gpus = 1};
}

static const char *why; /* make gave no page */

static inline bool make(const char *path)
{
    struct page_state s = state_of("{}");
    return page_make(path, &s, &why);
}

/* What the page is called. */
static inline const char *own_name(void)
{
    static char name[PAGE_NAME_MAX];
    struct page_id id;
    REQUIRE(page_id_self(&id));
    page_id_name(&id, name);
    return name;
}

/* The page as another process maps it. */
static inline struct page *map_page(void)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", page_folder(), own_name());
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0);
    struct page *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(p != MAP_FAILED);
    close(fd);
    return p;
}

static atomic_uint heard; /* rings of the doorbell */

static inline void hear(void)
{
    atomic_fetch_add(&heard, 1);
}

static inline void wait_for_rings(unsigned count)
{
    for (int i = 0; atomic_load(&heard) < count && i < 20000; i++)
        usleep(1000);
    REQUIRE(atomic_load(&heard) >= count);
}

/* Until a thread waits at the doorbell. The requeue leaves it where it is, and counts it. */
static inline void wait_for_listener(struct page *p)
{
    long waiting = 0;
    for (int i = 0; waiting < 1 && i < 20000; i++, usleep(1000))
        waiting = syscall(SYS_futex, &p->doorbell, FUTEX_REQUEUE, 0, 1, &p->doorbell, 0);
    REQUIRE(waiting == 1);
}

static inline void raise_doorbell(struct page *p)
{
    __atomic_fetch_add(&p->doorbell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &p->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

#endif
