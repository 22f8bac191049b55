/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See publish.h. All state but the record of the last flush belongs to the control thread.
 */
#include "shim/control/publish.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/thread.h"
#include "shim/option/in_force.h"
#include "shim/page/page.h"
#include "shim/page/server.h"
#include "shim/process/clock.h"
#include "shim/process/fnv.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/proc_text.h"
#include "shim/process/state.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCHED_EVERY_NS SEC_NS
#define IDLE_EVERY_NS (10 * SEC_NS)
#define AT_LEAST_EVERY_NS (3600 * SEC_NS)
/* A reader may say at most so long ahead that it looks on (page/layout.h). */
#define WATCHED_MOST_NS (10 * SEC_NS)

static uint64_t run_publish(uint64_t now_ns);
static struct duty publish = {.run = run_publish, .due_ns = DUTY_NEVER};

static pthread_mutex_t flush_lock = PTHREAD_MUTEX_INITIALIZER;
static struct report_flush last_flush;
static atomic_int signal_now;
static void (*on_request)(void);

static enum { NOT_TRIED, THERE, GONE } now;
static uint64_t published_ns; /* the last time */
static uint64_t digest;       /* of the figures then */
static atomic_bool wanted;    /* publish_soon */
static char command[256];
static char body[PAGE_BODY_BYTES];
static struct report_pool pools[REPORT_ROWS_MAX];
static struct page_gpu gpus[PAGE_GPUS_MAX];
static struct page_park parks[PAGE_GPUS_MAX];

struct publish_park publish_park;

void publish_flush(const char *reason, uint64_t bytes, uint64_t ns)
{
    TRACE(FLUSH, .a = bytes, .b = ns, .text = reason);
    pthread_mutex_lock(&flush_lock);
    last_flush = (struct report_flush){.count = last_flush.count + 1,
                                       .reason = reason,
                                       .unix_ns = clock_unix_ns(),
                                       .bytes = bytes,
                                       .ns = ns};
    pthread_mutex_unlock(&flush_lock);
    publish_soon();
}

void publish_signal(int signal_number)
{
    atomic_store(&signal_now, signal_number);
}

void publish_set_on_request(void (*run)(void))
{
    on_request = run;
}

void publish_fill_report(struct report *r, struct report_pool *out, size_t max,
                         struct report_flush *last)
{
    pthread_mutex_lock(&flush_lock);
    *last = last_flush;
    pthread_mutex_unlock(&flush_lock);
    *r = (struct report){.pools = out,
                         .num_pools = context_report(out, max),
                         .options = in_force(),
                         .flush = last,
                         .signal = atomic_load(&signal_now),
                         .elapsed_ns = clock_now_ns() - state_started_ns()};
}

/* The start of the command line, with blanks between the words. */
static void read_command(void)
{
    struct stat opened;
    char path[PROC_TEXT_PATH_BYTES];

    proc_text_own_path(path, "cmdline");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool known = fd >= 0 && !kernel_fstat(fd, &opened);
    ssize_t n = fd < 0 ? 0 : pread(fd, command, sizeof command - 1, 0);

    if (known)
        kernel_close_own(fd, &opened);
    for (ssize_t i = 0; i + 1 < n; i++)
        if (!command[i])
            command[i] = ' ';
}

/* The sums of the pools by GPU. Returns how many there are. */
static size_t sum_by_gpu(size_t num_pools)
{
    size_t count = 0;

    memset(gpus, 0, sizeof gpus);
    memset(parks, 0, sizeof parks);
    for (size_t i = 0; i < num_pools; i++) {
        const struct pool_stats *s = &pools[i].stats;
        uint64_t used = max_u64(s->allocated_bytes, s->away_bytes);
        size_t g = 0;

        while (g < count && memcmp(gpus[g].uuid, pools[i].uuid_bytes, sizeof gpus[g].uuid) != 0)
            g++;
        if (g == PAGE_GPUS_MAX)
            continue;
        if (g == count)
            memcpy(gpus[count++].uuid, pools[i].uuid_bytes, sizeof gpus[g].uuid);
        if (pools[i].returned_ns > gpus[g].returned_ns) {
            gpus[g].returned_ns = pools[i].returned_ns;
            gpus[g].regrown_ns = pools[i].regrown_ns;
        }
        parks[g].away_bytes += s->away_bytes;
        if (pools[i].device >= 0 && pools[i].device < DEVICES_MAX)
            parks[g].needs_bytes = atomic_load(&publish_park.needs_bytes[pools[i].device]);
        gpus[g].allocated_bytes += s->allocated_bytes;
        gpus[g].reserved_bytes += s->reserved_bytes - s->away_bytes;
        gpus[g].idle_bytes += s->reserved_bytes > used ? s->reserved_bytes - used : 0;
        gpus[g].async_idle_bytes += pools[i].async.async_idle_bytes;
    }
    return count;
}

uint64_t publish_digest(const struct report *r)
{
    uint64_t sum = FNV_EMPTY;

    for (size_t i = 0; i < r->num_pools; i++) {
        sum = fnv_add(sum, &r->pools[i].stats, sizeof r->pools[i].stats);
        sum = fnv_add(sum, &r->pools[i].async, sizeof r->pools[i].async);
    }
    for (int i = 0; i < NUM_COUNTERS; i++) {
        uint64_t value = counter_get((enum counter)i);

        sum = fnv_add(sum, &value, sizeof value);
    }
    return fnv_add(sum, &r->flush->count, sizeof r->flush->count);
}

