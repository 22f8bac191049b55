/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The C library's functions behind our exports of the same names. Atomics, no lock of ours. All may
 * take the loader's lock; symbol_next avoids it where it can.
 */
#ifndef SHIM_SYMBOL_H
#define SHIM_SYMBOL_H

#include <link.h>

/* Calls the C library's dlsym, or that of another preload behind us if it has the same version.
 * RTLD_NEXT means the objects behind this library. NULL if there is no dlsym, or no such name. Sets
 * dlerror() as dlsym does. */
void *symbol_lookup(void *handle, const char *name);

/* The function of this name behind our export, for a call of the program that must not wait for the
 * loader's lock (shim/loader/scope.h). If it finds none, and always in a process's first thread,
 * symbol_lookup(RTLD_NEXT, name). NULL if there is none. */
void *symbol_next(const char *name);

/* The loaded object that the address lies in. NULL: none, or the C library cannot tell. */
struct link_map *symbol_object(const void *address);

/* Calls the C library's dlclose, not ours (shim/route/runtime.c). -1: there is none. */
int symbol_close(void *handle);

/* The dlsym of symbol_lookup; NULL if there is none. May run before the sanitizers have started. */
void *symbol_dlsym(void);

/* The same for the stub of dlsym (shim/route/resolve-*.S). NULL until symbol_dlsym() finds it. */
extern _Atomic(void *) symbol_real_dlsym __attribute__((visibility("hidden")));

#endif
