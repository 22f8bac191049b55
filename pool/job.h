/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A job is work on device memory without the lock: a thread takes memory from the driver, moves it
 * or gives it back. A walk changes the access to all memory of an arena, also without the lock. The
 * two exclude each other: on two H200 (580.159) the driver freed host memory twice, or refused the
 * change, while other threads mapped and unmapped memory beside it.
 *
 * 1. A walk counts itself, then waits for the jobs that run. A job that begins waits for the walks.
 *    Both happen under the lock. So no job runs during a walk.
 * 2. A job waits with its plan made: its blocks are BUSY, and its memory is as it was. So the walk
 *    may pass it. The job maps it elsewhere with the rights that the backend knows by then.
 * 3. A job that runs waits for no walk, and a walk in its calls for no job. So both waits end when
 *    the driver returns. A caller may also be a signal handler in a thread that is at work. Then
 *    the wait ends after OOM_WAIT_NS, and the two meet.
 * 4. Both count as unlocked_jobs from the beginning of their waits, so pool_abandon waits for them.
 */
#ifndef POOL_JOB_H
#define POOL_JOB_H

struct pool;

/* The lock is held, but for the wait. A state_broadcast follows the end. */
void job_begin(struct pool *p);
void job_end(struct pool *p);
void job_begin_walk(struct pool *p);
void job_end_walk(struct pool *p);

#endif
