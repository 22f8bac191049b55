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
#include "shim/process/text.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

/* Packages run deep in C++ there, and the interpreter may run finalizers. Only touched pages
 * count. */
#define STACK_BYTES (4 << 20)

static _Atomic uint64_t asked;    /* the latest question */
static _Atomic uint64_t answered; /* the latest question that has its answer */
static atomic_bool there;         /* the thread is there, or its like never will be again */
static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER;
static struct framework_result answer[NUM_FRAMEWORKS];
static const struct framework_host *host;
static void (*tell_answered)(void);
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

static void publish(uint64_t question)
{
    atomic_store(&answered, question);
    tell_answered(); /* step 7 */
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
            log_info("%s: %s, gave %s MiB back in %s ms", r->name, framework_state_name(r->state),
                     text_fixed(r->returned_bytes, 1 << 20, 1).text,
                     text_fixed(r->ns, 1000000, 1).text);
    }
}

static void run_once(void)
{
    struct framework_result results[NUM_FRAMEWORKS];
    uint64_t question = atomic_load(&asked);
    python_ask(host, results);
    tell(results);
    pthread_mutex_lock(&answer_lock);
    memcpy(answer, results, sizeof answer);
    pthread_mutex_unlock(&answer_lock);
    publish(question);
}

/* The interpreter ended the thread by pthread_exit. `there` stays, so no other is made. */
static void interrupted(void *unused)
{
    python_interrupted(host);
    publish(atomic_load(&asked));
}

static void run(void)
{
    uint64_t seen;
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

uint64_t framework_ask(const struct framework_host *with, void (*then)(void))
{
    if (!state_options()->frameworks)
        return 0;
    fork_gate_enter(); /* python_is_loaded takes a lock that a child would find taken */
    bool may_ask = python_is_loaded();
    fork_gate_leave();
    if (!may_ask)
        return 0;
    int saved_errno = errno;
    uint64_t question = atomic_fetch_add(&asked, 1) + 1;
    if (!atomic_exchange(&there, true)) { /* step 8 */
        host = with;
        tell_answered = then;
        if (!make_thread()) {
            atomic_store(&there, false);
            question = 0;
        }
    }
    errno = saved_errno;
    return question;
}

bool framework_has_answered(uint64_t question, struct framework_result *results)
{
    bool has = atomic_load(&answered) >= question;
    fill(results, question ? FRAMEWORK_LATE : FRAMEWORK_ABSENT);
    if (question && has) {
        pthread_mutex_lock(&answer_lock);
        memcpy(results, answer, sizeof answer);
        pthread_mutex_unlock(&answer_lock);
    }
    return has;
}

bool framework_any_is(const struct framework_result *results, enum framework_state state)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        if (results[i].state == state)
            return true;
    return false;
}

bool framework_all_are(const struct framework_result *results, enum framework_state state)
{
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        if (results[i].state != state)
            return false;
    return true;
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