/* A body that has no room for all pools leaves the last ones out. */
static size_t write_body(struct report *r)
{
    size_t n;

    while ((n = report_json(r, body, sizeof body)) >= sizeof body && r->num_pools) {
        r->num_pools--;
        r->num_left_out++;
    }
    return n < sizeof body ? n : 0;
}

/* False: it is not parked. */
static bool fill_park(struct report_park *p)
{
    bool waits = atomic_load(&publish_park.needs_since_ns);

    *p = (struct report_park){.state = waits                              ? "waits"
                                       : atomic_load(&publish_park.wakes) ? "waking"
                                                                          : "parked",
                              .since_unix_ns = atomic_load(&publish_park.parked_unix_ns),
                              .whole = atomic_load(&publish_park.whole)};
    for (int i = 0; i < DEVICES_MAX; i++)
        p->needs_bytes += waits ? atomic_load(&publish_park.needs_bytes[i]) : 0;
    return p->since_unix_ns;
}

/* Fills *state with what is to be published. False: nothing changed, and only_changes was said. */
static bool collect_state(struct page_state *state, bool only_changes)
{
    struct report_flush last;
    struct report_park park;
    struct report r;

    publish_fill_report(&r, pools, REPORT_ROWS_MAX, &last);
    r.park = fill_park(&park) ? &park : NULL;
    r.command = command;
    r.running = true;
    uint64_t sum = publish_digest(&r);
    if (r.park) {
        sum = fnv_add(sum, &park.state, sizeof park.state);
        sum = fnv_add(sum, &park.whole, sizeof park.whole);
    }
    if (only_changes && sum == digest)
        return false;
    digest = sum;
    size_t num_gpus = sum_by_gpu(r.num_pools);
    *state = (struct page_state){.body = body,
                                 .body_bytes = write_body(&r),
                                 .gpus = gpus,
                                 .parks = parks,
                                 .asleep_since_ns = atomic_load(&publish_park.asleep_since_ns),
                                 .needs_since_ns = atomic_load(&publish_park.needs_since_ns),
                                 .num_gpus = num_gpus};
    return true;
}

static void complain(const char *path, const char *why, int code)
{
    char text[64] = "", words[64];

    if (code)
        snprintf(text, sizeof text, " (%s)", strerror_r(code, words, sizeof words));
    /* A process that is short of memory or descriptors is not helped by another folder. */
    if (path && code != ENOMEM && code != EMFILE && code != ENFILE)
        log_warn("GPUCACHE_DIR=%.200s: %s%s, so other processes do not see the state of this one; "
                 "name a folder of your own with mode 0700, or none",
                 path, why, text);
    else
        log_info("no page: %s%s", why, text);
}

static void complain_of_doorbell(void)
{
    log_info("no thread for requests: other processes cannot ask this one for anything");
}

static bool make_page(void)
{
    const struct option_dir *dir = &in_force()->dir;
    const char *path = dir->path[0] ? dir->path : NULL, *why;
    struct page_state state;

    read_command();
    collect_state(&state, false);
    if (!page_make(path, &state, &why)) {
        if (why)
            complain(path, why, errno);
        return false;
    }
    if (on_request && !page_start_doorbell(on_request))
        complain_of_doorbell();
    return true;
}

bool publish_now(void)
{
    struct page_state state;

    if (now == NOT_TRIED) {
        now = make_page() ? THERE : GONE;
    } else if (now == THERE) {
        collect_state(&state, false);
        bool lost = page_is_lost();
        if (lost)
            page_refuse_requests();
        bool renewed = lost && page_renew(&state);
        if (renewed && on_request && !page_renew_doorbell())
            complain_of_doorbell();
        /* A file that was cut off, and cannot be made anew now, may come later. */
        if (!renewed && !page_publish(&state) && !page_is_lost()) {
            now = GONE;
            log_info("the page is gone: its file system is full, or a sandbox forbids to write it");
        }
    }
    published_ns = clock_now_ns();
    return now == THERE;
}

static bool publish_if_changed(void)
{
    struct page_state state;

    bool fresh = clock_now_ns() < published_ns + AT_LEAST_EVERY_NS;
    if (!collect_state(&state, true) && !page_is_lost() && fresh)
        return true;
    return publish_now();
}

static uint64_t run_publish(uint64_t now_ns)
{
    uint64_t until_ns = page_watched_until_ns();
    bool watched = until_ns > now_ns && until_ns - now_ns <= WATCHED_MOST_NS;

    if (now == GONE)
        return DUTY_NEVER;
    if (now == THERE && now_ns < published_ns + PUBLISH_LEAST_NS)
        return published_ns + PUBLISH_LEAST_NS;
    bool soon = atomic_exchange(&wanted, false);
    bool on = soon || watched || now == NOT_TRIED ? publish_now() : publish_if_changed();
    if (!on)
        return DUTY_NEVER;
    /* What brought this state, a pool say, is likely to bring more. */
    return control_after(now_ns, watched || soon ? WATCHED_EVERY_NS : IDLE_EVERY_NS);
}

void publish_soon(void)
{
    if (in_force()->dir.none)
        return;
    atomic_store(&wanted, true);
    control_due(&publish, 0);
}

bool publish_pool_made(void)
{
    if (in_force()->dir.none)
        return false;
    publish_soon();
    return true;
}

void publish_end(void)
{
    page_remove();
}
