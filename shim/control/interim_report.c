/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See interim_report.h. The state but for the two words belongs to the control thread.
 */
#include "shim/control/interim_report.h"

#include "shim/context/context.h"
#include "shim/control/publish.h"
#include "shim/control/thread.h"
#include "shim/option/in_force.h"
#include "shim/process/clock.h"
#include "shim/process/log.h"

#include <stdatomic.h>
#include <stdlib.h>

#define FIRST_NS (2 * SEC_NS)
#define MOST_NS (10 * SEC_NS)

static uint64_t run_report(uint64_t now_ns);
static struct duty duty = {.run = run_report, .due_ns = DUTY_NEVER};

static atomic_bool writing, leaving;
static uint64_t every_ns = FIRST_NS;
static uint64_t digest; /* of the figures that the file has */

static bool write_interim(void)
{
    struct report_pool *pools = malloc(REPORT_ROWS_MAX * sizeof *pools);
    struct report_flush last;
    struct report r;
    bool done = true;
    if (!pools)
        return true;
    publish_fill_report(&r, pools, REPORT_ROWS_MAX, &last);
    r.running = true;
    uint64_t now = publish_digest(&r);
    if (r.num_pools && now != digest) {
        atomic_store(&writing, true);
        if (!atomic_load(&leaving))
            done = report_write(&r, &in_force()->stats);
        atomic_store(&writing, false);
        digest = now;
    }
    free(pools);
    return done;
}

static uint64_t run_report(uint64_t now_ns)
{
    const struct option_stats *where = &in_force()->stats;
    /* The report at the exit complains of a file that cannot be written. */
    if (!where->at_exit || !log_is_file(where->path) || !write_interim())
        return DUTY_NEVER;
    every_ns = every_ns < MOST_NS / 2 ? 2 * every_ns : MOST_NS;
    return control_after(now_ns, every_ns);
}

void interim_report_start(void)
{
    const struct option_stats *where = &in_force()->stats;
    every_ns = FIRST_NS;
    digest = 0;
    if (where->at_exit && where->path[0])
        control_due(&duty, control_after(clock_now_ns(), every_ns));
}

void interim_report_end(void)
{
    atomic_store(&leaving, true);
    for (int waits = 0; atomic_load(&writing) && waits < 1000; waits++)
        clock_sleep(MS_NS);
}
