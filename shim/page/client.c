/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See page/client.h.
 */
#include "shim/page/client.h"

#include "pool/bits.h"
#include "shim/page/copy.h"
#include "shim/process/clock.h"
#include "shim/process/futex.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* A wake of the doorbell that finds no waiter is repeated after PAUSE_NS, PROBES times. On a loaded
 * machine the doorbell's thread may be slow to come back to its wait. */
#define PAUSE_NS (10 * MS_NS)
#define PROBES 20
/* So long a neighbour that was there counts as there. */
#define LOOK_NS (200 * MS_NS)

uint32_t loan_request_jitter(void)
{
    uint64_t x = clock_now_ns() ^ ((uint64_t)getpid() << 32);
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32);
}

static bool is_private_file(const struct stat *st)
{
    return st->st_uid == geteuid() && !(st->st_mode & (S_IRWXG | S_IRWXO));
}

int loan_request_open_page(int folder, const char *name, int access, struct stat *st)
{
    int fd = openat(folder, name, access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && (kernel_fstat(fd, st) || !S_ISREG(st->st_mode) || st->st_nlink != 1 ||
                    !is_private_file(st) || st->st_size != sizeof(struct page))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool loan_request_may_repeat(int folder, const char *name, const struct loan_request_place *late)
{
    struct stat st;
    uint32_t sequence;
    int fd = late->slot < 0 ? -1 : loan_request_open_page(folder, name, O_RDONLY, &st);
    if (fd < 0)
        return false;
    off_t at = (off_t)PAGE_SLOT_OFFSET((unsigned)late->slot, reply_sequence);
    bool may_be =
        st.st_ino != late->file || (pread(fd, &sequence, sizeof sequence, at) == sizeof sequence &&
                                    sequence == late->sequence);
    close(fd);
    return may_be;
}

static bool write_word(struct page *page, size_t offset, uint32_t word)
{
    return page_put(page, &word, offset, sizeof word);
}

enum { NO_SLOT = -1, NO_PAGE = -2 };

/* F_WRLCK or F_UNLCK of a range, without a wait. The lock is the descriptor's: other descriptors of
 * the file come and go in this process. Some sandboxes have locks of the process only. */
static bool set_lock(int fd, short type, size_t start, size_t bytes)
{
    struct flock range = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)bytes};
    return !fcntl(fd, F_OFD_SETLK, &range) || (errno == EINVAL && !fcntl(fd, F_SETLK, &range));
}

/* A slot that is free: nobody has its lock, and its last request has its reply. It is locked then.
 * NO_SLOT: there is none. NO_PAGE: the kernel does not copy from the page. */
static int take_slot(int fd, struct page *page, uint32_t *sequence)
{
    unsigned first = loan_request_jitter();
    for (unsigned i = 0; i < PAGE_SLOTS; i++) {
        unsigned slot = (first + i) % PAGE_SLOTS;
        uint32_t asked, replied;
        if (!set_lock(fd, F_WRLCK, PAGE_SLOT_OFFSET(slot, ask_sequence), 1))
            continue;
        if (!page_get(page, &asked, PAGE_SLOT_OFFSET(slot, ask_sequence), sizeof asked) ||
            !page_get(page, &replied, PAGE_SLOT_OFFSET(slot, reply_sequence), sizeof replied))
            return NO_PAGE;
        if (asked == replied) {
            *sequence = replied;
            return (int)slot;
        }
        set_lock(fd, F_UNLCK, PAGE_SLOT_OFFSET(slot, ask_sequence), 1);
    }
    return NO_SLOT;
}

/* Writes the request. Its sequence number comes last, because it makes the request valid. */
static bool write_request(struct page *page, unsigned slot, uint32_t sequence,
                          const struct loan_request *q, uint64_t wait_ns)
{
    char text[160];
    uint64_t wait_ms = wait_ns / MS_NS;
    int length = q->uuid_text
                     ? snprintf(text, sizeof text, "give gpu=%.60s bytes=%" PRIu64 " wait=%" PRIu64,
                                q->uuid_text, q->bytes, wait_ms)
                     : snprintf(text, sizeof text, "flush wait=%" PRIu64, wait_ms);
    bool written = page_put(page, text, PAGE_SLOT_OFFSET(slot, ask), (size_t)length) &&
                   write_word(page, PAGE_SLOT_OFFSET(slot, ask_bytes), (uint32_t)length);
    return written && write_word(page, PAGE_SLOT_OFFSET(slot, ask_sequence), sequence + 1);
}

