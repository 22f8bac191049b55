/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The answers of our dlsym, and our cuGetProcAddress. Both use the caller's own handle, version and
 * flags for the real lookup. If the real answer is a driver function that we wrap, the caller gets
 * the wrapper. Any other answer stays. With RTLD_DEFAULT the C library's dlsym itself finds our
 * export, which precedes the driver's. Atomics, no lock of ours.
 */
#include "shim/route/resolve.h"

#include "shim/context/stream_watch.h"
#include "shim/driver/hook_table.h"
#include "shim/loader/second_copy.h"
#include "shim/loader/symbol.h"
#include "shim/route/runtime.h"
#include "shim/route/runtimes.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* hooks.def and submit.def have every function up to this release of CUDA that submits work or
 * begins a capture. The release depends on the types that the headers of this build declare. */
#if CUDA_VERSION >= 13000
#define TABLES_KNOW 13050
#elif CUDA_VERSION >= 12080
#define TABLES_KNOW CUDA_VERSION
#else
#define TABLES_KNOW 12050
#endif

/* May run before the sanitizers have started: they look names up while they start. */
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

static int id_of(const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; i < NUM_HOOKS; i++)
        if (hook_table[i].name_len == len && memcmp(hook_table[i].name, name, len) == 0)
            return i;
    return -1;
}

/* A handle with which the lookup fails, because without us the process has no such function. The
 * scope of the C library has none of these names. The C library then writes the message for
 * dlerror(), in which only the name of the object differs. If libc.so.6 is not loaded: `handle`. */
static void *nowhere(void *handle)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (!libc)
        return handle;
    symbol_close(libc); /* stays loaded */
    return libc;
}

/* For RTLD_DEFAULT or a handle of the main program, where the lookup finds our export first. That
 * is right if the driver (or runtime) is loaded: a program that is linked to it gets our export
 * too. Otherwise it is right only if an object behind us has the name. */
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

    /* This lookup follows hooks_init(), so a message for dlerror() is about this name. If it fails,
     * the stub repeats it with the caller's return address. */
    void *found = symbol_lookup(handle, name);
    if (found == wrapper)
        return (struct resolve_pick){NULL, global_scope(handle, name, present)};
    /* hook_alias does not count here. An alias is an inner function of the driver, behind the
     * library that programs open, and only the driver asks for it by name. */
    if (found && (uintptr_t)found == atomic_load_explicit(&hook_address[id], memory_order_acquire))
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
        pick.handle = global_scope(handle, name, runtimes_any_loaded());
    errno = saved_errno;
    return pick;
}

/* The version and flags by which cuGetProcAddress knows a function. The name of a row's type has
 * them: PFN_<base>_v<version>[_ptds|_ptsz]. */
struct symbol_query {
    int version;
    cuuint64_t flags;
};

static bool row_has_base(const struct hook *row, const char *base, struct symbol_query *query)
{
    const char *pfn = row->pfn + strlen("PFN_");
    size_t len = strlen(base);
    if (strncmp(pfn, base, len) != 0 || pfn[len] != '_' || pfn[len + 1] != 'v')
        return false;
    const char *p = pfn + len + 2;
    for (query->version = 0; *p >= '0' && *p <= '9'; p++)
        query->version = query->version * 10 + (*p - '0');
    query->flags =
        *p ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    return query->version > 0;
}

static CUresult ask_driver(const char *base, const struct symbol_query *query, void **pfn)
{
    if (hooks_present(HOOK_cuGetProcAddress_v2)) {
        CUdriverProcAddressQueryResult status;
        return real.cuGetProcAddress_v2(base, pfn, query->version, query->flags, &status);
    }
    return real.cuGetProcAddress(base, pfn, query->version, query->flags);
}

/* cuGetProcAddress of a driver may return other addresses than its symbol table has. So we ask it
 * for each wrapped function of this base name and keep the answers. True: there were new ones. */
static bool learn_aliases(const char *base)
{
    bool learned = false;
    for (int i = 0; i < NUM_HOOKS; i++) {
        struct symbol_query query;
        void *pfn = NULL;
        if (!row_has_base(&hook_table[i], base, &query) ||
            atomic_load_explicit(&hook_alias[i], memory_order_relaxed))
            continue;
        if (ask_driver(base, &query, &pfn) == CUDA_SUCCESS && pfn) {
            atomic_store_explicit(&hook_alias[i], (uintptr_t)pfn, memory_order_release);
            learned = true;
        }
    }
    return learned;
}

/* The wrapper of the function at this address. A driver may have several names for one function.
 * Then the best row wins: one with this base name and default stream, then one with this base name.
 */
static void *wrapper_at(uintptr_t address, const char *base, bool per_thread)
{
    int best = -1, best_score = -1;
    for (int i = 0; i < NUM_HOOKS; i++) {
        if (atomic_load_explicit(&hook_address[i], memory_order_acquire) != address &&
            atomic_load_explicit(&hook_alias[i], memory_order_acquire) != address)
            continue;
        struct symbol_query query;
        int score = 0;
        if (row_has_base(&hook_table[i], base, &query))
            score =
                2 + ((query.flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == per_thread);
        if (score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best < 0 ? NULL : (void *)(uintptr_t)hook_table[best].wrapper;
}

/* Is the function newer than our tables? The caller asked for a later release than TABLES_KNOW, and
 * for TABLES_KNOW the driver has another answer or none. */
static bool is_newer(const char *base, void *answer, const struct symbol_query *query)
{
    struct symbol_query known = {TABLES_KNOW, query->flags};
    void *then = NULL;
    return query->version > TABLES_KNOW &&
           (ask_driver(base, &known, &then) != CUDA_SUCCESS || then != answer);
}

static void *substitute(const char *base, void *answer, int version, cuuint64_t flags)
{
    struct symbol_query query = {version, flags};
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    void *wrapper = wrapper_at((uintptr_t)answer, base, per_thread);
    if (!wrapper && learn_aliases(base))
        wrapper = wrapper_at((uintptr_t)answer, base, per_thread);
    /* The program may submit work by this function, and we would not see it. */
    if (!wrapper && is_newer(base, answer, &query))
        stream_watch_note_unseen();
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
