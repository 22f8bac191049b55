/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The room driver/ holds the library's own calls of the driver, and the pool's backend on it. Its
 * one seam is the table `real` below, through which the library calls the driver. The room knows no
 * context record. Of the wrappers it knows only the addresses and the first bytes.
 *
 * This file: the driver's functions (`real.cuMemAlloc_v2(...)`), the prototypes of the exported
 * wrappers and their identifiers, generated from hooks.def and submit.def. Files of shim/ include
 * it instead of <cuda.h>. Here every name is the exact exported one: cuMemAlloc_v2 is not also
 * called cuMemAlloc. No lock.
 */
#ifndef SHIM_HOOKS_H
#define SHIM_HOOKS_H

#ifdef CUDA_VERSION
#error "include shim/driver/hooks.h before <cuda.h>, whose macros would rename what it declares"
#endif
/* cuda.h then undefines its renaming macros and declares each exported name, old ones included. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

#if CUDA_VERSION < 12050
#error "CUDA Toolkit 12.5 or newer is needed to build; older drivers are fine to run on"
#endif
#include "shim/driver/cuda_compat.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In front of each exported wrapper's definition. */
#define SHIM_EXPORT __attribute__((visibility("default")))
/* For a function that is seldom called: no inlining, so its callers save no registers. */
#define SHIM_COLD __attribute__((noinline, cold))

/* One for each wrapped function, in the order of the .def files: HOOK_cuMemAlloc_v2, ... */
enum hook_id {
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) HOOK_##symbol,
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags) HOOK_##symbol,
#include "shim/driver/submit.def"
    NUM_HOOKS
};

/* The wrappers, checked against cuda.h's own declarations and against the PFN type. */
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group)                                                     \
    SHIM_EXPORT CUresult symbol params;                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), pfn), #symbol);
#define HOOK_CALLED(symbol, pfn, params, args)                                                     \
    CUresult symbol params;                                                                        \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), pfn), #symbol);
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    SHIM_EXPORT CUresult symbol params;                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), pfn), #symbol);
#include "shim/driver/submit.def"

/* The slots of the driver's functions, but for those that submit work (below). A slot changes once,
 * to the driver's address.
 * 1. A wrapped function may be called at any time. Before the driver is known its slot looks for
 *    the driver. It answers CUDA_ERROR_NOT_INITIALIZED if there is no driver, or if the driver
 *    lacks the function.
 * 2. A function that is only called (HOOK_CALLED) is NULL until hooks_init has returned true, and
 *    remains NULL if the driver lacks it.
 * 3. While the driver must not be called the slots have other functions (shim/driver/closed.h). */
struct hooks_real {
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) _Atomic(pfn) symbol;
#define HOOK_CALLED(symbol, pfn, params, args) _Atomic(pfn) symbol;
#include "shim/driver/hooks.def"
};
extern struct hooks_real real __attribute__((visibility("hidden")));

/* The slots of the functions that submit work: real_cuLaunchKernel and so on. They behave as those
 * of wrapped functions in `real`. They are symbols, because assembler uses them
 * (shim/route/submit.c). */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    extern _Atomic(pfn) real_##symbol __attribute__((visibility("hidden")));
#include "shim/driver/submit.def"

/* True once the process has loaded libcuda.so.1, by whatever route, and the slots are filled from
 * it. From then on that library remains loaded. Never loads it itself, calls no driver function,
 * keeps errno, may clear a pending dlerror(). Costs two instructions after the first success, and a
 * search of the loaded libraries before. Several threads may fill the slots at once: none waits
 * for another. The search may take the loader's lock (see hooks.c). */
bool hooks_init(void);

/* The calling thread's current context. NULL: there is none, or the driver does not say. */
static inline CUcontext hooks_current(void)
{
    CUcontext ctx = NULL;
    return real.cuCtxGetCurrent && real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS ? ctx : NULL;
}

/* Does this driver have the wrapped function? */
bool hooks_present(enum hook_id id);

/* The first bytes of our cuMemAlloc_v2 and cuMemFree_v2. hooks_init reads them before a program can
 * look the functions up. 0: it has not done so yet. */
extern _Atomic uint64_t hooks_alloc_entry __attribute__((visibility("hidden")));
extern _Atomic uint64_t hooks_free_entry __attribute__((visibility("hidden")));

/* Has a tool put a jump there since? Communication libraries watch memory in this way. */
static inline bool hooks_entry_patched(uintptr_t function, _Atomic uint64_t *entry)
{
    uint64_t before = atomic_load_explicit(entry, memory_order_relaxed), now;
    memcpy(&now, (const void *)function, sizeof now);
    return __builtin_expect(before != now && before, 0);
}
static inline bool hooks_alloc_patched(void)
{
    return hooks_entry_patched((uintptr_t)cuMemAlloc_v2, &hooks_alloc_entry);
}
static inline bool hooks_free_patched(void)
{
    return hooks_entry_patched((uintptr_t)cuMemFree_v2, &hooks_free_entry);
}

#endif
