/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cudaMalloc and cudaFree of a shared libcudart. The pool serves a call where it can. All other
 * calls go to the caller's own runtime (runtimes.h). We keep the runtime per object, and per
 * calling address until the next dlclose. Atomics, no lock of ours.
 */
#include "shim/route/runtime.h"

#include "pool/bits.h"
#include "shim/driver/hooks.h"
#include "shim/entry/alloc.h"
#include "shim/entry/free.h"
#include "shim/loader/object.h"
#include "shim/loader/symbol.h"
#include "shim/route/runtimes.h"
#include "shim/trace/trace.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* A runtime of 11.x makes a device's context current, but starts it only in a later call. We leave
 * that to the runtime: its calls get no short cut. (Of 11.x we have tried 11.8 only.) */
enum { SHORT_CUT_SINCE = 12000 };

enum {
    MAX_SITES = 256, /* a power of two */
    MAX_PROBES = 8,
    MAX_OBJECTS = 256,
};

/* The sites: places in the program's code that call cudaMalloc or cudaFree. A slot holds the return
 * address and, in the low bits, the index of the runtime's row. 0: it is free. It is one word,
 * because threads clear and fill a slot while others read it.
 *
 * Why no call from a site goes to the runtime of an earlier object at the same address:
 * 1. An object is unloaded inside a dlclose. Our dlclose first adds 1 to `closing`, then clears all
 *    slots.
 * 2. Only a call from the site itself fills a slot, so the site's object stays loaded until that
 *    call is over. The call keeps the slot only if it reads `closing` as 0 after the write. All
 *    these accesses are in one order (seq_cst). So the dlclose that unloads the object begins after
 *    that read, and clears the slot.
 * 3. A call from a site runs in its object, so no dlclose has begun to unload that object. What the
 *    call reads in the slot was therefore written by 2 for this object.
 *
 * We do not see a dlclose that does not call ours: an object loaded with RTLD_DEEPBIND calls the C
 * library's. */
static _Atomic uint64_t sites[MAX_SITES];
static atomic_bool any_site;
static atomic_int closing;
enum { SITE_SHIFT = 16 };
_Static_assert(RUNTIMES_MAX <= 1 << SITE_SHIFT, "a place in the table of runtimes fits");

/* The objects that have called. `code` is the address of the segment with the calling code. It is
 * written once. 0: the entry is free. `found` holds two numbers in one word. The high bits count
 * the objects that the process had unloaded when the search began, plus 1. The low bits are the
 * index of the row.
 *
 * Why a call from a known object does not wait for other threads:
 * 1. A search may take the loader's lock. dlopen and dlclose hold it while constructors and
 *    destructors run. These may wait for a thread that frees its memory.
 * 2. dl_iterate_phdr reports both the segments and the number of unloaded objects, without that
 *    lock.
 *
 * Why it is the same object:
 * 1. The object that calls now is loaded. If it is not the object of the entry, that one was
 *    unloaded since, because both have code at the same address.
 * 2. Then the count has changed: dlclose counts the unloaded object before it releases the
 *    loader's lock. The loader needs that lock to load another object at the address. */
static struct caller_object {
    _Atomic uintptr_t code;
    _Atomic uint64_t found; /* 0: no runtime found yet */
} objects[MAX_OBJECTS];

bool runtime_exports(const char *name)
{
    return strcmp(name, "cudaMalloc") == 0 || strcmp(name, "cudaFree") == 0;
}

/* A site and its object. */
struct call_site {
    uintptr_t address;
    uintptr_t code;  /* start of the segment; 0: in no object, or not searched */
    bool is_counted; /* else the loader does not tell the next, and the object is not kept */
    uint64_t num_unloaded;
};

static int is_around(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct call_site *place = arg;
    place->code = object_segment(info, place->address);
    place->is_counted = object_has_counts(size);
    place->num_unloaded = place->is_counted ? info->dlpi_subs : 0;
    return place->code != 0;
}

