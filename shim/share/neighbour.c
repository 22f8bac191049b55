/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See neighbour.h. `asking` guards all static data.
 *
 * Why no thread waits for ever, and no two processes wait for each other. tests/model/lend.pml
 * goes through every state of it, without the timeouts of step 4.
 * 1. A thread that asks holds `asking` and a slot of a neighbour, and no other lock of the
 *    library's.
 * 2. The neighbour's control thread serves the slot. It takes locks of its own pools and waits for
 *    GPU work and frameworks within the time that the request names. The control thread never asks
 *    with a wait, so it waits for no other process. For a reply it does not need `asking` of its
 *    own process.
 * 3. So if two processes ask each other, each control thread replies to the other's thread. The
 *    locks of the program's that the asking threads hold do not matter.
 * 4. A thread waits for `asking`, for a slot and for a reply until until_ns at the latest. Nothing
 *    in a page prolongs that.
 * 5. A neighbour that does not reply is skipped for SKIP_NS, until its reply stands in the page, or
 *    until its page has a new file. So it costs the wait at most once in that time.
 */
#include "shim/share/neighbour.h"

#include "shim/page/client.h"
#include "shim/page/dir.h"
#include "shim/page/layout.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/process/proc_text.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How long a neighbour that did not reply is skipped. */
#define SKIP_NS (10 * SEC_NS)
/* A neighbour that took memory again so soon after it gave some is asked last for a while. */
#define THRASH_NS SEC_NS
#define THRASH_MEMORY_NS (10 * SEC_NS)
/* How long a thread waits for others that ask, to note what is locked. */
#define LOCKED_WAIT_NS SEC_NS
/* The same, to list what they hold. */
#define LIST_WAIT_NS (100 * MS_NS)
/* Pages read in one search. */
#define PAGES_MAX 512

enum { KNOWN = 64, HEAD_BYTES = offsetof(struct page, zero5) };

/* What we know of a neighbour: the name of its page has its pid namespace, pid and start. */
struct known {
    char name[PAGE_NAME_MAX];
    uint64_t skip_until_ns;
    struct loan_request_place late;
    uint64_t emptied_in; /* the series of questions in which it gave less than was asked for */
    uint64_t busy_in;    /* the series in which it had no free slot, since busy_since_ns */
    uint64_t busy_since_ns;
    uint64_t used_ns;
    bool is_near; /* of the own pid namespace, as neighbour_flush found it */
    bool locked;  /* for a checkpoint, by this process */
};

struct candidate {
    char name[PAGE_NAME_MAX];
    bool thrashes;
    uint64_t idle_bytes, reserved_bytes;
    uint64_t asleep_since_ns; /* UINT64_MAX: it is not, or lends nothing then */
    uint32_t tie;             /* spreads the questions of many processes among equals */
};

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static struct known known[KNOWN];
static char entries[8192]; /* of the directory */
static struct page head;   /* the first HEAD_BYTES of a page; the rest is never touched */

