/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See neighbour.h. The lock of neighbour_page.h, `asking`, guards all static data.
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
 * 4. A thread waits for `asking`, for a slot and for a reply until until_ns, or until park_until_ns
 *    at the latest, where a neighbour says in its page that it parks for the process. Nothing else
 *    in a page prolongs that. A park waits for no other process.
 * 5. A neighbour that does not reply is skipped for SKIP_NS, until its reply stands in the page, or
 *    until its page has a new file. So it costs the wait at most once in that time.
 */
#include "shim/share/neighbour.h"

#include "shim/page/client.h"
#include "shim/process/cancel.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/share/neighbour_page.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How long a neighbour that did not reply is skipped. */
#define SKIP_NS (10 * SEC_NS)
/* .. and one that this process has locked for a checkpoint: another one may have unlocked it. */
#define SKIP_LOCKED_NS (60 * SEC_NS)
/* A neighbour that took memory again so soon after it gave some is asked last for a while. */
#define THRASH_NS SEC_NS
#define THRASH_MEMORY_NS (10 * SEC_NS)
/* How long a thread waits for others that ask, to note what is locked. */
#define LOCKED_WAIT_NS SEC_NS
/* How often a thread looks whether the one that has the lock still waits for a park. That one sees
 * when it looks next, at the end of its own time at the latest, which may be a little later. */
#define PARK_LOOK_NS (10 * MS_NS)
#define PARK_LATE_NS (50 * MS_NS)

enum { KNOWN = 64 };

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
    bool locked;  /* for a checkpoint, by this process; it has not replied since */
};

struct candidate {
    char name[PAGE_NAME_MAX];
    bool thrashes;
    uint64_t idle_bytes, reserved_bytes;
    uint64_t asleep_since_ns; /* UINT64_MAX: it is not, or lends nothing then */
    uint32_t tie;             /* spreads the questions of many processes among equals */
};

static struct known known[KNOWN];
/* A neighbour parks for the thread that has the lock, and may take longer than its time. The
 * others, which would ask the same neighbours, wait with it. And how long such questions took, in
 * all. */
static atomic_bool waits_for_park;
static _Atomic uint64_t parked_ns;

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
    return k->emptied_in == w->until_ns ||
           (k->skip_until_ns > now_ns && !loan_request_may_repeat(folder, name, &k->late));
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
    if (!neighbour_page_is_of_another(name, w->self, &its) || is_skipped(folder, w, name, now_ns) ||
        s->pages_read++ >= NEIGHBOUR_PAGES_MAX || !neighbour_page_read(folder, name, &its))
        return true;
    const struct page_gpu *g = neighbour_page_gpu(w->uuid);
    if (!g)
        return true;
    struct candidate c = {.thrashes = thrashes(g, now_ns),
                          .idle_bytes = g->idle_bytes + g->async_idle_bytes,
                          .reserved_bytes = g->reserved_bytes,
                          .asleep_since_ns =
                              neighbour_page.asleep_since_ns - 1, /* none: the largest */
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
    neighbour_page_each(folder, consider_page, s);
    return s->candidates > 0;
}

/* Notes what the answer says for later questions. A neighbour whose slots stay taken for a quarter
 * of wait_ns does not reply to anybody: it counts as gone. */
static enum neighbour_answer learn_answer(const struct candidate *c, const struct neighbour_wish *w,
                                          enum neighbour_answer answer, uint64_t wait_ns,
                                          uint64_t bytes, const struct loan_request_place *late)
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
        k->skip_until_ns = now_ns + (k->locked ? SKIP_LOCKED_NS : SKIP_NS);
        k->late = *late;
    } else if (answer != NEIGHBOUR_ASKED && answer != NEIGHBOUR_BUSY) {
        k->locked = false;
    }
    if (!w->waits || (answer != NEIGHBOUR_BUSY && bytes < w->bytes))
        k->emptied_in = w->until_ns;
    return answer;
}

static enum neighbour_answer ask_one(int folder, const char *name, const struct neighbour_wish *w,
                                     uint64_t until_ns, struct neighbour_reply *reply,
                                     struct loan_request_place *late)
{
    struct loan_reply its;
    uint64_t begun_ns = clock_now_ns();
    const struct loan_request q = {.name = name,
                                   .self = w->self,
                                   .uuid_text = w->uuid_text,
                                   .bytes = w->bytes,
                                   .until_ns = until_ns,
                                   .park_until_ns = w->park_until_ns,
                                   .waits_on = &waits_for_park,
                                   .waits = w->waits};
    enum loan_request_result result = loan_request_make(folder, &q, &its, late);
    reply->bytes = its.bytes;
    if (its.parked) {
        uint64_t took_ns = clock_now_ns() - begun_ns;
        reply->parked_ns += took_ns;
        atomic_fetch_add(&parked_ns, took_ns);
    }
    atomic_store(&waits_for_park, false);
    switch (result) {
    case LOAN_REPLIED:
        return its.bytes ? NEIGHBOUR_GAVE : NEIGHBOUR_NOTHING;
    case LOAN_SENT:
        return NEIGHBOUR_ASKED;
    case LOAN_BUSY:
        return NEIGHBOUR_BUSY;
    case LOAN_LOST:
        break;
    }
    return NEIGHBOUR_GONE;
}

