/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page.h; the numbers below are the steps of the Notes in README.md. No lock.
 */
#include "shim/page/page.h"

#include "shim/page/map.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef GPUCACHE_VERSION
#error "the build defines GPUCACHE_VERSION, a string"
#endif

/* How long page_remove waits while another thread still makes the page. */
#define REMOVE_WAIT_NS (100 * MS_NS)
#define REMOVE_PAUSE_NS 100000

enum { NO_PAGE, MAKING, SHOWN, LEFT }; /* step 11 */

static atomic_int word;
static atomic_bool maker_is_done;
static pid_t owner;
static uint64_t sequence;
static char folder[PATH_MAX];
static char name[PAGE_NAME_MAX];
static ino_t file_inode;
static struct page_id self;
static struct stat root; /* the root directory in which `folder` is a path */

/* What stands between the two writes of the sequence. */
struct stamp {
    uint64_t published_ns, published_unix_ns;
    uint32_t num_gpus, body_bytes;
    uint64_t asleep_since_ns, needs_since_ns;
};

_Static_assert(sizeof(struct stamp) ==
                   offsetof(struct page, zero2) - offsetof(struct page, published_ns),
               "layout");

static bool write_state(const struct page_state *s)
{
    struct stamp stamp = {.published_ns = clock_now_ns(),
                          .published_unix_ns = clock_unix_ns(),
                          .num_gpus = (uint32_t)s->num_gpus,
                          .body_bytes = (uint32_t)s->body_bytes,
                          .asleep_since_ns = s->asleep_since_ns,
                          .needs_since_ns = s->needs_since_ns};
    const struct page_piece pieces[] = {
        {&stamp, offsetof(struct page, published_ns), sizeof stamp},
        {s->gpus, offsetof(struct page, gpus), s->num_gpus * sizeof *s->gpus},
        {s->parks, offsetof(struct page, parks), s->parks ? s->num_gpus * sizeof *s->parks : 0},
        {s->body, offsetof(struct page, body), s->body_bytes}};
    uint64_t odd = sequence + 1, even = sequence + 2;

    if (s->num_gpus > PAGE_GPUS_MAX || s->body_bytes > PAGE_BODY_BYTES)
        return false;
    sequence = even;
    return page_put(page_own(), &odd, offsetof(struct page, sequence), sizeof odd) &&
           page_put_all(page_own(), pieces, 4) &&
           page_put(page_own(), &even, offsetof(struct page, sequence), sizeof even);
}

/* The fields before the first room of zeroes. */
struct head {
    char magic[8];
    uint32_t version, size_bytes;
    uint64_t pid, start_ticks, pid_namespace, uid, started_unix_ns;
    char library_version[32];
    unsigned char boot_id[PAGE_BOOT_BYTES];
};

_Static_assert(sizeof(struct head) == offsetof(struct page, zero1), "layout");

static bool write_head(const struct page_id *id)
{
    struct head head = {.version = PAGE_VERSION,
                        .size_bytes = sizeof(struct page),
                        .pid = id->pid,
                        .start_ticks = id->start_ticks,
                        .pid_namespace = id->pid_namespace,
                        .uid = geteuid(),
                        .started_unix_ns = clock_unix_ns()};

    page_boot_id(head.boot_id);
    memcpy(head.magic, PAGE_MAGIC, sizeof head.magic);
    snprintf(head.library_version, sizeof head.library_version, "%s", GPUCACHE_VERSION);
    return page_put(page_own(), &head, 0, sizeof head);
}

/* Bells of two files differ by this, times the files between them. */
#define DOORBELL_STEP 65536u

static bool write_doorbell(void)
{
    uint32_t first = (page_map_count() - 1) * DOORBELL_STEP;

    /* step 7 */
    return page_put(page_own(), &first, offsetof(struct page, doorbell), sizeof first);
}

/* Makes the file at its full size, so that a full file system shows now. A file system that cannot
 * do that makes a file with holes. */
