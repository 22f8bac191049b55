/* SPDX-License-Identifier: BSD-2-Clause
 *
 * How names become functions: the C library's dlsym behind our own, and the driver's answers with
 * our wrappers put in their place. What the wrappers do is not here. Takes no lock.
 */
#ifndef SHIM_RESOLVE_H
#define SHIM_RESOLVE_H

struct resolve_pick {
    void *address; /* what to answer; NULL: go on to the C library's dlsym ... */
    void *handle;  /* ... with this handle, and with the caller's own return address */
};

/* What the stub of dlsym asks (resolve-*.S). Keeps errno. For a name that is not exactly that of a
 * wrapped function it looks at nothing but the name. */
struct resolve_pick resolve_pick(void *handle, const char *name) __attribute__((used));

#endif
