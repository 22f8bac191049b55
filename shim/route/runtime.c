/* SPDX-License-Identifier: BSD-2-Clause
 *
 * cudaMalloc and cudaFree of a shared libcudart. The pool serves a call where it can. All other
 * calls go to the caller's own runtime. A process may have several runtimes, and a runtime below an
 * RTLD_LOCAL library is not in the global scope. So we find the real functions from the caller's
 * object. We keep them per object, and per calling address until the next dlclose. Atomics, no lock
 * of ours.
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

/* A runtime of 11.x makes a device's context current, but starts it only in a later call. We leave
 * that to the runtime: its calls get no short cut. (Of 11.x we have tried 11.8 only.) */
enum { SHORT_CUT_SINCE = 12000 };

enum {
    MAX_RUNTIMES = 1024, /* every call of a further runtime is searched for, and goes to it */
    MAX_SITES = 256, /* a power of two */
    MAX_PROBES = 8,
    MAX_OBJECTS = 256,
};

typedef cudaError_t malloc_fn(void **, size_t);
typedef cudaError_t free_fn(void *);

/* One libcudart. Its two functions and its version are the key. A thread writes `malloc` last.
 *
 * Why no call goes to a function whose code is unloaded:
 * 1. The runtime of a caller stays loaded while the call runs: it is a dependency of the caller's
 *    object, or was loaded with the process. So a row is right when a call makes it.
 * 2. Our dlclose first takes a reference to each runtime in the table that has none of ours
 *    (pin_runtimes). If a runtime's first call comes after that, the dlclose has not unloaded the
 *    runtime before the call, by 1. A dlclose that does not come here (see `sites`) may unload a
 *    runtime without a reference, so no site keeps such a runtime. The control thread soon takes
 *    the reference.
 * 3. A call during that dlclose may make a row for a runtime that the dlclose then unloads. The row
 *    stays, but no later call uses it for other code:
 *    a. the call does not keep its site (see `sites`);
 *    b. the count of unloaded objects has changed, so the caller's object is searched again (see
 *       `objects`);
 *    c. a runtime that is later loaded at the same address gets this row only if its version and
 *       both functions are the same. */
struct runtime {
    _Alignas(32) _Atomic(malloc_fn *) malloc;
    _Atomic(free_fn *) free;
    atomic_int version;
    atomic_bool is_pinned;  /* we hold a reference, so it stays loaded */
    atomic_bool reaches_us; /* from SHORT_CUT_SINCE on: a call of it has reached our hooks */
};

static struct runtime runtimes[MAX_RUNTIMES];
static atomic_int num_runtimes; /* may exceed MAX_RUNTIMES */

/* The sites: places in the program's code that call cudaMalloc or cudaFree. A slot holds the return
 * address and, in the low bits, the index of the runtime's row; 0: free. It is one word, because
 * threads clear and fill a slot while others read it.
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
_Static_assert(MAX_RUNTIMES <= 1 << SITE_SHIFT, "a place in the table of runtimes fits");

/* The objects that have called. `code` is the address of the segment with the calling code, written
 * once; 0: free. `found` holds two numbers in one word. The high bits count the objects that the
 * process had unloaded when the search began, plus 1. The low bits are the index of the row.
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

/* The cudaMalloc in the scope of `handle`. NULL for ours and for that of another copy of this
 * library, which would call us. A handle of the main program is the global scope and finds ours. */
static malloc_fn *malloc_in(void *handle)
{
    malloc_fn *found = (malloc_fn *)(uintptr_t)symbol_lookup(handle, "cudaMalloc");
    return !found || found == cudaMalloc || second_copy_has((void *)(uintptr_t)found) ? NULL
                                                                                      : found;
}

/* The base address of the object with this address; NULL: no object has it. */
static const void *object_of(void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* Does the caller belong to a tool that wraps cudaMalloc as we do, and calls us as the next object?
 * The caller's own object then has the cudaMalloc that was found. So has an object into which a
 * runtime is linked, but a runtime also has cudaRuntimeGetVersion. */
static bool is_tool(malloc_fn *found, void *handle, void *caller)
{
    const void *object = object_of(caller);
    void *other = symbol_lookup(handle, "cudaRuntimeGetVersion");
    return object == object_of((void *)(uintptr_t)found) && (!other || object_of(other) != object);
}

/* Stops at the first loaded libcudart. arg: PATH_MAX bytes for its name, or NULL. */
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

/* The cudaMalloc of a loaded libcudart. If there is none: that of the first object with cudaMalloc
 * in its scope, because Python packages rename their runtimes. We must not call dlopen inside
 * dl_iterate_phdr, whose lock it may need. So each step fetches one object's name by its number. */
static malloc_fn *malloc_of_any_runtime(void)
{
    malloc_fn *found = NULL;
    char *name = calloc(1, PATH_MAX); /* a thread's stack may have 16 KiB only */
    if (!name)
        return NULL;
    bool more = dl_iterate_phdr(is_runtime, name);
    for (size_t i = 0; !found; i++) {
        void *handle = more && name[0] ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (handle) {
            found = malloc_in(handle);
            symbol_close(handle); /* remember() takes a reference of its own */
        }
        struct nth nth = {i, name};
        more = dl_iterate_phdr(is_nth, &nth);
        if (!more)
            break;
    }
    free(name);
    return found;
}

/* The order of the search:
 * 1. the caller's own object and its dependencies (not for callers in the main program or in no
 *    object);
 * 2. the objects behind us in the global scope;
 * 3. any loaded runtime. */
static malloc_fn *find_malloc(void *caller)
{
    malloc_fn *found = NULL;
    const struct link_map *map = symbol_object(caller);
    if (map && map->l_name[0]) {
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = malloc_in(handle);
            if (found && is_tool(found, handle, caller))
                found = NULL;
            symbol_close(handle); /* the caller's object stays loaded: its code is running */
        }
    }
    if (!found)
        found = malloc_in(RTLD_NEXT);
    return found ? found : malloc_of_any_runtime();
}

