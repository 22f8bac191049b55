/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The C library's functions behind our exports of the same names. Atomics, no lock of ours.
 */
#ifndef SHIM_SYMBOL_H
#define SHIM_SYMBOL_H

/* The C library's dlsym (or that of the next preload that versions its own), past ours. For
 * handles, and for RTLD_NEXT as seen from this library. NULL if there is none. Sets dlerror() as
 * dlsym does. */
void *symbol_lookup(void *handle, const char *name);

/* The C library's function of this name, behind our export, for a call of the program that must not
 * wait for the loader's lock (shim/process/scope.h). It is symbol_lookup(RTLD_NEXT, name) in a
 * process's first thread, in a forked child, and where the objects behind us do not tell. NULL if
 * there is none. */
void *symbol_next(const char *name);

/* The C library's dlclose, past ours (shim/route/runtime.c). */
int symbol_close(void *handle);

/* The C library's dlsym; NULL if there is none. May run before the sanitizers have started. */
void *symbol_dlsym(void);

/* The same for the stub of dlsym (shim/route/resolve-*.S): set once symbol_dlsym() has found it. */
extern _Atomic(void *) symbol_real_dlsym __attribute__((visibility("hidden")));

#endif
