/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See control.h.
 *
 * The signal handler wakes a futex and does nothing else. It is not an eventfd on purpose: a
 * program may close every descriptor that it did not open (daemons do), and open its own files
 * under the same numbers; a handler that then wrote to "its" descriptor would write eight bytes
 * into the program's file. No check in a handler can tell our eventfd from one of the program's, so
 * there is none.
 */
#include "shim/control/control.h"

#include "shim/driver/capture.h"
#include "shim/context/context.h"
#include "shim/stats/counters.h"
#include "shim/share/ipc.h"
#include "shim/process/kernel.h"
#include "shim/process/log.h"
#include "shim/process/state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
/* How often the file of GPUCACHE_EMPTY_CACHE_FILE is looked at. */
#define FILE_POLL_NS (200 * MS)
/* How long a flush waits for pending memory: on the control thread, and on the program's own. */
#define WAIT_NS (5000 * MS)
#define WAIT_OWN_NS (200 * MS)
/* The driver needs some; the rest of the default 8 MiB would be the program's to account for. */
#define STACK_BYTES (512 * 1024)

_Atomic bool control_requested;

/* 1: there is something to look at. A futex and no semaphore: a wait on CLOCK_MONOTONIC for a
 * semaphore is newer than the C libraries that this library is to run with. */
static _Atomic uint32_t wake;
static atomic_bool signalled, put_off, pool_made;
atomic_bool control_there;
static struct sigaction chained;
static atomic_bool chained_gone;
static int installed; /* the signal that is ours, 0: none */
static pthread_mutex_t request_lock = PTHREAD_MUTEX_INITIALIZER;
static struct empty_cache request;

static void flush(int device, uint64_t keep_bytes, uint64_t wait_ns, const char *why)
{
    struct pool_trim trim = {.keep_bytes = keep_bytes, .wait_ns = wait_ns};
    uint64_t start_ns = state_clock_ns(), back = context_trim(device, &trim);
    log_info("%s: gave back %.1f MiB in %.1f ms", why, (double)back / (1 << 20),
             (double)(state_clock_ns() - start_ns) / 1e6);
}

