/* SPDX-License-Identifier: BSD-2-Clause
 *
 * setenv and putenv as the program sees them: the C library's own, and a look at whether the name is
 * that of a request. Scanning the environment at every allocation would cost more than the allocation.
 */
#include "shim/process/environ.h"

#include "pool/spin.h"
#include "shim/control/flush.h"
#include "shim/driver/hooks.h"
#include "shim/route/resolve.h"

#include <errno.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define REQUEST "GPUCACHE_EMPTY_CACHE"

#define PATIENCE (SPIN_YIELDS + 100) /* turns: some 10 ms */

static atomic_int writers;
static atomic_bool reading;

void environ_hold(void)
{
    atomic_store(&reading, true);
    for (unsigned turn = 0; atomic_load(&writers) > 0 && turn < PATIENCE; turn++)
        spin_pause(turn);
}

void environ_release(void)
{
    atomic_store(&reading, false);
}

static void begin_write(void)
{
    for (unsigned turn = 0;; turn++) {
        atomic_fetch_add(&writers, 1);
        if (!atomic_load(&reading) || turn == PATIENCE)
            return;
        atomic_fetch_sub(&writers, 1);
        spin_pause(turn);
    }
}

static void end_write(void)
{
    atomic_fetch_sub(&writers, 1);
}

SHIM_EXPORT int setenv(const char *name, const char *value, int overwrite);
SHIM_EXPORT int putenv(char *text);

int setenv(const char *name, const char *value, int overwrite)
{
    static _Atomic(uintptr_t) real_setenv;
    uintptr_t f = atomic_load_explicit(&real_setenv, memory_order_relaxed);
    if (!f) {
        f = (uintptr_t)resolve_symbol(RTLD_NEXT, "setenv");
        atomic_store_explicit(&real_setenv, f, memory_order_relaxed);
    }
    if (!f) {
        errno = ENOSYS;
        return -1;
    }
    begin_write();
    int rc = ((int (*)(const char *, const char *, int))f)(name, value, overwrite);
    end_write();
    if (rc == 0 && strcmp(name, REQUEST) == 0)
        control_environ(value);
    return rc;
}

int putenv(char *text)
{
    static _Atomic(uintptr_t) real_putenv;
    uintptr_t f = atomic_load_explicit(&real_putenv, memory_order_relaxed);
    if (!f) {
        f = (uintptr_t)resolve_symbol(RTLD_NEXT, "putenv");
        atomic_store_explicit(&real_putenv, f, memory_order_relaxed);
    }
    if (!f) {
        errno = ENOSYS;
        return -1;
    }
    begin_write();
    int rc = ((int (*)(char *))f)(text);
    end_write();
    if (rc == 0 && strncmp(text, REQUEST "=", sizeof REQUEST) == 0)
        control_environ(text + sizeof REQUEST);
    return rc;
}
