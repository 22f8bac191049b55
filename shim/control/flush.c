/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See flush.h. The lock guards the latest request of the environment.
 */
#include "shim/control/flush.h"

#include "shim/context/context.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/driver/capture.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MS UINT64_C(1000000)
/* How often the thread looks at the file of GPUCACHE_EMPTY_CACHE_FILE. */
#define FILE_POLL_NS (200 * MS)
/* How long a flush waits for pending memory: on the control thread, and on the program's own. */
#define WAIT_NS (5000 * MS)
#define WAIT_OWN_NS (200 * MS)

_Atomic bool flush_requested;

static struct sigaction chained;  /* the program's setting before our handler */
static atomic_bool chained_gone; /* it was for one signal (SA_RESETHAND), which has come */
static int installed; /* the signal with our handler; 0: none */
static pthread_mutex_t request_lock = PTHREAD_MUTEX_INITIALIZER;
static struct empty_cache request;

uint64_t flush(const struct empty_cache *e, uint64_t wait_ns, const char *why)
{
    struct pool_trim trim = {.keep_bytes = e->keep_bytes, .wait_ns = wait_ns};
    uint64_t start_ns = state_clock_ns(), back = context_trim(e->device, &trim);
    uint64_t took_ns = state_clock_ns() - start_ns;
    log_info("flush (%s): gave back %.1f MiB in %.1f ms", why, (double)back / (1 << 20),
             (double)took_ns / 1e6);
    publish_flush(why, back, took_ns);
    return back;
}

static uint64_t run_start(uint64_t now_ns)
{
    flush(&state_options()->empty_cache, WAIT_NS, "start");
    return DUTY_NEVER;
}

static uint64_t run_signal(uint64_t now_ns)
{
    counter_add(COUNTER_SIGNAL, 1);
    flush(&state_options()->empty_cache, WAIT_NS, "signal");
    return DUTY_NEVER;
}

static uint64_t run_interval(uint64_t now_ns)
{
    const struct empty_cache *e = &state_options()->empty_cache;
    flush(e, WAIT_NS, "interval");
    return control_after(now_ns, e->every_ns);
}

/* The file's time of change; 0: the file is not there. */
static uint64_t touched_ns(const char *path)
{
    struct stat st;
    if (!*path || kernel_fstatat(AT_FDCWD, path, &st, 0))
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000 * MS + (uint64_t)st.st_mtim.tv_nsec;
}

static uint64_t file_seen; /* the file's time of change at the last look */

static uint64_t run_file(uint64_t now_ns)
{
    const struct options *o = state_options();
    uint64_t touched = touched_ns(o->empty_cache_file.path);
    if (touched && touched != file_seen) {
        counter_add(COUNTER_FILE, 1);
        flush(&o->empty_cache, WAIT_NS, "file");
    }
    file_seen = touched;
    return control_after(now_ns, FILE_POLL_NS);
}

static uint64_t run_tick(uint64_t now_ns)
{
    context_tick();
    uint64_t tick_ns = context_tick_ns();
    return tick_ns ? control_after(now_ns, tick_ns) : DUTY_NEVER;
}

