/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See runtimes.h. The table of runtimes, and the search for the runtime of a caller.
 */
#include "shim/route/runtimes.h"

#include "shim/control/thread.h"
#include "shim/loader/scope.h"
#include "shim/loader/second_copy.h"
#include "shim/loader/symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

struct runtime runtimes[RUNTIMES_MAX];
static atomic_int num_runtimes; /* may exceed RUNTIMES_MAX */

/* The cudaMalloc in the scope of `handle`. NULL for ours and for that of another copy of this
 * library, which would call us. A handle of the main program is the global scope and finds ours. */
static runtime_malloc_fn *malloc_in(void *handle)
{
    runtime_malloc_fn *found = (runtime_malloc_fn *)(uintptr_t)symbol_lookup(handle, "cudaMalloc");
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
static bool is_tool(runtime_malloc_fn *found, void *handle, void *caller)
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

bool runtimes_any_loaded(void)
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
static runtime_malloc_fn *malloc_of_any_runtime(void)
{
    runtime_malloc_fn *found = NULL;
    char *name = calloc(1, PATH_MAX); /* a thread's stack may have 16 KiB only */
    if (!name)
        return NULL;
    bool more = dl_iterate_phdr(is_runtime, name);
    for (size_t i = 0; !found; i++) {
        void *handle = more && name[0] ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (handle) {
            found = malloc_in(handle);
            symbol_close(handle); /* remember_runtime() takes a reference of its own */
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
static runtime_malloc_fn *find_malloc(void *caller)
{
    runtime_malloc_fn *found = NULL;
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
static void *open_object_of(runtime_malloc_fn *real_malloc)
{
    const struct link_map *map = symbol_object((void *)(uintptr_t)real_malloc);
    if (!map)
        return NULL;
    return dlopen(map->l_name[0] ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
}

/* The cudaFree in the scope of `handle`, else behind us. A tool may wrap cudaMalloc only. */
static runtime_free_fn *free_in(void *handle)
{
    runtime_free_fn *found = (runtime_free_fn *)(uintptr_t)symbol_lookup(handle, "cudaFree");
    if (!found || found == cudaFree)
        found = (runtime_free_fn *)(uintptr_t)symbol_lookup(RTLD_NEXT, "cudaFree");
    return found == cudaFree ? NULL : found;
}

typedef cudaError_t version_fn(int *);

/* 0 if the runtime gives no version. Then its calls get no short cut. */
static int version_from(version_fn *get_version)
{
    int version = 0;
    return get_version && get_version(&version) == cudaSuccess ? version : 0;
}

/* Finds the row with these values, or fills a new one. Two threads at once may fill two equal rows,
 * which does no harm. NULL: the table is full. */
static struct runtime *runtime_row_of(runtime_malloc_fn *real_malloc, runtime_free_fn *real_free,
                                      int version)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < RUNTIMES_MAX; i++) {
        struct runtime *r = &runtimes[i];
        if (atomic_load_explicit(&r->malloc, memory_order_acquire) == real_malloc &&
            atomic_load_explicit(&r->free, memory_order_relaxed) == real_free &&
            atomic_load_explicit(&r->version, memory_order_relaxed) == version)
            return r;
    }
    int place = count < RUNTIMES_MAX ? atomic_fetch_add(&num_runtimes, 1) : RUNTIMES_MAX;
    if (place >= RUNTIMES_MAX)
        return NULL;
    struct runtime *r = &runtimes[place];
    atomic_store_explicit(&r->free, real_free, memory_order_relaxed);
    atomic_store_explicit(&r->version, version, memory_order_relaxed);
    atomic_store_explicit(&r->malloc, real_malloc, memory_order_release);
    return r;
}

/* The row of the runtime with this cudaMalloc. If the row has no reference to it, takes one. */
static struct runtime *remember_runtime(runtime_malloc_fn *real_malloc)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < RUNTIMES_MAX; i++)
        if (atomic_load_explicit(&runtimes[i].malloc, memory_order_acquire) == real_malloc &&
            atomic_load(&runtimes[i].is_pinned))
            return &runtimes[i];
    void *handle = open_object_of(real_malloc);
    if (!handle)
        return NULL;
    runtime_free_fn *real_free = free_in(handle);
    version_fn *get_version =
        (version_fn *)(uintptr_t)symbol_lookup(handle, "cudaRuntimeGetVersion");
    struct runtime *r =
        real_free ? runtime_row_of(real_malloc, real_free, version_from(get_version)) : NULL;
    if (!r || atomic_exchange(&r->is_pinned, true))
        symbol_close(handle);
    return r;
}

static void pin(struct runtime *r)
{
    runtime_malloc_fn *real_malloc = atomic_load_explicit(&r->malloc, memory_order_acquire);
    void *handle = real_malloc ? open_object_of(real_malloc) : NULL;
    if (!handle)
        return;
    bool is_there =
        (runtime_malloc_fn *)(uintptr_t)symbol_lookup(handle, "cudaMalloc") == real_malloc;
    if (!is_there || atomic_exchange(&r->is_pinned, true))
        symbol_close(handle);
}

void runtimes_pin(void)
{
    int count = atomic_load(&num_runtimes);
    for (int i = 0; i < count && i < RUNTIMES_MAX; i++)
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
static void find_runtime_functions(const struct object *scope, size_t num_objects, void *arg)
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
    runtimes_pin();
    return DUTY_NEVER;
}

static struct duty pin_duty = {.run = run_pin, .due_ns = DUTY_NEVER};

struct runtime *runtimes_find(void *caller, bool in_object)
{
    int saved_errno = errno;
    struct functions f = {0, 0, 0};
    if (in_object && scope_may_be_walked() &&
        scope_of_caller((uintptr_t)caller, find_runtime_functions, &f) && f.malloc) {
        struct runtime *r = runtime_row_of((runtime_malloc_fn *)f.malloc, (runtime_free_fn *)f.free,
                                           version_from((version_fn *)f.get_version));
        if (r && !atomic_load(&r->is_pinned))
            control_due(&pin_duty, 0);
        errno = saved_errno;
        return r;
    }
    runtime_malloc_fn *real_malloc = find_malloc(caller);
    struct runtime *r = real_malloc ? remember_runtime(real_malloc) : NULL;
    dlerror(); /* clears our messages: the program made no lookup */
    errno = saved_errno;
    return r;
}

runtime_malloc_fn *runtimes_unlisted_malloc(void *caller)
{
    int saved_errno = errno;
    runtime_malloc_fn *real_malloc = find_malloc(caller);
    dlerror();
    errno = saved_errno;
    return real_malloc;
}

runtime_free_fn *runtimes_unlisted_free(void *caller)
{
    int saved_errno = errno;
    runtime_malloc_fn *real_malloc = find_malloc(caller);
    void *handle = real_malloc ? open_object_of(real_malloc) : NULL;
    runtime_free_fn *real_free = handle ? free_in(handle) : NULL;
    if (handle)
        symbol_close(handle); /* the caller's object keeps its runtime loaded */
    dlerror();
    errno = saved_errno;
    return real_free;
}
