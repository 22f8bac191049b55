/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What lookup by name (resolve.c) asks about the exported cudaMalloc and cudaFree (runtime.c). No
 * lock of ours.
 */
#ifndef SHIM_RUNTIME_H
#define SHIM_RUNTIME_H

#include <stdbool.h>

/* Is the name one of the runtime's functions that we export? */
bool runtime_exports(const char *name);

#endif
