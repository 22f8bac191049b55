/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See state.h. One thread settles the word, and all others read it. The lock guards changes of
 * options. A thread holds it for a copy. The only lock taken under it is that of the log's target.
 */
#include "shim/process/state.h"

#include <pthread.h>
#include <time.h>

_Atomic int state_now;

static struct options options;
static pthread_mutex_t options_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool wants_report;
static uint64_t started_ns;

bool state_claim(void)
{
    int expected = STATE_NEW;
    return atomic_compare_exchange_strong(&state_now, &expected, STATE_STARTING);
}

bool state_load_options(void)
{
    bool on = options_load(&options);
    atomic_store(&wants_report, options.stats.at_exit);
    return on;
}

void state_settle(bool on)
{
    started_ns = on ? state_clock_ns() : 0;
    atomic_store(&state_now, on ? STATE_ON : STATE_OFF);
}

void state_turn_off(void)
{
    atomic_store(&state_now, STATE_OFF);
}

const struct options *state_options(void)
{
    return &options;
}

bool state_set_option(size_t row, const char *text)
{
    pthread_mutex_lock(&options_lock);
    bool set = options_set(&options, row, text);
    atomic_store(&wants_report, options.stats.at_exit);
    pthread_mutex_unlock(&options_lock);
    return set;
}

void state_pool_config(int device, uint64_t device_total_bytes, struct pool_config *out)
{
    pthread_mutex_lock(&options_lock);
    options_pool_config(&options, device, device_total_bytes, out);
    pthread_mutex_unlock(&options_lock);
}

bool state_wants_report(void)
{
    return atomic_load(&wants_report);
}

void state_copy_options(struct options *out)
{
    pthread_mutex_lock(&options_lock);
    *out = options;
    pthread_mutex_unlock(&options_lock);
}

uint64_t state_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t state_started_ns(void)
{
    return started_ns;
}