/* Any thread, also in a signal handler. Who waits sees all that was stored before. Keeps errno. */
static void wake_up(void)
{
    int saved_errno = errno;
    atomic_store(&wake, 1);
    syscall(SYS_futex, &wake, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = saved_errno;
}

static void on_signal(int signal_number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    atomic_store(&signalled, true);
    wake_up();
    if ((chained.sa_flags & SA_RESETHAND) && atomic_exchange(&chained_gone, true)) {
        /* It was for one signal only. */
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

/* A signal that is ignored stays so: children inherit that, but no handler, and one made by
 * posix_spawn, vfork or system would die of what it ignored. A handler of the program's keeps its
 * mask, its stack and its way of interrupting calls; where there was none, interrupted calls are
 * restarted, so that the program notices nothing. */
static void install_handler(int signal_number)
{
    struct sigaction mine;
    if (!signal_number || sigaction(signal_number, NULL, &chained))
        return;
    bool own = (chained.sa_flags & SA_SIGINFO) || chained.sa_handler != SIG_DFL;
    if (chained.sa_handler == SIG_IGN) { /* whatever its flags, the kernel looks at nothing else */
        log_info("signal %d is ignored here and stays so: it will not empty the cache",
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

void control_leave_signal(void)
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
            log_warn("GPUCACHE_EMPTY_CACHE_FILE=%.200s is in a folder that is not there", path);
    }
    free(folder);
}

/* Whether the process has a device of this number, or all (-1) are meant. */
static bool device_is_there(int device)
{
    int count = 0;
    if (device < 0 || real.cuDeviceGetCount(&count) != CUDA_SUCCESS || device < count)
        return true;
    log_once(LOG_LEVEL_WARN,
             "GPUCACHE_EMPTY_CACHE: there is no device %d (they are %d): nothing is given back",
             device, count);
    return false;
}

void control_start(void)
{
    const struct options *o = state_options();
    device_is_there(o->empty_cache.device);
    warn_of_missing_folder(o->empty_cache_file.path);
    install_handler(o->signal);
}

/* The file's time of change; 0: it is not there. */
static uint64_t touched_ns(const char *path)
{
    struct stat st;
    if (!*path || kernel_fstatat(AT_FDCWD, path, &st, 0))
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000 * MS + (uint64_t)st.st_mtim.tv_nsec;
}

struct schedule {
    uint64_t tick_ns, every_ns, file_ns; /* when each is due next, 0: never */
    uint64_t file_seen;
};

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return !a ? b : !b || a < b ? a : b;
}

/* An interval may be as long as can be written: past the end of the clock is its end, not its start. */
static uint64_t later(uint64_t now_ns, uint64_t interval_ns)
{
    return interval_ns < UINT64_MAX - now_ns ? now_ns + interval_ns : UINT64_MAX;
}

static void sleep_until(uint64_t due_ns)
{
    struct timespec t = {.tv_sec = (time_t)(due_ns / 1000000000u),
                         .tv_nsec = (long)(due_ns % 1000000000u)};
    /* The kernel waits only while `wake` is 0, so no call is lost: one before the wait ends it at
     * once. The time is absolute and, without FUTEX_CLOCK_REALTIME, of CLOCK_MONOTONIC. */
    syscall(SYS_futex, &wake, FUTEX_WAIT_BITSET_PRIVATE, 0, due_ns ? &t : NULL, NULL,
            FUTEX_BITSET_MATCH_ANY);
    atomic_exchange(&wake, 0); /* before the looks at what was asked for */
}

/* A flush must not synchronise while a capture is open; the end of the capture wakes this thread. */
static bool may_flush(void)
{
    atomic_store(&put_off, true);
    if (capture_open())
        return false;
    atomic_store(&put_off, false);
    return true;
}

static void run_due(struct schedule *s)
{
    const struct options *o = state_options();
    uint64_t now_ns = state_clock_ns();
    ipc_answer();
    if (ipc_any_closed() && may_flush()) {
        ipc_tidy();
        if (ipc_any_closed())
            may_flush(); /* a capture has begun: its end wakes this thread */
    }
    if (atomic_load(&signalled) && may_flush()) {
        atomic_store(&signalled, false);
        counter_add(COUNTER_SIGNAL, 1);
        flush(o->empty_cache.device, o->empty_cache.keep_bytes, WAIT_NS, "signal");
    }
    if (s->every_ns && now_ns >= s->every_ns && may_flush()) {
        s->every_ns = later(now_ns, o->empty_cache.every_ns);
        flush(o->empty_cache.device, o->empty_cache.keep_bytes, WAIT_NS, "interval");
    }
    if (s->file_ns && now_ns >= s->file_ns) {
        uint64_t touched = touched_ns(o->empty_cache_file.path);
        s->file_ns = now_ns + FILE_POLL_NS;
        if (touched && touched != s->file_seen && may_flush()) {
            counter_add(COUNTER_FILE, 1);
            flush(o->empty_cache.device, o->empty_cache.keep_bytes, WAIT_NS, "file");
            s->file_seen = touched;
        } else if (!touched) {
            s->file_seen = 0;
        }
    }
    if (s->tick_ns && now_ns >= s->tick_ns && may_flush())
        context_tick();
    uint64_t tick_ns = context_tick_ns();
    s->tick_ns = tick_ns ? later(now_ns, tick_ns) : 0;
}

static void *run(void *unused)
{
    const struct options *o = state_options();
    struct schedule s = {0};
    pthread_setname_np(pthread_self(), "gpucache"); /* from outside it would open a file in /proc */
    if (o->empty_cache.every_ns)
        s.every_ns = later(state_clock_ns(), o->empty_cache.every_ns);
    if (*o->empty_cache_file.path) {
        s.file_ns = state_clock_ns() + FILE_POLL_NS;
        s.file_seen = touched_ns(o->empty_cache_file.path);
    }
    if (o->empty_cache.now)
        flush(o->empty_cache.device, o->empty_cache.keep_bytes, WAIT_NS, "start");
    while (state_is_on()) {
        run_due(&s);
        uint64_t due_ns = sooner(s.tick_ns, s.file_ns);
        /* While a capture puts the interval off, the capture's end is the next moment to look. */
        if (!s.every_ns || s.every_ns > state_clock_ns() || !capture_open())
            due_ns = sooner(due_ns, s.every_ns);
        sleep_until(due_ns);
    }
    return NULL;
}

/* A signal that comes before the thread is there is seen as soon as it is: until then nothing was freed, so
 * there was nothing to give back. */
void control_make_thread(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int saved_errno = errno;
    if (!atomic_load(&pool_made) || atomic_exchange(&control_there, true) || pthread_attr_init(&attr))
        return;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attr, run, NULL))
        log_once(LOG_LEVEL_WARN, "no control thread: signals, limits and timeouts will do nothing");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    errno = saved_errno;
}

void control_pool_made(bool idle)
{
    const struct empty_cache *e = &state_options()->empty_cache;
    atomic_store(&pool_made, true);
    if (idle || e->now || e->every_ns || *state_options()->empty_cache_file.path || context_tick_ns())
        control_need();
    wake_up(); /* the new pool may have a shorter tick */
}

void control_capture_closed(void)
{
    if (atomic_exchange(&put_off, false))
        wake_up();
}

void control_wake(void)
{
    wake_up();
}

void control_environ(const char *value)
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
    atomic_store(&control_requested, true);
}

void control_serve_request(void)
{
    struct empty_cache wanted;
    if (capture_open() || !atomic_exchange(&control_requested, false))
        return;
    pthread_mutex_lock(&request_lock);
    wanted = request;
    pthread_mutex_unlock(&request_lock);
    counter_add(COUNTER_ENVIRON, 1);
    flush(wanted.device, wanted.keep_bytes, WAIT_OWN_NS, "environment");
}
