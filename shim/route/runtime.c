/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cudaMalloc and cudaFree of a shared libcudart: served from the pool where that is possible,
 * passed to the caller's own runtime where not. A process may have several runtimes, and a runtime
 * that came in under an RTLD_LOCAL library is not in the global scope; so the real functions are
 * found from the caller's object, and kept for it and for each place that calls, until code is
 * unloaded. Atomics, no lock.
 */
#include "shim/route/runtime.h"

#include "pool/bits.h"
#include "shim/control/thread.h"
#include "shim/driver/hooks.h"
#include "shim/entry/alloc.h"
#include "shim/process/scope.h"
#include "shim/process/symbol.h"
#include "shim/process/second_copy.h"

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
#include <unistd.h>

/* 11.x makes a device's context current first and brings it to life in a later call, which is its
 * own affair. (Of those, only 11.8 has been watched.) */
enum { SHORT_CUT_SINCE = 12000 };

/* Of a runtime beyond these every call goes to it, and is searched for. */
enum {
    MAX_RUNTIMES = 1024,
    MAX_SITES = 256, /* a power of two */
    MAX_PROBES = 8,
    MAX_OBJECTS = 256,
};

typedef cudaError_t malloc_fn(void **, size_t);
typedef cudaError_t free_fn(void *);

/* One libcudart. Its functions and its version are its key; the malloc function is written last.
 *
 * Why a kept function is never one of code that is gone:
 * 1. The runtime of a caller stays loaded while the call runs: it is a dependency of the caller's
 *    object, or was loaded with the process. So a row is right when it is made.
 * 2. Our dlclose takes a reference to each runtime that has none of ours yet, before it closes
 *    anything (pin_runtimes). A runtime of which the first call comes later was not unloaded by
 *    that dlclose before the call, by 1. A dlclose that does not come here (see `sites`) may unload
 *    a runtime without a reference, so no site keeps such a one. The control thread soon takes the
 *    reference.
 * 3. A call that comes while that dlclose runs may make a row of a runtime that the dlclose
 *    unloads. The row stays, but nothing leads to it: its site is not kept (see `sites`), its
 *    caller's object is found again (see `objects`), and a runtime that is loaded at the same place
 *    gets this row only if version and both functions are the same. */
struct runtime {
    _Alignas(32) _Atomic(malloc_fn *) malloc;
    _Atomic(free_fn *) free;
    atomic_int version;
    atomic_bool is_pinned;  /* we have a reference, so that it stays loaded */
    atomic_bool
        reaches_us; /* SHORT_CUT_SINCE and newer: its calls were seen to come to our hooks */
};

static struct runtime runtimes[MAX_RUNTIMES];
static atomic_int num_runtimes; /* may exceed MAX_RUNTIMES */

/* A place that calls: its return address and, in the low bits, its runtime's place in the table; 0:
 * free. In one word, because a slot is forgotten and filled again while others read it.
 *
 * Why no call goes to the runtime of code that lay at its address before:
 * 1. An object is unloaded inside a dlclose, which counts itself in `closing` first and then
 * forgets all sites.
 * 2. A site is kept only by a call from it, so its object is loaded until that call is over; and
 * only if `closing` is 0 after it was written (all in one order, seq_cst). So the dlclose that
 * unloads its object begins later, and forgets it.
 * 3. A call from a site runs in its object: no dlclose that unloads the object has begun to unload,
 * so what the call reads there was written by 2 for this object.
 *
 * A dlclose that does not come here (an object loaded with RTLD_DEEPBIND calls the C library's) is
 * not seen. */
static _Atomic uint64_t sites[MAX_SITES];
static atomic_bool any_site;
static atomic_int closing;
enum { SITE_SHIFT = 16 };
_Static_assert(MAX_RUNTIMES <= 1 << SITE_SHIFT, "a place in the table of runtimes fits");

