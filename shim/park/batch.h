/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Copies between device memory and the store, gathered into jobs of copy.h. The park thread alone
 * calls these functions. No lock.
 */
#ifndef SHIM_BATCH_H
#define SHIM_BATCH_H

#include "shim/park/copy.h"
#include "shim/park/store.h"

/* The longest range of a batch. After each batch the room of the host is looked at. */
#define BATCH_BYTES (UINT64_C(512) << 20)

/* The first batch is empty. why (PARK_WHY_BYTES) gets a sentence if a copy fails. goes_on: as in
 * copy.h. */
void batch_begin(const struct store *s, enum copy_way way, bool (*goes_on)(void), char *why);
/* Adds a range, BATCH_BYTES at most, whose bytes are in the store at that offset. Copies the batch
 * if it is full. False: a copy failed or was stopped. */
bool batch_add(uint64_t addr, uint64_t size_bytes, uint64_t offset);
/* Copies what was added. False: as above. */
bool batch_run(void);
/* Forgets what was added. */
void batch_clear(void);
/* The driver's code since batch_begin, of a copy that failed. */
CUresult batch_code(void);

#endif
