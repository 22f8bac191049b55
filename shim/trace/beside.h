/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What is live of the memory that the driver serves beside the pool, while rings are on
 * (GPUCACHE_TRACE_ON=oom). A program may hold such memory for hours, and the rings lose its records
 * soon. So the records that say what of it is live (PASSED, and what holds, maps and frees it) are
 * kept here too, until it is gone and no ring has a record of that. A dump begins with them. They
 * mean what scripts/gpucache/beside.py says: memory is there until it was given up as often as it
 * was taken, and has no address any more.
 *
 * 1. The calls take microseconds in the driver, so a lock may be taken. It is held over no other
 *    lock and over no call of the driver. Threads await it for 100 ms, then the record is not kept.
 *    What is freed of the pool does not come here.
 * 2. Memory that came is kept after its call, memory that goes before its call. So of one name the
 *    records stand in the order in which its memory came and went, whichever threads did that.
 * 3. A record has the time that it has in the ring of its thread. So a dump, which begins at some
 *    time, has each record once: of before that from here, and else from a ring. A thread may be
 *    held up between its ring and the lock. If meanwhile other threads fill their rings and a dump
 *    is made, the record is missing there.
 * 4. Host memory: 40 bytes for a record, of at most TRACE_BESIDE_MAX, and as much again while it is
 *    looked through. Of what comes, three quarters of them at most. What has no room, or met no
 *    lock, counts as lost (LOST).
 *
 * No cancellation point while the lock is held. Keeps errno. In a forked child no trace is on, and
 * nothing comes here.
 */
#ifndef SHIM_TRACE_BESIDE_H
#define SHIM_TRACE_BESIDE_H

#include "shim/trace/trace.h"

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_BESIDE_MAX = 1 << 18 };

struct trace_beside {
    uint64_t ticks, a, b;
    uint64_t more; /* of PASSED the caller, of PASSED_MAP the bytes */
    uint32_t group;
    uint8_t kind;
    bool is_held; /* PASSED that is live, in device memory */
};

/* Records it, as trace_note does, and keeps it. PASSED and what fails have their call path.
 * mapped_bytes: of PASSED_MAP. */
void trace_note_beside(enum trace_kind kind, const struct trace_event *event,
                       uint64_t mapped_bytes);
/* Keeps what the thread has recorded just before: FREE, FREE_ASYNC or FREE_FAILED of an address
 * that is not the pool's, or CONTEXT_END of the last context. */
void trace_beside_keep(enum trace_kind kind, uint64_t a);
#define TRACE_BESIDE(kind, mapped_bytes, ...)                                                      \
    do {                                                                                           \
        if (trace_is_on())                                                                         \
            trace_note_beside(TRACE_##kind, &(const struct trace_event){__VA_ARGS__},              \
                              mapped_bytes);                                                       \
    } while (0)

/* Calls f for all records, in their order, of memory that was live at this time or came later.
 * False: there is no host memory for that, or the lock was not to be had. */
bool trace_beside_each(uint32_t trace, uint64_t since_ticks,
                       void (*f)(const struct trace_beside *record));

#endif
