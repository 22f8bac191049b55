/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers of streams and captures, as the other wrappers see them.
 */
#ifndef SHIM_ENTRY_STREAM_H
#define SHIM_ENTRY_STREAM_H

#include <stddef.h>

/* So many captures are over (see capture.h): one stream may be enough again, and flushes that were
 * put off may run. */
void entry_captures_closed(size_t count);

#endif
