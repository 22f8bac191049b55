/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures: what invalidates them, in which mode and from which thread; and the graphs that
 * they make. */
#include "tests/sim/fixture.h"

#include <pthread.h>

#define WORDS 1024
#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUstream on;
static CUevent idle;
static CUdeviceptr large, small, allocated;

/* Calls that a program, or a library in it, may make while a capture is open. */
static CUresult large_alloc(void)
{
    return cuMemAlloc(&allocated, 64 * MIB);
}
static CUresult small_alloc(void)
{
    CUdeviceptr at;
    CUresult rc = cuMemAlloc(&at, 1000);
    return rc == CUDA_SUCCESS ? cuMemFree(at) : rc;
}
static CUresult large_free(void)
{
    return cuMemFree(large);
}
static CUresult query(void)
{
    return cuEventQuery(idle);
}
static CUresult record(void)
{
    return cuCtxRecordEvent(context, idle);
}
static CUresult wait(void)
{
    return cuCtxWaitEvent(context, idle);
}
static CUresult synchronize(void)
{
    return cuCtxSynchronize();
}
static CUresult query_stream(void)
{
    return cuStreamQuery(on);
}
static CUresult copy_plain(void)
{
    uint32_t word = 0;
    return cuMemcpyHtoD(small, &word, 4);
}
static CUresult virtual_memory(void)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = map(2 * MIB, &handle);
    unmap(at, 2 * MIB, handle);
    return CUDA_SUCCESS;
}
static CUresult others(void)
{
    CUcontext now;
    CUevent made;
    CUresult rc = cuCtxGetCurrent(&now);
    if (rc == CUDA_SUCCESS)
        rc = cuEventCreate(&made, 0);
    return rc == CUDA_SUCCESS ? cuEventDestroy(made) : rc;
}

struct caller {
    CUresult (*call)(void);
    CUstreamCaptureMode mode;
    CUresult rc;
};

static void *in_thread(void *argument)
{
    struct caller *caller = argument;
    CUstreamCaptureMode mode = caller->mode;
    OK(cuCtxSetCurrent(context));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    caller->rc = caller->call();
    return NULL;
}

/* Captures a kernel and makes the call during the capture, from the capturing thread or from
 * another. */
static void expect(CUstreamCaptureMode capture, int other_thread, CUstreamCaptureMode mode,
                   CUresult (*call)(void), CUresult wanted)
{
    CUgraph graph;
    struct caller caller = {call, mode, CUDA_SUCCESS};
    CUstreamCaptureMode exchanged = mode;
    CUstreamCaptureStatus status;
    OK(cuStreamBeginCapture(on, capture));
    fill(on, small, 16, 1);
    if (other_thread) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, in_thread, &caller), 0);
        pthread_join(thread, NULL);
    } else {
        OK(cuThreadExchangeStreamCaptureMode(&exchanged));
        caller.rc = call();
        OK(cuThreadExchangeStreamCaptureMode(&exchanged));
    }
    assert_int_equal(caller.rc, wanted);
    OK(cuStreamIsCapturing(on, &status));
    if (wanted == CUDA_SUCCESS) {
        assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cuStreamEndCapture(on, &graph));
        OK(cuGraphDestroy(graph));
    } else {
        assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(on, &graph));
        assert_null(graph);
    }
    OK(cuStreamIsCapturing(on, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuMemFree(allocated));
    allocated = 0;
}

#define BAD CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

static void unsafe_calls_follow_the_modes(void **state)
{
    CUresult (*const unsafe[])(void) = {large_alloc, query, copy_plain};
    for (int i = 0; i < 3; i++) {
        expect(GLOBAL, 0, GLOBAL, unsafe[i], BAD);
        expect(GLOBAL, 0, LOCAL, unsafe[i], BAD);
        expect(GLOBAL, 0, RELAXED, unsafe[i], CUDA_SUCCESS);
        expect(GLOBAL, 1, GLOBAL, unsafe[i], BAD);
        expect(GLOBAL, 1, LOCAL, unsafe[i], CUDA_SUCCESS);
        expect(GLOBAL, 1, RELAXED, unsafe[i], CUDA_SUCCESS);
        expect(LOCAL, 0, GLOBAL, unsafe[i], BAD);
        expect(LOCAL, 0, LOCAL, unsafe[i], BAD);
        expect(LOCAL, 0, RELAXED, unsafe[i], CUDA_SUCCESS);
        expect(LOCAL, 1, GLOBAL, unsafe[i], CUDA_SUCCESS);
        expect(RELAXED, 0, GLOBAL, unsafe[i], CUDA_SUCCESS);
        expect(RELAXED, 1, GLOBAL, unsafe[i], CUDA_SUCCESS);
    }
    expect(GLOBAL, 0, GLOBAL, large_free, BAD);
    expect(GLOBAL, 1, GLOBAL, large_free, BAD);
    expect(GLOBAL, 1, RELAXED, large_free, CUDA_SUCCESS);
}

