/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The layout of a trace, a file of one process (GPUCACHE_TRACE). Readers are the tool and whoever
 * likes. Numbers have the machine's byte order. The layout of a version never changes, but for
 * fields of the header behind those that were its last.
 *
 * A header, then chunks of TRACE_CHUNK_BYTES, each at a multiple of that size behind the header. A
 * chunk is one thread's at a time: its records are in order, and THREAD says where another thread
 * goes on with it. A record that is not there is zero, and the rest of its chunk is, too. A process
 * that was killed leaves a file that is good up to its last record, so nothing says how long it is.
 * A chunk whose magic is not there is empty.
 *
 * A record has 16 bytes. With TRACE_WIDE in its kind it has 32, and text_bytes more behind them,
 * padded with zeroes to a multiple of 16.
 *  - step: time since the record before in this chunk, or else since the chunk's `ticks`, in units
 *    of 16 ticks of the clock.
 *  - at: without a wide part the address, in units of 512 bytes, from BASE on. With one it is
 *    text_bytes.
 *  - what: bits 0 to 23 the size in bytes, or with a wide part `aux`; bits 24 to 31 the kind.
 *  - who: bits 0 to 23 the site, which SITE made known, and STACK behind that its call path; 0:
 *    none; bits 24 to 31 the context, which CONTEXT made known; 0: to be told by the address.
 *
 * The dump of rings (shim/trace/dump.h) has the same layout. A record of before the header's start
 * is none: what was live then has a record of LIVE or ALLOC_DRIVER at the start, or PASSED and what
 * held and mapped it. Their chunks begin at the start, as no others do. In the order of time these
 * records are the first.
 *
 * The clock: the header and each chunk have pairs of ticks and CLOCK_MONOTONIC. From the first pair
 * to the last one the ticks are even. TRACE_CLOCK_NS: ticks are nanoseconds.
 */
#ifndef SHIM_TRACE_FORMAT_H
#define SHIM_TRACE_FORMAT_H

#include <stdint.h>

#define TRACE_MAGIC "GPUTRACE"
#define TRACE_CHUNK_MAGIC UINT32_C(0x4b4e4843) /* "CHNK" */
#define TRACE_BYTE_ORDER UINT32_C(0x01020304)

enum {
    TRACE_VERSION = 1,
    TRACE_HEADER_BYTES = 4096,
    TRACE_CHUNK_BYTES = 256 << 10,
    TRACE_WIDE = 0x80,
    TRACE_STEP_SHIFT = 4,
    TRACE_UNIT_SHIFT = 9,
    TRACE_TEXT_MAX = 1024,
};

enum trace_clock { TRACE_CLOCK_NS, TRACE_CLOCK_TSC, TRACE_CLOCK_CNTVCT };

enum trace_kind {
#define TRACE_KIND(name, number, a, b, aux, help) TRACE_##name = number,
#include "shim/trace/kinds.def"
#undef TRACE_KIND
};

struct trace_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t chunk_bytes;
    uint32_t byte_order;
    uint32_t clock; /* enum trace_clock */
    uint32_t pid;
    uint64_t start_unix_ns;
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t start_ticks;
    /* The last pair that was written: each second, and at the end. */
    uint64_t last_ns;
    uint64_t last_ticks;
    unsigned char boot_id[16]; /* zeroes: not known */
    char library_version[32];
    char program[256];
    char command[2048]; /* its arguments, with blanks between them */
    /* How many records were lost, written each second and at the end: a LOST record may be lost
     * itself. 0 in a dump, and in older files. */
    uint64_t num_lost;
};

struct trace_chunk {
    uint32_t magic;
    uint32_t number; /* in the file, from 0 on */
    uint64_t ticks;
    uint64_t ns; /* CLOCK_MONOTONIC at these ticks */
    uint64_t zero;
};

struct trace_record {
    uint64_t step_at;  /* step | at << 32 */
    uint64_t what_who; /* what | who << 32; written last; 0: no record */
};

struct trace_wide {
    struct trace_record record;
    uint64_t a, b;
};

_Static_assert(sizeof(struct trace_header) <= TRACE_HEADER_BYTES, "the header has room");
_Static_assert(sizeof(struct trace_chunk) % sizeof(struct trace_record) == 0,
               "records are aligned");

#endif
