/* SPDX-License-Identifier: BSD-2-Clause
 *
 * setenv and putenv call the C library's function. If the program has set the variable REQUEST,
 * also to the value that it had, they hand the value to flush_request. We do not scan the
 * environment at every allocation, because the scan would take longer than the allocation. We do
 * not see a program that writes to `environ` itself. Atomics; a request takes a lock in
 * flush_request.
 */
#include "shim/control/flush.h"
#include "shim/driver/hooks.h"
#include "shim/loader/symbol.h"
#include "shim/process/environ.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST "GPUCACHE_EMPTY_CACHE"

SHIM_EXPORT int setenv(const char *name, const char *value, int overwrite);
SHIM_EXPORT int putenv(char *text);

/* The C library's function, kept in `slot`. If there is none: 0, with errno ENOSYS. */
static uintptr_t real_function(_Atomic(uintptr_t) *slot, const char *name)
{
    uintptr_t f = atomic_load_explicit(slot, memory_order_relaxed);
    if (f)
        return f;
    f = (uintptr_t)symbol_next(name);
    atomic_store_explicit(slot, f, memory_order_relaxed);
    if (!f)
        errno = ENOSYS;
    return f;
}

int setenv(const char *name, const char *value, int overwrite)
{
    static _Atomic(uintptr_t) slot;
    uintptr_t f = real_function(&slot, "setenv");
    if (!f)
        return -1;
    environ_write_begin();
    bool keeps = !overwrite && name && strcmp(name, REQUEST) == 0 && getenv(REQUEST);
    int rc = ((int (*)(const char *, const char *, int))f)(name, value, overwrite);
    environ_write_end();
    if (rc == 0 && !keeps && strcmp(name, REQUEST) == 0)
        flush_request(value);
    return rc;
}

int putenv(char *text)
{
    static _Atomic(uintptr_t) slot;
    uintptr_t f = real_function(&slot, "putenv");
    if (!f)
        return -1;
    environ_write_begin();
    int rc = ((int (*)(char *))f)(text);
    environ_write_end();
    if (rc == 0 && strncmp(text, REQUEST "=", sizeof REQUEST) == 0)
        flush_request(text + sizeof REQUEST);
    return rc;
}
