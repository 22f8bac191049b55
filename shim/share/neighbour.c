/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See neighbour.h. `asking` guards all static data.
 *
 * Why no thread waits for ever, and no two processes for each other (tests/model/lend.pml looks at
 * every state of it, without the timeouts of step 4):
 * 1. A thread that asks holds `asking` and a slot of a neighbour, and no other lock of the
 *    library's.
 * 2. The neighbour's control thread serves the slot. It takes locks of its own pools and waits for
 *    GPU work and frameworks within the time that the request names. It never asks with a wait, so
 *    it waits for no other process, and does not need `asking` of its own process for a reply.
 * 3. So where two processes ask each other, the two control threads reply to the two threads that
 *    ask, whatever locks of the program's those threads hold.
 * 4. A thread waits for `asking`, for a slot and for a reply until until_ns at the latest. Nothing
 *    in a page prolongs that.
 * 5. A neighbour that does not reply is skipped for SKIP_NS, or until its reply stands in the page.
 *    So it costs the wait at most once in that time.
 */
#include "shim/share/neighbour.h"

#include "shim/process/cancel.h"
#include "shim/process/kernel.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"
#include "shim/stats/page_dir.h"
#include "shim/stats/page_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#define MS UINT64_C(1000000)
/* How long a neighbour that did not reply is skipped. */
#define SKIP_NS (10000 * MS)
/* A wake of the bell that finds no waiter is repeated after PAUSE_NS, PROBES times: on a loaded
 * machine the thread of the bell may be slow to come back to its wait. */
#define PAUSE_NS (10 * MS)
#define PROBES 20
/* A neighbour that took memory again so soon after it gave some is asked last for a while. */
#define THRASH_NS (1000 * MS)
#define THRASH_MEMORY_NS (10000 * MS)
/* Pages read in one search. */
#define PAGES_MAX 512

enum { KNOWN = 64, HEAD_BYTES = offsetof(struct page, zero5) };

/* What we know of a neighbour: the name of its page has its pid namespace, pid and start. */
struct known {
    char name[PAGE_NAME_MAX];
    uint64_t skip_until_ns;
    int late_slot; /* where its reply is missing; -1: nowhere */
    uint32_t late_sequence;
    uint64_t emptied_in; /* the series of questions in which it gave less than was asked for */
    uint64_t busy_in;    /* the series in which it had no free slot, since busy_since_ns */
    uint64_t busy_since_ns;
    uint64_t used_ns;
};

struct candidate {
    char name[PAGE_NAME_MAX];
    bool thrashes;
    uint64_t idle_bytes, reserved_bytes;
    uint32_t tie; /* spreads the questions of many processes among equals */
};

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static struct known known[KNOWN];
static char entries[8192]; /* of the directory */
static struct page head;   /* the first HEAD_BYTES of a page; the rest is never touched */
static int late_slot;      /* of the latest question, as struct known has them */
static uint32_t late_sequence;

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / (1000 * MS)), .tv_nsec = (long)(ns % (1000 * MS))};
    nanosleep(&t, NULL);
}

/* A number that differs between processes and from call to call. */
static uint32_t jitter(void)
{
    uint64_t x = state_clock_ns() ^ ((uint64_t)getpid() << 32);
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32);
}

static bool lock_until(uint64_t until_ns)
{
    while (pthread_mutex_trylock(&asking)) {
        if (state_clock_ns() >= until_ns)
            return false;
        sleep_ns(MS / 2);
    }
    return true;
}

static struct known *find_known(const char *name)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(known[i].name, name))
            return &known[i];
    return NULL;
}

/* The neighbour's row; a new one takes the place of the one that was used least lately. */
static struct known *remember(const char *name, uint64_t now_ns)
{
    struct known *k = find_known(name);
    for (int i = 0; !k && i < KNOWN; i++)
        if (!known[i].name[0])
            k = &known[i];
    for (int i = 0; !k && i < KNOWN; i++)
        if (i == 0 || known[i].used_ns < k->used_ns)
            k = &known[i];
    if (strcmp(k->name, name)) {
        *k = (struct known){.late_slot = -1};
        snprintf(k->name, sizeof k->name, "%s", name);
    }
    k->used_ns = now_ns;
    return k;
}