/* The entry of this object, or else the first free one. NULL: the table is full. */
static struct caller_object *object_at(uintptr_t code)
{
    for (size_t i = 0; i < MAX_OBJECTS; i++) {
        uintptr_t there = atomic_load_explicit(&objects[i].code, memory_order_acquire);
        if (!there || there == code)
            return &objects[i];
    }
    return NULL;
}

static struct runtime *recall(const struct call_site *place)
{
    const struct caller_object *o = place->is_counted ? object_at(place->code) : NULL;
    uint64_t found = o ? atomic_load_explicit(&o->found, memory_order_acquire) : 0;
    if (!found || atomic_load_explicit(&o->code, memory_order_relaxed) != place->code ||
        found >> SITE_SHIFT != place->num_unloaded + 1)
        return NULL;
    return &runtimes[found & ((1 << SITE_SHIFT) - 1)];
}

static void keep_object(const struct call_site *place, const struct runtime *r)
{
    for (struct caller_object *o; place->is_counted && (o = object_at(place->code));) {
        uintptr_t free_place = 0;
        if (atomic_load(&o->code) == place->code ||
            atomic_compare_exchange_strong(&o->code, &free_place, place->code)) {
            uint64_t found = (place->num_unloaded + 1) << SITE_SHIFT | (uint64_t)(r - runtimes);
            atomic_store_explicit(&o->found, found, memory_order_release);
            return;
        }
    }
}

/* Is this a child of a process that has searched before? There the lock of dl_iterate_phdr may
 * remain locked for ever (shim/loader/scope.h, 3), so runtime_at does without it. The sites that
 * the parent has kept remain. Other sites are searched for at each call, which is no loss: CUDA
 * does not work in a child whose parent has used it. */
static bool is_forked_child(void)
{
    static atomic_int searcher;
    int self = getpid(), first = 0;
    return !atomic_compare_exchange_strong(&searcher, &first, self) && first != self;
}

/* Code in no object (a just-in-time compiler made it) may disappear without a dlclose. So its sites
 * are not kept: each call searches. */
static struct runtime *runtime_at(struct call_site *place)
{
    if (!is_forked_child())
        dl_iterate_phdr(is_around, place);
    struct runtime *r = place->code ? recall(place) : NULL;
    if (r)
        return r;
    r = runtimes_find((void *)place->address, place->code);
    if (r && place->code)
        keep_object(place, r);
    return r;
}

static inline size_t first_site(uintptr_t address)
{
    return (uint32_t)address * UINT32_C(0x9e3779b1) >> 24;
}
_Static_assert(MAX_SITES == 1 << 8, "the hash has eight bits");

/* Fills a free slot; see `sites`. Keeps no site outside all objects, and none whose runtime may be
 * unloaded. Keeps no address for which the word has no room. */
static void keep_site(_Atomic uint64_t *slot, const struct call_site *place,
                      const struct runtime *r)
{
    uint64_t free_slot = 0;
    uint64_t site = (uint64_t)place->address << SITE_SHIFT | (uint64_t)(r - runtimes);
    if (site >> SITE_SHIFT != place->address || !place->code || !atomic_load(&r->is_pinned))
        return;
    atomic_store(&any_site, true);
    if (atomic_compare_exchange_strong(slot, &free_slot, site) && atomic_load(&closing))
        atomic_compare_exchange_strong(slot, &site, 0);
}

static SHIM_COLD struct runtime *search_runtime(void *caller)
{
    struct call_site place = {.address = (uintptr_t)caller};
    for (size_t probe = 0; probe < MAX_PROBES; probe++) {
        _Atomic uint64_t *slot = &sites[(first_site(place.address) + probe) & (MAX_SITES - 1)];
        uint64_t site = atomic_load_explicit(slot, memory_order_acquire);
        if (site >> SITE_SHIFT == place.address)
            return &runtimes[site & ((1 << SITE_SHIFT) - 1)];
        if (!site) {
            struct runtime *r = runtime_at(&place);
            if (r)
                keep_site(slot, &place, r);
            return r;
        }
    }
    return runtime_at(&place);
}

