/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Two copies of this library in one process, as when two tools each bring one. The copy that the
 * loader finds first works; the other passes every call on. No lock.
 */
#ifndef SHIM_SECOND_COPY_H
#define SHIM_SECOND_COPY_H

#include "shim/process/object.h"

#include <stdbool.h>

/* Whether another copy comes before this one; the answer stays. Keeps errno. */
bool second_copy_comes_first(void);

/* Whether this address lies in another copy's code. */
bool second_copy_has(const void *address);

/* Whether this object is another copy; also true if that cannot be told. Takes no lock. */
bool twin_may_be(const struct object *object);

/* The export by which one copy recognises another. Its value is for people only. */
const char *gpucache_version(void) __attribute__((visibility("default")));

#endif