static void safe_calls_never_invalidate(void **state)
{
    CUresult (*const safe[])(void) = {small_alloc, virtual_memory, others};
    for (int i = 0; i < 3; i++)
        for (int other = 0; other < 2; other++) {
            expect(GLOBAL, other, GLOBAL, safe[i], CUDA_SUCCESS);
            expect(RELAXED, other, GLOBAL, safe[i], CUDA_SUCCESS);
        }
}

static void context_events_invalidate_in_every_mode(void **state)
{
    const CUstreamCaptureMode modes[] = {GLOBAL, LOCAL, RELAXED};
    CUresult (*const calls[])(void) = {record, wait, synchronize};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            for (int other = 0; other < 2; other++) {
                expect(modes[i], other, GLOBAL, calls[j], BAD);
                expect(modes[i], other, RELAXED, calls[j], BAD);
            }
    expect(RELAXED, 0, RELAXED, query_stream, BAD);
}

static void another_context_is_not_concerned(void **state)
{
    CUcontext other;
    CUevent fence;
    CUgraph graph;
    OK(cuStreamBeginCapture(on, RELAXED));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuEventCreate(&fence, 0));
    OK(cuCtxRecordEvent(other, fence));
    OK(cuCtxWaitEvent(other, fence));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamEndCapture(on, &graph));
    OK(cuGraphDestroy(graph));
}