static int create_file(int dir, const char *unfinished, struct stat *st, const char **why)
{
    struct stat named;

    unlinkat(dir, unfinished, 0);
    *why = "no file can be made there";
    int fd = openat(dir, unfinished, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    if (kernel_fstat(fd, st) || kernel_fstatat(dir, unfinished, &named, AT_SYMLINK_NOFOLLOW) ||
        st->st_ino != named.st_ino || st->st_dev != named.st_dev) {
        unlinkat(dir, unfinished, 0); /* the number is the program's by now: step 13 */
        errno = EBADF;
        return -1;
    }
    *why = "no room for a file";
    if ((fallocate(fd, 0, 0, sizeof(struct page)) &&
         (errno != EOPNOTSUPP || ftruncate(fd, sizeof(struct page)))) ||
        ((st->st_mode & 0777) != 0600 && fchmod(fd, 0600))) { /* the umask may have taken rights */
        int saved_errno = errno;
        kernel_close_own(fd, st);
        unlinkat(dir, unfinished, 0);
        errno = saved_errno;
        return -1;
    }
    file_inode = st->st_ino;
    return fd;
}

/* The file has its name only once it has a first state, so no reader sees half a page. */
static bool make_in(int dir, const struct page_id *id, const struct page_state *state,
                    const char **why)
{
    char unfinished[PAGE_NAME_MAX + sizeof PAGE_UNFINISHED];

    snprintf(unfinished, sizeof unfinished, "%s" PAGE_UNFINISHED, name);
    struct stat file;
    int fd = create_file(dir, unfinished, &file, why);
    if (fd < 0)
        return false;
    *why = "the file cannot be mapped";
    bool done = page_map(fd, &file);
    int saved_errno = errno;
    kernel_close_own(fd, &file);
    if (done) {
        *why = "the file cannot be written with process_vm_writev";
        done = write_head(id) && write_doorbell() && write_state(state);
        saved_errno = errno;
    }
    if (done) {
        *why = "the file cannot be renamed";
        done = !renameat(dir, unfinished, dir, name);
        saved_errno = errno;
    }
    if (!done) {
        unlinkat(dir, unfinished, 0);
        if (!*folder) /* else the thread of the doorbell uses it */
            page_unmap();
    }
    errno = saved_errno;
    return done;
}

static bool make_at(const char *path, const struct page_id *id, const struct page_state *state,
                    const char **why)
{
    struct stat opened;
    int dir = page_dir_make(path, why);

    if (dir < 0 || kernel_fstat(dir, &opened))
        return false;
    page_dir_clean(dir, id);
    bool made = make_in(dir, id, state, why);
    int saved_errno = errno, making = MAKING;
    if (made) {
        if (path != folder)
            memcpy(folder, path, strlen(path) + 1);
        if (!atomic_compare_exchange_strong(&word, &making, SHOWN)) /* step 11 */
            unlinkat(dir, name, 0);
    }
    kernel_close_own(dir, &opened);
    errno = saved_errno;
    return made;
}

bool page_make(const char *path, const struct page_state *state, const char **why)
{
    char place[48];
    int none = NO_PAGE, making = MAKING;
    bool made = false;

    *why = NULL;
    if (atomic_load(&word) == NO_PAGE)
        owner = getpid(); /* before page_remove looks at it */
    if (!atomic_compare_exchange_strong(&word, &none, MAKING))
        return false;
    errno = 0;
    if (!page_id_self(&self) || kernel_fstatat(AT_FDCWD, "/", &root, 0)) {
        *why = "/proc does not tell the start of the process";
    } else if (!page_copy_permitted()) { /* no folder serves, and none is made */
        *why = "the process may not write to its own memory with process_vm_writev";
    } else {
        page_id_name(&self, name);
        if (path)
            made = strlen(path) < sizeof folder && make_at(path, &self, state, why);
        for (unsigned i = 0; !path && !made && page_dir_default(i, place, sizeof place); i++)
            made = make_at(place, &self, state, why);
    }
    if (!made)
        atomic_compare_exchange_strong(&word, &making, NO_PAGE);
    atomic_store(&maker_is_done, true);
    return made;
}

/* In another root directory (chroot) the path says nothing of the file. */
bool page_is_lost(void)
{
    static char path[sizeof folder + sizeof name];
    struct stat st, now;

    if (atomic_load(&word) != SHOWN || kernel_fstatat(AT_FDCWD, "/", &now, 0) ||
        now.st_ino != root.st_ino || now.st_dev != root.st_dev)
        return false;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (kernel_fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT;
    return S_ISREG(st.st_mode) && st.st_size < (off_t)sizeof(struct page);
}

bool page_renew(const struct page_state *state)
{
    int shown = SHOWN, making = MAKING;
    const char *why;

    atomic_store(&maker_is_done, false);
    bool made = atomic_compare_exchange_strong(&word, &shown, MAKING) &&
                make_at(folder, &self, state, &why);
    if (!made)
        atomic_compare_exchange_strong(&word, &making, SHOWN);
    atomic_store(&maker_is_done, true);
    return made;
}

/* Written before the word says SHOWN, and never again. */
const char *page_folder(void)
{
    return atomic_load(&word) == SHOWN ? folder : "";
}

bool page_publish(const struct page_state *state)
{
    return write_state(state);
}

uint64_t page_watched_until_ns(void)
{
    uint64_t until_ns;

    return page_get(page_own(), &until_ns, offsetof(struct page, watched_until_ns), sizeof until_ns)
               ? until_ns
               : 0;
}

/* Another program of the same process may have put its page there: then the file is another. */
static void remove_file(void)
{
    const char *why;
    struct stat st;
    int dir = page_dir_open(folder, &why);

    if (dir < 0)
        return;
    if (!kernel_fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && st.st_ino == file_inode)
        unlinkat(dir, name, 0);
    close(dir);
}

void page_remove(void)
{
    int saved_errno = errno, before = atomic_load(&word);

    if (before != NO_PAGE && getpid() != owner)
        return;
    before = atomic_exchange(&word, LEFT);
    if (before == SHOWN)
        remove_file();
    uint64_t end_ns = clock_now_ns() + REMOVE_WAIT_NS;
    while (before == MAKING && !atomic_load(&maker_is_done) && clock_now_ns() < end_ns)
        clock_sleep(REMOVE_PAUSE_NS);
    errno = saved_errno;
}
