/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The state of this process for others: this file collects it and publishes it on the process's
 * page (shim/page/page.h). The control thread makes the page soon after the first pool, so no
 * thread of the program waits for that. It publishes
 *  - every second while a reader looks on (watched_until_ns),
 *  - after flushes, new pools and rings of the doorbell, at most every PUBLISH_LEAST_NS,
 *  - at once for a request (publish_now),
 *  - else every ten seconds, if a figure changed, if the file was removed or cut off, or if the
 *    state is an hour old. So a page that is a day old belongs to no process that runs
 *    (page/layout.h).
 * It asks each pool for its statistics, under that pool's lock. It takes no other lock that a
 * thread of the program may hold for long. Its own lock guards the record of the last flush for a
 * few instructions.
 */
#ifndef SHIM_PUBLISH_H
#define SHIM_PUBLISH_H

#include "shim/driver/backend.h"
#include "shim/process/clock.h"
#include "shim/stats/report.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PUBLISH_LEAST_NS (50 * MS_NS)

/* A pool exists. True: there is to be a page, so the control thread is needed. */
bool publish_pool_made(void);
/* What the doorbell calls for once there is a page. Before the first pool. */
void publish_set_on_request(void (*on_request)(void));
/* What the page tells of a park (shim/page/layout.h). Any thread writes it, and then calls
 * publish_soon. */
struct publish_park {
    _Atomic uint64_t asleep_since_ns, needs_since_ns;
    _Atomic uint64_t needs_bytes[DEVICES_MAX];
    _Atomic uint64_t parked_unix_ns; /* since when; 0: it is not parked */
    atomic_bool wakes, whole;
};
extern struct publish_park publish_park __attribute__((visibility("hidden")));

/* A state is due. Any thread. */
void publish_soon(void);
/* Publishes. Control thread only. False: there is no page any more. */
bool publish_now(void);

/* A flush has ended: `reason` is static. Any thread. */
void publish_flush(const char *reason, uint64_t bytes, uint64_t ns);
/* The signal that gives idle memory back; 0: none. */
void publish_signal(int signal_number);

/* The report of this process: fills *r, at most max of the pools, and *last. All is borrowed. */
void publish_fill_report(struct report *r, struct report_pool *pools, size_t max,
                         struct report_flush *last);

/* A number that changes with the figures of a report. */
uint64_t publish_digest(const struct report *r);

/* The process leaves: removes the page. */
void publish_end(void);

#endif
