/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A dump: writes what the rings hold (shim/trace/ring.h) to a trace file, with the blocks that are
 * live, and memory beside the pool (shim/trace/beside.h). The file begins with what was live before
 * the oldest record of the rings, as far as it is known now. A process that ends meanwhile leaves
 * what was written so far.
 *
 * The thread that dumps makes the file's own records by trace_note, like all others: from begin to
 * end its records go to the file. So the functions of other rooms that record what they hold serve
 * a dump as well. One thread dumps at a time; others go on, and may lose records (ring.h).
 * The caller forbids cancellation. Keeps errno. No driver call, and none may be made from begin to
 * end: the lock of the rings is held.
 */
#ifndef SHIM_TRACE_DUMP_H
#define SHIM_TRACE_DUMP_H

#include "shim/trace/file.h"
#include "shim/trace/trace.h"

#include <stddef.h>
#include <stdint.h>

enum { TRACE_DUMPS_MOST = 8, TRACE_DUMP_NAME_BYTES = 301 };

/* What the log says of a dump. */
struct trace_dump_told {
    char name[TRACE_DUMP_NAME_BYTES]; /* of the file, also if there is none; its end may be cut */
    char why[TRACE_WHY_BYTES];
};

/* The file of the next dumps, a pattern (log_file_name). */
void trace_dump_set_path(const char *path);
/* Could the next dump's file be made now? False, with a sentence in `why`: no. Makes none.
 * One thread at a time: the one that sets the path. */
bool trace_dump_may_begin(char why[TRACE_WHY_BYTES]);
/* Has the process made less than TRACE_DUMPS_MOST dumps? */
bool trace_dump_is_left(void);
/* The first dump of the process is in the file itself, the others behind its name: NAME.2 and so
 * on. If the file cannot be made, the dump goes on all the same, and tells the holders. False:
 * there is no dump; told->why has a sentence, or "": another thread dumps or has the lock of the
 * rings, no rings are on, or no dump is left. With "" no number is taken. */
bool trace_dump_begin(struct trace_dump_told *told);
/* A block that the pool holds for the program, and all device memory of a pool. */
void trace_dump_live(uint64_t addr, uint64_t size_bytes, unsigned context);
void trace_dump_held(uint64_t size_bytes, unsigned context);
/* All live blocks were told. What the thread records from here on has the present time. */
void trace_dump_now(void);
/* Whose code asked for what is live, the largest first. Returns how many, at most `most`. */
struct trace_holder {
    char name[64];
    uint64_t bytes;
};
size_t trace_dump_holders(struct trace_holder *out, size_t most);
/* Live bytes of blocks that the driver served, and of memory beside the pool that is in none of the
 * driver's own pools (shim/trace/beside.h), of all devices. After trace_dump_now. */
uint64_t trace_dump_of_driver(void);
/* False: there is no file, or it could not be written and is gone; told->why has a sentence. */
bool trace_dump_end(struct trace_dump_told *told);

#endif