/* The objects that called: where the code starts (written once, 0: free) and, in one word, how many
 * objects had been unloaded when the search began and, in the low bits, the runtime's place in the
 * table.
 *
 * Why a call from a known object waits for nobody: a search takes the loader's lock, which dlopen
 * and dlclose hold while constructors and destructors run, and those may wait for a thread that
 * frees its memory. Where code lies and how many objects were unloaded is to be had without that
 * lock (dl_iterate_phdr).
 *
 * Why it is the same object: one that calls is loaded, so it was loaded after the one that was
 * found by its code before only if that one was unloaded meanwhile. Then the count is another: an
 * unloading is counted before its dlclose lets go of the loader's lock, and nothing is loaded at
 * the address without that lock. */
static struct caller_object {
    _Atomic uintptr_t code;
    _Atomic uint64_t found; /* 0: nothing yet */
} objects[MAX_OBJECTS];

bool runtime_exports(const char *name)
{
    return strcmp(name, "cudaMalloc") == 0 || strcmp(name, "cudaFree") == 0;
}

/* In `handle`, past ours and past another copy's, which would come back to us: a handle of the main
 * program is the global scope, and finds us first. */
static malloc_fn *malloc_in(void *handle)
{
    malloc_fn *found = (malloc_fn *)(uintptr_t)symbol_lookup(handle, "cudaMalloc");
    return !found || found == cudaMalloc || second_copy_has((void *)(uintptr_t)found) ? NULL
                                                                                      : found;
}

/* The start of the object that an address lies in. */
static const void *object_of(void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* A cudaMalloc of the object that calls: of a runtime that is linked into it, or of a tool that
 * wraps the function as we do, and is calling us as what comes next. A runtime has all the others
 * too. */
static bool is_tool(malloc_fn *found, void *handle, void *caller)
{
    const void *object = object_of(caller);
    void *other = symbol_lookup(handle, "cudaRuntimeGetVersion");
    return object == object_of((void *)(uintptr_t)found) && (!other || object_of(other) != object);
}

/* arg: where to put the name of the first loaded libcudart, PATH_MAX bytes; or NULL. */
static int is_runtime(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *base = slash ? slash + 1 : info->dlpi_name;
    if (strncmp(base, "libcudart.so", strlen("libcudart.so")) != 0 ||
        strlen(info->dlpi_name) >= PATH_MAX)
        return 0;
    if (arg)
        strcpy(arg, info->dlpi_name);
    return 1;
}

bool runtime_loaded(void)
{
    return dl_iterate_phdr(is_runtime, NULL);
}

struct nth {
    size_t left;
    char *name; /* PATH_MAX bytes */
};

static int is_nth(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct nth *nth = arg;
    if (nth->left--)
        return 0;
    strncpy(nth->name, info->dlpi_name, PATH_MAX - 1);
    return 1;
}

/* That of a libcudart, else of the first object that has or needs a runtime by another name (Python
 * packages rename theirs). No lock of the loader's is held over dlopen, so each object is asked for
 * by its number. */
static malloc_fn *malloc_of_any_runtime(void)
{
    malloc_fn *found = NULL;
    char *name = calloc(1, PATH_MAX); /* not on the stack, of which there may be 16 KiB */
    if (!name)
        return NULL;
    bool more = dl_iterate_phdr(is_runtime, name);
    for (size_t i = 0; !found; i++) {
        void *handle = more && name[0] ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (handle) {
            found = malloc_in(handle);
            symbol_close(handle); /* remember() keeps it */
        }
        struct nth nth = {i, name};
        more = dl_iterate_phdr(is_nth, &nth);
        if (!more)
            break;
    }
    free(name);
    return found;
}

/* The caller's own object and its dependencies first. Then, for callers in the main program or in
 * no object at all, what comes after us in the global scope; then whatever runtime is loaded. */
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
            symbol_close(handle); /* the caller's object stays: it is running */
        }
    }
    if (!found)
        found = malloc_in(RTLD_NEXT);
    return found ? found : malloc_of_any_runtime();
}

