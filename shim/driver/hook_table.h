/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions as a table in the order of enum hook_id. The lookup by name
 * (shim/route/resolve.c) searches it for names and addresses. hooks.c writes hook_address, and
 * resolve.c writes hook_alias. Atomics, no lock.
 */
#ifndef SHIM_HOOK_TABLE_H
#define SHIM_HOOK_TABLE_H

#include "shim/driver/hooks.h"

#include <stdint.h>

struct hook {
    const char *name; /* the exported symbol */
    const char *pfn;  /* PFN_<base name>_v<version>[_ptds|_ptsz] */
    uint8_t name_len;
    void (*wrapper)(void);
};

extern const struct hook hook_table[NUM_HOOKS] __attribute__((visibility("hidden")));

/* The driver's addresses: hook_address from its symbol table, hook_alias from its cuGetProcAddress.
 * 0: the driver has no such function, or no thread has looked yet. */
extern _Atomic(uintptr_t) hook_address[NUM_HOOKS] __attribute__((visibility("hidden")));
extern _Atomic(uintptr_t) hook_alias[NUM_HOOKS] __attribute__((visibility("hidden")));

#endif
