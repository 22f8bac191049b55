/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What is written when an allocation fails for good (GPUCACHE_TRACE_ON=oom), because the GPU is
 * full or GPUCACHE_MAX_RESERVED refused it: a dump of the trace's rings with all live blocks and
 * what other processes hold, and one line of the log.
 *
 * 1. The failing thread does it after the driver's last answer, with no lock, and gets that answer
 *    as it is. It asks the driver how much memory is free before the dump begins.
 * 2. A second failure within a second writes nothing: programs that free caches of their own or try
 *    smaller sizes fail several times. Nor does one after TRACE_DUMPS_MOST dumps.
 * 3. Whatever fails here costs the record and nothing else.
 */
#ifndef SHIM_OOM_H
#define SHIM_OOM_H

#include "shim/driver/hooks.h"
#include "shim/trace/trace.h"

#include <stdbool.h>
#include <stdint.h>

/* The program's allocation failed; the code is rc. by_limit: GPUCACHE_MAX_RESERVED refused it, and
 * else the driver. Only while a trace is on. Keeps errno. No cancellation point. */
void oom_note(CUresult rc, uint64_t size_bytes, const void *caller, uint64_t took_ns,
              bool by_limit);

#endif
