/* SPDX-License-Identifier: BSD-2-Clause */
/* The program's context is current again after the library's own (shim/driver/pushed.h), whichever
 * of its calls the driver refuses, and whether the driver did them or not. */
#include "shim/driver/pushed.h"
#include "tests/unit/cases.h"

struct hooks_real real;

/* A thread's stack of contexts, and the calls that answer with an error. */
static CUcontext stack[16];
static int depth;
static unsigned push_errors, pop_errors; /* how many are still to come */
static bool done_all_the_same;

static CUresult answer(unsigned *errors, bool *done)
{
    bool fails = *errors > 0;
    *errors -= fails;
    *done = !fails || done_all_the_same;
    return fails ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *ctx)
{
    *ctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext ctx)
{
    bool done;
    CUresult rc = answer(&push_errors, &done);
    if (done)
        stack[depth++] = ctx;
    return rc;
}

static CUresult pop(CUcontext *ctx)
{
    bool done;
    CUresult rc = answer(&pop_errors, &done);
    assert_true(depth > 0);
    *ctx = stack[depth - 1];
    depth -= done;
    return rc;
}

static CUresult set_current(CUcontext ctx)
{
    if (ctx)
        stack[depth ? depth - 1 : depth++] = ctx;
    else
        depth -= depth > 0;
    return CUDA_SUCCESS;
}

static CUcontext context(uintptr_t number)
{
    return (CUcontext)number;
}

TEST(the_programs_context_is_current_again)
{
    real.cuCtxGetCurrent = get_current;
    real.cuCtxPushCurrent_v2 = push;
    real.cuCtxPopCurrent_v2 = pop;
    real.cuCtxSetCurrent = set_current;
    for (unsigned i = 0; i < 2 * 2 * 4 * 2 * 2; i++) {
        unsigned own = i % 2, errors = i / 4 % 4;
        struct pushed p;
        CUcontext now;
        CUcontext before = context(own), ours = context(i / 16 % 2 ? 2 : 1);
        depth = (int)own;
        stack[0] = before;
        done_all_the_same = i / 2 % 2;
        push_errors = i / 32 % 2;
        pop_errors = errors;
        bool refused = push_errors && !done_all_the_same && before != ours;
        assert_int_equal(pushed_begin(&p, ours), !refused);
        get_current(&now);
        assert_ptr_equal(now, refused ? before : ours);
        pushed_end(&p);
        get_current(&now);
        assert_ptr_equal(now, before);
        assert_int_equal(depth, own);
    }
}

static CUresult version_answer;

static CUresult get_version(CUcontext ctx, unsigned *version)
{
    return version_answer;
}

/* The question may be answered with the error of earlier work, too. */
TEST(a_context_is_left_only_if_it_has_ended)
{
    static const struct {
        CUresult answer;
        bool stays;
    } cases[] = {{CUDA_SUCCESS, true},
                 {CUDA_ERROR_ILLEGAL_ADDRESS, true},
                 {CUDA_ERROR_LAUNCH_FAILED, true},
                 {CUDA_ERROR_CONTEXT_IS_DESTROYED, false},
                 {CUDA_ERROR_INVALID_CONTEXT, false},
                 {CUDA_ERROR_UNKNOWN, false}};
    real.cuCtxGetCurrent = get_current;
    real.cuCtxPushCurrent_v2 = push;
    real.cuCtxPopCurrent_v2 = pop;
    real.cuCtxGetApiVersion = get_version;
    push_errors = pop_errors = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pushed p;
        depth = 1;
        stack[0] = context(1);
        version_answer = cases[i].answer;
        assert_int_equal(pushed_begin(&p, context(2)), cases[i].stays);
        assert_int_equal(depth, cases[i].stays ? 2 : 1);
        pushed_end(&p);
        assert_int_equal(depth, 1);
        assert_ptr_equal(stack[0], context(1));
    }
}

PLAY_TESTS
