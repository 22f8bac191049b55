/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The objects that a lookup by name goes through, in the loader's order, found without the lock
 * that dlopen(), dlclose(), dlsym() and dladdr() take.
 *
 * Why it matters. dlopen() holds that lock (L) while it runs constructors, and dlclose() while it
 * runs destructors. A constructor may wait for a thread. If that thread calls one of our exports
 * for the first time and we call dlsym(), both wait for ever. Without us the thread's call takes no
 * lock.
 *
 * Liveness:
 * 1. dl_iterate_phdr() takes another lock (W), which guards the list of loaded objects. The loader
 *    holds W while it adds or removes one entry, never while code of the program runs. Other
 *    callers of dl_iterate_phdr() hold it for their callback.
 * 2. Our callbacks wait for nothing: they read memory and call no function of the program. Memory
 *    is allocated before them.
 * 3. The C library frees L in a forked child, but not W. If another thread of the parent had W, no
 *    thread of the child releases it. So symbol_next(), second_copy_comes_first() and hooks_init()
 *    come here only after scope_may_be_walked(), and use L otherwise. That is false in a process
 *    that was forked and called no exec, also in threads that the child made. It is false in every
 *    process's first thread too, which costs no system call. scope_of_caller() is left to its
 *    caller (shim/route/runtime.c, is_forked_child).
 *
 * Safety:
 * 4. No object is unmapped inside a callback: the loader has W when it removes one.
 * 5. An object that dlopen() of another thread is still loading is in the list, but its code is not
 *    yet relocated. So only two kinds of objects are answers. The objects that the process started
 *    with are relocated before any thread runs. A running object's dependencies are relocated
 *    before it runs.
 * 6. The objects that the process started with precede all others in the list, in the order of the
 *    global scope. The C library is one of them. So those between us and the C library are what
 *    RTLD_NEXT of ours searches first. If the C library precedes us, we were loaded by dlopen(): no
 *    answer.
 * 7. After the callback the found function stays loaded: a start-up object stays for ever, and a
 *    dependency stays while the caller runs.
 * 8. Whatever is unclear is no answer, and the caller goes on to dlsym().
 */
#ifndef SHIM_SCOPE_H
#define SHIM_SCOPE_H

#include "shim/loader/object.h"

/* Both run inside dl_iterate_phdr(). scope_visit gets object after object, and true ends the walk.
 * scope_use gets all objects of a scope at once, in order. */
typedef bool scope_visit(const struct object *object, void *arg);
typedef void scope_use(const struct object *objects, size_t num_objects, void *arg);

/* Whether the calling thread may use the functions below: see 3. Keeps errno. */
bool scope_may_be_walked(void);

/* Was the process forked, and called no exec since? True if that cannot be read. A thread of the
 * parent may have been inside dl_iterate_phdr() then: see 3. Changes errno. */
bool scope_is_forked(void);

/* The objects that the process started with: those from the program up to us, and those behind us
 * up to the C library. False: we are not among them, nothing was visited behind us. No memory is
 * allocated. */
bool scope_before_us(scope_visit *visit, void *arg);
bool scope_behind_us(scope_visit *visit, void *arg);

/* The start-up object behind us with this soname or path, then its dependencies, breadth first.
 * False: there is none, a dependency cannot be told, or there is no memory; use() was not called.
 * Keeps errno. */
bool scope_of_library(const char *name, scope_use *use, void *arg);

/* The object that the address lies in, then its dependencies, breadth first. For the program: the
 * objects that scope_behind_us visits. False as above. Keeps errno. */
bool scope_of_caller(uintptr_t address, scope_use *use, void *arg);

#endif
