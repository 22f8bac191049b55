/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A job is work on device memory without the lock: a thread takes memory from the driver, moves it
 * or gives it back. A walk changes the access to all memory of an arena, also without the lock. The
 * two exclude each other: while other threads mapped and unmapped memory beside a walk, the driver
 * freed host memory twice (two H200, 580.159: in 1 of 40 runs; in 0 of 101 since). Jobs run beside
 * jobs, and walks beside walks.
 *
 * 1. A job begins if no walk runs or waits. Else it waits. The same holds for walks. All of this
 *    happens under the lock. So no job runs during a walk.
 * 2. A thread that waits is admitted together with all of its kind that wait.
 * 3. The last one of a kind that ends admits the other kind, if any of it waits. So a thread waits
 *    for those of its kind that ran when it came, if there are any, and for those of the other
 *    kind that ran or waited then. Neither kind starves.
 * 4. A job that runs waits for no walk, and a walk in its calls for no job. So the waits end when
 *    the driver returns. Two things may hold it up longer: a job's call may wait while the driver
 *    is closed for a park, and the caller may be a signal handler in the thread that is at work.
 *    Then the wait ends after OOM_WAIT_NS, and walk and job are not kept apart.
 * 5. A job waits with its plan made: its blocks are BUSY, and its memory is as it was, or will not
 *    come back. So the walk may pass it. The job maps it elsewhere with the rights that the backend
 *    knows by then.
 * 6. Both count as unlocked_jobs from the beginning of their waits, so pool_abandon waits for them.
 * 7. A thread that waits sleeps and looks again. No admission is missed, because they are counted.
 *    If it waited on a condition variable, a signal handler could stop it there, and glibc before
 *    2.41 lets each broadcast wait for such a thread (2.36: the pool hung).
 * 8. The caller may be a signal handler in a thread that is in a job or a walk itself. That one
 *    ends only after the handler. So a thread counts what it is in, and waits for none of it.
 *    After a jump out of the handler the count stays too high, as the pool's own counts do.
 */
#ifndef POOL_JOB_H
#define POOL_JOB_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* The lock is held, but for the waits. */
void job_begin(struct pool *p);
void job_end(struct pool *p);
void job_begin_walk(struct pool *p);
void job_end_walk(struct pool *p);
/* Until no other thread is in either, or OOM_WAIT_NS have passed since start_ns (now_ns). */
void job_await_all(struct pool *p, uint64_t start_ns);
/* The same, for the pool's end: until ABANDON_WAIT_NS have passed. False: one is left, which may be
 * the caller's. */
bool job_await_end(struct pool *p);
/* Is another thread in a job? Walks bring no memory. */
bool job_any_of_memory(const struct pool *p);
/* Until one of those is through, if there are any. False: none was until then (now_ns). */
bool job_await_any(struct pool *p, uint64_t until_ns);

#endif
