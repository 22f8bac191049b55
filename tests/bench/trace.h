/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A recorded program: its allocations and frees in RMM's CSV form (columns Thread, Time, Action,
 * Pointer, Size, Stream), plain or compressed with xz. Names end in .csv or .csv.xz. Rows without
 * effect are passed over: size 0, frees of what was never allocated.
 */
#ifndef TESTS_BENCH_TRACE_H
#define TESTS_BENCH_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum trace_action { TRACE_ALLOCATE, TRACE_FREE };

struct trace_event {
    uint64_t size_bytes; /* as asked for */
    uint64_t time_ns;    /* since the trace's midnight */
    uint32_t alloc;  /* index of the event that allocated the block; its own for an allocation */
    uint32_t thread; /* from 0 in order of appearance */
    uint32_t stream; /* the same; work on the block that is freed here goes to it */
    enum trace_action action;
};

struct trace {
    struct trace_event *events;
    uint32_t count, threads, streams;
};

/* false, with a line on stderr, if the file cannot be read or a row not understood. */
bool trace_read(struct trace *t, const char *path);
void trace_finish(struct trace *t);

#endif
