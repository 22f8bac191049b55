/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See symbol.h.
 */
#include "shim/loader/symbol.h"

#include "shim/loader/scope.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* May run before the sanitizers have started: they look names up while they start. */
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

_Atomic(void *) symbol_real_dlsym;

/* musl lacks both functions. A strong reference would end every program there at its start. */
extern __typeof__(dlvsym) dlvsym __attribute__((weak));
extern __typeof__(dladdr1) dladdr1 __attribute__((weak));

/* The versions of dlsym, the oldest first. A lookup with a version does not find our own export,
 * which has none. In a new C library both versions name the same function. In an old one only the
 * older exists, so it is tried first: a failed lookup leaves a message for dlerror(). */
static const char *const dlsym_versions[] = {
#if defined(__x86_64__)
    "GLIBC_2.2.5",
#elif defined(__aarch64__)
    "GLIBC_2.17",
#endif
    "GLIBC_2.34",
};

struct next {
    const char *name;
    uintptr_t address; /* 0: not found */
};

static bool find_next(const struct object *object, void *arg)
{
    struct next *next = arg;
    return object_symbol(object, next->name, &next->address) != OBJECT_LACKS;
}

/* For a C library whose symbols have no versions. */
static void *dlsym_behind_us(void)
{
    struct next next = {"dlsym", 0};
    scope_behind_us(find_next, &next);
    return (void *)next.address;
}

EARLY void *symbol_dlsym(void)
{
    void *found = atomic_load_explicit(&symbol_real_dlsym, memory_order_acquire);
    if (found)
        return found;
    if (!dlvsym)
        found = dlsym_behind_us();
    for (size_t i = 0; dlvsym && i < sizeof dlsym_versions / sizeof *dlsym_versions && !found; i++)
        found = dlvsym(RTLD_NEXT, "dlsym", dlsym_versions[i]);
    if (found == (void *)(uintptr_t)dlsym)
        found = NULL;
    if (found)
        atomic_store_explicit(&symbol_real_dlsym, found, memory_order_release);
    return found;
}

void *symbol_lookup(void *handle, const char *name)
{
    void *(*lookup)(void *, const char *) =
        (void *(*)(void *, const char *))(uintptr_t)symbol_dlsym();
    return lookup ? lookup(handle, name) : NULL;
}

void *symbol_next(const char *name)
{
    struct next next = {name, 0};
    if (scope_may_be_walked())
        scope_behind_us(find_next, &next);
    return next.address ? (void *)next.address : symbol_lookup(RTLD_NEXT, name);
}

struct link_map *symbol_object(const void *address)
{
    struct link_map *map = NULL;
    Dl_info info;
    bool is_known = dladdr1 && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP);
    return is_known ? map : NULL;
}

int symbol_close(void *handle)
{
    static _Atomic(uintptr_t) real_dlclose;
    uintptr_t f = atomic_load_explicit(&real_dlclose, memory_order_relaxed);
    if (!f) {
        int saved_errno = errno;
        f = (uintptr_t)symbol_lookup(RTLD_NEXT, "dlclose");
        errno = saved_errno;
        atomic_store_explicit(&real_dlclose, f, memory_order_relaxed);
    }
    return f ? ((int (*)(void *))f)(handle) : -1;
}
