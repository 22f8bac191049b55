/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Name lookup: what our dlsym answers, and our cuGetProcAddress. Both ask the real one first, with
 * the caller's own handle, version and flags, and put a wrapper in the place of an answer only if
 * it *is* the driver's function that the wrapper wraps. Atomics, no lock of ours.
 */
#include "shim/route/resolve.h"

#include "shim/context/stream_watch.h"
#include "shim/driver/hook_table.h"
#include "shim/process/symbol.h"
#include "shim/process/second_copy.h"
#include "shim/route/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* The latest release of CUDA of which shim/driver/hooks.def and shim/driver/submit.def have every
 * function that submits work or begins a capture, as far as the headers of this build declare their
 * types. */
#if CUDA_VERSION >= 13000
#define TABLES_KNOW 13050
#elif CUDA_VERSION >= 12080
#define TABLES_KNOW CUDA_VERSION
#else
#define TABLES_KNOW 12050
#endif

/* Runs before sanitizers are ready: their own start-up looks names up. */
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

static int id_of(const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; i < NUM_HOOKS; i++)
        if (hook_table[i].name_len == len && memcmp(hook_table[i].name, name, len) == 0)
            return i;
    return -1;
}

/* Without us the name would not be found in this process: let the lookup fail. The C library's own
 * scope has none of these names, and the message for dlerror() is the C library's but for the name
 * of the object. */
static void *nowhere(void *handle)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (!libc)
        return handle;
    symbol_close(libc); /* stays loaded */
    return libc;
}

/* RTLD_DEFAULT, or a handle of the main program: our exports come first there, as they do for
 * whoever is linked to the driver. Right if the driver is there; otherwise somebody else may still
 * have the name. */
static void *global_scope(void *handle, const char *name, bool present)
{
    if (present || symbol_lookup(RTLD_NEXT, name))
        return handle;
    return nowhere(handle);
}

static struct resolve_pick pick_hook(void *handle, const char *name, int id)
{
    bool present = hooks_init();
    void *wrapper = (void *)(uintptr_t)hook_table[id].wrapper;

    if (handle == RTLD_DEFAULT)
        return (struct resolve_pick){NULL, global_scope(handle, name, present)};

    /* After hooks_init(): dlerror() must speak of this lookup. If it fails, it is done again, by
     * the stub, in the caller's name. */
    void *found = symbol_lookup(handle, name);
    if (found == wrapper)
        return (struct resolve_pick){NULL, global_scope(handle, name, present)};
    /* Not by its alias: that is a function of the driver's behind the one that programs open, and
     * whoever asks for it by name is that driver. */
    if (found &&
        (uintptr_t)found == atomic_load_explicit(&hook_address[id], memory_order_acquire))
        found = wrapper;
    return (struct resolve_pick){found, handle};
}

EARLY struct resolve_pick resolve_pick(void *handle, const char *name)
{
    struct resolve_pick pass = {NULL, handle};
    if (!symbol_dlsym() || !name || name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT)
        return pass;

    int saved_errno = errno;
    int id = id_of(name);
    struct resolve_pick pick = pass;
    if (second_copy_comes_first())
        return pass;
    if (id >= 0)
        pick = pick_hook(handle, name, id);
    else if (handle == RTLD_DEFAULT && runtime_exports(name))
        pick.handle = global_scope(handle, name, runtime_loaded());
    errno = saved_errno;
    return pick;
}

/* PFN_<base>_v<version>[_ptds|_ptsz], as cuGetProcAddress knows the function */
struct query {
    int version;
    cuuint64_t flags;
};

static bool row_has_base(const struct hook *row, const char *base, struct query *query)
{
    const char *pfn = row->pfn + strlen("PFN_");
    size_t len = strlen(base);
    if (strncmp(pfn, base, len) != 0 || pfn[len] != '_' || pfn[len + 1] != 'v')
        return false;
    const char *p = pfn + len + 2;
    for (query->version = 0; *p >= '0' && *p <= '9'; p++)
        query->version = query->version * 10 + (*p - '0');
    query->flags = *p ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                      : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    return query->version > 0;
}

static CUresult ask(const char *base, const struct query *query, void **pfn)
{
    if (hooks_present(HOOK_cuGetProcAddress_v2)) {
        CUdriverProcAddressQueryResult status;
        return real.cuGetProcAddress_v2(base, pfn, query->version, query->flags, &status);
    }
    return real.cuGetProcAddress(base, pfn, query->version, query->flags);
}

/* A driver may answer with another address than its symbol table has. Which one it means by each
 * wrapped function of this base name, it says when asked. */
static bool learn_aliases(const char *base)
{
    bool learned = false;
    for (int i = 0; i < NUM_HOOKS; i++) {
        struct query query;
        void *pfn = NULL;
        if (!row_has_base(&hook_table[i], base, &query) ||
            atomic_load_explicit(&hook_alias[i], memory_order_relaxed))
            continue;
        if (ask(base, &query, &pfn) == CUDA_SUCCESS && pfn) {
            atomic_store_explicit(&hook_alias[i], (uintptr_t)pfn, memory_order_release);
            learned = true;
        }
    }
    return learned;
}

/* The wrapper of the function at this address. A driver may have several names for one function:
 * then the one that was asked for, first by its base name, then by its default stream. */
static void *wrapper_at(uintptr_t address, const char *base, bool per_thread)
{
    int best = -1, best_score = -1;
    for (int i = 0; i < NUM_HOOKS; i++) {
        if (atomic_load_explicit(&hook_address[i], memory_order_acquire) != address &&
            atomic_load_explicit(&hook_alias[i], memory_order_acquire) != address)
            continue;
        struct query query;
        int score = 0;
        if (row_has_base(&hook_table[i], base, &query))
            score = 2 + ((query.flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
                         per_thread);
        if (score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best < 0 ? NULL : (void *)(uintptr_t)hook_table[best].wrapper;
}

/* Whether the driver has this function from a later release than the tables of wrapped functions
 * know. */
static bool is_newer(const char *base, void *answer, const struct query *query)
{
    struct query known = {TABLES_KNOW, query->flags};
    void *then = NULL;
    return query->version > TABLES_KNOW &&
           (ask(base, &known, &then) != CUDA_SUCCESS || then != answer);
}

static void *substitute(const char *base, void *answer, int version, cuuint64_t flags)
{
    struct query query = {version, flags};
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    void *wrapper = wrapper_at((uintptr_t)answer, base, per_thread);
    if (!wrapper && learn_aliases(base))
        wrapper = wrapper_at((uintptr_t)answer, base, per_thread);
    /* It may submit work to a stream of which we hear nothing. */
    if (!wrapper && is_newer(base, answer, &query))
        stream_watch_give_up();
    return wrapper ? wrapper : answer;
}

SHIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    CUresult rc = real.cuGetProcAddress(symbol, pfn, version, flags);
    if (rc == CUDA_SUCCESS && symbol && pfn && *pfn)
        *pfn = substitute(symbol, *pfn, version, flags);
    return rc;
}

SHIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                         cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    CUresult rc = real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
    if (rc == CUDA_SUCCESS && symbol && pfn && *pfn)
        *pfn = substitute(symbol, *pfn, version, flags);
    return rc;
}
