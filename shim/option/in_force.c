/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See in_force.h. The lock guards changes of options. A thread holds it for a copy. The only lock
 * taken under it is that of the log's target.
 */
#include "shim/option/in_force.h"

#include <pthread.h>
#include <stdatomic.h>

static struct options options;
static pthread_mutex_t options_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool wants_report;

bool in_force_load(void)
{
    bool on = options_load(&options);
    atomic_store(&wants_report, options.stats.at_exit);
    return on;
}

const struct options *in_force(void)
{
    return &options;
}

bool in_force_set(size_t row, const char *text)
{
    pthread_mutex_lock(&options_lock);
    bool set = options_set(&options, row, text);
    atomic_store(&wants_report, options.stats.at_exit);
    pthread_mutex_unlock(&options_lock);
    return set;
}

void in_force_pool_config(int device, uint64_t device_total_bytes, struct pool_config *out)
{
    pthread_mutex_lock(&options_lock);
    options_pool_config(&options, device, device_total_bytes, out);
    pthread_mutex_unlock(&options_lock);
}

void in_force_copy(struct options *out)
{
    pthread_mutex_lock(&options_lock);
    *out = options;
    pthread_mutex_unlock(&options_lock);
}

bool in_force_wants_report(void)
{
    return atomic_load(&wants_report);
}
