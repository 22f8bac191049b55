/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See flush.h. The lock guards the latest request of the environment (`request`), and for which of
 * them the packages are still to be asked (`unasked`, `asks`).
 */
#include "shim/control/flush.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/control/frameworks.h"
#include "shim/control/gpu_wait.h"
#include "shim/control/interim_report.h"
#include "shim/control/publish.h"
#include "shim/control/signal.h"
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/loader/scope.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/process/text.h"
#include "shim/stats/counters.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How often the thread looks at the file of GPUCACHE_EMPTY_CACHE_FILE. */
#define FILE_POLL_NS (200 * MS_NS)
/* How long a flush waits for pending memory: on the control thread, in turns (gpu_wait.h), and on
 * the program's own. */
#define WAIT_NS (5 * SEC_NS)
#define WAIT_OWN_NS (200 * MS_NS)
/* How often limits and timeouts make the packages empty their caches, at most: a program that works
 * on takes the memory again. */
#define ASK_AT_TICKS_NS (10 * SEC_NS)
/* Before a package that was busy is asked again. */
#define ASK_AGAIN_NS (50 * MS_NS)

/* Why a flush comes after the packages' answer. */
#define FOLLOWS "frameworks"

atomic_bool flush_at_oom;

static atomic_bool has_duties; /* from the start on; the thread that adds others is there */
static pthread_mutex_t request_lock = PTHREAD_MUTEX_INITIALIZER;
static struct empty_cache request;
static struct empty_cache unasked;
static bool asks;

uint64_t flush_pools(const struct empty_cache *e, uint64_t wait_ns, const char *why)
{
    struct pool_trim trim = {.keep_bytes = e->keep_bytes, .wait_ns = wait_ns};
    uint64_t start_ns = clock_now_ns(), back = context_trim(e->device, &trim);
    uint64_t took_ns = clock_now_ns() - start_ns;
    log_info("flush (%s): gave back %s MiB in %s ms", why, text_fixed(back, 1 << 20, 1).text,
             text_fixed(took_ns, MS_NS, 1).text);
    /* Where nothing more came, the flush before is the last. */
    if (back || strcmp(why, FOLLOWS) != 0)
        publish_flush(why, back, took_ns);
    return back;
}

/* Makes *all a flush that does what either was to do. */
static void widen(struct empty_cache *all, const struct empty_cache *e)
{
    if (all->device != e->device)
        all->device = -1;
    if (all->keep_bytes > e->keep_bytes)
        all->keep_bytes = e->keep_bytes;
}

/* The flushes that wait for GPU work. The control thread's. */
static struct {
    bool waits;
    struct empty_cache e;
    const char *why;
    struct gpu_wait wait;
} behind;

static uint64_t run_behind(uint64_t now_ns)
{
    if (!behind.waits)
        return DUTY_NEVER;
    if (!gpu_wait_over(&behind.wait, gpu_wait_done(&behind.wait)))
        return gpu_wait_next_ns(&behind.wait);
    behind.waits = false;
    flush_pools(&behind.e, 0, behind.why);
    return DUTY_NEVER;
}

static struct duty at_behind = {.run = run_behind, .needs_calm = true, .due_ns = DUTY_NEVER};

/* Gives back what is idle now, and later what GPU work still uses. On the control thread. */
static void flush_all_pools(const struct empty_cache *e, const char *why)
{
    struct empty_cache all = *e;
    if (behind.waits)
        widen(&all, &behind.e);
    uint64_t first_ns = gpu_wait_begin(&behind.wait, all.device, WAIT_NS);
    flush_pools(e, first_ns, why);
    behind.e = all;
    behind.why = why;
    behind.waits = !gpu_wait_done(&behind.wait);
    if (behind.waits)
        control_due(&at_behind, gpu_wait_next_ns(&behind.wait));
}

/* What is to be done again once the packages have answered. The control thread's. */
static struct {
    bool flushes, ticks;
    struct empty_cache e;
    uint64_t question; /* the latest one that counts */
} following;