static void legacy_stream_conflicts_with_blocking_captures(void **state)
{
    CUstream blocking = stream(CU_STREAM_DEFAULT);
    CUgraph graph;
    CUstreamCaptureStatus status;
    uint64_t ns = 1;
    /* A query is no use of the legacy stream (documented). */
    OK(cuStreamBeginCapture(blocking, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    OK(cuStreamEndCapture(blocking, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture(blocking, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          cuLaunchKernel(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
    OK(cuStreamBeginCapture(on, RELAXED)); /* non-blocking: no conflict */
    spin(NULL, 1);
    OK(cuStreamEndCapture(on, &graph));
    OK(cuGraphDestroy(graph));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, RELAXED));
    OK(cuStreamDestroy(blocking));
}

static void capture_is_bound_to_its_stream_and_thread(void **state)
{
    CUstream other = stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    CUevent between = event();
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(on, &graph));
    OK(cuStreamBeginCapture(on, LOCAL));
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(on, LOCAL));
    fill(on, small, 16, 1);
    OK(cuEventRecord(between, on));
    OK(cuStreamWaitEvent(other, between, 0));
    fill(other, small, 16, 2);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(on, &graph));
    OK(cuStreamBeginCapture(on, LOCAL));
    OK(cuEventRecord(between, on));
    OK(cuStreamWaitEvent(other, between, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(on, &graph));
    /* An event from outside cannot be waited for. */
    OK(cuEventRecord(idle, NULL));
    OK(cuStreamBeginCapture(on, LOCAL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(on, idle, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(on, &graph));
    OK(cuStreamDestroy(other));
    OK(cuEventDestroy(between));
}

static CUresult end(void)
{
    CUgraph graph;
    return cuStreamEndCapture(on, &graph);
}

static void another_thread_may_end_relaxed_captures_only(void **state)
{
    const CUstreamCaptureMode modes[] = {GLOBAL, LOCAL, RELAXED};
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        struct caller caller = {end, GLOBAL, CUDA_SUCCESS};
        OK(cuStreamBeginCapture(on, modes[i]));
        assert_int_equal(pthread_create(&thread, NULL, in_thread, &caller), 0);
        pthread_join(thread, NULL);
        if (modes[i] == RELAXED) {
            assert_int_equal(caller.rc, CUDA_SUCCESS);
        } else {
            assert_int_equal(caller.rc, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
            GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
        }
    }
}

static void captured_work_runs_at_each_launch(void **state)
{
    CUstream side = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = alloc(WORDS * 4), b = alloc(WORDS * 4);
    CUgraph graph;
    CUgraphExec exec;
    CUevent fork = event(), join = event();
    size_t nodes = 0;
    OK(cuMemsetD32(a, 1, WORDS));
    OK(cuMemsetD32(b, 1, WORDS));
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture(on, GLOBAL));
    late_fill(on, a, WORDS, 5, 5 * MS);
    OK(cuEventRecord(fork, on));
    OK(cuStreamWaitEvent(side, fork, 0));
    copy(side, b, a, WORDS);
    OK(cuMemsetD32Async(a, 6, WORDS / 2, side));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(on, join, 0));
    fill(on, a, 1, 7);
    OK(cuStreamEndCapture(on, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 4);
    assert_int_equal(wrong(a, WORDS, 1), 0); /* capturing does nothing */
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++) {
        OK(cuMemsetD32Async(a, 2, WORDS, on));
        OK(cuGraphLaunch(exec, on));
        OK(cuStreamSynchronize(on));
        assert_int_equal(wrong(b, WORDS, 5), 0);
        assert_int_equal(wrong(a, 1, 7), 0);
        assert_int_equal(wrong(a + 4, WORDS / 2 - 1, 6), 0);
        assert_int_equal(wrong(a + WORDS * 2, WORDS / 2, 5), 0);
    }
    OK(cuGraphExecDestroy(exec));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(exec));
    OK(cuStreamDestroy(side));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

static void graphs_can_be_built_by_hand(void **state)
{
    CUdeviceptr a = alloc(WORDS * 4);
    CUgraph graph, parent;
    CUgraphExec exec;
    CUgraphNode first, child, node;
    size_t count = 0;
    OK(cuGraphCreate(&graph, 0));
    OK(cuStreamBeginCaptureToGraph(on, graph, NULL, NULL, 0, GLOBAL));
    late_fill(on, a, WORDS, 9, 5 * MS);
    OK(cuStreamEndCapture(on, &graph));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddEmptyNode(&first, parent, NULL, 0));
    OK(cuGraphAddChildGraphNode(&child, parent, &first, 1, graph));
    OK(cuGraphGetNodes(parent, NULL, &count));
    assert_int_equal(count, 2);
    OK(cuGraphGetNodes(graph, &node, &count));
    assert_int_equal(count, 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&child, parent, &node, 1));
    OK(cuGraphInstantiateWithFlags(&exec, parent, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMemsetD32Async(a, 1, WORDS, on));
        OK(cuGraphLaunch(exec, on));
        OK(cuStreamSynchronize(on));
        assert_int_equal(wrong(a, WORDS, 9), 0);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(parent));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(parent));
    OK(cuMemFree(a));
}

static int set_up(void **state)
{
    fixture_start(state);
    on = stream(CU_STREAM_NON_BLOCKING);
    idle = event();
    small = alloc(4096);
    OK(cuEventRecord(idle, NULL));
    OK(cuCtxSynchronize());
    return 0;
}

static int fresh(void **state)
{
    large = alloc(8 * MIB);
    return fixture_clean(state);
}

static int stale(void **state)
{
    cuMemFree(large); /* unless the test has */
    return fixture_clean(state);
}

#define CAPTURE_TEST(function) cmocka_unit_test_setup_teardown(function, fresh, stale)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CAPTURE_TEST(unsafe_calls_follow_the_modes),
        CAPTURE_TEST(safe_calls_never_invalidate),
        CAPTURE_TEST(context_events_invalidate_in_every_mode),
        CAPTURE_TEST(another_context_is_not_concerned),
        CAPTURE_TEST(legacy_stream_conflicts_with_blocking_captures),
        CAPTURE_TEST(capture_is_bound_to_its_stream_and_thread),
        CAPTURE_TEST(another_thread_may_end_relaxed_captures_only),
        CAPTURE_TEST(captured_work_runs_at_each_launch),
        CAPTURE_TEST(graphs_can_be_built_by_hand),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
