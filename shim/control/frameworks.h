/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the frameworks' part of a flush (shim/framework/framework.h) needs of CUDA.
 */
#ifndef SHIM_FRAMEWORKS_H
#define SHIM_FRAMEWORKS_H

#include "shim/framework/framework.h"

#include <stdint.h>

/* framework_ask, with what the packages need of CUDA. */
uint64_t frameworks_ask(void (*answered)(void));
/* framework_look, in the same way. */
uint64_t frameworks_look(void);

#endif
