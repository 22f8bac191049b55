/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of magazines share. */
#ifndef TESTS_UNIT_MAGAZINE_H
#define TESTS_UNIT_MAGAZINE_H

#include "pool/magazine.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* The pool's newest; NULL: there is none. */
static inline struct magazine *magazine(struct rig *r)
{
    return r->pool->magazines.prev == &r->pool->magazines
               ? NULL
               : list_entry(r->pool->magazines.prev, struct magazine, link);
}

/* What lies in it. */
static inline uint64_t cached(struct rig *r)
{
    struct magazine *m = magazine(r);
    return m ? (uint64_t)magazine_units(m) << UNIT_SHIFT : 0;
}

/* A thread has a magazine from its first free on. */
static inline struct rig *start(void **state)
{
    struct rig *r = expect_single(state);
    rig_free(r, rig_alloc(r, 512));
    EXPECT(magazine(r), "the thread has a magazine");
    return r;
}

#endif
