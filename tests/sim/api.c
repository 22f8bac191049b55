/* SPDX-License-Identifier: BSD-2-Clause */
/* The entry and the exit of all exported functions, cuInit, fork, the exit of the process, and the
 * one lock of the driver. */
#include "tests/sim/api.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/clock.h"
#include "tests/sim/config.h"
#include "tests/sim/context.h"
#include "tests/sim/device.h"
#include "tests/sim/fault.h"
#include "tests/sim/inject.h"
#include "tests/sim/shared.h"
#include "tests/sim/thread.h"

static const struct row {
    const char *symbol;
    unsigned flags;
    uint64_t cost_ns, mib_ns; /* of the h200 preset */
} rows[FUNCTION_COUNT] = {
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns) {#symbol, flags, cost_ns, mib_ns},
#include "tests/sim/variants.def"
};

enum { FRESH, READY, FORKED, GONE };

static _Atomic int state = FRESH;
static _Atomic uint64_t calls[FUNCTION_COUNT];
static uint64_t cost_ns[FUNCTION_COUNT], mib_ns[FUNCTION_COUNT];
static bool cancels[FUNCTION_COUNT];
static atomic_bool holds[FUNCTION_COUNT];
static atomic_uint held;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* A thread must not be cancelled while it holds the lock. The simulator sleeps and uses files
 * there, which are cancellation points. */
static __thread int cancel_state;

void api_lock(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&lock);
    cancel_state = before;
}

void api_unlock(void)
{
    int before = cancel_state;
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(before, NULL);
}

void api_sleep(unsigned wait_us)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)wait_us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &until);
}

void api_wake(void)
{
    pthread_cond_broadcast(&changed);
}

/* After cuInit a forked child cannot use CUDA, as natively. Another thread of the parent may have
 * held the lock at the fork, so the child starts with a fresh one. */
static void after_fork_in_child(void)
{
    static pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&lock, &fresh, sizeof lock);
    if (atomic_load(&state) == READY)
        atomic_store(&state, FORKED);
}

/* Where the process is checkpointed a call ends it, if that is wanted. It blocks else. A thread's
 * own state needs no lock of the driver's: such a call is the one that faults. */
static void end_if_checkpointed(const char *symbol, bool touches)
{
    const char *how = config.checkpointed;
    if (how == NULL || shared_own_state() != CU_PROCESS_STATE_CHECKPOINTED)
        return;
    if (strcmp(how, "abort") == 0) {
        fprintf(stderr, "sim: %s in a checkpointed process\n", symbol);
        abort();
    }
    if (strcmp(how, "segv") == 0 && touches) {
        sigset_t fault; /* the kernel sends it although the thread blocks it */
        sigemptyset(&fault);
        sigaddset(&fault, SIGSEGV);
        pthread_sigmask(SIG_UNBLOCK, &fault, NULL);
        raise(SIGSEGV);
    }
}

/* At exit the driver ends before the threads do. It gives nothing back, because threads may still
 * be inside a call. */
static void shut_down(void)
{
    int expected = READY;
    struct timespec time = {.tv_sec = (time_t)(config.exit_ms / 1000),
                            .tv_nsec = (long)(config.exit_ms % 1000) * 1000000};
    if (atomic_load(&state) == READY)
        end_if_checkpointed("the end of the driver", true);
    if (atomic_compare_exchange_strong(&state, &expected, GONE))
        nanosleep(&time, NULL);
}

/* The error of a driver that is in this state, which is not READY. */
static CUresult refuse(int now)
{
    return now == GONE ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

static void set_costs(void)
{
    bool h200 = config.cost != NULL && strcmp(config.cost, "h200") == 0;
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        char name[96] = "SIM_COST_";
        strncat(name, rows[i].symbol, sizeof name - 10);
        const char *text = getenv(name);
        uint64_t value;
        cost_ns[i] = h200 ? rows[i].cost_ns : 0;
        mib_ns[i] = h200 ? rows[i].mib_ns : 0;
        if (text != NULL && config_parse_number(text, &value)) {
            cost_ns[i] = value;
            mib_ns[i] = 0;
        }
    }
}

