/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See end_rows.h.
 */
#include "shim/context/end_rows.h"

#include <string.h>

enum { ROWS_MAX = 256 };

static struct context_end rows[ROWS_MAX]; /* `row` of one in use is its number */
static unsigned rows_used;                /* those behind were never in use */

void end_rows_add(struct context_end *e)
{
    unsigned i = 0;
    while (i < rows_used && rows[i].row)
        i++;
    if (i == ROWS_MAX)
        return;
    rows_used += i == rows_used;
    e->row = i + 1;
    rows[i] = *e;
    memset(rows[i].records, 0, sizeof rows[i].records);
}

void end_rows_remove(struct context_end *e)
{
    if (!e->row)
        return;
    struct context_end *r = &rows[e->row - 1];
    memcpy(e->late, r->records, sizeof e->late);
    for (size_t i = 0; i < sizeof e->records / sizeof *e->records; i++)
        e->records[i] |= e->late[i];
    r->row = e->row = 0;
}

struct context_end *end_rows_next(const struct context_end *row)
{
    for (size_t i = row ? (size_t)(row - rows) + 1 : 0; i < rows_used; i++)
        if (rows[i].row)
            return &rows[i];
    return NULL;
}

static bool has_bit(const uint64_t *records, const struct context *c)
{
    return records[c->index / 64] >> (c->index % 64) & 1;
}

void end_rows_note(struct context_end *e, const struct context *c)
{
    e->records[c->index / 64] |= UINT64_C(1) << (c->index % 64);
}

bool context_end_holds(const struct context_end *e, const struct context *c)
{
    return has_bit(e->records, c);
}

bool end_rows_is_late(const struct context_end *e, const struct context *c)
{
    return has_bit(e->late, c);
}