static bool is_private(const struct stat *st)
{
    return st->st_uid == geteuid() && !(st->st_mode & (S_IRWXG | S_IRWXO));
}

/* Opens a neighbour's page. *st tells the file. */
static int open_page(int folder, const char *name, int access, struct stat *st)
{
    int fd = openat(folder, name, access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && (kernel_fstat(fd, st) || !S_ISREG(st->st_mode) || st->st_nlink != 1 ||
                    !is_private(st) || st->st_size != sizeof(struct page))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Reads the page's numbers into `head`. False: it is no page of this version, or of another process
 * than its name says. */
static bool read_head(int folder, const char *name, const struct page_id *its)
{
    const struct page *p = &head;
    struct stat st;
    int fd = open_page(folder, name, O_RDONLY, &st);
    if (fd < 0)
        return false;
    bool read_whole = pread(fd, &head, HEAD_BYTES, 0) == HEAD_BYTES;
    /* The numbers only choose an order, so a page that is being written is read once more and then
     * taken as it is. */
    if (read_whole && (p->sequence & 1))
        read_whole = pread(fd, &head, HEAD_BYTES, 0) == HEAD_BYTES;
    close(fd);
    return read_whole && !memcmp(p->magic, PAGE_MAGIC, sizeof p->magic) &&
           p->version == PAGE_VERSION && p->size_bytes == sizeof(struct page) &&
           p->uid == geteuid() && p->pid_namespace == its->pid_namespace && p->pid == its->pid &&
           p->start_ticks == its->start_ticks;
}

static const struct page_gpu *find_gpu(const unsigned char *uuid)
{
    const struct page *p = &head;
    uint32_t count = p->num_gpus < PAGE_GPUS_MAX ? p->num_gpus : PAGE_GPUS_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(p->gpus[i].uuid, uuid, sizeof p->gpus[i].uuid))
            return &p->gpus[i];
    return NULL;
}

static bool thrashes(const struct page_gpu *g, uint64_t now_ns)
{
    return g->returned_ns && g->regrown_ns >= g->returned_ns && g->regrown_ns <= now_ns &&
           g->regrown_ns - g->returned_ns < THRASH_NS && now_ns - g->regrown_ns < THRASH_MEMORY_NS;
}

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    if (a->thrashes != b->thrashes)
        return b->thrashes;
    if (a->idle_bytes != b->idle_bytes)
        return a->idle_bytes > b->idle_bytes;
    if (a->reserved_bytes != b->reserved_bytes)
        return a->reserved_bytes > b->reserved_bytes;
    return a->tie < b->tie;
}

static size_t slot_offset(unsigned slot, size_t field)
{
    return offsetof(struct page, slots) + slot * sizeof(struct page_slot) + field;
}

/* Has the reply come since? */
static bool has_replied(int folder, const struct known *k)
{
    struct stat st;
    uint32_t sequence;
    int fd = k->late_slot < 0 ? -1 : open_page(folder, k->name, O_RDONLY, &st);
    if (fd < 0)
        return false;
    off_t at = (off_t)slot_offset((unsigned)k->late_slot,
                                  offsetof(struct page_slot, reply_sequence));
    bool replied = pread(fd, &sequence, sizeof sequence, at) == sizeof sequence &&
                   sequence == k->late_sequence;
    close(fd);
    return replied;
}

/* Is the neighbour to be skipped by what we know of it? */
static bool is_skipped(int folder, const struct neighbour_wish *w, const char *name,
                       uint64_t now_ns)
{
    const struct known *k = find_known(name);
    if (!k)
        return false;
    return k->emptied_in == w->until_ns || (k->skip_until_ns > now_ns && !has_replied(folder, k));
}

/* The search in the directory. */
struct search {
    struct candidate best; /* its name "": there is none */
    unsigned candidates, pages_read;
};

