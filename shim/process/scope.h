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
 * 1. scope_before_us and scope_behind_us take no lock at all (see 9). The other two take the lock
 *    of dl_iterate_phdr() (W), which guards the list of loaded objects. The loader holds W while it
 *    adds or removes one entry, never while code of the program runs. Other callers of
 *    dl_iterate_phdr() hold it for their callback.
 * 2. Our callbacks wait for nothing: they read memory and call no function of the program. Memory
 *    is allocated before them.
 * 3. The C library releases L in the child of a fork, but not W. If another thread of the parent
 *    held W during the fork, W remains locked in the child. So scope_of_library takes W only in a
 *    process that started with that library, and its caller uses L in the first thread. In such a
 *    child the first driver call of a later thread may wait for ever. We accept this: a dlopen()
 *    that adds an object waits for ever in such a child without us too. POSIX allows the child of a
 *    process with threads only async-signal-safe calls. The caller of scope_of_caller does not call
 *    it in the child of a process that has called it (shim/route/runtime.c, is_forked_child).
 *
 * Safety:
 * 4. No object is unmapped inside a callback: the loader has W when it removes one.
 * 5. An object that dlopen() of another thread is still loading is in the list, but its code is not
 *    yet relocated. So only two kinds of objects are answers. The objects that the process started
 *    with are relocated before any thread runs. A running object's dependencies are relocated
 *    before it runs.
 * 6. The objects that the process started with precede all others in the list, in the order of the
 *    global scope. The C library is one of them. So our RTLD_NEXT first searches the objects after
 *    us up to the C library. If the C library precedes us, dlopen() has loaded us: no answer.
 * 7. After the callback the found function stays loaded: a start-up object stays for ever, and a
 *    dependency stays while the caller runs.
 * 8. In every unclear case there is no answer, and the caller goes on to dlsym().
 * 9. The list can be read without W from the program up to the C library (_r_debug in <link.h>).
 *    The loader writes these entries before any thread runs. It appends later objects behind all
 *    start-up objects, and removes only later objects. So no link before the C library changes.
 */
#ifndef SHIM_SCOPE_H
#define SHIM_SCOPE_H

#include "shim/process/object.h"

/* A visit gets object after object, and true ends the walk. A use runs inside dl_iterate_phdr() and
 * gets all objects of a scope at once, in order. */
typedef bool scope_visit(const struct object *object, void *arg);
typedef void scope_use(const struct object *objects, size_t num_objects, void *arg);

/* Is this not the first thread of its process? See 3. */
bool scope_in_other_thread(void);

/* The objects that the process started with: those from the program up to us, and those behind us
 * up to the C library. False: the walk did not reach us, so it visited nothing behind us. Neither
 * function allocates memory or takes a lock. */
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
