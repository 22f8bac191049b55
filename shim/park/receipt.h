/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What a park or a wake did on each GPU (struct park_receipt). On the park thread. No lock.
 */
#ifndef SHIM_PARK_RECEIPT_H
#define SHIM_PARK_RECEIPT_H

#include "shim/park/park.h"

struct context;

/* The row of the context's GPU; a new one is empty. NULL: there is no room for another GPU. */
struct park_gpu *receipt_gpu(struct park_receipt *r, const struct context *c);

/* Fills in what is away and what stays. w: what the park was to do; NULL: it was a wake, and
 * nothing is to be told of what stays. */
void receipt_tell(const struct park_wish *w, struct park_receipt *r);

/* What went away in this park, of all GPUs. */
uint64_t receipt_parked_bytes(const struct park_receipt *r);
/* Did memory go in this park, or the process as a whole? False also where all was away before. */
bool receipt_took_any(const struct park_receipt *r);

/* The log's line of a park that was not refused. On the control thread. */
void receipt_log(const struct park_receipt *r);

#endif
