/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which backing a pool gets, and why. The words are for the statistics.
 */
#ifndef SHIM_BACKING_H
#define SHIM_BACKING_H

#include "pool/config.h"
#include "shim/driver/backend.h"

/* Turns BACKING_AUTO into a choice, and a choice that this device cannot have into one that it can.
 * The words in *backing and *reason are constant. Calls the driver. */
void backing_choose(const struct device_backend *d, struct pool_config *config,
                    const char **backing, const char **reason);

/* Is a library loaded now that asks for segments? Walks the list of loaded libraries, with the
 * loader's lock held. */
bool backing_library_is_loaded(void);

#endif