/* Nobody waits for the reply any more: a request of no words is refused, not carried out. */
static void withdraw_request(struct page *page, unsigned slot)
{
    write_word(page, PAGE_SLOT_OFFSET(slot, ask_bytes), 0);
}

/* The kernel adds one to the doorbell and wakes a waiter. True: there was one. */
static bool ring(struct page *page)
{
    /* The comparison would wake more; it never holds. */
    return syscall(SYS_futex, &page->doorbell, FUTEX_WAKE_OP, 1, 0UL, &page->doorbell,
                   FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0x7ff)) > 0;
}

static bool doorbell_has_waiter(struct page *page)
{
    return futex_wake(&page->doorbell, 1, FUTEX_OF_FILE) > 0;
}

enum life { LIVES, GONE, UNKNOWN };

/* '?': not known. */
static char task_state(uint64_t pid, const char *tid)
{
    enum { STATE_FIELD = 3 };
    char path[64], text[PROC_TEXT_BYTES];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/task/%.20s/stat", pid, tid);
    proc_text_read(path, text);
    const char *state = proc_text_stat_field(text, STATE_FIELD);
    return state ? *state : '?';
}

/* Is the neighbour's page mapped there? The kernel tells nothing of a task that has just ended, and
 * of one that may not be looked at. */
static enum life look_at_maps(uint64_t pid, const char *tid, const char *name)
{
    char path[64], text[512];
    size_t kept = 0, length = strlen(name);
    bool some = false, found = false;
    off_t at = 0;
    ssize_t n;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/task/%.20s/maps", pid, tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UNKNOWN;
    while (!found && (n = pread(fd, text + kept, sizeof text - kept, at)) > 0) {
        some = true;
        at += n;
        kept += (size_t)n;
        found = memmem(text, kept, name, length) != NULL;
        /* The start of the name may be at the end of the text. */
        size_t tail = kept < length ? kept : length - 1;
        memmove(text, text + kept - tail, tail);
        kept = tail;
    }
    close(fd);
    return found ? LIVES : some ? GONE : UNKNOWN;
}

/* Looks at a thread of the process that has not ended. The first thread may end before the others,
 * and then has the state of an ended process. A program that replaced the one with the page (exec)
 * has its number and its start, and a later process may have its number. Neither maps the page. */
static enum life look_at_process(const struct loan_request *q, uint64_t pid, int tasks)
{
    char entries[512];
    long got;
    while ((got = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            unsigned short length;
            const char *tid = kernel_entry(entries + at, &length);
            char state = tid[0] == '.' ? 'Z' : task_state(pid, tid);
            at += length;
            if (strchr("ZXx", state))
                continue;
            return strchr("Tt", state) ? GONE : look_at_maps(pid, tid, q->name);
        }
    return got < 0 ? UNKNOWN : GONE;
}

/* GONE: no reply comes while it is so. */
static enum life life_of(const struct loan_request *q)
{
    char path[40];
    struct page_id its;
    struct stat st;
    if (!page_id_parse(q->name, &its) || its.pid_namespace != q->self->pid_namespace)
        return UNKNOWN;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/task", its.pid);
    int tasks = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tasks < 0)
        return errno == ENOENT ? GONE : UNKNOWN;
    enum life life = kernel_fstat(tasks, &st) ? UNKNOWN : look_at_process(q, its.pid, tasks);
    kernel_close_own(tasks, &st);
    return life;
}

/* What the asker knows of the neighbour while it waits. */
struct watch {
    bool is_there;   /* at the last look a thread waited at its doorbell, or its process was seen */
    unsigned misses; /* looks since then */
    uint64_t look_ns; /* the next look */
};

/* While the thread of a neighbour's doorbell is at work, a wake finds no waiter. If that happens
 * twice and the process can be seen, its state decides. False: no reply comes. */
static bool look_again(struct watch *w, struct page *page, const struct loan_request *q)
{
    w->is_there = doorbell_has_waiter(page);
    if (!w->is_there && ++w->misses >= 2) {
        enum life life = life_of(q);
        if (life == GONE)
            return false;
        w->is_there = life == LIVES;
    }
    if (w->is_there)
        w->misses = 0;
    return w->misses < PROBES;
}

