/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The calls under way that may end a context, so that a record made meanwhile is counted by them:
 * Note [Ends under way] in README.md. A row is a copy. A thread that leaves its call by a jump out
 * of a signal handler leaves its row, and no pointer to its stack. The lock of lives protects all
 * of it; callers hold it.
 */
#ifndef SHIM_END_ROWS_H
#define SHIM_END_ROWS_H

#include "shim/context/context.h"

/* A call begins, and has got its records. Without room it has no row. */
void end_rows_add(struct context_end *e);
/* The call's row goes. Its records are e's from now on. */
void end_rows_remove(struct context_end *e);
/* The row behind this one; the first for NULL. NULL: there is no other. Its `records` are those
 * made since its call began. */
struct context_end *end_rows_next(const struct context_end *row);
/* From now on context_end_holds is true. */
void end_rows_note(struct context_end *e, const struct context *c);
/* Was the record made since the call began? To be asked once it has no row. */
bool end_rows_is_late(const struct context_end *e, const struct context *c);

#endif