/* May be called again inside itself, by a destructor of the closed object. Returns the C library's
 * answer, and leaves its message for dlerror(). */
SHIM_EXPORT int dlclose(void *handle);
int dlclose(void *handle)
{
    atomic_fetch_add(&closing, 1);
    if (atomic_load(&any_site))
        for (size_t i = 0; i < MAX_SITES; i++)
            atomic_store(&sites[i], 0);
    stack_forget();
    runtimes_pin();
    int rc = symbol_close(handle);
    atomic_fetch_sub(&closing, 1);
    return rc;
}

static SHIM_COLD cudaError_t malloc_unlisted(void *caller, void **p, size_t size)
{
    runtime_malloc_fn *real_malloc = runtimes_unlisted_malloc(caller);
    return real_malloc ? real_malloc(p, size) : cudaErrorInitializationError;
}

static SHIM_COLD cudaError_t free_unlisted(void *caller, void *p)
{
    runtime_free_fn *real_free = runtimes_unlisted_free(caller);
    return real_free ? real_free(p) : cudaErrorInitializationError;
}

/* Passes the allocation to the runtime. A runtime's first allocation shows whether its driver calls
 * reach us. They do not if another tool answers its lookups of driver functions. Then its other
 * calls would not reach us either, and the driver does not know the pool's blocks. So cudaMalloc
 * serves no call of such a runtime from the pool. */
static SHIM_COLD cudaError_t forward_malloc(struct runtime *r, void **p, size_t size,
                                            const void *caller)
{
    trace_asker = caller;
    cudaError_t rc = atomic_load_explicit(&r->malloc, memory_order_relaxed)(p, size);
    trace_asker = NULL;
    if (rc == cudaSuccess && size && !atomic_load_explicit(&r->reaches_us, memory_order_relaxed) &&
        atomic_load_explicit(&r->version, memory_order_relaxed) >= SHORT_CUT_SINCE &&
        entry_in_pool(*p))
        atomic_store_explicit(&r->reaches_us, true, memory_order_relaxed);
    return rc;
}

static inline struct runtime *runtime_of(void *caller)
{
    uint64_t site =
        atomic_load_explicit(&sites[first_site((uintptr_t)caller)], memory_order_acquire);
    if (likely(site >> SITE_SHIFT == (uintptr_t)caller))
        return &runtimes[site & ((1 << SITE_SHIFT) - 1)];
    return search_runtime(caller);
}

SHIM_EXPORT cudaError_t cudaMalloc(void **p, size_t size)
{
    struct runtime *r = runtime_of(__builtin_return_address(0));
    if (unlikely(!r))
        return malloc_unlisted(__builtin_return_address(0), p, size);
    /* No short cut if a tool has patched the driver's function: without us the tool sees the
     * runtime's calls. */
    if (likely(atomic_load_explicit(&r->reaches_us, memory_order_relaxed) &&
               !hooks_alloc_patched() &&
               entry_runtime_malloc(p, size, __builtin_return_address(0))))
        return cudaSuccess;
    return forward_malloc(r, p, size, __builtin_return_address(0));
}

SHIM_EXPORT cudaError_t cudaFree(void *p)
{
    struct runtime *r = runtime_of(__builtin_return_address(0));
    if (unlikely(!r))
        return free_unlisted(__builtin_return_address(0), p);
    if (likely(atomic_load_explicit(&r->version, memory_order_relaxed) >= SHORT_CUT_SINCE &&
               !hooks_free_patched())) {
        enum entry_freed freed = entry_runtime_free(p, __builtin_return_address(0));
        if (likely(freed == ENTRY_FREED))
            return cudaSuccess;
        if (freed == ENTRY_FREED_WITHOUT_CONTEXT)
            p = NULL;
    }
    return atomic_load_explicit(&r->free, memory_order_relaxed)(p);
}