static bool has_begun_to_park(struct page *page, unsigned slot, uint32_t sequence)
{
    uint32_t parks;
    return page_get(page, &parks, PAGE_SLOT_OFFSET(slot, parks_sequence), sizeof parks) &&
           parks == sequence + 1;
}

/* Until when the thread waits. A park that has begun in time is waited for. */
static uint64_t wait_end_ns(struct page *page, unsigned slot, uint32_t sequence,
                            const struct loan_request *q, bool *parked)
{
    *parked = *parked || has_begun_to_park(page, slot, sequence);
    if (!*parked)
        return q->until_ns;
    if (q->waits_on)
        atomic_store(q->waits_on, true);
    return max_u64(q->until_ns, q->park_until_ns);
}

/* Waits for the reply to sequence + 1. What is known of the neighbour ages: it may be killed after
 * it heard the doorbell, and it may be seen, or heard, while its last threads end. So whatever the
 * last look said, there is a next one. */
static bool await_reply(struct page *page, unsigned slot, uint32_t sequence,
                        const struct loan_request *q, bool *parked)
{
    size_t offset = PAGE_SLOT_OFFSET(slot, reply_sequence);
    struct watch w = {.is_there = ring(page)};
    for (;;) {
        uint32_t replied;
        uint64_t now_ns = clock_now_ns();
        if (!page_get(page, &replied, offset, sizeof replied))
            return false;
        uint64_t until_ns = wait_end_ns(page, slot, sequence, q, parked);
        if (replied == sequence + 1)
            return true;
        if (now_ns >= until_ns || replied != sequence ||
            (w.look_ns && now_ns >= w.look_ns && !look_again(&w, page, q)))
            return false;
        if (now_ns >= w.look_ns)
            w.look_ns = now_ns + (w.is_there ? LOOK_NS : PAUSE_NS);
        if (!page_wait(page, offset, sequence, min_u64(w.look_ns, until_ns)))
            return false;
    }
}

/* One request through a slot of the mapped page. */
static enum loan_request_result ask_mapped(int fd, struct page *page, const struct loan_request *q,
                                           struct loan_reply *reply,
                                           struct loan_request_place *late)
{
    uint32_t sequence = 0;
    uint64_t now_ns = clock_now_ns();
    int taken = take_slot(fd, page, &sequence);
    if (taken < 0)
        return taken == NO_SLOT ? LOAN_BUSY : LOAN_LOST;
    unsigned slot = (unsigned)taken;
    /* The neighbour's own waits end before ours. */
    uint64_t its_wait_ns = q->until_ns > now_ns ? (q->until_ns - now_ns) / 2 : 0;
    its_wait_ns = min_u64(its_wait_ns, PAGE_WAIT_MS * MS_NS);
    if (!write_request(page, slot, sequence, q, its_wait_ns))
        return LOAN_LOST;
    counter_add(COUNTER_LEND_ASK, 1);
    if (!q->waits) {
        ring(page);
        return LOAN_SENT;
    }
    if (!await_reply(page, slot, sequence, q, &reply->parked)) {
        withdraw_request(page, slot);
        late->slot = taken;
        late->sequence = sequence + 1;
        return LOAN_LOST;
    }
    return page_get(page, &reply->bytes, PAGE_SLOT_OFFSET(slot, reply_value), sizeof reply->bytes)
               ? LOAN_REPLIED
               : LOAN_LOST;
}

enum loan_request_result loan_request_make(int folder, const struct loan_request *q,
                                           struct loan_reply *reply,
                                           struct loan_request_place *late)
{
    struct stat st;
    enum loan_request_result result = LOAN_LOST;
    *reply = (struct loan_reply){0};
    late->slot = -1;
    int fd = loan_request_open_page(folder, q->name, O_RDWR, &st);
    if (fd < 0)
        return LOAN_LOST;
    void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) {
        result = ask_mapped(fd, page, q, reply, late);
        munmap(page, sizeof(struct page));
    }
    late->file = st.st_ino;
    /* A child that was forked meanwhile has the descriptor too, so that its close ends no lock. */
    set_lock(fd, F_UNLCK, 0, sizeof(struct page));
    kernel_close_own(fd, &st);
    return result;
}