static bool lock_until(uint64_t until_ns)
{
    while (pthread_mutex_trylock(&asking)) {
        if (clock_now_ns() >= until_ns)
            return false;
        clock_sleep(MS_NS / 2);
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

/* The neighbour's row; a new one takes the place of the one whose last use is the oldest. */
static struct known *remember_neighbour(const char *name, uint64_t now_ns)
{
    struct known *k = find_known(name);
    for (int i = 0; !k && i < KNOWN; i++)
        if (!known[i].name[0])
            k = &known[i];
    for (int i = 0; !k && i < KNOWN; i++)
        if (i == 0 || known[i].used_ns < k->used_ns)
            k = &known[i];
    if (strcmp(k->name, name) != 0) {
        *k = (struct known){.late.slot = -1};
        snprintf(k->name, sizeof k->name, "%s", name);
    }
    k->used_ns = now_ns;
    return k;
}

/* Reads the page's numbers into `head`. False: it is no page of this version, or of another process
 * than its name says. */
static bool read_head(int folder, const char *name, const struct page_id *its)
{
    const struct page *p = &head;
    struct stat st;
    int fd = loan_request_open_page(folder, name, O_RDONLY, &st);
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
    if (a->asleep_since_ns != b->asleep_since_ns)
        return a->asleep_since_ns < b->asleep_since_ns;
    if (a->reserved_bytes != b->reserved_bytes)
        return a->reserved_bytes > b->reserved_bytes;
    return a->tie < b->tie;
}

/* Is the neighbour to be skipped by what we know of it? */
static bool is_skipped(int folder, const struct neighbour_wish *w, const char *name,
                       uint64_t now_ns)
{
    const struct known *k = find_known(name);
    if (!k)
        return false;
    return k->locked || k->emptied_in == w->until_ns ||
           (k->skip_until_ns > now_ns && !loan_request_may_repeat(folder, name, &k->late));
}

/* Is it the name of another process's page? Of processes in another pid namespace only the doorbell
 * tells whether they live. */
static bool is_of_another(const char *name, const struct page_id *self, struct page_id *its)
{
    if (strlen(name) >= PAGE_NAME_MAX || !page_id_parse(name, its))
        return false;
    return its->pid_namespace != self->pid_namespace ||
           (its->pid != self->pid && its->pid <= INT_MAX &&
            !(kill((pid_t)its->pid, 0) && errno == ESRCH));
}

/* f for each name in the directory, until it returns false. `asking` held. */
static void each_entry(int folder, bool (*f)(void *arg, int folder, const char *name), void *arg)
{
    long got;
    while ((got = kernel_getdents(folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            unsigned short length;
            if (!f(arg, folder, kernel_entry(entries + at, &length)))
                return;
            at += length;
        }
}

/* The search in the directory. */
struct page_search {
    const struct neighbour_wish *wish;
    struct candidate best; /* its name "": there is none */
    unsigned candidates, pages_read;
};

static bool consider_page(void *arg, int folder, const char *name)
{
    struct page_search *s = arg;
    const struct neighbour_wish *w = s->wish;
    struct page_id its;
    uint64_t now_ns = clock_now_ns();
    if (!is_of_another(name, w->self, &its) || is_skipped(folder, w, name, now_ns) ||
        s->pages_read++ >= PAGES_MAX || !read_head(folder, name, &its))
        return true;
    const struct page_gpu *g = find_gpu(w->uuid);
    if (!g)
        return true;
    struct candidate c = {.thrashes = thrashes(g, now_ns),
                          .idle_bytes = g->idle_bytes + g->async_idle_bytes,
                          .reserved_bytes = g->reserved_bytes,
                          .asleep_since_ns = head.asleep_since_ns - 1, /* none: the largest */
                          .tie = loan_request_jitter()};
    snprintf(c.name, sizeof c.name, "%s", name);
    if (!w->waits && (c.thrashes || !c.idle_bytes))
        return true;
    s->candidates++;
    if (!s->best.name[0] || comes_before(&c, &s->best))
        s->best = c;
    return true;
}

static bool find_best(int folder, const struct neighbour_wish *w, struct page_search *s)
{
    *s = (struct page_search){.wish = w};
    each_entry(folder, consider_page, s);
    return s->candidates > 0;
}

/* A look at all other processes of a GPU. */
struct look {
    const struct page_id *self;
    const unsigned char *uuid;
    unsigned pages_read;
    void (*take)(struct look *l, const struct page_id *its, const struct page_gpu *g);
    uint64_t since_ns; /* of take_needs */
    struct neighbour_needs *needs;
    struct neighbour_held *held; /* of take_held; the largest first */
    size_t count, most;
};

static bool read_neighbour(void *arg, int folder, const char *name)
{
    struct look *l = arg;
    struct page_id its;
    if (!is_of_another(name, l->self, &its) || l->pages_read++ >= PAGES_MAX ||
        !read_head(folder, name, &its))
        return true;
    const struct page_gpu *g = find_gpu(l->uuid);
    if (g)
        l->take(l, &its, g);
    return true;
}

static void read_neighbours(const char *path, struct look *l, uint64_t wait_ns)
{
    struct stat folder_stat;
    const char *why;
    if (!lock_until(clock_now_ns() + wait_ns))
        return;
    int folder = page_dir_open(path, &why);
    if (folder >= 0 && !kernel_fstat(folder, &folder_stat)) {
        each_entry(folder, read_neighbour, l);
        kernel_close_own(folder, &folder_stat);
    }
    pthread_mutex_unlock(&asking);
}

static void take_needs(struct look *l, const struct page_id *its, const struct page_gpu *g)
{
    const struct page_park *park = &head.parks[g - head.gpus];
    struct neighbour_needs *out = l->needs;
    if (head.needs_since_ns && head.needs_since_ns < l->since_ns &&
        __builtin_add_overflow(out->older_bytes, park->needs_bytes, &out->older_bytes))
        out->older_bytes = UINT64_MAX;
    if (g->reserved_bytes > out->most_bytes) {
        out->most_bytes = g->reserved_bytes;
        out->most_pid = its->pid;
    }
}

void neighbour_needs(const char *path, const struct page_id *self, const unsigned char *uuid,
                     uint64_t since_ns, struct neighbour_needs *out)
{
    int saved_errno = errno, cancel = cancel_forbid();
    struct look l = {
        .self = self, .uuid = uuid, .take = take_needs, .since_ns = since_ns, .needs = out};
    *out = (struct neighbour_needs){0};
    read_neighbours(path, &l, LOCKED_WAIT_NS);
    cancel_allow(cancel);
    errno = saved_errno;
}

/* Notes what the answer says for later questions. A neighbour whose slots stay taken for a quarter
 * of wait_ns does not reply to anybody: it counts as gone. */
static enum neighbour_answer learn(const struct candidate *c, const struct neighbour_wish *w,
                                   enum neighbour_answer answer, uint64_t wait_ns, uint64_t bytes,
                                   const struct loan_request_place *late)
{
    uint64_t now_ns = clock_now_ns();
    struct known *k = remember_neighbour(c->name, now_ns);
    if (answer == NEIGHBOUR_BUSY && k->busy_in != w->until_ns) {
        k->busy_in = w->until_ns;
        k->busy_since_ns = now_ns;
    }
    if (answer == NEIGHBOUR_BUSY && w->waits && now_ns - k->busy_since_ns > wait_ns / 4)
        answer = NEIGHBOUR_GONE;
    if (answer == NEIGHBOUR_GONE) {
        k->skip_until_ns = now_ns + SKIP_NS;
        k->late = *late;
    }
    if (!w->waits || (answer != NEIGHBOUR_BUSY && bytes < w->bytes))
        k->emptied_in = w->until_ns;
    return answer;
}

static enum neighbour_answer ask_one(int folder, const char *name, const struct neighbour_wish *w,
                                     uint64_t until_ns, uint64_t *bytes,
                                     struct loan_request_place *late)
{
    const struct loan_request q = {.name = name,
                                   .self = w->self,
                                   .uuid_text = w->uuid_text,
                                   .bytes = w->bytes,
                                   .until_ns = until_ns,
                                   .waits = w->waits};
    switch (loan_request_make(folder, &q, bytes, late)) {
    case LOAN_REPLIED:
        return *bytes ? NEIGHBOUR_GAVE : NEIGHBOUR_NOTHING;
    case LOAN_SENT:
        return NEIGHBOUR_ASKED;
    case LOAN_BUSY:
        return NEIGHBOUR_BUSY;
    case LOAN_LOST:
        break;
    }
    return NEIGHBOUR_GONE;
}

/* `asking` held. */
static enum neighbour_answer ask_next(const struct neighbour_wish *w, uint64_t wait_ns,
                                      uint64_t *bytes)
{
    struct page_search s;
    struct stat folder_stat;
    const char *why;
    int folder = page_dir_open(w->folder, &why);
    if (folder < 0)
        return NEIGHBOUR_NONE;
    enum neighbour_answer answer = NEIGHBOUR_NONE;
    if (!kernel_fstat(folder, &folder_stat) && find_best(folder, w, &s)) {
        /* Time is left for others, if there are any. */
        uint64_t until_ns = clock_now_ns() + wait_ns / 2;
        if (until_ns > w->until_ns || s.candidates == 1)
            until_ns = w->until_ns;
        struct loan_request_place late;
        answer = ask_one(folder, s.best.name, w, until_ns, bytes, &late);
        answer = learn(&s.best, w, answer, wait_ns, *bytes, &late);
        if (answer == NEIGHBOUR_ASKED)
            *bytes = s.best.idle_bytes;
        counter_add(COUNTER_LEND_THRASH, answer != NEIGHBOUR_BUSY && s.best.thrashes);
        counter_add(COUNTER_LEND_TIMEOUT, answer == NEIGHBOUR_GONE);
    }
    kernel_close_own(folder, &folder_stat);
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
    if (answer == NEIGHBOUR_BUSY && w->waits && clock_now_ns() < w->until_ns)
        clock_sleep(MS_NS + loan_request_jitter() % (2 * MS_NS));
    cancel_allow(cancel);
    errno = saved_errno;
    return answer;
}

static void read_name(struct neighbour_held *its)
{
    char place[32], text[PROC_TEXT_BYTES];
    snprintf(place, sizeof place, "/proc/%d/comm", its->pid);
    proc_text_read(place, text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(its->name, sizeof its->name, "%.15s", text);
}

/* Adds it in its place, if it is one of the largest. */
static size_t insert_held(struct neighbour_held *out, size_t count, size_t most,
                          const struct neighbour_held *its)
{
    size_t at = count < most ? count : most;
    for (; at > 0 && out[at - 1].bytes < its->bytes; at--)
        if (at < most)
            out[at] = out[at - 1];
    if (at < most)
        out[at] = *its;
    return count < most ? count + 1 : most;
}

static void take_held(struct look *l, const struct page_id *its, const struct page_gpu *g)
{
    const struct neighbour_held held = {.pid = (int)its->pid,
                                        .bytes = g->reserved_bytes + g->async_idle_bytes};
    if (held.bytes && its->pid_namespace == l->self->pid_namespace)
        l->count = insert_held(l->held, l->count, l->most, &held);
}

size_t neighbour_list(const char *folder_name, const struct page_id *self,
                      const unsigned char *uuid, struct neighbour_held *out, size_t most)
{
    int saved_errno = errno, cancel = cancel_forbid();
    struct look l = {.self = self, .uuid = uuid, .take = take_held, .held = out, .most = most};
    read_neighbours(folder_name, &l, LIST_WAIT_NS);
    for (size_t i = 0; i < l.count; i++)
        read_name(&out[i]);
    cancel_allow(cancel);
    errno = saved_errno;
    return l.count;
}

/* The page of a process of this pid namespace. name "": it is not found. */
struct page_wanted {
    const struct page_id *self;
    uint64_t pid;
    char name[PAGE_NAME_MAX];
};

static bool is_not_wanted(void *arg, int folder, const char *name)
{
    struct page_wanted *w = arg;
    struct page_id its;
    if (strlen(name) >= PAGE_NAME_MAX || !page_id_parse(name, &its) ||
        its.pid_namespace != w->self->pid_namespace || its.pid != w->pid ||
        !read_head(folder, name, &its))
        return true;
    snprintf(w->name, PAGE_NAME_MAX, "%s", name);
    return false;
}

/* `asking` held. */
static uint64_t flush_neighbour(const char *path, const struct page_id *self, int pid,
                                uint64_t until_ns)
{
    uint64_t bytes = 0;
    struct page_wanted wanted = {.self = self, .pid = (uint64_t)pid};
    struct stat folder_stat;
    struct loan_request_place late;
    const char *why;
    int folder = page_dir_open(path, &why);
    if (folder < 0)
        return 0;
    if (!kernel_fstat(folder, &folder_stat))
        each_entry(folder, is_not_wanted, &wanted);
    if (wanted.name[0]) {
        const struct loan_request q = {
            .name = wanted.name, .self = self, .until_ns = until_ns, .waits = true};
        remember_neighbour(wanted.name, clock_now_ns())->is_near = true;
        if (loan_request_make(folder, &q, &bytes, &late) != LOAN_REPLIED)
            bytes = 0;
    }
    kernel_close_own(folder, &folder_stat);
    return bytes;
}

uint64_t neighbour_flush(const char *folder, const struct page_id *self, int pid, uint64_t until_ns)
{
    int saved_errno = errno, cancel = cancel_forbid();
    uint64_t bytes = 0;
    if (lock_until(until_ns)) {
        bytes = flush_neighbour(folder, self, pid, until_ns);
        pthread_mutex_unlock(&asking);
    }
    cancel_allow(cancel);
    errno = saved_errno;
    return bytes;
}

/* neighbour_flush has made its row. In other pid namespaces other processes have that number. */
void neighbour_set_locked(int pid, bool locked)
{
    struct page_id its;
    int saved_errno = errno, cancel = cancel_forbid();
    if (lock_until(clock_now_ns() + LOCKED_WAIT_NS)) {
        for (int i = 0; i < KNOWN; i++)
            if (known[i].is_near && page_id_parse(known[i].name, &its) && its.pid == (uint64_t)pid)
                known[i].locked = locked;
        pthread_mutex_unlock(&asking);
    }
    cancel_allow(cancel);
    errno = saved_errno;
}