static struct duty on_start = {.run = run_start, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_signal = {.run = run_signal, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_interval = {.run = run_interval, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_file = {.run = run_file, .needs_calm = true, .due_ns = DUTY_NEVER};
static struct duty at_tick = {.run = run_tick, .needs_calm = true, .due_ns = DUTY_NEVER};

static void on_signal(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    control_due(&at_signal, 0);
    if ((chained.sa_flags & SA_RESETHAND) && atomic_exchange(&chained_gone, true)) {
        /* The program's handler was for one signal only. */
    } else if (chained.sa_flags & SA_SIGINFO) {
        if (chained.sa_sigaction)
            chained.sa_sigaction(signal_number, info, context);
    } else if (chained.sa_handler != SIG_DFL && chained.sa_handler != SIG_IGN) {
        chained.sa_handler(signal_number);
    }
    errno = saved_errno;
}

static bool is_ours(int signal_number)
{
    struct sigaction now;
    return !sigaction(signal_number, NULL, &now) && (now.sa_flags & SA_SIGINFO) &&
           now.sa_sigaction == on_signal;
}

/* A signal that the program ignores stays ignored. Children inherit that, but no handler: a child
 * of posix_spawn, vfork or system would die of the signal. Where the program has a handler, ours
 * keeps its mask, its stack and its way of interrupting calls. Where it has none, interrupted calls
 * are restarted, so that the program notices nothing. */
static void install_handler(int signal_number)
{
    struct sigaction mine;
    if (!signal_number || sigaction(signal_number, NULL, &chained))
        return;
    bool own = (chained.sa_flags & SA_SIGINFO) || chained.sa_handler != SIG_DFL;
    if (chained.sa_handler == SIG_IGN) { /* the kernel looks at nothing else, whatever the flags */
        log_info("the process ignores signal %d, and the library leaves it so: the signal gives no "
                 "memory back; name another one with GPUCACHE_SIGNAL",
                 signal_number);
        return;
    }
    mine = chained;
    mine.sa_sigaction = on_signal;
    mine.sa_flags = SA_SIGINFO | (own ? chained.sa_flags & ~SA_RESETHAND : SA_RESTART | SA_ONSTACK);
    if (!own)
        sigemptyset(&mine.sa_mask);
    if (!sigaction(signal_number, &mine, NULL))
        installed = signal_number;
}

void flush_leave_signal(void)
{
    if (!installed || !is_ours(installed))
        return;
    if (atomic_load(&chained_gone))
        chained = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(installed, &chained, NULL);
}

static void warn_of_missing_folder(const char *path)
{
    char *folder = strdup(path);
    char *end = folder ? strrchr(folder, '/') : NULL;
    struct stat st;
    if (end && end > folder) {
        *end = '\0';
        if (kernel_fstatat(AT_FDCWD, folder, &st, 0))
            log_warn("GPUCACHE_EMPTY_CACHE_FILE=%.200s is in a folder that is not there: it gives "
                     "no memory back until the folder is made",
                     path);
    }
    free(folder);
}

/* Does the process have a device of this number? -1: all devices, always true. */
static bool device_is_there(int device)
{
    int count = 0;
    if (device < 0 || real.cuDeviceGetCount(&count) != CUDA_SUCCESS || device < count)
        return true;
    log_once(LOG_LEVEL_WARN,
             "GPUCACHE_EMPTY_CACHE: there is no device %d (the process has %d): nothing is given "
             "back",
             device, count);
    return false;
}

void flush_start(void)
{
    const struct options *o = state_options();
    const char *path = o->empty_cache_file.path;
    uint64_t now_ns = state_clock_ns();
    device_is_there(o->empty_cache.device);
    warn_of_missing_folder(path);
    install_handler(o->signal);
    publish_signal(installed);
    file_seen = touched_ns(path);
    if (*path)
        control_due(&at_file, control_after(now_ns, FILE_POLL_NS));
    if (o->empty_cache.every_ns)
        control_due(&at_interval, control_after(now_ns, o->empty_cache.every_ns));
    if (o->empty_cache.now)
        control_due(&on_start, 0);
}

/* A signal may come before the thread exists. The thread sees it once it is there. Until then the
 * program freed nothing, so there was nothing to give back. */
void flush_pool_made(bool idle)
{
    const struct empty_cache *e = &state_options()->empty_cache;
    uint64_t tick_ns = context_tick_ns();
    control_permit_thread();
    if (tick_ns)
        control_due(&at_tick, control_after(state_clock_ns(), tick_ns));
    bool page = publish_pool_made();
    if (page || idle || e->now || e->every_ns || *state_options()->empty_cache_file.path || tick_ns)
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
    if (!wanted.now || !device_is_there(wanted.device))
        return;
    pthread_mutex_lock(&request_lock);
    request = wanted;
    pthread_mutex_unlock(&request_lock);
    atomic_store(&flush_requested, true);
}

void flush_serve_request(void)
{
    struct empty_cache wanted;
    if (capture_open() || !atomic_exchange(&flush_requested, false))
        return;
    pthread_mutex_lock(&request_lock);
    wanted = request;
    pthread_mutex_unlock(&request_lock);
    counter_add(COUNTER_ENVIRON, 1);
    flush(&wanted, WAIT_OWN_NS, "environment");
}
