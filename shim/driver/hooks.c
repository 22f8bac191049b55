/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The table of the driver's functions and of our wrappers of them. The wrappers are in entry/ and
 * route/. This file has their addresses because it is the table; it calls none of them. Atomics, no
 * lock of ours: a thread may call hooks_init inside a dlopen, with the loader's lock held. Several
 * threads may do so at once; all find and store the same addresses.
 */
#include "shim/driver/hooks.h"

#include "shim/driver/hook_table.h"
#include "shim/loader/scope.h"
#include "shim/loader/symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic bool filled;

/* The first value of the slot of a wrapped function. */
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group)                                                     \
    static CUresult first_##symbol params                                                          \
    {                                                                                              \
        pfn driver_fn = NULL;                                                                      \
        if (hooks_init())                                                                          \
            driver_fn = atomic_load_explicit(&real.symbol, memory_order_relaxed);                  \
        return driver_fn && driver_fn != first_##symbol ? driver_fn args                           \
                                                        : CUDA_ERROR_NOT_INITIALIZED;              \
    }
#include "shim/driver/hooks.def"

struct hooks_real real = {
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) .symbol = first_##symbol,
#include "shim/driver/hooks.def"
};

/* The slot of a submission first holds its wrapper's slow half, which looks for the driver. */
#define SUBMIT(symbol, pfn, params, args, stream, flags)                                           \
    CUresult slow_##symbol params __attribute__((visibility("hidden")));                           \
    _Atomic(pfn) real_##symbol __attribute__((used)) = slow_##symbol;
#include "shim/driver/submit.def"

const struct hook hook_table[NUM_HOOKS] = {
#define ROW(symbol, pfn) {#symbol, #pfn, sizeof #symbol - 1, (void (*)(void))symbol},
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) ROW(symbol, pfn)
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags) ROW(symbol, pfn)
#include "shim/driver/submit.def"
};

_Atomic(uintptr_t) hook_address[NUM_HOOKS];
_Atomic(uintptr_t) hook_alias[NUM_HOOKS];

bool hooks_present(enum hook_id id)
{
    return hooks_init() && atomic_load_explicit(&hook_address[id], memory_order_relaxed);
}

/* The place in which fill_slots() looks the driver's functions up. */
struct source {
    void *handle;               /* NULL: in the scope */
    const struct object *scope; /* the driver, then its dependencies */
    size_t num_objects;
    bool is_unsure; /* at least one function only the loader can find */
};

static uintptr_t find_in_scope(struct source *source, const char *name)
{
    for (size_t i = 0; i < source->num_objects; i++) {
        uintptr_t address = 0;
        enum object_answer answer = object_symbol(&source->scope[i], name, &address);
        source->is_unsure |= answer == OBJECT_UNSURE;
        if (answer != OBJECT_LACKS)
            return address;
    }
    return 0;
}

/* 0 instead of our own wrapper, which as the driver's function would call itself for ever. */
static uintptr_t find_function(struct source *source, const char *name, uintptr_t wrapper)
{
    uintptr_t address = source->handle ? (uintptr_t)symbol_lookup(source->handle, name)
                                       : find_in_scope(source, name);
    return address == wrapper ? 0 : address;
}

/* Written once here, and again only by closed.c, to another function of the same effect for who
 * reads it then. So a thread that has seen a slot set may read it with a plain load. */
#define SET(slot, pfn, address)                                                                    \
    do {                                                                                           \
        pfn before_ = atomic_load_explicit(&(slot), memory_order_acquire);                         \
        if (before_ != (pfn)(address))                                                             \
            atomic_compare_exchange_strong(&(slot), &before_, (pfn)(address));                     \
    } while (0)

/* Writes the slot before the address, because a thread that reads the address may hand out the
 * wrapper. The wrapper uses the slot. Compilers call through an _Atomic pointer with one plain
 * load. The thread sanitizer would report this load and the one write of the slot as a race. */
__attribute__((no_sanitize("thread"))) static void fill_slots(struct source *source)
{
    uintptr_t address;
#define FILL(symbol, pfn, slot)                                                                    \
    address = find_function(source, #symbol, (uintptr_t)symbol);                                   \
    if (address) {                                                                                 \
        SET(slot, pfn, address);                                                                   \
        atomic_store_explicit(&hook_address[HOOK_##symbol], address, memory_order_release);        \
    }
#define HOOKS_ALL
#define HOOK(symbol, pfn, params, args, group) FILL(symbol, pfn, real.symbol)
#define HOOK_CALLED(symbol, pfn, params, args)                                                     \
    address = find_function(source, #symbol, 0);                                                   \
    if (address)                                                                                   \
        SET(real.symbol, pfn, address);
#include "shim/driver/hooks.def"
#define SUBMIT(symbol, pfn, params, args, stream, flags) FILL(symbol, pfn, real_##symbol)
#include "shim/driver/submit.def"
}

_Atomic uint64_t hooks_alloc_entry, hooks_free_entry;

static void keep_entry(uintptr_t function, _Atomic uint64_t *entry)
{
    uint64_t bytes, unseen = 0;
    memcpy(&bytes, (const void *)function, sizeof bytes);
    atomic_compare_exchange_strong(entry, &unseen, bytes);
}

static void keep_entries(void)
{
    keep_entry((uintptr_t)cuMemAlloc_v2, &hooks_alloc_entry);
    keep_entry((uintptr_t)cuMemFree_v2, &hooks_free_entry);
}

static void fill_from_scope(const struct object *objects, size_t num_objects, void *is_filled)
{
    struct source source = {NULL, objects, num_objects, false};
    keep_entries();
    fill_slots(&source);
    *(bool *)is_filled = !source.is_unsure;
}

/* Fills the slots without the loader's lock, for which later threads must not wait (see
 * shim/loader/scope.h). Works if the process started with the driver, which then stays loaded. */
static bool fill_from_start(void)
{
    static atomic_bool tried;
    bool is_filled = false;
    if (atomic_load_explicit(&tried, memory_order_relaxed) || !scope_may_be_walked())
        return false;
    scope_of_library("libcuda.so.1", fill_from_scope, &is_filled);
    if (!is_filled) /* a later try would fail too: the start-up objects do not change */
        atomic_store_explicit(&tried, true, memory_order_relaxed);
    return is_filled;
}

bool hooks_init(void)
{
    if (__builtin_expect(atomic_load_explicit(&filled, memory_order_acquire), 1))
        return true;
    if (fill_from_start()) {
        atomic_store_explicit(&filled, true, memory_order_release);
        return true;
    }
    int saved_errno = errno;
    /* The soname finds the driver also if the process opened it as libcuda.so, by a path, or with
     * RTLD_LOCAL. We keep the reference, because the slots point into the driver. */
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver) {
        struct source source = {.handle = driver};
        keep_entries();
        fill_slots(&source);
        /* Clears the message of a lookup of ours that this driver could not answer. */
        dlerror();
        atomic_store_explicit(&filled, true, memory_order_release);
    }
    errno = saved_errno;
    return driver != NULL;
}
