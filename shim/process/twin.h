/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Two copies of this library in one process, as when two tools each bring one: the one that the
 * loader finds first works, the other stands aside and passes every call on. No lock.
 */
#ifndef SHIM_TWIN_H
#define SHIM_TWIN_H

#include "shim/process/object.h"

#include <stdbool.h>

/* Whether another copy comes before this one; the answer stays. Keeps errno. */
bool twin_comes_first(void);

/* Whether this address lies in another copy's code. */
bool twin_has(const void *address);

/* Whether this object is another copy; also true if that cannot be told. Takes no lock. */
bool twin_may_be(const struct object *object);

/* What one copy knows another by: an export of this name. Its value is of use to people only. */
const char *gpucache_version(void) __attribute__((visibility("default")));

#endif