static uint64_t run_answer(uint64_t now_ns);
static uint64_t run_ask(uint64_t now_ns);
static uint64_t run_limits(uint64_t now_ns);
static struct duty at_answer = {.run = run_answer, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty to_ask = {.run = run_ask, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_tick = {.run = run_limits, .needs_calm = true, .due_ns = DUTY_NEVER};

static void answered(void)
{
    control_due(&at_answer, 0);
}

uint64_t flush_ask_frameworks(void)
{
    return frameworks_ask(answered);
}

static void follow_answer(const struct empty_cache *e, uint64_t question)
{
    if (!question)
        return;
    if (!following.flushes)
        following.e = *e;
    widen(&following.e, e);
    following.flushes = true;
    following.question = max_u64(following.question, question);
}

/* 1. An answer may come before the question is noted here. So the notes are made on the control
 *    thread, which runs at_answer later (thread.h, 5 and 6).
 * 2. An answer to an earlier question ends no wait, because the packages may cache more before they
 *    are asked the next time. It is followed by a flush all the same. Otherwise a program that is
 *    flushed again and again would see none. */
static uint64_t run_answer(uint64_t now_ns)
{
    struct framework_result results[NUM_FRAMEWORKS];
    bool last = framework_has_answered(following.question, results);
    if (following.ticks)
        control_due(&at_tick, 0);
    if (following.flushes && !(last && framework_all_are(results, FRAMEWORK_ABSENT)))
        flush_all_pools(&following.e, FOLLOWS);
    if (last && framework_any_is(results, FRAMEWORK_BUSY))
        control_due(&to_ask, control_after(now_ns, ASK_AGAIN_NS));
    else if (last)
        following.flushes = following.ticks = false;
    log_debug("frameworks: %s", last ? "answered" : "still asked");
    return DUTY_NEVER;
}

/* The environment's requests, and packages that were busy. */
static uint64_t run_ask(uint64_t now_ns)
{
    uint64_t question = flush_ask_frameworks();
    pthread_mutex_lock(&request_lock);
    struct empty_cache e = unasked;
    bool from_environment = asks;
    asks = false;
    pthread_mutex_unlock(&request_lock);
    following.question = max_u64(following.question, question);
    if (from_environment)
        follow_answer(&e, question);
    return DUTY_NEVER;
}

bool flush_takes_answer(const struct empty_cache *e, uint64_t question,
                        struct framework_result *results)
{
    if (framework_has_answered(question, results) && !framework_any_is(results, FRAMEWORK_BUSY))
        return true;
    follow_answer(e, question);
    control_due(&at_answer, 0); /* the answer may have come meanwhile */
    return false;
}

/* On the control thread. */
static void flush(const struct empty_cache *e, const char *why)
{
    flush_all_pools(e, why);
    follow_answer(e, flush_ask_frameworks());
}

static uint64_t run_start(uint64_t now_ns)
{
    flush(&in_force()->empty_cache, "start");
    return DUTY_NEVER;
}

static uint64_t run_set(uint64_t now_ns)
{
    flush(&in_force()->empty_cache, "set");
    return DUTY_NEVER;
}

static uint64_t run_signal(uint64_t now_ns)
{
    counter_add(COUNTER_SIGNAL, 1);
    flush(&in_force()->empty_cache, "signal");
    return DUTY_NEVER;
}

static uint64_t interval_ns; /* when the interval is over */

static uint64_t run_interval(uint64_t now_ns)
{
    const struct empty_cache *e = &in_force()->empty_cache;
    if (!e->every_ns)
        return DUTY_NEVER;
    if (now_ns < interval_ns) /* the duty was due for a shorter interval */
        return interval_ns;
    flush(e, "interval");
    return interval_ns = control_after(now_ns, e->every_ns);
}

/* The file's time of change; 0: the file is not there. */
static uint64_t touched_ns(const char *path)
{
    struct stat st;
    if (!*path || kernel_fstatat(AT_FDCWD, path, &st, 0))
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * SEC_NS + (uint64_t)st.st_mtim.tv_nsec;
}

static uint64_t file_seen; /* the file's time of change at the last look */

static uint64_t run_file(uint64_t now_ns)
{
    const struct options *o = in_force();
    uint64_t touched = touched_ns(o->empty_cache_file.path);
    if (!*o->empty_cache_file.path)
        return DUTY_NEVER;
    if (touched && touched != file_seen) {
        counter_add(COUNTER_FILE, 1);
        flush(&o->empty_cache, "file");
    }
    file_seen = touched;
    return control_after(now_ns, FILE_POLL_NS);
}

/* Each tick that gave something back. The last flush that a page tells stays the one that somebody
 * asked for. */
static uint64_t keep_to_limits(void)
{
    uint64_t start_ns = clock_now_ns(), expired, back = context_tick(&expired);
    uint64_t took_ns = clock_now_ns() - start_ns;
    if (back > expired)
        TRACE(FLUSH, .a = back - expired, .b = took_ns, .text = "limit");
    if (expired)
        TRACE(FLUSH, .a = expired, .b = took_ns, .text = "timer");
    return back;
}

static uint64_t run_limits(uint64_t now_ns)
{
    static uint64_t asked_ns; /* the control thread's */
    if (keep_to_limits() && now_ns - asked_ns >= ASK_AT_TICKS_NS) {
        asked_ns = now_ns;
        following.ticks = true;
        following.question = max_u64(following.question, flush_ask_frameworks());
    }
    uint64_t tick_ns = context_tick_ns();
    return tick_ns ? control_after(now_ns, tick_ns) : DUTY_NEVER;
}

static struct duty on_start = {.run = run_start, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty on_set = {.run = run_set, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_signal = {.run = run_signal, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_interval = {.run = run_interval, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_file = {.run = run_file, .needs_calm = true, .due_ns = DUTY_NEVER};
static bool folder_is_there(const char *path)
{
    char *folder = strdup(path);
    char *end = folder ? strrchr(folder, '/') : NULL;
    struct stat st;
    bool there = true;
    if (end && end > folder) {
        *end = '\0';
        there = !kernel_fstatat(AT_FDCWD, folder, &st, 0);
    }
    free(folder);
    return there;
}

/* Does the process lack a device of this number? -1: all devices, always false. False also once the
 * process leaves. The call is a call scope: it may be on the control thread. */
static bool lacks_device(int device, int *count)
{
    struct call_scope scope;
    if (device < 0 || !call_scope_begin(&scope))
        return false;
    bool lacks = real.cuDeviceGetCount(count) == CUDA_SUCCESS && device >= *count;
    call_scope_end(&scope);
    return lacks;
}

static bool warn_of_missing_device(int device)
{
    int count = 0;
    bool lacks = lacks_device(device, &count);
    if (lacks)
        log_once(LOG_LEVEL_WARN,
                 "GPUCACHE_EMPTY_CACHE: there is no device %d (the process has %d): nothing is "
                 "given back",
                 device, count);
    return lacks;
}

void flush_limits_changed(void)
{
    control_due(&at_tick, 0);
}

/* The policy of GPUCACHE_EMPTY_CACHE holds from here on; `once` flushes at once. */
static void begin_policy(const struct empty_cache *e, struct duty *once)
{
    atomic_store(&flush_at_oom, e->on_oom);
    if (e->every_ns) {
        interval_ns = control_after(clock_now_ns(), e->every_ns);
        control_due(&at_interval, interval_ns);
    }
    if (e->now)
        control_due(once, 0);
}

bool flush_policy_changed(void)
{
    const struct empty_cache *e = &in_force()->empty_cache;
    int count = 0;
    begin_policy(e, &on_set);
    return !lacks_device(e->device, &count);
}

bool flush_file_changed(void)
{
    const char *path = in_force()->empty_cache_file.path;
    file_seen = touched_ns(path);
    if (*path)
        control_due(&at_file, control_after(clock_now_ns(), FILE_POLL_NS));
    return folder_is_there(path);
}

/* No other thread changes options before the control thread is there. */
void flush_start(void)
{
    const struct options *o = in_force();
    publish_signal(signal_install(o->signal, &at_signal));
    warn_of_missing_device(o->empty_cache.device);
    begin_policy(&o->empty_cache, &on_start);
    if (!flush_file_changed())
        log_warn("GPUCACHE_EMPTY_CACHE_FILE=%.200s: its folder does not exist; the file gives no "
                 "memory back until you make the folder",
                 o->empty_cache_file.path);
    interim_report_start();
    if (o->empty_cache.now || o->empty_cache.every_ns || *o->empty_cache_file.path ||
        o->park.idle_ns || (o->stats.at_exit && *o->stats.path)) {
        atomic_store(&has_duties, true);
        control_ensure_thread(); /* another thread may have made a pool before that */
    }
}

/* May the program have packages with caches of their own? They free nothing until they are asked. A
 * program that loads an interpreter after its first pool was made has no thread before it frees. */
static bool may_have_caches(void)
{
    int saved_errno = errno;
    bool may = in_force()->frameworks && (scope_is_forked() || python_is_loaded());
    errno = saved_errno;
    return may;
}

/* A signal may come before the thread exists. The thread sees it once it is there. Until then the
 * program freed nothing and has no cache of its own, so there was nothing to give back. */
void flush_pool_made(bool idle)
{
    uint64_t tick_ns = context_tick_ns();
    control_permit_thread();
    if (tick_ns)
        control_due(&at_tick, control_after(clock_now_ns(), tick_ns));
    bool page = publish_pool_made();
    if (page || idle || atomic_load(&has_duties) || tick_ns || may_have_caches())
        control_ensure_thread();
}

void flush_request(const char *value)
{
    struct empty_cache wanted;
    if (!state_is_on())
        return;
    if (!options_parse_empty_cache(value, &wanted)) {
        options_warn_value("GPUCACHE_EMPTY_CACHE", value, "nothing is given back");
        return;
    }
    if (!wanted.now || warn_of_missing_device(wanted.device))
        return;
    pthread_mutex_lock(&request_lock);
    request = wanted;
    pthread_mutex_unlock(&request_lock);
    state_detour_begin(STATE_DETOUR_FLUSH);
}

/* Under whatever lock the program holds: the control thread asks. */
static void ask_later(const struct empty_cache *e)
{
    pthread_mutex_lock(&request_lock);
    if (!asks)
        unasked = *e;
    widen(&unasked, e);
    asks = true;
    pthread_mutex_unlock(&request_lock);
    control_due(&to_ask, 0);
    control_ensure_thread();
}

void flush_serve_request(void)
{
    struct empty_cache wanted;
    if (capture_open() || !state_detour_end(STATE_DETOUR_FLUSH))
        return;
    pthread_mutex_lock(&request_lock);
    wanted = request;
    pthread_mutex_unlock(&request_lock);
    counter_add(COUNTER_ENVIRON, 1);
    flush_pools(&wanted, WAIT_OWN_NS, "environment");
    if (in_force()->frameworks)
        ask_later(&wanted);
}
