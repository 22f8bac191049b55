/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The CUDA runtimes of the process with a shared libcudart's functions, as one table. A process may
 * have several runtimes, and a runtime below an RTLD_LOCAL library is not in the global scope. So
 * the search for the real functions begins at the caller's object. Atomics, no lock of ours.
 */
#ifndef SHIM_RUNTIMES_H
#define SHIM_RUNTIMES_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Each call of a further runtime is searched for, and goes to it. */
enum { RUNTIMES_MAX = 1024 };

typedef cudaError_t runtime_malloc_fn(void **, size_t);
typedef cudaError_t runtime_free_fn(void *);

/* One libcudart. Its two functions and its version are the key. A thread writes `malloc` last.
 *
 * Why no call goes to a function whose code is unloaded:
 * 1. The runtime of a caller stays loaded while the call runs: it is a dependency of the caller's
 *    object, or was loaded with the process. So a row is right when a call makes it.
 * 2. Our dlclose first takes a reference to each runtime in the table that has none of ours
 *    (runtimes_pin). If a runtime's first call comes after that, the dlclose has not unloaded the
 *    runtime before the call, by 1. A dlclose that does not come here (see `sites` in runtime.c)
 *    may unload a runtime without a reference, so no site keeps such a runtime. The control thread
 *    soon takes the reference.
 * 3. A call during that dlclose may make a row for a runtime that the dlclose then unloads. The row
 *    stays, but no later call uses it for other code:
 *    a. the call does not keep its site (see `sites` in runtime.c);
 *    b. the count of unloaded objects has changed, so the caller's object is searched again (see
 *       `objects` there);
 *    c. a runtime that is later loaded at the same address gets this row only if its version and
 *       both functions are the same. */
struct runtime {
    _Alignas(32) _Atomic(runtime_malloc_fn *) malloc;
    _Atomic(runtime_free_fn *) free;
    atomic_int version;
    atomic_bool is_pinned;  /* we hold a reference, so it stays loaded */
    atomic_bool reaches_us; /* from SHORT_CUT_SINCE on: a call of it has reached our hooks */
};

extern struct runtime runtimes[RUNTIMES_MAX] __attribute__((visibility("hidden")));

/* The runtime of the code at this address; NULL: none was found, or the table is full. in_object:
 * the code lies in a loaded object. If the object's own scope has a runtime, this takes no loader's
 * lock. Else it asks the loader. A reference needs that lock, so the control thread takes it: that
 * thread may wait for constructors. Keeps errno. */
struct runtime *runtimes_find(void *caller, bool in_object);

/* The functions of a caller's runtime that has no row: the table is full, or the search found none.
 * NULL: there is no runtime. Ask the loader. Keep errno. */
runtime_malloc_fn *runtimes_unlisted_malloc(void *caller);
runtime_free_fn *runtimes_unlisted_free(void *caller);

/* Takes a reference to each runtime of the table that has none of ours. Asks the loader. */
void runtimes_pin(void);

/* Has the process loaded a shared libcudart? Takes the lock of dl_iterate_phdr(). */
bool runtimes_any_loaded(void);

#endif