/* The object that has the function. An executable with the runtime in it has no name, and finds its
 * own functions in itself. */
static void *open_object_of(malloc_fn *real_malloc)
{
    struct link_map *map = NULL;
    Dl_info info;
    if (!dladdr1((void *)(uintptr_t)real_malloc, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return NULL;
    return dlopen(map->l_name[0] ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
}

/* A tool may wrap the one and not the other. */
static free_fn *free_in(void *handle)
{
    free_fn *found = (free_fn *)(uintptr_t)symbol_lookup(handle, "cudaFree");
    if (!found || found == cudaFree)
        found = (free_fn *)(uintptr_t)symbol_lookup(RTLD_NEXT, "cudaFree");
    return found == cudaFree ? NULL : found;
}

/* A place that calls, and its object. */
struct place {
    uintptr_t address;
    uintptr_t code; /* 0: in no object, or not looked for */
    uint64_t num_unloaded;
};

typedef cudaError_t version_fn(int *);

/* 0, and so no short cut, if the runtime does not say. */
static int version_from(version_fn *get_version)
{
    int version = 0;
    return get_version && get_version(&version) == cudaSuccess ? version : 0;
}

/* Fills a row, or finds the one that has been filled; two threads at once may fill two, which does
 * no harm. */
static struct runtime *row_of(malloc_fn *real_malloc, free_fn *real_free, int version)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < MAX_RUNTIMES; i++) {
        struct runtime *r = &runtimes[i];
        if (atomic_load_explicit(&r->malloc, memory_order_acquire) == real_malloc &&
            atomic_load_explicit(&r->free, memory_order_relaxed) == real_free &&
            atomic_load_explicit(&r->version, memory_order_relaxed) == version)
            return r;
    }
    int place = count < MAX_RUNTIMES ? atomic_fetch_add(&num_runtimes, 1) : MAX_RUNTIMES;
    if (place >= MAX_RUNTIMES)
        return NULL;
    struct runtime *r = &runtimes[place];
    atomic_store_explicit(&r->free, real_free, memory_order_relaxed);
    atomic_store_explicit(&r->version, version, memory_order_relaxed);
    atomic_store_explicit(&r->malloc, real_malloc, memory_order_release);
    return r;
}

/* The row of the runtime with this malloc, which is pinned. */
static struct runtime *remember(malloc_fn *real_malloc)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < MAX_RUNTIMES; i++)
        if (atomic_load_explicit(&runtimes[i].malloc, memory_order_acquire) == real_malloc &&
            atomic_load(&runtimes[i].is_pinned))
            return &runtimes[i];
    void *handle = open_object_of(real_malloc);
    if (!handle)
        return NULL;
    free_fn *real_free = free_in(handle);
    version_fn *get_version =
        (version_fn *)(uintptr_t)symbol_lookup(handle, "cudaRuntimeGetVersion");
    struct runtime *r =
        real_free ? row_of(real_malloc, real_free, version_from(get_version)) : NULL;
    if (!r || atomic_exchange(&r->is_pinned, true))
        symbol_close(handle);
    return r;
}

static void pin(struct runtime *r)
{
    malloc_fn *real_malloc = atomic_load_explicit(&r->malloc, memory_order_acquire);
    void *handle = real_malloc ? open_object_of(real_malloc) : NULL;
    if (!handle)
        return;
    bool is_there = (malloc_fn *)(uintptr_t)symbol_lookup(handle, "cudaMalloc") == real_malloc;
    if (!is_there || atomic_exchange(&r->is_pinned, true))
        symbol_close(handle);
}

static void pin_runtimes(void)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < MAX_RUNTIMES; i++)
        if (!atomic_load(&runtimes[i].is_pinned))
            pin(&runtimes[i]);
}

/* A runtime's functions, of one object. */
struct functions {
    uintptr_t malloc, free, get_version;
};