/* The lock is held. */
static enum neighbour_answer ask_next(const struct neighbour_wish *w, uint64_t wait_ns,
                                      struct neighbour_reply *reply)
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
        answer = ask_one(folder, s.best.name, w, until_ns, reply, &late);
        answer = learn_answer(&s.best, w, answer, wait_ns, reply->bytes, &late);
        if (answer == NEIGHBOUR_ASKED)
            reply->bytes = s.best.idle_bytes;
        counter_add(COUNTER_LEND_THRASH, answer != NEIGHBOUR_BUSY && s.best.thrashes);
        counter_add(COUNTER_LEND_TIMEOUT, answer == NEIGHBOUR_GONE);
    }
    kernel_close_own(folder, &folder_stat);
    return answer;
}

/* Other threads may be before this one. What time parks take meanwhile does not count, and is in
 * reply->parked_ns. *late: the thread's own time is up, so that it has to begin anew. */
static bool lock_to_ask(const struct neighbour_wish *w, struct neighbour_reply *reply, bool *late)
{
    uint64_t before_ns = atomic_load(&parked_ns), until_ns = w->waits ? w->until_ns : 0;
    while (!neighbour_page_lock(until_ns)) {
        uint64_t now_ns = clock_now_ns(), more_ns = atomic_load(&parked_ns) - before_ns;
        uint64_t end_ns = w->until_ns + more_ns + PARK_LATE_NS;
        if (atomic_load(&waits_for_park))
            end_ns = now_ns + PARK_LOOK_NS;
        if (now_ns >= w->park_until_ns || now_ns >= end_ns)
            return false;
        until_ns = end_ns;
    }
    reply->parked_ns = atomic_load(&parked_ns) - before_ns;
    *late = w->waits && clock_now_ns() >= w->until_ns;
    return true;
}

enum neighbour_answer neighbour_ask(const struct neighbour_wish *w, uint64_t wait_ns,
                                    struct neighbour_reply *reply)
{
    int saved_errno = errno, cancel = cancel_forbid();
    enum neighbour_answer answer = NEIGHBOUR_NONE;
    bool late;
    *reply = (struct neighbour_reply){0};
    if (lock_to_ask(w, reply, &late)) {
        answer = late ? NEIGHBOUR_BUSY : ask_next(w, wait_ns, reply);
        neighbour_page_unlock();
    }
    /* Many may ask the same neighbour at once: each comes back at a time of its own. */
    if (answer == NEIGHBOUR_BUSY && w->waits && clock_now_ns() < w->until_ns)
        clock_sleep(MS_NS + loan_request_jitter() % (2 * MS_NS));
    cancel_allow(cancel);
    errno = saved_errno;
    return answer;
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
        !neighbour_page_read(folder, name, &its))
        return true;
    snprintf(w->name, PAGE_NAME_MAX, "%s", name);
    return false;
}

/* The lock is held. */
static uint64_t flush_neighbour(const char *path, const struct page_id *self, int pid,
                                uint64_t until_ns)
{
    struct loan_reply reply = {0};
    struct page_wanted wanted = {.self = self, .pid = (uint64_t)pid};
    struct stat folder_stat;
    struct loan_request_place late;
    const char *why;
    int folder = page_dir_open(path, &why);
    if (folder < 0)
        return 0;
    if (!kernel_fstat(folder, &folder_stat))
        neighbour_page_each(folder, is_not_wanted, &wanted);
    if (wanted.name[0]) {
        const struct loan_request q = {
            .name = wanted.name, .self = self, .until_ns = until_ns, .waits = true};
        remember_neighbour(wanted.name, clock_now_ns())->is_near = true;
        if (loan_request_make(folder, &q, &reply, &late) != LOAN_REPLIED)
            reply.bytes = 0;
    }
    kernel_close_own(folder, &folder_stat);
    return reply.bytes;
}

uint64_t neighbour_flush(const char *folder, const struct page_id *self, int pid, uint64_t until_ns)
{
    int saved_errno = errno, cancel = cancel_forbid();
    uint64_t bytes = 0;
    if (neighbour_page_lock(until_ns)) {
        bytes = flush_neighbour(folder, self, pid, until_ns);
        neighbour_page_unlock();
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
    if (neighbour_page_lock(clock_now_ns() + LOCKED_WAIT_NS)) {
        for (int i = 0; i < KNOWN; i++)
            if (known[i].is_near && page_id_parse(known[i].name, &its) &&
                its.pid == (uint64_t)pid) {
                known[i].locked = locked;
                known[i].skip_until_ns = locked ? clock_now_ns() + SKIP_LOCKED_NS : 0;
                known[i].late.slot = -1;
            }
        neighbour_page_unlock();
    }
    cancel_allow(cancel);
    errno = saved_errno;
}
