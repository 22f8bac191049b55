/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page.h, also for the argument; the numbers below are those of its steps. No lock.
 */
#include "shim/stats/page.h"

#include "shim/process/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#ifndef GPUCACHE_VERSION
#error "the build defines GPUCACHE_VERSION, a string"
#endif

/* The thread only waits and calls rang(). Static thread-local data of the program is part of the
 * stack, too. */
#define BELL_STACK_BYTES (128 * 1024)
/* So long page_remove waits for a page that is being made. */
#define REMOVE_WAIT_NS UINT64_C(100000000)

enum { NO_PAGE, MAKING, SHOWN, LEFT }; /* step 11 */

static atomic_int word;
static atomic_bool maker_is_done;
static char *mapping; /* of struct page; NULL: none. Never removed: the bell's thread uses it. */
static pid_t owner;
static uint64_t sequence;
static uint32_t served[PAGE_SLOTS];
static char folder[PATH_MAX];
static char name[PAGE_NAME_MAX];
static ino_t file_inode;

/* The kernel's copy to the page, of several pieces at once (step 1). */
static bool copy_to_page(const struct iovec *from, const struct iovec *to, unsigned num_pieces)
{
    size_t all = 0;

    for (unsigned i = 0; i < num_pieces; i++)
        all += from[i].iov_len;
    atomic_thread_fence(memory_order_seq_cst);
    ssize_t n = process_vm_writev(getpid(), from, num_pieces, to, num_pieces, 0);
    atomic_thread_fence(memory_order_seq_cst);
    return n >= 0 && (size_t)n == all;
}

static bool put(const void *from, size_t offset, size_t size_bytes)
{
    struct iovec here = {(void *)(uintptr_t)from, size_bytes};
    struct iovec there = {mapping + offset, size_bytes};

    return copy_to_page(&here, &there, 1);
}

static bool get(void *to, size_t offset, size_t size_bytes)
{
    struct iovec here = {to, size_bytes}, there = {mapping + offset, size_bytes};

    atomic_thread_fence(memory_order_seq_cst);
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    atomic_thread_fence(memory_order_seq_cst);
    return n == (ssize_t)size_bytes;
}

