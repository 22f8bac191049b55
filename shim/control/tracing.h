/* SPDX-License-Identifier: BSD-2-Clause
 *
 * GPUCACHE_TRACE, GPUCACHE_TRACE_ON and GPUCACHE_TRACE_STACKS: begins and ends the trace
 * (shim/trace/trace.h), and keeps it going. Each second a duty of the control thread records what
 * code was loaded, and how much of each GPU is free.
 */
#ifndef SHIM_TRACING_H
#define SHIM_TRACING_H

#include "shim/option/options.h"

#include <stdbool.h>

/* The library has started. */
void tracing_start(void);
/* One of the first two has changed, or both. On the control thread. False: a trace was to begin and
 * did not. */
bool tracing_changed(void);
/* Records what options are in force that are not the defaults. A trace always has one: that which
 * asked for it. */
void tracing_note_options(const struct options *o);
/* GPUCACHE_TRACE_STACKS has changed. On the control thread. */
void tracing_stacks_changed(void);
/* When a request began the rings that are on (CLOCK_MONOTONIC): who asked for memory of before is
 * not known, also where another trace ended rings. 0: they are on since the library started. */
uint64_t tracing_rings_since(void);
/* The process leaves. */
void tracing_end(void);

#endif
