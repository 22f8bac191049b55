/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/driver/device_fence.c: fences beside the destruction of their context (Note [Visits]). The
 * driver is stood in for. */
#include "shim/driver/capture.h"
#include "shim/driver/device_fence.h"
#include "shim/process/state.h"
#include "tests/unit/cases.h"
#include "tests/unit/no_log.h"

struct hooks_real real;
_Atomic int state_now = STATE_ON;

static char handle;
static CUcontext const the_context = (CUcontext)&handle;
static struct device_backend backend;
static struct backend *const b = &backend.base;
static unsigned holds, num_event_calls;

bool hooks_present(enum hook_id id)
{
    return true;
}

bool capture_hold_off(void)
{
    holds++;
    return true;
}

bool capture_hold_off_patiently(uint64_t timeout_ns)
{
    return capture_hold_off();
}

void capture_let_go(void)
{
    holds--;
}

void capture_wait_begins(void)
{
}

void capture_wait_ends(void)
{
}

bool capture_await(uint64_t timeout_ns)
{
    return true;
}

static CUresult get_current(CUcontext *ctx)
{
    *ctx = the_context;
    return CUDA_SUCCESS;
}

/* Each call with an event is made in a visit, while nobody destroys the context. */
static CUresult in_visit(void)
{
    num_event_calls++;
    assert_int_equal(atomic_load(&backend.visits), 1);
    assert_int_equal(atomic_load(&backend.destruction), DESTRUCTION_NONE);
    return CUDA_SUCCESS;
}

static CUresult create(CUevent *event, unsigned flags)
{
    *event = (CUevent)&handle;
    return in_visit();
}

static CUresult with_event(CUevent event)
{
    return in_visit();
}

static CUresult with_context(CUcontext ctx, CUevent event)
{
    return in_visit();
}

static int setup(void **state)
{
    memset(&backend, 0, sizeof backend);
    backend.ctx = the_context;
    atomic_store(&backend.context_events, true);
    num_event_calls = holds = 0;
    atomic_store(&real.cuCtxGetCurrent, get_current);
    atomic_store(&real.cuEventCreate, create);
    atomic_store(&real.cuEventDestroy_v2, with_event);
    atomic_store(&real.cuEventQuery, with_event);
    atomic_store(&real.cuEventSynchronize, with_event);
    atomic_store(&real.cuCtxRecordEvent, with_context);
    atomic_store(&real.cuCtxWaitEvent, with_context);
    return 0;
}

#define CASE(name) TEST_WITH(name, setup, NULL)

static void use_all(uint64_t fence, bool expected)
{
    assert_int_equal(device_fence_record(b, fence), expected ? FENCE_RECORDED : FENCE_BARRED);
    assert_true((device_fence_query(b, fence) == FENCE_DONE) == expected);
    assert_true((device_fence_order(b, fence) == 0) == expected);
    assert_true((device_fence_wait(b, fence, 0) == 0) == expected);
    assert_true((device_fence_wait(b, fence, UINT64_MAX) == 0) == expected);
    device_fence_destroy(b, fence);
    device_fence_drain_all(b);
    assert_int_equal(atomic_load(&backend.visits), 0);
    assert_int_equal(holds, 0);
}

CASE(events_are_used_in_visits)
{
    uint64_t fence;
    assert_int_equal(device_fence_create(b, &fence), 0);
    use_all(fence, true);
    assert_int_equal(num_event_calls, 11);
}

CASE(no_event_is_used_beside_a_destruction)
{
    uint64_t fence, other;
    assert_int_equal(device_fence_create(b, &fence), 0);
    num_event_calls = 0;
    for (int over = 0; over < 2; over++) {
        atomic_store(&backend.base.gone, true);
        atomic_store(&backend.destruction, over ? DESTRUCTION_OVER : DESTRUCTION_BEGUN);
        use_all(fence, false);
        /* A destruction may fail: then the fence tells again. */
        assert_int_equal(device_fence_query(b, fence), over ? FENCE_LOST : FENCE_BUSY);
        assert_int_not_equal(device_fence_create(b, &other), 0);
    }
    assert_int_equal(num_event_calls, 0);
}

CASE(destructions_that_fail_cost_no_fences)
{
    uint64_t fence;
    atomic_store(&backend.destruction, DESTRUCTION_BEGUN);
    for (int i = 0; i < 2 * DEVICE_FENCES; i++)
        assert_int_not_equal(device_fence_create(b, &fence), 0);
    atomic_store(&backend.destruction, DESTRUCTION_NONE);
    for (unsigned i = 0; i < DEVICE_FENCES; i++)
        assert_int_equal(device_fence_create(b, &fence), 0);
    assert_int_not_equal(device_fence_create(b, &fence), 0);
    assert_int_equal(atomic_load(&backend.visits), 0);
}

PLAY_TESTS