static long futex(size_t offset, int operation, uint32_t value)
{
    return syscall(SYS_futex, mapping + offset, operation, value, NULL, NULL, 0);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void rest(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* What stands between the two writes of the sequence. */
struct stamp {
    uint64_t published_ns, published_unix_ns;
    uint32_t num_gpus, body_bytes;
};

_Static_assert(sizeof(struct stamp) ==
                   offsetof(struct page, zero2) - offsetof(struct page, published_ns),
               "layout");

static bool write_state(const struct page_state *s)
{
    struct stamp stamp = {.published_ns = clock_ns(CLOCK_MONOTONIC),
                          .published_unix_ns = clock_ns(CLOCK_REALTIME),
                          .num_gpus = (uint32_t)s->num_gpus,
                          .body_bytes = (uint32_t)s->body_bytes};
    size_t gpus_bytes = s->num_gpus * sizeof(*s->gpus);
    struct iovec from[] = {{&stamp, sizeof(stamp)},
                           {(void *)(uintptr_t)s->gpus, gpus_bytes},
                           {(void *)(uintptr_t)s->body, s->body_bytes}};
    struct iovec to[] = {{mapping + offsetof(struct page, published_ns), sizeof(stamp)},
                         {mapping + offsetof(struct page, gpus), gpus_bytes},
                         {mapping + offsetof(struct page, body), s->body_bytes}};
    uint64_t odd = sequence + 1, even = sequence + 2;

    if (s->num_gpus > PAGE_GPUS_MAX || s->body_bytes > PAGE_BODY_BYTES)
        return false;
    sequence = even;
    return put(&odd, offsetof(struct page, sequence), sizeof(odd)) && copy_to_page(from, to, 3) &&
           put(&even, offsetof(struct page, sequence), sizeof(even));
}

/* The fields before the first room of zeroes. */
struct head {
    char magic[8];
    uint32_t version, size_bytes;
    uint64_t pid, start_ticks, pid_namespace, uid, started_unix_ns;
    char library_version[32];
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
                        .started_unix_ns = clock_ns(CLOCK_REALTIME)};

    memcpy(head.magic, PAGE_MAGIC, sizeof(head.magic));
    snprintf(head.library_version, sizeof(head.library_version), "%s", GPUCACHE_VERSION);
    return put(&head, 0, sizeof(head));
}

/* Makes the file at its full size, so that a full file system shows now. A file system that cannot
 * do that makes a file with holes. */
static int create_file(int dir, const char *unfinished, const char **why)
{
    struct stat st;

    unlinkat(dir, unfinished, 0);
    *why = "no file can be made there";
    int fd = openat(dir, unfinished, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    *why = "no room for a file";
    if ((fallocate(fd, 0, 0, sizeof(struct page)) &&
         (errno != EOPNOTSUPP || ftruncate(fd, sizeof(struct page)))) ||
        kernel_fstat(fd, &st)) {
        int saved_errno = errno;
        close(fd);
        unlinkat(dir, unfinished, 0);
        errno = saved_errno;
        return -1;
    }
    file_inode = st.st_ino;
    return fd;
}

static bool map_file(int fd)
{
    void *at = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return false;
    madvise(at, sizeof(struct page), MADV_DONTFORK);
    madvise(at, sizeof(struct page), MADV_DONTDUMP);
    mapping = at;
    return true;
}

/* The file has its name only once it has a first state, so no reader sees half a page. */
static bool make_in(int dir, const struct page_id *id, const struct page_state *state,
                    const char **why)
{
    char unfinished[PAGE_NAME_MAX + sizeof(PAGE_UNFINISHED)];

    page_id_name(id, name);
    snprintf(unfinished, sizeof(unfinished), "%s" PAGE_UNFINISHED, name);
    int fd = create_file(dir, unfinished, why);
    if (fd < 0)
        return false;
    *why = "the file cannot be mapped";
    bool done = map_file(fd);
    int saved_errno = errno;
    close(fd);
    if (done) {
        *why = "the process may not write to its own memory with process_vm_writev";
        done = write_head(id) && write_state(state);
        saved_errno = errno;
    }
    if (done) {
        *why = "the file cannot be renamed";
        done = !renameat(dir, unfinished, dir, name);
        saved_errno = errno;
    }
    if (!done)
        unlinkat(dir, unfinished, 0);
    if (!done && mapping) {
        munmap(mapping, sizeof(struct page));
        mapping = NULL;
    }
    errno = saved_errno;
    return done;
}

static bool make_at(const char *path, const struct page_id *id, const struct page_state *state,
                    const char **why)
{
    int dir = page_dir_open(path, why);

    if (dir < 0)
        return false;
    page_dir_clean(dir, id);
    bool made = make_in(dir, id, state, why);
    int saved_errno = errno, making = MAKING;
    if (made) {
        memcpy(folder, path, strlen(path) + 1);
        if (!atomic_compare_exchange_strong(&word, &making, SHOWN)) /* step 11 */
            unlinkat(dir, name, 0);
    }
    close(dir);
    errno = saved_errno;
    return made;
}

bool page_make(const char *path, const struct page_state *state, const char **why)
{
    struct page_id id;
    char place[48];
    int none = NO_PAGE, making = MAKING;
    bool made = false;

    *why = NULL;
    if (!atomic_compare_exchange_strong(&word, &none, MAKING))
        return false;
    owner = getpid();
    errno = 0;
    if (!page_id_self(&id))
        *why = "/proc does not tell the start of the process";
    else if (path)
        made = strlen(path) < sizeof(folder) && make_at(path, &id, state, why);
    else
        for (unsigned i = 0; !made && page_dir_default(i, place, sizeof(place)); i++)
            made = make_at(place, &id, state, why);
    if (!made)
        atomic_compare_exchange_strong(&word, &making, NO_PAGE);
    atomic_store(&maker_is_done, true);
    return made;
}

const char *page_folder(void)
{
    return folder;
}

const char *page_name(void)
{
    return folder[0] ? name : "";
}

bool page_publish(const struct page_state *state)
{
    return mapping && write_state(state);
}

uint64_t page_watched_until_ns(void)
{
    uint64_t until_ns;

    return mapping && get(&until_ns, offsetof(struct page, watched_until_ns), sizeof(until_ns))
               ? until_ns
               : 0;
}

static size_t slot_at(unsigned slot)
{
    return offsetof(struct page, slots) + slot * sizeof(struct page_slot);
}

bool page_read_request(unsigned slot, struct page_request *out)
{
    uint32_t ask_bytes;

    if (!mapping ||
        !get(&out->sequence, slot_at(slot) + offsetof(struct page_slot, ask_sequence),
             sizeof(out->sequence)) ||
        out->sequence == served[slot] ||
        !get(&ask_bytes, slot_at(slot) + offsetof(struct page_slot, ask_bytes),
             sizeof(ask_bytes)) ||
        !get(out->ask, slot_at(slot) + offsetof(struct page_slot, ask), PAGE_ASK_BYTES))
        return false;
    out->slot = slot;
    out->ask_bytes = ask_bytes <= PAGE_ASK_BYTES ? ask_bytes : PAGE_ASK_BYTES; /* step 2 */
    out->ask[out->ask_bytes] = '\0';
    return true;
}

/* The words of a slot from reply_bytes to reply_value. */
struct reply_head {
    uint32_t reply_bytes, reply_code, zero;
    uint64_t reply_value;
} __attribute__((packed));

_Static_assert(sizeof(struct reply_head) ==
                   offsetof(struct page_slot, ask) - offsetof(struct page_slot, reply_bytes),
               "layout");

void page_answer_request(const struct page_request *r, const struct page_answer *answer)
{
    size_t at = slot_at(r->slot), sequence_at = at + offsetof(struct page_slot, reply_sequence);
    size_t text_bytes = answer->text_bytes <= PAGE_REPLY_BYTES ? answer->text_bytes : 0;
    struct reply_head head = {(uint32_t)text_bytes, (uint32_t)answer->code, 0, answer->value};
    struct iovec from[] = {{&head, sizeof(head)}, {(void *)(uintptr_t)answer->text, text_bytes}};
    struct iovec to[] = {{mapping + at + offsetof(struct page_slot, reply_bytes), sizeof(head)},
                         {mapping + at + offsetof(struct page_slot, reply), text_bytes}};

    served[r->slot] = r->sequence; /* step 8 */
    if (copy_to_page(from, to, 2) && put(&r->sequence, sequence_at, sizeof(r->sequence)))
        futex(sequence_at, FUTEX_WAKE, INT_MAX);
}

static void *listen(void *arg)
{
    void (*const *rang)(void) = arg;
    uint32_t seen;

    pthread_setname_np(pthread_self(), "gpucache-bell");
    while (get(&seen, offsetof(struct page, bell), sizeof(seen))) { /* step 7 */
        (*rang)();
        rest(PAGE_REST_NS); /* step 6 */
        if (futex(offsetof(struct page, bell), FUTEX_WAIT, seen) && errno == EFAULT)
            break;
    }
    return NULL;
}

bool page_start_bell(void (*rang)(void))
{
    static void (*called)(void);
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;

    called = rang;
    if (!mapping || pthread_attr_init(&attr))
        return false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, BELL_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = !pthread_create(&thread, &attr, listen, &called);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return made;
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
    uint64_t end_ns = clock_ns(CLOCK_MONOTONIC) + REMOVE_WAIT_NS;
    while (before == MAKING && !atomic_load(&maker_is_done) && clock_ns(CLOCK_MONOTONIC) < end_ns)
        rest(PAGE_REST_NS / 10);
    errno = saved_errno;
}