static void consider(int folder, const struct neighbour_wish *w, const char *name,
                     struct search *s)
{
    struct page_id its;
    uint64_t now_ns = state_clock_ns();
    if (strlen(name) >= PAGE_NAME_MAX || !page_id_parse(name, &its))
        return;
    /* Of processes in another pid namespace only the bell tells whether they live. */
    bool gone = its.pid_namespace == w->self->pid_namespace &&
                (its.pid == w->self->pid || its.pid > INT_MAX ||
                 (kill((pid_t)its.pid, 0) && errno == ESRCH));
    if (gone || is_skipped(folder, w, name, now_ns) || s->pages_read++ >= PAGES_MAX ||
        !read_head(folder, name, &its))
        return;
    const struct page_gpu *g = find_gpu(w->uuid);
    if (!g)
        return;
    struct candidate c = {.thrashes = thrashes(g, now_ns),
                          .idle_bytes = g->idle_bytes,
                          .reserved_bytes = g->reserved_bytes,
                          .tie = jitter()};
    snprintf(c.name, sizeof c.name, "%s", name);
    if (!w->waits && (c.thrashes || !c.idle_bytes))
        return;
    s->candidates++;
    if (!s->best.name[0] || comes_before(&c, &s->best))
        s->best = c;
}

struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static bool find_best(int folder, const struct neighbour_wish *w, struct search *s)
{
    long got;
    *s = (struct search){0};
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            unsigned short length;
            memcpy(&length, entries + at + offsetof(struct entry, length), sizeof length);
            consider(folder, w, entries + at + offsetof(struct entry, name), s);
            at += length;
        }
    return s->candidates > 0;
}

/* Copies between the caller's memory and a mapped page. False: the file has become shorter, or its
 * file system is full. The process's number would not do (shim/stats/page_copy.c). */
static bool copy(struct page *page, size_t offset, void *mine, size_t bytes, bool out)
{
    struct iovec here = {.iov_base = mine, .iov_len = bytes};
    struct iovec there = {.iov_base = (char *)page + offset, .iov_len = bytes};
    ssize_t done = out ? process_vm_writev(kernel_gettid(), &here, 1, &there, 1, 0)
                       : process_vm_readv(kernel_gettid(), &here, 1, &there, 1, 0);
    return done == (ssize_t)bytes;
}

static bool read_word(struct page *page, size_t offset, uint32_t *word)
{
    return copy(page, offset, word, sizeof *word, false);
}

static bool write_word(struct page *page, size_t offset, uint32_t word)
{
    return copy(page, offset, &word, sizeof word, true);
}

enum { NO_SLOT = -1, NO_PAGE = -2 };

/* A slot that is free: no process has its lock, and its last request has its reply. The lock lasts
 * until fd is closed. NO_SLOT: there is none. NO_PAGE: the kernel does not copy from the page. */
static int take_slot(int fd, struct page *page, uint32_t *sequence)
{
    unsigned first = jitter();
    for (unsigned i = 0; i < PAGE_SLOTS; i++) {
        unsigned slot = (first + i) % PAGE_SLOTS;
        uint32_t asked, replied;
        struct flock range = {.l_type = F_WRLCK,
                              .l_whence = SEEK_SET,
                              .l_start = (off_t)slot_offset(slot, 0),
                              .l_len = 1};
        if (fcntl(fd, F_SETLK, &range))
            continue;
        if (!read_word(page, slot_offset(slot, offsetof(struct page_slot, ask_sequence)), &asked) ||
            !read_word(page, slot_offset(slot, offsetof(struct page_slot, reply_sequence)),
                       &replied))
            return NO_PAGE;
        if (asked == replied) {
            *sequence = replied;
            return (int)slot;
        }
        range.l_type = F_UNLCK;
        fcntl(fd, F_SETLK, &range);
    }
    return NO_SLOT;
}

/* Writes the request. Its sequence number comes last, because it makes the request valid. */
static bool write_request(struct page *page, unsigned slot, uint32_t sequence,
                          const struct neighbour_wish *w, uint64_t wait_ns)
{
    char text[160];
    int length = snprintf(text, sizeof text, "give gpu=%.60s bytes=%" PRIu64 " wait=%" PRIu64,
                          w->uuid_text, w->bytes, wait_ns / MS);
    bool written =
        copy(page, slot_offset(slot, offsetof(struct page_slot, ask)), text, (size_t)length,
             true) &&
        write_word(page, slot_offset(slot, offsetof(struct page_slot, ask_bytes)),
                   (uint32_t)length);
    __sync_synchronize();
    return written &&
           write_word(page, slot_offset(slot, offsetof(struct page_slot, ask_sequence)),
                      sequence + 1);
}