/* A handle of the object with the function. The program itself has an empty name. If it contains
 * the runtime, its handle is that of the global scope and finds its own functions. */
static void *open_object_of(malloc_fn *real_malloc)
{
    const struct link_map *map = symbol_object((void *)(uintptr_t)real_malloc);
    if (!map)
        return NULL;
    return dlopen(map->l_name[0] ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
}

/* The cudaFree in the scope of `handle`, else behind us. A tool may wrap cudaMalloc only. */
static free_fn *free_in(void *handle)
{
    free_fn *found = (free_fn *)(uintptr_t)symbol_lookup(handle, "cudaFree");
    if (!found || found == cudaFree)
        found = (free_fn *)(uintptr_t)symbol_lookup(RTLD_NEXT, "cudaFree");
    return found == cudaFree ? NULL : found;
}

/* A site and its object. */
struct place {
    uintptr_t address;
    uintptr_t code; /* start of the segment; 0: in no object, or not searched */
    uint64_t num_unloaded;
};

typedef cudaError_t version_fn(int *);

/* 0 if the runtime gives no version. Then its calls get no short cut. */
static int version_from(version_fn *get_version)
{
    int version = 0;
    return get_version && get_version(&version) == cudaSuccess ? version : 0;
}

/* Finds the row with these values, or fills a new one. Two threads at once may fill two equal rows,
 * which does no harm. NULL: the table is full. */
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

/* The row of the runtime with this cudaMalloc. If the row has no reference to it, takes one. */
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

/* The first cudaMalloc of a scope, if its object is a runtime. A tool that wraps cudaMalloc seldom
 * has all three functions, and another copy of this library has its marker. In these cases the
 * result stays empty, and the caller asks the loader. */
static void find_functions(const struct object *scope, size_t num_objects, void *arg)
{
    struct functions found, *out = arg;
    for (size_t i = 0; i < num_objects; i++) {
        enum object_answer answer = object_symbol(&scope[i], "cudaMalloc", &found.malloc);
        if (answer == OBJECT_LACKS)
            continue;
        if (answer == OBJECT_HAS && found.malloc != (uintptr_t)cudaMalloc &&
            !second_copy_may_be(&scope[i]) &&
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

/* If the caller's own scope has a runtime, this takes no loader's lock. Else it asks the loader. A
 * reference needs that lock, so the control thread takes it: that thread may wait for
 * constructors. */
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
    dlerror(); /* clears our messages: the program made no lookup */
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

/* The entry of this object; else the first free one; NULL: the table is full. */
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

/* Is this a child of a process that has searched before? There the lock of dl_iterate_phdr may
 * remain locked for ever (shim/process/scope.h, 3), so runtime_at does without it. The sites that
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
_Static_assert(MAX_SITES == 1 << 8, "the hash has eight bits");

/* Fills a free slot; see `sites`. Keeps no site that is in no object or whose runtime may be
 * unloaded, and no address that the word has no room for. */
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

/* May be called again inside itself, by a destructor of the closed object. Returns the C library's
 * answer, and leaves its message for dlerror(). */
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

/* For a caller whose runtime has no row: the table is full, or the search found none. */
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
        symbol_close(handle); /* the caller's object keeps its runtime loaded */
    dlerror();
    errno = saved_errno;
    return real_free ? real_free(p) : cudaErrorInitializationError;
}

/* Passes the allocation to the runtime. A runtime's first allocation shows whether its driver calls
 * reach us. They do not if another tool answers its lookups of driver functions. Then its other
 * calls would not reach us either, and the driver does not know the pool's blocks. So cudaMalloc
 * serves no call of such a runtime from the pool. */
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
    /* No short cut if a tool has patched the driver's function: without us the tool sees the
     * runtime's calls. */
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
