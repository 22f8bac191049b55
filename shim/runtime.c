/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cudaMalloc and cudaFree of a shared libcudart: served from the pool where that is possible, passed to
 * the caller's own runtime where not. A process may have several runtimes, and a runtime that came in
 * under an RTLD_LOCAL library is not in the global scope; so the real functions are found from the
 * caller's object, and kept for each place that calls. Atomics, no lock.
 */
#include "shim/runtime.h"

#include "pool/bits.h"
#include "shim/hooks.h"
#include "shim/resolve.h"
#include "shim/twin.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* 11.x makes a device's context current first and brings it to life in a later call, which is its own affair.
 * (Of those, only 11.8 has been watched.) */
enum { SHORT_CUT_SINCE = 12000 };

enum { MAX_RUNTIMES = 8, MAX_SITES = 256 /* a power of two */, MAX_PROBES = 8 };

typedef cudaError_t malloc_fn(void **, size_t);
typedef cudaError_t free_fn(void *);

/* One libcudart. The malloc function is its key, and is written last. */
struct runtime {
    _Atomic(malloc_fn *) malloc;
    _Atomic(free_fn *) free;
    atomic_int version;
    atomic_bool reaches_us; /* of SHORT_CUT_SINCE and newer; its calls were seen to arrive at our hooks */
};

/* A place that calls, by its return address, and its runtime, which is written first. */
struct site {
    _Atomic(uintptr_t) address;
    struct runtime *runtime;
};
#define SITE_FREE ((uintptr_t)0)
#define SITE_TAKEN ((uintptr_t)1)

static struct runtime runtimes[MAX_RUNTIMES];
static struct site sites[MAX_SITES];

bool runtime_exports(const char *name)
{
    return strcmp(name, "cudaMalloc") == 0 || strcmp(name, "cudaFree") == 0;
}

/* In `handle`, past ours and past another copy's, which would come back to us: a handle of the main program
 * is the global scope, and finds us first. */
static malloc_fn *malloc_in(void *handle)
{
    malloc_fn *found = (malloc_fn *)(uintptr_t)resolve_symbol(handle, "cudaMalloc");
    return !found || found == cudaMalloc || twin_has((void *)(uintptr_t)found) ? NULL : found;
}

/* The start of the object that an address lies in. */
static const void *object_of(void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* A cudaMalloc of the object that calls: of a runtime that is linked into it, or of a tool that wraps the
 * function as we do, and is calling us as what comes next. A runtime has all the others too. */
static bool is_tool(malloc_fn *found, void *handle, void *caller)
{
    const void *object = object_of(caller);
    void *other = resolve_symbol(handle, "cudaRuntimeGetVersion");
    return object == object_of((void *)(uintptr_t)found) && (!other || object_of(other) != object);
}

/* arg: where to put the name of the first loaded libcudart, PATH_MAX bytes; or NULL. */
static int is_runtime(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *base = slash ? slash + 1 : info->dlpi_name;
    if (strncmp(base, "libcudart.so", strlen("libcudart.so")) != 0 || strlen(info->dlpi_name) >= PATH_MAX)
        return 0;
    if (arg)
        strcpy(arg, info->dlpi_name);
    return 1;
}

bool runtime_loaded(void)
{
    return dl_iterate_phdr(is_runtime, NULL);
}

static malloc_fn *malloc_of_any_runtime(void)
{
    malloc_fn *found = NULL;
    char *name = malloc(PATH_MAX); /* not on the stack: a thread of the program may have 16 KiB */
    if (name && dl_iterate_phdr(is_runtime, name)) {
        void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = malloc_in(handle);
            dlclose(handle); /* remember() keeps it */
        }
    }
    free(name);
    return found;
}

/* The caller's own object and its dependencies first. Then, for callers in the main program or in no
 * object at all, what comes after us in the global scope; then whatever runtime is loaded. */
static malloc_fn *find_malloc(void *caller)
{
    malloc_fn *found = NULL;
    struct link_map *map = NULL;
    Dl_info info;
    if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name[0]) {
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = malloc_in(handle);
            if (found && is_tool(found, handle, caller))
                found = NULL;
            dlclose(handle); /* the caller's object stays: it is running */
        }
    }
    if (!found)
        found = malloc_in(RTLD_NEXT);
    return found ? found : malloc_of_any_runtime();
}

/* Fills a free row, or finds the one that another thread has filled. The runtime stays loaded from here
 * on: its functions are kept. Version 0, and so no short cut, if it does not say. */
static struct runtime *remember(malloc_fn *real_malloc)
{
    for (int i = 0; i < MAX_RUNTIMES; i++)
        if (atomic_load_explicit(&runtimes[i].malloc, memory_order_acquire) == real_malloc)
            return &runtimes[i];

