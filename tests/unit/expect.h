/* SPDX-License-Identifier: BSD-2-Clause */
/* What the unit tests of pool/ share: checks that say why, and a rig for each test that is examined
 * and emptied after it. */
#ifndef TESTS_UNIT_EXPECT_H
#define TESTS_UNIT_EXPECT_H

#include "tests/unit/cases.h"
#include "tests/unit/rig.h"

#define EXPECT(condition, why)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("%s -- does not hold: %s", why, #condition);                                  \
    } while (0)

#define EXPECT_EQ(a, b, why)                                                                       \
    do {                                                                                           \
        unsigned long long expect_a = (unsigned long long)(a), expect_b = (unsigned long long)(b); \
        if (expect_a != expect_b)                                                                  \
            fail_msg("%s -- %s is %llu, not %s, %llu", why, #a, expect_a, #b, expect_b);           \
    } while (0)

/* Nothing that the pool promises is broken up to here. */
#define EXPECT_SOUND(rig)                                                                          \
    do {                                                                                           \
        const char *expect_words = rig_check(rig);                                                 \
        if (expect_words)                                                                          \
            fail_msg("broken: %s", expect_words);                                                  \
    } while (0)

/* The rig is emptied and destroyed, and nothing that the pool promises was broken. */
#define EXPECT_ENDS(rig)                                                                           \
    do {                                                                                           \
        const char *expect_words = rig_destroy(rig);                                               \
        if (expect_words)                                                                          \
            fail_msg("broken: %s", expect_words);                                                  \
    } while (0)

/* A step under the lock of the pool. For tests that include pool/state.h. */
#define LOCKED(pool, step)                                                                         \
    do {                                                                                           \
        state_lock(pool);                                                                          \
        step;                                                                                      \
        state_unlock(pool);                                                                        \
    } while (0)

/* pool_check names what is broken, and no other. */
static inline void expect_words(struct rig *r, const char *words)
{
    const char *said = pool_check(r->pool);
    if (!said || strcmp(said, words))
        fail_msg("pool_check says \"%s\", not \"%s\"", said ? said : "nothing", words);
}

/* Changes a field, wants the words, and puts the field back. For a rig r. */
#define BROKEN(field, value, words)                                                                \
    do {                                                                                           \
        __typeof__(field) broken_before = (field);                                                 \
        (field) = (value);                                                                         \
        expect_words(r, words);                                                                    \
        (field) = broken_before;                                                                   \
    } while (0)

#define RIG_BYTES MIB(512)

static inline int expect_setup(void **state)
{
    *state = rig_create(RIG_BYTES);
    return 0;
}

static inline int expect_teardown(void **state)
{
    const char *words = rig_destroy(*state);
    if (words)
        print_error("broken: %s\n", words);
    return words ? -1 : 0;
}

/* The test's rig, started, with a field that has another value. */
#define EXPECT_WITH(state, field, value)                                                           \
    __extension__({                                                                                \
        struct rig *with = *(state);                                                               \
        with->field = (value);                                                                     \
        rig_start(with);                                                                           \
        with;                                                                                      \
    })

/* With default options, or in segment backing. */
static inline struct rig *expect_arena(void **state)
{
    rig_start(*state);
    return *state;
}

static inline struct rig *expect_segments(void **state)
{
    return EXPECT_WITH(state, config.backing, BACKING_SEGMENT);
}

/* With bytes that are looked at: see rig_park. */
static inline struct rig *expect_bytes(struct rig *r)
{
    r->has_bytes = true;
    rig_start(r);
    return r;
}

/* On a device with so much memory. */
static inline struct rig *expect_device_of(void **state, uint64_t total_bytes)
{
    return EXPECT_WITH(state, model->backend.total_bytes, total_bytes);
}

/* With what the option REUSE says. */
static inline struct rig *expect_reuse(void **state, enum pool_reuse reuse)
{
    return EXPECT_WITH(state, config.reuse, reuse);
}

/* With default options and the program's first stream only. */
static inline struct rig *expect_single(void **state)
{
    return EXPECT_WITH(state, model->backend.single_stream, true);
}

/* The state with a new rig, which can have so much memory, and is not started. */
static inline void **expect_capacity(void **state, uint64_t capacity_bytes)
{
    rig_destroy(*state);
    *state = rig_create(capacity_bytes);
    return state;
}

/* POOL_TEST(name) { .. }: a test with a rig that it starts itself. */
#define POOL_TEST(name) TEST_WITH(name, expect_setup, expect_teardown)
/* RIG_TEST(name, start) { .. }: one with a rig r, which start makes of state. */
#define RIG_TEST(name, start)                                                                      \
    static void name##_with(struct rig *r);                                                        \
    POOL_TEST(name)                                                                                \
    {                                                                                              \
        name##_with(start);                                                                        \
    }                                                                                              \
    static void name##_with(struct rig *r)
/* BACKINGS_TEST(name) { .. }: one with a rig r of each backing, which it starts. */
#define BACKINGS_TEST(name)                                                                        \
    static void name##_in(struct rig *r);                                                          \
    TEST(name)                                                                                     \
    {                                                                                              \
        for (int segments = 0; segments < 2; segments++) {                                         \
            struct rig *r = rig_in(RIG_BYTES, segments, false);                                    \
            name##_in(r);                                                                          \
            EXPECT_ENDS(r);                                                                        \
        }                                                                                          \
    }                                                                                              \
    static void name##_in(struct rig *r)
#define POOL_TEST_IS(name, call)                                                                   \
    POOL_TEST(name)                                                                                \
    {                                                                                              \
        call;                                                                                      \
    }

#endif