/* Nobody waits for the reply any more: a request of no words is refused, not carried out. */
static void withdraw_request(struct page *page, unsigned slot)
{
    write_word(page, slot_offset(slot, offsetof(struct page_slot, ask_bytes)), 0);
}

/* The kernel adds one to the bell and wakes a waiter. True: there was one. */
static bool ring(struct page *page)
{
    /* The comparison would wake more; it never holds. */
    return syscall(SYS_futex, &page->bell, FUTEX_WAKE_OP, 1, 0UL, &page->bell,
                   FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0x7ff)) > 0;
}

static bool has_waiter(struct page *page)
{
    return syscall(SYS_futex, &page->bell, FUTEX_WAKE, 1, NULL, NULL, 0) > 0;
}

enum life { LIVES, STOPPED, UNKNOWN };

/* Field 3 of /proc/PID/stat. Field 2 is the name of the process and may hold any character. */
static enum life look_at(const struct neighbour_wish *w, const char *name)
{
    char path[40], stat[512], *end;
    struct page_id its;
    if (!page_id_parse(name, &its) || its.pid_namespace != w->self->pid_namespace)
        return UNKNOWN;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", its.pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? STOPPED : UNKNOWN;
    ssize_t n = read(fd, stat, sizeof stat - 1);
    close(fd);
    stat[n > 0 ? n : 0] = '\0';
    if (n <= 0 || !(end = strrchr(stat, ')')) || end[1] != ' ')
        return UNKNOWN;
    return strchr("TtZXx", end[2]) ? STOPPED : LIVES;
}

/* Waits for the reply to sequence + 1. The thread of a neighbour's bell may be at work, so that a
 * wake finds no waiter: where the process can be seen, its state decides. */
static bool await_reply(struct page *page, unsigned slot, uint32_t sequence, uint64_t until_ns,
                        const struct neighbour_wish *w, const char *name)
{
    size_t offset = slot_offset(slot, offsetof(struct page_slot, reply_sequence));
    bool woken = ring(page);
    for (int probes = 0;;) {
        uint32_t replied;
        uint64_t now_ns = state_clock_ns(), left_ns = until_ns - now_ns;
        if (!read_word(page, offset, &replied))
            return false;
        if (replied == sequence + 1)
            return true;
        if (now_ns >= until_ns || replied != sequence || (!woken && probes++ == PROBES))
            return false;
        if (!woken && left_ns > PAUSE_NS)
            left_ns = PAUSE_NS;
        struct timespec t = {.tv_sec = (time_t)(left_ns / (1000 * MS)),
                             .tv_nsec = (long)(left_ns % (1000 * MS))};
        if (syscall(SYS_futex, (char *)page + offset, FUTEX_WAIT, sequence, &t, NULL, 0) &&
            errno == EFAULT)
            return false;
        woken = woken || has_waiter(page);
        enum life life = woken ? LIVES : look_at(w, name);
        woken = life == LIVES;
        if (life == STOPPED && probes > 1)
            return false;
    }
}

/* One request through a slot of the mapped page. */
static enum neighbour_answer ask_mapped(int fd, struct page *page, const char *name,
                                        const struct neighbour_wish *w, uint64_t until_ns,
                                        uint64_t *bytes)
{
    uint32_t sequence = 0;
    uint64_t now_ns = state_clock_ns();
    int taken = take_slot(fd, page, &sequence);
    if (taken < 0)
        return taken == NO_SLOT ? NEIGHBOUR_BUSY : NEIGHBOUR_GONE;
    unsigned slot = (unsigned)taken;
    /* The neighbour's own waits end before ours. */
    uint64_t its_wait_ns = until_ns > now_ns ? (until_ns - now_ns) / 2 : 0;
    if (!write_request(page, slot, sequence, w, its_wait_ns))
        return NEIGHBOUR_GONE;
    counter_add(COUNTER_LEND_ASK, 1);
    if (!w->waits) {
        ring(page);
        return NEIGHBOUR_ASKED;
    }
    if (!await_reply(page, slot, sequence, until_ns, w, name)) {
        withdraw_request(page, slot);
        late_slot = taken;
        late_sequence = sequence + 1;
        return NEIGHBOUR_GONE;
    }
    if (!copy(page, slot_offset(slot, offsetof(struct page_slot, reply_value)), bytes,
              sizeof *bytes, false))
        return NEIGHBOUR_GONE;
    return *bytes ? NEIGHBOUR_GAVE : NEIGHBOUR_NOTHING;
}

