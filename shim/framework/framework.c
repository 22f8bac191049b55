/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See framework.h; the numbers below are the steps of Note [Framework locks]. The lock guards
 * the latest answer, and is held for a copy.
 */
#include "shim/framework/framework.h"

#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/process/fork_gate.h"
#include "shim/process/log.h"
#include "shim/process/own_thread.h"
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

/* The packages are to give their caches back, or to tell how large these are. */
enum question_kind { FLUSH, LOOK, NUM_KINDS };
/* Of each kind: the latest question, the latest that has its answer, and the answer. */
static struct {
    _Atomic uint64_t asked, answered;
    struct framework_result answer[NUM_FRAMEWORKS];
} kinds[NUM_KINDS];
static struct framework_cached cached_answer[NUM_FRAMEWORKS]; /* of a look */
static atomic_bool there; /* the thread is there, or its like never will be again */
static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct framework_host *host;
static _Atomic(void (*)(void)) tell_answered; /* of a flush */
/* Its destructor tells that the interpreter ended the thread. (pthread_cleanup_push is newer than
 * the C libraries that this library is to run with.) */
static pthread_key_t at_thread_end;
static bool has_key; /* only the thread that makes the framework thread uses it */

static const struct {
    enum counter count, bytes;
} counters[NUM_FRAMEWORKS] = {
#define FRAMEWORK(name, module, flush, look) {COUNTER_##name##_CACHE, COUNTER_##name##_BYTES},
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
};

static void publish_results(enum question_kind kind, uint64_t question)
{
    atomic_store(&kinds[kind].answered, question);
    if (kind == FLUSH)
        atomic_load (&tell_answered)(); /* step 7 */
}

/* How many questions there were, of all kinds. */
static uint64_t num_asked(void)
{
    uint64_t sum = 0;
    for (int kind = 0; kind < NUM_KINDS; kind++)
        sum += atomic_load(&kinds[kind].asked);
    return sum;
}

static void log_results(const struct framework_result *results)
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
                     text_fixed(r->ns, MS_NS, 1).text);
    }
}

static void fill_results(struct framework_result *results, enum framework_state state)
{
    static const char *const names[NUM_FRAMEWORKS] = {
#define FRAMEWORK(name, module, flush, look) module,
#include "shim/framework/frameworks.def"
#undef FRAMEWORK
    };
    for (int i = 0; i < NUM_FRAMEWORKS; i++)
        results[i] = (struct framework_result){.name = names[i], .state = state};
}

static void run_one(enum question_kind kind)
{
    static struct framework_cached cached[NUM_FRAMEWORKS]; /* only this thread uses it */
    struct framework_result results[NUM_FRAMEWORKS];
    uint64_t question = atomic_load(&kinds[kind].asked);
    if (question == atomic_load(&kinds[kind].answered))
        return;
    fill_results(results, FRAMEWORK_LATE);
    if (own_visit_begin()) {
        python_ask(host, results, kind == LOOK ? cached : NULL);
        own_visit_end();
    }
    if (kind == FLUSH)
        log_results(results);
    pthread_mutex_lock(&answer_lock);
    memcpy(kinds[kind].answer, results, sizeof results);
    if (kind == LOOK)
        memcpy(cached_answer, cached, sizeof cached);
    pthread_mutex_unlock(&answer_lock);
    publish_results(kind, question);
}

static void run_once(void)
{
    for (int kind = 0; kind < NUM_KINDS; kind++)
        run_one(kind);
}

/* The interpreter ended the thread by pthread_exit. `there` stays, so no other is made. */
static void interrupted(void *unused)
{
    python_interrupted(host);
    for (int kind = 0; kind < NUM_KINDS; kind++)
        if (atomic_load(&kinds[kind].asked))
            publish_results(kind, atomic_load(&kinds[kind].asked));
}

static void run_thread(void)
{
    uint64_t seen;
    pthread_setspecific(at_thread_end, &at_thread_end);
    do {
        do {
            seen = num_asked();
            run_once();
        } while (num_asked() != seen);
        atomic_store(&there, false); /* step 8 */
    } while (num_asked() != seen && !atomic_exchange(&there, true));
    pthread_setspecific(at_thread_end, NULL);
}

static bool make_thread(void)
{
    static const struct own_thread thread = {"gpucache-python", STACK_BYTES, run_thread};
    if (!has_key && pthread_key_create(&at_thread_end, interrupted))
        return false;
    has_key = true;
    return own_thread_start(&thread);
}

static uint64_t ask_kind(enum question_kind kind, const struct framework_host *with)
{
    if (!in_force()->frameworks)
        return 0;
    fork_gate_enter(); /* python_is_loaded takes a lock that a child would find taken */
    bool may_ask = python_is_loaded();
    fork_gate_leave();
    if (!may_ask || !own_visit_begin())
        return 0;
    own_visit_end();
    int saved_errno = errno;
    uint64_t question = atomic_fetch_add(&kinds[kind].asked, 1) + 1;
    if (!atomic_exchange(&there, true)) { /* step 8 */
        host = with;
        if (!make_thread()) {
            atomic_store(&there, false);
            question = 0;
        }
    }
    errno = saved_errno;
    return question;
}

uint64_t framework_ask(const struct framework_host *with, void (*then)(void))
{
    atomic_store(&tell_answered, then);
    return ask_kind(FLUSH, with);
}

uint64_t framework_look(const struct framework_host *with)
{
    return ask_kind(LOOK, with);
}

static bool has_answered(enum question_kind kind, uint64_t question,
                         struct framework_result *results, struct framework_cached *cached)
{
    bool has = atomic_load(&kinds[kind].answered) >= question;
    fill_results(results, question ? FRAMEWORK_LATE : FRAMEWORK_ABSENT);
    if (question && has) {
        pthread_mutex_lock(&answer_lock);
        memcpy(results, kinds[kind].answer, sizeof kinds[kind].answer);
        if (cached)
            memcpy(cached, cached_answer, sizeof cached_answer);
        pthread_mutex_unlock(&answer_lock);
    }
    return has;
}

bool framework_has_answered(uint64_t question, struct framework_result *results)
{
    return has_answered(FLUSH, question, results, NULL);
}

bool framework_has_looked(uint64_t question, struct framework_result *results,
                          struct framework_cached *cached)
{
    return has_answered(LOOK, question, results, cached);
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
        [FRAMEWORK_ABSENT] = "absent", [FRAMEWORK_IDLE] = "idle",     [FRAMEWORK_DONE] = "done",
        [FRAMEWORK_KEEPS] = "keeps",   [FRAMEWORK_FAILED] = "failed", [FRAMEWORK_BUSY] = "busy",
        [FRAMEWORK_LATE] = "late",
    };
    return names[state];
}
