/* SPDX-License-Identifier: BSD-2-Clause
 *
 * route/ holds the ways by which a program's calls come to our wrappers: dlsym and cuGetProcAddress
 * (resolve), the runtime's cudaMalloc and cudaFree (runtime), submissions (submit), setenv and
 * putenv. Its one seam is the symbol table: programs call its exports, and no other room includes
 * it.
 *
 * This file: name lookup. dlsym and cuGetProcAddress ask the real function first, then put our
 * wrapper in the place of the driver's function. What the wrappers do is not here. Takes no lock.
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
