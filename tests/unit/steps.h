/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests of code that works without a lock. A test includes this header, and then a source file
 * of the pool. Every atomic load of that file, and of its headers, calls steps_loaded afterwards.
 * There a test puts another thread's step between two of them. One such file in a program: its own
 * object file in the library is then not linked. */
#ifndef TESTS_UNIT_STEPS_H
#define TESTS_UNIT_STEPS_H

#include <stdatomic.h>
#include <stddef.h>

/* Of the thread that is looked at: what to call after load number `at`; loads counts them. */
struct steps {
    void (*step)(void *arg);
    void *arg;
    unsigned at, loads;
};

static __thread struct steps *steps_mine;

static inline void steps_loaded(void)
{
    struct steps *s = steps_mine;
    if (!s || ++s->loads != s->at)
        return;
    steps_mine = NULL; /* what the step does itself is not counted */
    s->step(s->arg);
    steps_mine = s;
}

#undef atomic_load
#undef atomic_load_explicit
#define atomic_load(object)                                                                        \
    __extension__({                                                                                \
        __typeof__((void)0, *(object)) steps_value = *(object);                                    \
        steps_loaded();                                                                            \
        steps_value;                                                                               \
    })
#define atomic_load_explicit(object, order) atomic_load(object)

#endif
