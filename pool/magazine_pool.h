/* SPDX-License-Identifier: BSD-2-Clause
 *
 * All magazines of a pool, and what happens to them seldom and under the pool's lock. Threads that
 * free get one, and give it back when they end. The statistics learn what was done in them. They
 * are emptied into the pool. magazine.c has the quick ways in and out.
 *
 * All functions want the pool's lock held, and keep it unless they say so. Those that look into a
 * magazine take its lock as well.
 */
#ifndef POOL_MAGAZINE_POOL_H
#define POOL_MAGAZINE_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* The start of a range of serials that no pool and no magazine of the process had before. Needs no
 * lock. */
uint64_t magazines_serials(void);
/* Gives the thread a magazine if it has none. Without host memory the thread goes without. */
void magazines_ensure(struct pool *p);
/* Brings the statistics up to date: with the thread's own magazine, or with all. */
void magazines_sync_own(struct pool *p);
void magazines_sync_stats(struct pool *p);
/* Returns when every thread that was inside a magazine at the time of the call has left it. */
void magazines_pass_all(struct pool *p);
/* The blocks in the calling thread's magazine go back to the pool, where they merge with their
 * neighbours. */
void magazines_empty_blocks(struct pool *p);
/* Everything in every magazine goes back to the pool, as if freed at its own time. True: there was
 * something, or other threads had the lock meanwhile. Drops the lock. */
bool magazines_empty_all(struct pool *p);
/* The pool is abandoned: what lies in its magazines is forgotten. */
void magazines_forget_all(struct pool *p);

#endif
