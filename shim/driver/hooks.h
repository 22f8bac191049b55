/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver as the library sees it: the real functions (`real.cuMemAlloc_v2(...)`), the exported
 * wrappers' prototypes and their identifiers, all generated from shim/driver/hooks.def and shim/driver/submit.def.
 * Files of shim/ include this instead of <cuda.h>: here every name is the exact exported one, and
 * cuMemAlloc_v2 is not also called cuMemAlloc. Takes no lock of the library's own.
 */
#ifndef SHIM_HOOKS_H
#define SHIM_HOOKS_H

#ifdef CUDA_VERSION
#error "shim/driver/hooks.h comes before <cuda.h>: it declares every ABI name, and no macro that renames one"
#endif
/* cuda.h then undefines its renaming macros and declares each exported name, old ones included. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

#if CUDA_VERSION < 12050
#error "CUDA Toolkit 12.5 or newer is needed to build; older drivers are fine to run on"
#endif
#include "shim/driver/newer.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In front of each exported wrapper's definition. */
#define SHIM_EXPORT __attribute__((visibility("default")))
/* What is seldom called: kept out of its callers, which then save no registers for it. */
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
#define HOOK_CALLED(symbol, pfn)                                                                   \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), pfn), #symbol);
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    SHIM_EXPORT CUresult symbol params;                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), pfn), #symbol);
#include "shim/driver/submit.def"

/* The driver's functions, but for those that submit work (below). A wrapped one may be called at any time: before the driver is known, its
 * slot looks for the driver first, and answers CUDA_ERROR_NOT_INITIALIZED without one or if this driver
 * lacks the function. One that is only called (HOOK_CALLED) is NULL until hooks_init() has returned
 * true, and stays NULL if this driver lacks it; but cuCtxGetCurrent may be called at any time. A slot changes once, to the driver's address. */
struct hooks_real {
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) _Atomic(pfn) symbol;
#define HOOK_CALLED(symbol, pfn) _Atomic(pfn) symbol;
#include "shim/driver/hooks.def"
};
extern struct hooks_real real __attribute__((visibility("hidden")));

/* Those that submit work: real_cuLaunchKernel and so on, like the slots of `real`, but symbols of
 * their own, because the wrappers are written in assembler (shim/route/submit.c). */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    extern _Atomic(pfn) real_##symbol __attribute__((visibility("hidden")));
#include "shim/driver/submit.def"

/* True once the process has loaded libcuda.so.1, by whatever route, and `real` is filled from it; keeps
 * that library loaded from then on. Never loads it itself, calls no driver function, keeps errno; may
 * clear a pending dlerror(). A couple of instructions after the first success; without a driver a
 * search of the loaded libraries each time. Several threads may fill at once: none waits for another. */
bool hooks_init(void);

/* Whether this driver has the wrapped function. */
bool hooks_present(enum hook_id id);

/* The first bytes of our cuMemAlloc_v2 and cuMemFree_v2 as they were when hooks_init() first returned true,
 * before anybody could look them up; 0 until then. */
extern _Atomic uint64_t hooks_alloc_entry __attribute__((visibility("hidden")));
extern _Atomic uint64_t hooks_free_entry __attribute__((visibility("hidden")));

/* Whether somebody has put a jump of his own there since: communication libraries watch memory so. */
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