/* A driver sleeps, reads and writes in some calls. A cancelled thread may therefore leave such a
 * call. */
static void set_cancellation_points(void)
{
    bool all = config.cancel != NULL && strcmp(config.cancel, "all") == 0;
    char *copy = strdup(config.cancel != NULL && !all ? config.cancel : ""), *rest = copy;
    for (int i = 0; i < FUNCTION_COUNT; i++)
        cancels[i] = all;
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        enum function function = api_by_name(name);
        if (function != FUNCTION_COUNT)
            cancels[function] = true;
        else if (*name != '\0')
            fprintf(stderr, "sim: SIM_CANCEL: no function \"%s\"\n", name);
    }
    free(copy);
}

static CUresult initialise(unsigned flags)
{
    REFUSE(flags != 0, INVALID_VALUE);
    if (atomic_load(&state) == READY)
        return CUDA_SUCCESS;
    if (atomic_load(&state) != FRESH)
        return refuse(atomic_load(&state));
    config_read();
    REFUSE(config.devices == 0, NO_DEVICE);
    set_costs();
    set_cancellation_points();
    fault_read();
    TRY(device_init());
    pthread_atfork(NULL, NULL, after_fork_in_child);
    atexit(shut_down);
    atomic_store(&state, READY);
    return CUDA_SUCCESS;
}

bool api_used(void)
{
    int now = atomic_load(&state);
    return now == READY || now == GONE;
}

/* What may happen at the beginning of a call. */
static void begin_call(enum function function)
{
    atomic_fetch_add_explicit(&calls[function], 1, memory_order_relaxed);
    if (cancels[function])
        pthread_testcancel();
    if (!atomic_load_explicit(&holds[function], memory_order_relaxed))
        return;
    atomic_fetch_add(&held, 1);
    while (atomic_load(&holds[function]))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    atomic_fetch_sub(&held, 1);
}

void api_hold(enum function function, bool on)
{
    atomic_store(&holds[function], on);
}

unsigned api_held(void)
{
    return atomic_load(&held);
}

CUresult api_enter(enum function function)
{
    const struct row *row = &rows[function];
    begin_call(function);
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now != READY && !(row->flags & ANYTIME))
        return refuse(now);
    end_if_checkpointed(row->symbol, false);
    shared_call_begins();
    api_lock();
    if (now == READY) {
        CUresult rc = fault_check(function);
        clock_charge(cost_ns[function]);
        if (rc == CUDA_SUCCESS && (row->flags & CURRENT))
            rc = context_usable(thread_current());
        if (rc != CUDA_SUCCESS)
            return api_leave(rc);
    }
    return CUDA_SUCCESS;
}

CUresult api_leave(CUresult result)
{
    uint64_t debt_ns = clock_take_debt();
    api_unlock();
    shared_call_ends();
    if (debt_ns > 0)
        clock_pay(debt_ns);
    return result;
}

CUresult api_touch(enum function function)
{
    begin_call(function);
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now != READY)
        return refuse(now);
    if (strncmp(rows[function].symbol, "cuCheckpoint", 12) != 0)
        end_if_checkpointed(rows[function].symbol, true);
    if (fault_armed() || cost_ns[function] > 0) {
        api_lock();
        CUresult rc = fault_check(function);
        clock_charge(cost_ns[function]);
        return api_leave(rc);
    }
    return CUDA_SUCCESS;
}

const char *api_name(enum function function)
{
    return rows[function].symbol;
}

enum function api_by_name(const char *symbol)
{
    enum function i = 0;
    while (i < FUNCTION_COUNT && strcmp(rows[i].symbol, symbol) != 0)
        i++;
    return i;
}

uint64_t api_calls(enum function function)
{
    return atomic_load_explicit(&calls[function], memory_order_relaxed);
}

void api_charge_size(enum function function, uint64_t size_bytes)
{
    clock_charge(mib_ns[function] * (size_bytes / MIB));
}

CUresult CUDAAPI cuInit(unsigned flags)
{
    CUresult rc = api_enter(FN_cuInit);
    if (rc == CUDA_SUCCESS)
        rc = api_leave(initialise(flags));
    if (rc == CUDA_SUCCESS)
        inject();
    return rc;
}
