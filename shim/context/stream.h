/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which streams the program submits work to, and so whether the order of one stream is enough for the
 * pool: see pool/sole.h. The argument is in shim/context/stream.c.
 */
#ifndef SHIM_STREAM_H
#define SHIM_STREAM_H

#include "shim/driver/hooks.h"

#include <stdbool.h>

/* May a pool made now rely on the order of one stream? */
bool stream_may_be_single(void);
/* Such a pool can be found by context_for_each_pool from now on; alone: it is the only one of the process. */
void stream_pool_listed(bool alone);
/* Work that the pool's order does not cover may follow. Returns when every pool has ordered what stream
 * order alone ordered so far. */
void stream_leave_single(void);
/* The same, for good: work is done here that is not seen, or that no stream's order covers. */
void stream_give_up(void);

/* A capture begins: leaves, and one stream is not enough until as many have closed. */
void stream_capture_opens(void);
void stream_capture_closed(void);
/* The handle may come back as another stream. To be called before it is destroyed. */
void stream_forget(CUstream stream);

#endif
