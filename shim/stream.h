/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which streams the program uses: whether stream order alone is enough, and the moment at which that
 * ends. See "single stream" in pool/fence.h.
 */
#ifndef SHIM_STREAM_H
#define SHIM_STREAM_H

#include <stdbool.h>

/* So far nothing but the legacy default stream was created or used. */
bool stream_is_single(void);
/* Something else will be. Returns when every pool has ordered what stream order alone ordered. */
void stream_leave_single(void);

#endif
