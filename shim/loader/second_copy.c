/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See second_copy.h. If two copies worked in one process, each would report its own part of the
 * memory. Each copy would take the other's cudaMalloc for the runtime's. One atomic, no lock.
 */
#include "shim/loader/second_copy.h"

#include "shim/loader/scope.h"
#include "shim/loader/symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MARKER "gpucache_version"

enum { UNSEEN, FIRST, SECOND };

const char *gpucache_version(void)
{
    return GPUCACHE_VERSION;
}

static bool is_other(const void *marker)
{
    return marker && marker != (const void *)(uintptr_t)gpucache_version;
}

bool second_copy_may_be(const struct object *object)
{
    uintptr_t marker;
    enum object_answer answer = object_symbol(object, MARKER, &marker);
    return answer == OBJECT_UNSURE || (answer == OBJECT_HAS && is_other((const void *)marker));
}

struct earlier {
    bool has_marker, is_unsure;
};

static bool look_for_marker(const struct object *object, void *arg)
{
    struct earlier *earlier = arg;
    uintptr_t address;
    enum object_answer answer = object_symbol(object, MARKER, &address);
    earlier->has_marker |= answer == OBJECT_HAS;
    earlier->is_unsure |= answer == OBJECT_UNSURE;
    return false; /* the walk has to reach us */
}

/* A process's first thread asks the loader. Other threads must not wait for the loader's lock, so
 * they look at the objects before us (shim/loader/scope.h). */
static bool is_second(void)
{
    struct earlier earlier = {false, false};
    if (scope_may_be_walked() && scope_before_us(look_for_marker, &earlier) && !earlier.is_unsure)
        return earlier.has_marker;
    return is_other(symbol_lookup(RTLD_DEFAULT, MARKER));
}

/* Programs are bound to the exports of the first copy in the global scope. If dlopen() has loaded a
 * copy outside that scope, the copy finds itself in its own scope, and works. */
bool second_copy_comes_first(void)
{
    static atomic_int seen;
    int now = atomic_load_explicit(&seen, memory_order_relaxed);
    if (now == UNSEEN) {
        int saved_errno = errno;
        now = is_second() ? SECOND : FIRST;
        atomic_store_explicit(&seen, now, memory_order_relaxed);
        errno = saved_errno;
    }
    return now == SECOND;
}

bool second_copy_has(const void *address)
{
    const struct link_map *map = symbol_object(address);
    if (!map || !map->l_name[0])
        return false;
    void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return false;
    bool found = is_other(symbol_lookup(handle, MARKER));
    symbol_close(handle);
    return found;
}
