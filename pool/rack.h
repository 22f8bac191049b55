/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The rack of a pool: all its magazines, and what happens to them seldom and under the pool's lock. They are made
 * for threads that free and go back when those end; the statistics hear of what was done in them; they are emptied
 * into the pool. The quick ways in and out are in magazine.c.
 *
 * All of these want the pool's lock held, and keep it unless they say so; what looks into a
 * magazine takes its lock as well.
 */
#ifndef POOL_RACK_H
#define POOL_RACK_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* The start of a range of serials that no pool and no magazine of the process had before. Without a lock. */
uint64_t rack_serials(void);
/* Makes the thread a magazine if it has none; without host memory it goes without. */
void rack_ensure(struct pool *p);
/* Brings the statistics up to date: with the thread's own magazine, or with all. */
void rack_tell(struct pool *p);
void rack_tell_all(struct pool *p);
/* Returns when nobody is inside any of them who was when it was called. */
void rack_pass_all(struct pool *p);
/* The blocks in the calling thread's magazine go back to the pool, where they merge with their neighbours. */
void rack_empty_blocks(struct pool *p);
/* Everything in every magazine goes back to the pool, as if freed when it was; true: there was
 * something, or other threads had the lock meanwhile. Drops the lock. */
bool rack_empty_all(struct pool *p);
/* The pool is gone: so is what lies in its magazines. */
void rack_forget_all(struct pool *p);

#endif
