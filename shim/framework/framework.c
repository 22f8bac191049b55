/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See framework.h, also for the argument; the numbers below are those of its steps. The lock guards
 * the latest answer, and is held for a copy.
 */
#include "shim/framework/framework.h"

#include "shim/process/fork_gate.h"
#include "shim/process/log.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Packages run deep in C++ there, and the interpreter may run finalizers. Only touched pages
 * count. */
#define STACK_BYTES (4 << 20)
#define SECOND UINT64_C(1000000000)

static _Atomic uint32_t asked;    /* how many requests there were */
static _Atomic uint32_t answered; /* the last request that has its answer; a futex */
static atomic_bool there;         /* the thread is there, or its like never will be again */
static atomic_bool late;          /* an asker gave up */
static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER;
static struct framework_result answer[NUM_FRAMEWORKS];
static const struct framework_host *host;
static void (*through)(bool anew);
/* Its destructor tells that the interpreter ended the thread. (pthread_cleanup_push is newer than
 * the C libraries that this library is to run with.) */
static pthread_key_t at_thread_end;
static bool has_key; /* only the thread that makes the framework thread uses it */

static const struct {
    enum counter count, bytes;
} counters[NUM_FRAMEWORKS] = {
#define FRAMEWORK(name, module, text) {COUNTER_##name##_CACHE, COUNTER_##name##_BYTES},
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
};

static void publish(uint32_t ticket)
{
    atomic_store(&answered, ticket);
    syscall(SYS_futex, &answered, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void tell(const struct framework_result *results)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++) {
        const struct framework_result *r = &results[i];
        if (r->state == FRAMEWORK_DONE) {
            counter_add(counters[i].count, 1);
            counter_add(counters[i].bytes, r->returned_bytes);
        }
        if (r->state != FRAMEWORK_ABSENT)
            log_info("%s: %s, gave %.1f MiB back in %.1f ms", r->name,
                     framework_state_name(r->state), (double)r->returned_bytes / (1 << 20),
                     (double)r->ns / 1e6);
    }
}

static void run_once(void)
{
    struct framework_result results[NUM_FRAMEWORKS];
    uint32_t ticket = atomic_load(&asked);
    python_ask(host, results);
    tell(results);
    pthread_mutex_lock(&answer_lock);
    memcpy(answer, results, sizeof answer);
    pthread_mutex_unlock(&answer_lock);
    publish(ticket);
    bool anew = framework_any_is(results, FRAMEWORK_BUSY);
    if (atomic_exchange(&late, false) || anew) /* step 7 */
        through(anew);
}

/* The interpreter ended the thread by pthread_exit. `there` stays, so no other is made. */
static void interrupted(void *unused)
{
    python_interrupted(host);
    publish(atomic_load(&asked));
}

static void run(void)
{
    uint32_t seen;
    pthread_setspecific(at_thread_end, &at_thread_end);
    do {
        do {
            seen = atomic_load(&asked);
            run_once();
        } while (atomic_load(&asked) != seen);
        atomic_store(&there, false); /* step 8 */
    } while (atomic_load(&asked) != seen && !atomic_exchange(&there, true));
    pthread_setspecific(at_thread_end, NULL);
}

static bool make_thread(void)
{
    static const struct own_thread thread = {"gpucache-python", STACK_BYTES, run};
    if (!has_key && pthread_key_create(&at_thread_end, interrupted))
        return false;
    has_key = true;
    return own_thread_start(&thread);
}

static bool has_answer(uint32_t ticket)
{
    return (int32_t)(atomic_load(&answered) - ticket) >= 0;
}

static bool await_answer(uint32_t ticket, uint64_t wait_ns)
{
    uint64_t end_ns = state_clock_ns() + wait_ns, now_ns;
    while (!has_answer(ticket) && (now_ns = state_clock_ns()) < end_ns) {
        struct timespec left = {.tv_sec = (time_t)((end_ns - now_ns) / SECOND),
                                .tv_nsec = (long)((end_ns - now_ns) % SECOND)};
        uint32_t now = atomic_load(&answered);
        if ((int32_t)(now - ticket) < 0)
            syscall(SYS_futex, &answered, FUTEX_WAIT_PRIVATE, now, &left, NULL, 0);
    }
    if (!has_answer(ticket)) {
        atomic_store(&late, true); /* step 7 */
        return has_answer(ticket);
    }
    return true;
}

static void fill(struct framework_result *results, enum framework_state state)
{
    static const char *const names[NUM_FRAMEWORKS] = {
#define FRAMEWORK(name, module, text) module,
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
    };
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        results[i] = (struct framework_result){.name = names[i], .state = state};
}

bool framework_ask(const struct framework_host *with, void (*then)(bool anew), uint64_t wait_ns,
                   struct framework_result *results)
{
    struct framework_result unused[NUM_FRAMEWORKS];
    results = results ? results : unused;
    fill(results, FRAMEWORK_ABSENT);
    if (!state_options()->frameworks)
        return true;
    fork_gate_enter(); /* python_is_loaded takes a lock that a child would find taken */
    bool may_ask = python_is_loaded();
    fork_gate_leave();
    if (!may_ask)
        return true;
    int saved_errno = errno;
    uint32_t ticket = atomic_fetch_add(&asked, 1) + 1;
    if (!atomic_exchange(&there, true)) {
        host = with;
        through = then;
        if (!make_thread()) {
            atomic_store(&there, false);
            errno = saved_errno;
            return true;
        }
    }
    bool came = await_answer(ticket, wait_ns);
    if (came) {
        pthread_mutex_lock(&answer_lock);
        memcpy(results, answer, sizeof answer);
        pthread_mutex_unlock(&answer_lock);
    } else {
        fill(results, FRAMEWORK_LATE);
        log_info("frameworks: no answer after %.0f ms", (double)wait_ns / 1e6);
    }
    errno = saved_errno;
    return came && !framework_any_is(results, FRAMEWORK_BUSY);
}

bool framework_any_is(const struct framework_result *results, enum framework_state state)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        if (results[i].state == state)
            return true;
    return false;
}

const char *framework_state_name(enum framework_state state)
{
    static const char *const names[] = {
        [FRAMEWORK_ABSENT] = "absent", [FRAMEWORK_IDLE] = "idle", [FRAMEWORK_DONE] = "done",
        [FRAMEWORK_KEEPS] = "keeps",   [FRAMEWORK_FAILED] = "failed", [FRAMEWORK_BUSY] = "busy",
        [FRAMEWORK_LATE] = "late",
    };
    return names[state];
}
