/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The code that a process has loaded, for the sites of a trace. It comes from /proc/self/maps. The
 * loader's own list needs the loader's lock, which a thread of the program may hold for long
 * (shim/loader/scope.h). Code that is unloaded before it is looked at has no name in the trace.
 */
#ifndef SHIM_TRACE_OBJECTS_H
#define SHIM_TRACE_OBJECTS_H

/* Records the code that is loaded now and was not recorded yet (OBJECT), if a trace is on. Some 100
 * us. Does nothing while another thread does it. Keeps errno. No cancellation point. */
void trace_objects_note(void);

#endif
