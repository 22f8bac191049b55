/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What name lookup (resolve.c) has to know of the exported cudaMalloc and cudaFree (runtime.c).
 */
#ifndef SHIM_RUNTIME_H
#define SHIM_RUNTIME_H

#include <stdbool.h>

/* Whether the name is one of the runtime's that we export. */
bool runtime_exports(const char *name);

/* Whether the process has loaded a shared libcudart. */
bool runtime_loaded(void);

#endif
