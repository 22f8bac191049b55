/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions as a table, in the order of enum hook_id: for the resolver, which goes through
 * it by name and by address. Written by hooks.c and resolve.c only; atomics, no lock.
 */
#ifndef SHIM_TABLE_H
#define SHIM_TABLE_H

#include "shim/driver/hooks.h"

#include <stdint.h>

struct hook {
    const char *name; /* the exported symbol */
    const char *pfn;  /* PFN_<base name>_v<version>[_ptds|_ptsz] */
    uint8_t name_len;
    void (*wrapper)(void);
};

extern const struct hook hook_table[NUM_HOOKS] __attribute__((visibility("hidden")));

/* Where the driver has them: as its symbol table says, and as its cuGetProcAddress says where that
 * differs. 0: it has not, or nobody asked yet. */
extern _Atomic(uintptr_t) hook_address[NUM_HOOKS] __attribute__((visibility("hidden")));
extern _Atomic(uintptr_t) hook_alias[NUM_HOOKS] __attribute__((visibility("hidden")));

#endif