/* The first cudaMalloc of a scope, if its object is a runtime. A tool that wraps the function has
 * not all three functions as a rule, and a copy of this library has its own mark: the loader is to
 * tell there. */
static void find_functions(const struct object *scope, size_t num_objects, void *arg)
{
    struct functions found, *out = arg;
    for (size_t i = 0; i < num_objects; i++) {
        enum object_answer answer = object_symbol(&scope[i], "cudaMalloc", &found.malloc);
        if (answer == OBJECT_LACKS)
            continue;
        if (answer == OBJECT_HAS && found.malloc != (uintptr_t)cudaMalloc &&
            !twin_may_be(&scope[i]) &&
            object_symbol(&scope[i], "cudaFree", &found.free) == OBJECT_HAS &&
            object_symbol(&scope[i], "cudaRuntimeGetVersion", &found.get_version) == OBJECT_HAS)
            *out = found;
        return;
    }
}

static uint64_t run_pin(uint64_t now_ns)
{
    pin_runtimes();
    return DUTY_NEVER;
}

static struct duty pin_duty = {.run = run_pin, .due_ns = DUTY_NEVER};

/* Without the loader's lock where the caller's own scope has a runtime. To take a reference needs
 * that lock. So the control thread does it: that thread may wait for constructors. */
static struct runtime *find_runtime(const struct place *place)
{
    int saved_errno = errno;
    struct functions f = {0, 0, 0};
    if (place->code && scope_may_be_walked() &&
        scope_of_caller(place->address, find_functions, &f) && f.malloc) {
        struct runtime *r = row_of((malloc_fn *)f.malloc, (free_fn *)f.free,
                                   version_from((version_fn *)f.get_version));
        if (r && !atomic_load(&r->is_pinned))
            control_due(&pin_duty, 0);
        errno = saved_errno;
        return r;
    }
    malloc_fn *real_malloc = find_malloc((void *)place->address);
    struct runtime *r = real_malloc ? remember(real_malloc) : NULL;
    dlerror(); /* the program has not asked for anything */
    errno = saved_errno;
    return r;
}

static int is_around(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct place *place = arg;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && place->address - start < part->p_memsz) {
            place->code = start;
            place->num_unloaded = info->dlpi_subs;
            return 1;
        }
    }
    return 0;
}

/* The object's place, which is free if it is not there; NULL: the table is full. */
static struct caller_object *object_at(uintptr_t code)
{
    for (size_t i = 0; i < MAX_OBJECTS; i++) {
        uintptr_t there = atomic_load_explicit(&objects[i].code, memory_order_acquire);
        if (!there || there == code)
            return &objects[i];
    }
    return NULL;
}

static struct runtime *recall(const struct place *place)
{
    const struct caller_object *o = object_at(place->code);
    uint64_t found = o ? atomic_load_explicit(&o->found, memory_order_acquire) : 0;
    if (!found || atomic_load_explicit(&o->code, memory_order_relaxed) != place->code ||
        found >> SITE_SHIFT != place->num_unloaded + 1)
        return NULL;
    return &runtimes[found & ((1 << SITE_SHIFT) - 1)];
}

static void keep_object(const struct place *place, const struct runtime *r)
{
    for (struct caller_object *o; (o = object_at(place->code));) {
        uintptr_t free_place = 0;
        if (atomic_load(&o->code) == place->code ||
            atomic_compare_exchange_strong(&o->code, &free_place, place->code)) {
            uint64_t found = (place->num_unloaded + 1) << SITE_SHIFT | (uint64_t)(r - runtimes);
            atomic_store_explicit(&o->found, found, memory_order_release);
            return;
        }
    }
}

/* In a forked child another thread's hold of the list of objects is for ever; the C library frees
 * the loader's lock there, but not that one. The places that the parent kept stand, and CUDA has no
 * use for more in a child. */
static bool is_forked_child(void)
{
    static atomic_int searcher;
    int self = getpid(), first = 0;
    return !atomic_compare_exchange_strong(&searcher, &first, self) && first != self;
}

