/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Two copies of this library in one process: two tools may each preload one. The copy that precedes
 * the other in the global scope works. The other copy passes every call on. No lock of ours.
 */
#ifndef SHIM_SECOND_COPY_H
#define SHIM_SECOND_COPY_H

#include "shim/loader/object.h"

#include <stdbool.h>

/* Does another copy precede this one? Asks once and keeps the answer. Keeps errno. */
bool second_copy_comes_first(void);

/* Is this an address in another copy? Takes the loader's lock. */
bool second_copy_has(const void *address);

/* Is this object another copy? Also true if only the loader knows. Takes no lock. */
bool second_copy_may_be(const struct object *object);

/* The export by which one copy recognises another. No code reads its value. */
const char *gpucache_version(void) __attribute__((visibility("default")));

#endif
