/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room route/ holds the ways by which a program's calls reach us. They are dlsym and
 * cuGetProcAddress (resolve), the runtime's cudaMalloc and cudaFree (runtime), submissions
 * (submit), and setenv and putenv (setenv). Its one seam is the symbol table: programs call its
 * exports, and no other room includes its headers.
 *
 * This file: lookup by name. dlsym and cuGetProcAddress answer with our wrapper where the real
 * lookup finds the function of the driver that it wraps. The wrappers themselves are in entry/.
 */
#ifndef SHIM_RESOLVE_H
#define SHIM_RESOLVE_H

struct resolve_pick {
    void *address; /* the answer; NULL: the stub calls the C library's dlsym ... */
    void *handle;  /* ... with this handle and with the caller's own return address */
};

/* The stub of dlsym (resolve-*.S) calls this for names that begin with "cu", and until
 * symbol_real_dlsym is set. Keeps errno. For RTLD_NEXT, and for other names, the handle goes to
 * the C library unchanged. Takes no lock of ours; the first calls may take the loader's lock. */
struct resolve_pick resolve_pick(void *handle, const char *name) __attribute__((used));

#endif