    struct link_map *map = NULL;
    Dl_info info;
    if (!dladdr1((void *)(uintptr_t)real_malloc, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return NULL;
    /* An executable with the runtime in it has no name, and finds its own functions in itself. */
    void *handle = dlopen(map->l_name[0] ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return NULL;
    free_fn *real_free = (free_fn *)(uintptr_t)resolve_symbol(handle, "cudaFree");
    cudaError_t (*get_version)(int *) =
        (cudaError_t(*)(int *))(uintptr_t)resolve_symbol(handle, "cudaRuntimeGetVersion");
    int version = 0;
    /* A tool may wrap the one and not the other. */
    if (!real_free || real_free == cudaFree)
        real_free = (free_fn *)(uintptr_t)resolve_symbol(RTLD_NEXT, "cudaFree");
    if (!real_free || real_free == cudaFree) {
        dlclose(handle);
        return NULL;
    }
    if (!get_version || get_version(&version) != cudaSuccess)
        version = 0;

    /* Two threads may take the same free row for different runtimes: the loser takes the next. */
    for (int i = 0; i < MAX_RUNTIMES; i++) {
        struct runtime *r = &runtimes[i];
        free_fn *no_free = NULL;
        if (atomic_compare_exchange_strong(&r->free, &no_free, real_free) || no_free == real_free) {
            atomic_store_explicit(&r->version, version, memory_order_relaxed);
            atomic_store_explicit(&r->malloc, real_malloc, memory_order_release);
            return r;
        }
    }
    dlclose(handle);
    return NULL;
}

static struct runtime *find_runtime(void *caller)
{
    int saved_errno = errno;
    malloc_fn *real_malloc = find_malloc(caller);
    struct runtime *r = real_malloc ? remember(real_malloc) : NULL;
    dlerror(); /* the program has not asked for anything */
    errno = saved_errno;
    return r;
}

static inline size_t first_site(uintptr_t address)
{
    return (uint32_t)address * UINT32_C(0x9e3779b1) >> 24;
}
_Static_assert(MAX_SITES == 1 << 8, "as many as eight bits tell apart");

static SHIM_COLD struct runtime *search_runtime(void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    for (size_t probe = 0; probe < MAX_PROBES; probe++) {
        struct site *s = &sites[(first_site(address) + probe) & (MAX_SITES - 1)];
        uintptr_t key = atomic_load_explicit(&s->address, memory_order_acquire);
        if (key == address)
            return s->runtime;
        if (key == SITE_FREE) {
            struct runtime *r = find_runtime(caller);
            if (r && atomic_compare_exchange_strong(&s->address, &key, SITE_TAKEN)) {
                s->runtime = r;
                atomic_store_explicit(&s->address, address, memory_order_release);
            }
            return r;
        }
    }
    return find_runtime(caller);
}

/* Through the runtime: the first allocation goes so, and shows whether it comes to us. It does not if
 * another tool answers its look-ups of driver functions. What else it asks of the driver would not come to
 * us either, and the driver knows nothing of the pool's blocks. */
static SHIM_COLD cudaError_t forward_malloc(struct runtime *r, void **p, size_t size)
{
    cudaError_t rc = atomic_load_explicit(&r->malloc, memory_order_relaxed)(p, size);
    if (rc == cudaSuccess && size && !atomic_load_explicit(&r->reaches_us, memory_order_relaxed) &&
        atomic_load_explicit(&r->version, memory_order_relaxed) >= SHORT_CUT_SINCE && entry_in_pool(*p))
        atomic_store_explicit(&r->reaches_us, true, memory_order_relaxed);
    return rc;
}

static inline struct runtime *runtime_of(void *caller)
{
    const struct site *s = &sites[first_site((uintptr_t)caller)];
    if (likely(atomic_load_explicit(&s->address, memory_order_acquire) == (uintptr_t)caller))
        return s->runtime;
    return search_runtime(caller);
}

SHIM_EXPORT cudaError_t cudaMalloc(void **p, size_t size)
{
    struct runtime *r = runtime_of(__builtin_return_address(0));
    if (unlikely(!r))
        return cudaErrorInitializationError;
    /* Nor past somebody who watches the driver's functions: natively he sees what goes through the runtime. */
    if (likely(atomic_load_explicit(&r->reaches_us, memory_order_relaxed) && !hooks_alloc_patched() &&
               entry_runtime_malloc(p, size)))
        return cudaSuccess;
    return forward_malloc(r, p, size);
}

SHIM_EXPORT cudaError_t cudaFree(void *p)
{
    struct runtime *r = runtime_of(__builtin_return_address(0));
    if (unlikely(!r))
        return cudaErrorInitializationError;
    if (likely(atomic_load_explicit(&r->version, memory_order_relaxed) >= SHORT_CUT_SINCE && !hooks_free_patched())) {
        enum entry_freed freed = entry_runtime_free(p);
        if (likely(freed == ENTRY_FREED))
            return cudaSuccess;
        if (freed == ENTRY_FREED_WITHOUT_CONTEXT)
            p = NULL;
    }
    return atomic_load_explicit(&r->free, memory_order_relaxed)(p);
}