/* Closes the descriptor, unless the program has closed it meanwhile and has a file of its own under
 * the number. */
static void close_own(int fd, const struct stat *opened)
{
    struct stat st;
    if (!kernel_fstat(fd, &st) && st.st_dev == opened->st_dev && st.st_ino == opened->st_ino)
        close(fd);
}

static enum neighbour_answer ask_one(int folder, const char *name, const struct neighbour_wish *w,
                                     uint64_t until_ns, uint64_t *bytes)
{
    struct stat st;
    enum neighbour_answer answer = NEIGHBOUR_GONE;
    late_slot = -1;
    int fd = open_page(folder, name, O_RDWR, &st);
    if (fd < 0)
        return NEIGHBOUR_GONE;
    void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) {
        answer = ask_mapped(fd, page, name, w, until_ns, bytes);
        munmap(page, sizeof(struct page));
    }
    close_own(fd, &st);
    return answer;
}

/* Notes what the answer says for later questions. A neighbour whose slots stay taken for a quarter
 * of wait_ns does not reply to anybody: it counts as gone. */
static enum neighbour_answer learn(const struct candidate *c, const struct neighbour_wish *w,
                                   enum neighbour_answer answer, uint64_t wait_ns, uint64_t bytes)
{
    uint64_t now_ns = state_clock_ns();
    struct known *k = remember(c->name, now_ns);
    if (answer == NEIGHBOUR_BUSY && k->busy_in != w->until_ns) {
        k->busy_in = w->until_ns;
        k->busy_since_ns = now_ns;
    }
    if (answer == NEIGHBOUR_BUSY && w->waits && now_ns - k->busy_since_ns > wait_ns / 4)
        answer = NEIGHBOUR_GONE;
    if (answer == NEIGHBOUR_GONE) {
        k->skip_until_ns = now_ns + SKIP_NS;
        k->late_slot = late_slot;
        k->late_sequence = late_sequence;
    }
    if (!w->waits || (answer != NEIGHBOUR_BUSY && bytes < w->bytes))
        k->emptied_in = w->until_ns;
    return answer;
}

/* `asking` held. */
static enum neighbour_answer ask_next(const struct neighbour_wish *w, uint64_t wait_ns,
                                      uint64_t *bytes)
{
    struct search s;
    struct stat folder_stat;
    const char *why;
    int folder = page_dir_open(w->folder, &why);
    if (folder < 0)
        return NEIGHBOUR_NONE;
    enum neighbour_answer answer = NEIGHBOUR_NONE;
    if (!kernel_fstat(folder, &folder_stat) && find_best(folder, w, &s)) {
        /* Time is left for others, if there are any. */
        uint64_t until_ns = state_clock_ns() + wait_ns / 2;
        if (until_ns > w->until_ns || s.candidates == 1)
            until_ns = w->until_ns;
        answer = ask_one(folder, s.best.name, w, until_ns, bytes);
        answer = learn(&s.best, w, answer, wait_ns, *bytes);
        if (answer == NEIGHBOUR_ASKED)
            *bytes = s.best.idle_bytes;
        counter_add(COUNTER_LEND_THRASH, answer != NEIGHBOUR_BUSY && s.best.thrashes);
        counter_add(COUNTER_LEND_TIMEOUT, answer == NEIGHBOUR_GONE);
    }
    close_own(folder, &folder_stat);
    return answer;
}

enum neighbour_answer neighbour_ask(const struct neighbour_wish *w, uint64_t wait_ns,
                                    uint64_t *bytes)
{
    int saved_errno = errno, cancel = cancel_forbid();
    enum neighbour_answer answer = NEIGHBOUR_NONE;
    *bytes = 0;
    if (lock_until(w->waits ? w->until_ns : 0)) {
        answer = ask_next(w, wait_ns, bytes);
        pthread_mutex_unlock(&asking);
    }
    /* Many may ask the same neighbour at once: each comes back at a time of its own. */
    if (answer == NEIGHBOUR_BUSY && w->waits && state_clock_ns() < w->until_ns)
        sleep_ns(MS + jitter() % (2 * MS));
    cancel_allow(cancel);
    errno = saved_errno;
    return answer;
}
