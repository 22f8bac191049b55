/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The code that a process has loaded, for the sites of a trace. It comes from the maps in /proc.
 * The loader's own list needs the loader's lock, which a thread of the program may hold for long
 * (shim/loader/scope.h). Code that is unloaded before it is looked at has no name in the trace.
 */
#ifndef SHIM_TRACE_OBJECTS_H
#define SHIM_TRACE_OBJECTS_H

#include <stdint.h>

struct trace_object {
    uint64_t start, end; /* addresses of code */
    uint64_t offset;     /* of start in the file */
    const char *path;
};
/* line: all that the kernel says of it. */
typedef void trace_object_do(const struct trace_object *o, const char *line);

/* Records the code that is loaded now and was not recorded yet (OBJECT), if a trace is on. Some 100
 * us. Does nothing while another thread does it. Keeps errno. No cancellation point. */
void trace_objects_note(void);
/* Calls f for all code that is loaded now. Waits 100 ms for another thread that looks. Keeps errno.
 * No cancellation point but those of f. */
void trace_objects_each(trace_object_do *f);
/* Records it, if a trace is on. */
void trace_object_note(const struct trace_object *o);

#endif
