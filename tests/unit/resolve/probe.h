/* SPDX-License-Identifier: BSD-2-Clause */
/* What the resolver's test programs see of the library under test and of the driver made for
 * them. */
#ifndef TESTS_UNIT_RESOLVE_PROBE_H
#define TESTS_UNIT_RESOLVE_PROBE_H

#include "shim/driver/hook_table.h"

#include <dlfcn.h>

/* Of the preloaded library (entry.c): the resolver with wrappers that count and pass on. */
struct probe {
    const struct hook *table;
    _Atomic unsigned calls[NUM_HOOKS]; /* of wrappers that shim/entry/alloc.c would hold */
    _Atomic unsigned *watch;           /* pool_watch */
    unsigned done;                     /* calls of submission_end */
    unsigned notes;                    /* calls of submission_begin, and the last one's arguments */
    CUstream note_stream;
    unsigned note_flags;
    int note_answer;      /* what submission_begin is to say, SUBMIT_SEEN unless set */
    unsigned left_single; /* calls of single_stream_disable */
    bool release;         /* whether memory goes back when a call found none, once in a call */
    uint64_t released;    /* of these devices it was to */
    bool serve;           /* whether the runtime's short cut serves */
    unsigned served;      /* how often it did */
    bool in_pool;         /* whether addresses that a runtime answers lie in the pool */
};
struct probe *resolve_probe(void);

/* The probe of the preloaded library, or NULL without it. Its function is not linked. */
static inline struct probe *probe_find(void)
{
    struct probe *(*get)(void) =
        (struct probe * (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "resolve_probe");
    return get ? get() : NULL;
}

/* Of the driver (driver.c). Every function answers DRIVER_ANSWER plus its id, or DRIVER_ALIAS plus
 * its id if it was reached by an address that cuGetProcAddress gave while aliases were on. */
enum { DRIVER_ANSWER = 10000, DRIVER_ALIAS = 20000 };
struct driver {
    _Atomic unsigned calls[NUM_HOOKS];
    unsigned refusals;    /* so many calls are to be answered CUDA_ERROR_OUT_OF_MEMORY first */
    uintptr_t launch[11]; /* the arguments of the last cuLaunchKernel */
    const CUlaunchConfig
        *given; /* to the last cuLaunchKernelEx_ptsz; gone when it returns, but for: */
    unsigned given_early, given_attributes;
    const CUeglStreamConnection *presented_on; /* by the last cuEGLStreamProducerPresentFrame */
    CUeglFrame presented;
    /* cuGetProcAddress answers with other addresses than the symbol table has, and with one and the
     * same for a function and its per-thread variant. */
    int aliases;
    void *
        found_by_constructor; /* what the driver's own dlsym of cuMemAlloc_v2 gave at its loading */
};
struct driver *driver_probe(void);

#endif
