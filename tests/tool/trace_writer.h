/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the scenes of trace_writer.c, trace_writer_dumps.c and trace_writer_clock.c record, and with
 * which functions.
 */
#ifndef TESTS_TOOL_TRACE_WRITER_H
#define TESTS_TOOL_TRACE_WRITER_H

#include "shim/trace/fast.h"

#include <stdbool.h>
#include <stdint.h>

#define FIRST UINT64_C(0x7f0000000000)
#define FAR UINT64_C(0x302000000)
#define MIB (UINT64_C(1) << 20)
/* Some address in the function. */
#define AT(function) ((const void *)((uintptr_t)(function) + 1))

static inline void alloc(uint64_t addr, uint64_t size_bytes, const void *caller)
{
    if (trace_is_on())
        trace_note_fast(TRACE_ALLOC_FAST, addr, size_bytes, caller);
}

static inline void give(uint64_t addr, const void *caller)
{
    if (trace_is_on())
        trace_note_fast(TRACE_FREE, addr, 0, caller);
}

/* Code that asks for memory, for symbols. */
__attribute__((noinline)) void weights(void);
__attribute__((noinline)) void churner(void);
__attribute__((noinline)) void leaker(void);
__attribute__((noinline)) void spike(void);
/* Functions of a call path, for symbols. */
__attribute__((noinline)) void ask(uint64_t addr, uint64_t size_bytes);
__attribute__((noinline)) void middle(uint64_t addr, uint64_t size_bytes, unsigned depth);
__attribute__((noinline)) void loads(uint64_t addr, uint64_t size_bytes);
__attribute__((noinline)) void trains(uint64_t addr, uint64_t size_bytes);

/* Scenes with rings; path: of the trace. Their dumps are in "PATH.dump". */
void paths_in_a_ring(const char *path);
void rings(const char *path);
void rings_late(const char *path);
void dumps(const char *path);
void lost_in_a_dump(const char *path);
void dump_after_dump(const char *path);
void freed_by_another(const char *path);
void freed_in_vain(const char *path);
void killed_in_a_dump(const char *path);
void handed_on_in_a_dump(const char *path);
void failed_dumps(const char *path);
void dump_whose_name_is_taken(const char *path);

/* The trace with the other clock is "PATH.2". */
void other_clock(const char *path);

#endif
