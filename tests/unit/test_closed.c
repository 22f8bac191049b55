/* SPDX-License-Identifier: BSD-2-Clause */
/* No call reaches the driver while it is closed (shim/driver/closed.h). */

#include "tests/unit/cases.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "shim/driver/call_scope.h"
#include "shim/driver/closed.h"
#include "shim/process/own_thread.h"
#include "shim/process/state.h"

/* What closed.c and call_scope.c need of the rest of the library: a driver that counts, and lacks
 * one function. */
struct hooks_real real;
_Atomic int state_now = STATE_ON;

bool hooks_present(enum hook_id id)
{
    return id != HOOK_cuMemPoolCreate;
}

static unsigned driver_calls;

static CUresult get_current(CUcontext *ctx)
{
    driver_calls++;
    *ctx = NULL;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUcontext ctx, unsigned long long *id)
{
    driver_calls++;
    *id = ctx ? 0 : 5;
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    driver_calls++;
    return event ? CUDA_ERROR_NOT_READY : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create_pool(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    (void)pool;
    return props ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* What awaits the driver: opens it at the last of so many waits, or gives an error. */
static unsigned waits, opens_at;
static CUresult await_code;
static int count_meanwhile, depth_meanwhile;

static CUresult wait_once(void)
{
    count_meanwhile = atomic_load(&call_scope_count);
    depth_meanwhile = call_scope_depth;
    if (++waits == opens_at)
        closed_end();
    return await_code;
}

static unsigned scope_waits; /* of them, those of call scopes */

static CUresult await(void)
{
    return wait_once();
}

static CUresult await_in_scope(void)
{
    scope_waits++;
    return wait_once();
}

static void begin(unsigned opens)
{
    real.cuCtxGetCurrent = get_current;
    real.cuCtxGetId = get_id;
    real.cuEventQuery = query;
    real.cuMemPoolCreate = create_pool;
    real.cuThreadExchangeStreamCaptureMode = (PFN_cuThreadExchangeStreamCaptureMode_v10010)0;
    waits = scope_waits = driver_calls = 0;
    opens_at = opens;
    await_code = CUDA_SUCCESS;
    closed_begin(await, await_in_scope);
}

static void shut(unsigned opens)
{
    begin(opens);
    assert_true(closed_drain(MS_NS));
}

static void nothing(void *ran)
{
    *(bool *)ran = true;
}

TEST(a_call_waits_and_then_reaches_the_driver)
{
    CUcontext ctx = (CUcontext)1;
    unsigned long long id = 0;
    shut(2);
    assert_true(closed_is_now());
    assert_int_equal(real.cuCtxGetCurrent(&ctx), CUDA_SUCCESS);
    assert_int_equal(waits, 2); /* it was still closed after the first one */
    assert_int_equal(scope_waits, 0);
    assert_int_equal(driver_calls, 1);
    assert_null(ctx);
    assert_false(closed_is_now());
    assert_true(real.cuCtxGetCurrent == get_current);
    shut(1);
    assert_int_equal(real.cuCtxGetId(NULL, &id), CUDA_SUCCESS); /* only called */
    assert_int_equal(id, 5);
    assert_int_equal(waits, 1);
}

TEST(a_call_gets_the_error_of_its_wait)
{
    CUcontext ctx;
    bool ran = false;
    shut(0);
    await_code = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(real.cuCtxGetCurrent(&ctx), CUDA_ERROR_OUT_OF_MEMORY);
    assert_false(call_scope_run(NULL, nothing, &ran));
    assert_int_equal(driver_calls, 0);
    assert_false(ran);
    assert_int_equal(atomic_load(&call_scope_count), 0);
    assert_int_equal(call_scope_depth, 0);
    closed_end();
}

TEST(questions_are_answered)
{
    shut(1);
    assert_int_equal(real.cuEventQuery((CUevent)1), CUDA_SUCCESS);
    assert_int_equal(waits + driver_calls, 0);
    closed_end();
    assert_int_equal(real.cuEventQuery((CUevent)1), CUDA_ERROR_NOT_READY);
}

TEST(what_the_driver_lacks_keeps_its_slot)
{
    shut(1);
    assert_int_equal(real.cuMemPoolCreate(NULL, NULL), CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(waits, 0);
    assert_null(real.cuCtxWaitEvent);
    closed_end();
    assert_true(real.cuMemPoolCreate == create_pool);
}

TEST(a_forked_child_gets_what_the_driver_gives_there)
{
    CUcontext ctx;
    shut(1);
    atomic_store(&state_now, STATE_OFF);
    assert_int_equal(real.cuCtxGetCurrent(&ctx), CUDA_ERROR_NOT_INITIALIZED);
    assert_int_equal(real.cuEventQuery((CUevent)1), CUDA_ERROR_NOT_INITIALIZED);
    atomic_store(&state_now, STATE_ON);
    assert_int_equal(waits + driver_calls, 0);
    closed_end();
}

TEST(a_call_scope_waits_and_counts_as_nobody)
{
    bool ran = false;
    shut(1);
    assert_true(call_scope_run(NULL, nothing, &ran));
    assert_true(ran);
    assert_int_equal(waits, 1);
    assert_int_equal(scope_waits, 1);
    assert_int_equal(count_meanwhile, 0);
    assert_int_equal(depth_meanwhile, 0);
    assert_int_equal(atomic_load(&call_scope_count), 0);
}

TEST(one_inside_another_goes_on_and_both_are_awaited)
{
    struct call_scope outer, inner;
    real.cuThreadExchangeStreamCaptureMode = (PFN_cuThreadExchangeStreamCaptureMode_v10010)0;
    assert_true(call_scope_begin(&outer));
    begin(0);
    assert_true(call_scope_begin(&inner));
    assert_false(closed_drain(MS_NS));
    call_scope_end(&inner);
    assert_false(closed_drain(MS_NS));
    call_scope_end(&outer);
    assert_true(closed_drain(MS_NS));
    assert_int_equal(waits, 0);
    closed_end();
}

static sem_t told, may_go;
static bool was_admitted, scope_ran;
static CUresult own_answer;

static void tell(void)
{
    sem_post(&told);
    while (sem_wait(&may_go))
        ;
}

/* A visit that began before, and all that comes after the driver was closed. */
static void visit(void)
{
    CUcontext ctx;
    bool first = own_visit_begin();
    tell();
    bool nested = own_visit_begin();
    if (nested)
        own_visit_end();
    if (first)
        own_visit_end();
    tell();
    was_admitted = !first || !nested || own_visit_begin();
    own_answer = real.cuEventQuery((CUevent)1);
    if (own_answer == CUDA_ERROR_DEINITIALIZED)
        own_answer = real.cuCtxGetCurrent(&ctx);
    call_scope_run(NULL, nothing, &scope_ran);
    sem_post(&told);
}

static void hear(void)
{
    while (sem_wait(&told))
        ;
}

TEST(threads_of_the_library_are_refused_and_awaited)
{
    static const struct own_thread thread = {"visitor", 0, visit};
    sem_init(&told, 0, 0);
    sem_init(&may_go, 0, 0);
    assert_true(own_thread_start(&thread));
    hear();
    begin(0);
    assert_false(closed_drain(MS_NS));
    sem_post(&may_go);
    hear();
    assert_true(closed_drain(MS_NS));
    sem_post(&may_go);
    hear();
    assert_false(was_admitted);
    assert_false(scope_ran);
    assert_int_equal(own_answer, CUDA_ERROR_DEINITIALIZED);
    assert_int_equal(waits + driver_calls, 0);
    assert_true(own_visit_begin()); /* the program's pass */
    own_visit_end();
    closed_end();
    assert_int_equal(atomic_load(&call_scope_count), 0);
}

PLAY_TESTS
