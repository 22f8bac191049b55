/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which backing a pool gets, and why. The words are for the statistics.
 */
#ifndef SHIM_BACKING_H
#define SHIM_BACKING_H

#include "pool/config.h"
#include "shim/driver/backend.h"

#include <stddef.h>

/* Turns BACKING_AUTO into a choice, and a choice that this device cannot have into one that it can.
 * The words in *backing and *reason are constant. Calls the driver. */
void backing_choose(const struct device_backend *d, struct pool_config *config,
                    const char **backing, const char **reason);

/* A library, and what its presence means. A name stands for every version, for the names that
 * Python packages give their copies, and for a family's parts. */
struct library {
    const char *name, *reason;
};
/* The first of the list that is loaded; NULL: none is. Walks the list of loaded libraries, with the
 * loader's lock held. */
const struct library *library_find(const struct library *list, size_t count);

/* Is a library loaded now that asks for segments? As library_find. */
bool backing_library_is_loaded(void);

#endif