/* Code in no object (a compiler made it) goes without a dlclose: it is searched for at each
 * call. */
static struct runtime *runtime_at(struct place *place)
{
    if (!is_forked_child())
        dl_iterate_phdr(is_around, place);
    struct runtime *r = place->code ? recall(place) : NULL;
    if (r)
        return r;
    r = find_runtime(place);
    if (r && place->code)
        keep_object(place, r);
    return r;
}

static inline size_t first_site(uintptr_t address)
{
    return (uint32_t)address * UINT32_C(0x9e3779b1) >> 24;
}
_Static_assert(MAX_SITES == 1 << 8, "as many as eight bits tell apart");

/* In a free slot; see `sites`. Not a place that is in no object, whose runtime may be unloaded, or
 * for whose address the word has no room. */
static void keep_site(_Atomic uint64_t *slot, const struct place *place, const struct runtime *r)
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
    struct place place = {.address = (uintptr_t)caller};
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

/* Whoever closes code in a destructor of closed code comes here once more. The C library's answer
 * and dlerror() are its own. */
SHIM_EXPORT int dlclose(void *handle);
int dlclose(void *handle)
{
    atomic_fetch_add(&closing, 1);
    if (atomic_load(&any_site))
        for (size_t i = 0; i < MAX_SITES; i++)
            atomic_store(&sites[i], 0);
    pin_runtimes();
    int rc = symbol_close(handle);
    atomic_fetch_sub(&closing, 1);
    return rc;
}

/* For a runtime that the table has no room for. */
static SHIM_COLD cudaError_t malloc_unlisted(void *caller, void **p, size_t size)
{
    int saved_errno = errno;
    malloc_fn *real_malloc = find_malloc(caller);
    dlerror();
    errno = saved_errno;
    return real_malloc ? real_malloc(p, size) : cudaErrorInitializationError;
}

static SHIM_COLD cudaError_t free_unlisted(void *caller, void *p)
{
    int saved_errno = errno;
    malloc_fn *real_malloc = find_malloc(caller);
    void *handle = real_malloc ? open_object_of(real_malloc) : NULL;
    free_fn *real_free = handle ? free_in(handle) : NULL;
    if (handle)
        symbol_close(handle); /* the caller's object needs its runtime */
    dlerror();
    errno = saved_errno;
    return real_free ? real_free(p) : cudaErrorInitializationError;
}

/* Through the runtime: the first allocation goes so, and shows whether it comes to us. It does not
 * if another tool answers its look-ups of driver functions. What else it asks of the driver would
 * not come to us either, and the driver knows nothing of the pool's blocks. */
static SHIM_COLD cudaError_t forward_malloc(struct runtime *r, void **p, size_t size)
{
    cudaError_t rc = atomic_load_explicit(&r->malloc, memory_order_relaxed)(p, size);
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
    /* Nor past somebody who watches the driver's functions: natively he sees what goes through the
     * runtime. */
    if (likely(atomic_load_explicit(&r->reaches_us, memory_order_relaxed) &&
               !hooks_alloc_patched() && entry_runtime_malloc(p, size)))
        return cudaSuccess;
    return forward_malloc(r, p, size);
}

SHIM_EXPORT cudaError_t cudaFree(void *p)
{
    struct runtime *r = runtime_of(__builtin_return_address(0));
    if (unlikely(!r))
        return free_unlisted(__builtin_return_address(0), p);
    if (likely(atomic_load_explicit(&r->version, memory_order_relaxed) >= SHORT_CUT_SINCE &&
               !hooks_free_patched())) {
        enum entry_freed freed = entry_runtime_free(p);
        if (likely(freed == ENTRY_FREED))
            return cudaSuccess;
        if (freed == ENTRY_FREED_WITHOUT_CONTEXT)
            p = NULL;
    }
    return atomic_load_explicit(&r->free, memory_order_relaxed)(p);
}
