/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The file of a trace (shim/trace/format.h), and the memory that its chunks are. A chunk is mapped
 * shared: what a thread writes is in the kernel at once, and stays when the process is killed.
 *
 * 1. No descriptor is held: each chunk opens the file by its name, and looks whether it is the same
 *    file. If the file was moved or removed, the trace ends. A thread of the program may close the
 *    descriptor meanwhile, and get its number for a file of its own. So the recorder looks before
 *    each call that would change what the descriptor leads to, and after it mapped that. If the
 *    number changes hands in the microsecond between a look and its call, that file gets longer, or
 *    what the recorder writes.
 * 2. No SIGBUS: the chunk's blocks are allocated before it is mapped. On a full disk the trace
 *    ends. Another process of the same user could cut the file off; then the program gets SIGBUS at
 *    its next record. That is his own act: the file has mode 0600. On NFS the blocks are the
 *    server's, which may run out of room all the same: a trace belongs on a local disk.
 * 3. The file is made by O_EXCL: nothing is written to a file that is there, or through a link.
 *
 * One file at a time. A lock of its own, which a thread awaits for 100 ms at most: a signal handler
 * may have interrupted the thread that holds it. Keeps errno. No cancellation point.
 */
#ifndef SHIM_TRACE_FILE_H
#define SHIM_TRACE_FILE_H

#include "shim/trace/format.h"

#include <stdbool.h>
#include <stddef.h>

enum { TRACE_WHY_BYTES = 160 };

/* Makes the file `path` (a pattern: log_file_name), with this header. False, with a sentence in
 * `why`. */
bool trace_file_begin(const char *path, const struct trace_header *header,
                      char why[TRACE_WHY_BYTES]);
/* The header in the file, to be changed while the trace is on. NULL: there is no file. */
struct trace_header *trace_file_header(void);
/* The next chunk, all zero, and its number. NULL, with a sentence in `why`: there is none, and
 * there will be none any more. NULL with "": there may be one later. The lock was not to be had, or
 * the process has no descriptor or no address space left. */
void *trace_file_chunk(uint32_t *number, char why[TRACE_WHY_BYTES]);
/* No thread writes to the chunk any more. */
void trace_file_chunk_done(void *chunk);
/* The full name of the file; "": there was none yet. Static. */
const char *trace_file_name(void);

/* Another file, which is written as a whole and not mapped. One at a time: the caller has a lock of
 * its own, and forbids cancellation. A descriptor is held from the begin to the end. False: it
 * cannot go on; `why` has a sentence. */
bool trace_copy_begin(const char *path, char why[TRACE_WHY_BYTES]);
/* Could a file be made now? Makes none, and keeps that of a copy that is under way. */
bool trace_copy_may_begin(const char *path, char why[TRACE_WHY_BYTES]);
bool trace_copy_put(uint64_t offset, const void *data, size_t size_bytes,
                    char why[TRACE_WHY_BYTES]);
/* keep: false: removes it, unless its name is another file's by now. Nothing if there is none. */
void trace_copy_end(bool keep);
const char *trace_copy_name(void);

#endif
