/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures: what invalidates them, in which mode and from which thread; and the graphs that
 * they make. */
#include "tests/sim/fixture.h"

#define WORDS 1024
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUstream on;
static CUevent idle;
static CUdeviceptr large, small, allocated;
static uint32_t word;
static CUgraph ended;

/* Calls that a program, or a library in it, may make while a capture is open. */
#define CALL(name, expression)                                                                     \
    static CUresult name(void)                                                                     \
    {                                                                                              \
        return expression;                                                                         \
    }

CALL(large_alloc, cuMemAlloc(&allocated, 64 * MIB))
CALL(small_alloc, cuMemAlloc(&allocated, 1000))
CALL(large_free, cuMemFree(large))
CALL(query, cuEventQuery(idle))
CALL(record, cuCtxRecordEvent(context, idle))
CALL(wait_event, cuCtxWaitEvent(context, idle))
CALL(synchronize, cuCtxSynchronize())
CALL(query_stream, cuStreamQuery(on))
CALL(copy_plain, cuMemcpyHtoD(small, &word, 4))
CALL(end, cuStreamEndCapture(on, &ended))

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
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

static CUresult elsewhere(struct caller caller)
{
    pthread_join(started(in_thread, &caller), NULL);
    return caller.rc;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

/* Ends a capture as the status says that it has to end. */
static void end_capture(CUstream stream, CUstreamCaptureStatus status)
{
    CUgraph graph;
    if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
    } else {
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
        assert_null(graph);
    }
    assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

/* A call during a capture of mode global, local, relaxed (three words). The letters of a word: in
 * the capturing thread, of mode global, local, relaxed, then in another thread, the same. x: the
 * call fails and invalidates the capture. */
static const struct rule {
    CUresult (*call)(void);
    const char *word[3];
} rules[] = {
    {large_alloc, {"xx.x..", "xx....", "......"}},    {query, {"xx.x..", "xx....", "......"}},
    {copy_plain, {"xx.x..", "xx....", "......"}},     {large_free, {"xx.x..", "xx....", "......"}},
    {small_alloc, {"......", "......", "......"}},    {others, {"......", "......", "......"}},
    {virtual_memory, {"......", "......", "......"}}, {record, {"xxxxxx", "xxxxxx", "xxxxxx"}},
    {wait_event, {"xxxxxx", "xxxxxx", "xxxxxx"}},     {synchronize, {"xxxxxx", "xxxxxx", "xxxxxx"}},
    {query_stream, {"xxxxxx", "xxxxxx", "xxxxxx"}},
};

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, RELAXED};

TEST(calls_follow_the_rules_of_their_modes)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules * 18; i++) {
        const struct rule *rule = &rules[i / 18];
        struct caller caller = {rule->call, modes[i % 3], CUDA_SUCCESS};
        bool bad = rule->word[i % 18 / 6][i % 6] == 'x';
        CUstreamCaptureStatus wanted =
            bad ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        large = rule->call == large_free ? alloc(8 * MIB) : 0;
        OK(cuStreamBeginCapture(on, modes[i % 18 / 6]));
        fill(on, small, 16, 1);
        if (i % 6 < 3)
            in_thread(&caller);
        else
            caller.rc = elsewhere(caller);
        if (caller.rc != (bad ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS) ||
            status_of(on) != wanted)
            fail_msg("call %zu, mode %zu, case %zu: %d", i / 18, i % 18 / 6, i % 6, caller.rc);
        end_capture(on, wanted);
        if (bad)
            OK(cuMemFree(large));
        OK(cuMemFree(allocated));
        allocated = 0;
    }
}

TEST(another_context_is_not_concerned)
{
    CUcontext other;
    CUevent fence;
    OK(cuStreamBeginCapture(on, RELAXED));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuEventCreate(&fence, 0));
    OK(cuCtxRecordEvent(other, fence));
    OK(cuCtxWaitEvent(other, fence));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    end_capture(on, CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

TEST(legacy_stream_conflicts_with_blocking_captures)
{
    CUstream blocking = stream(CU_STREAM_DEFAULT);
    CUstreamCaptureStatus status;
    uint64_t ns = 1;
    OK(cuStreamBeginCapture(blocking, RELAXED));
    /* A query is no use of the legacy stream (documented). */
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    end_capture(blocking, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamBeginCapture(blocking, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          cuLaunchKernel(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    end_capture(blocking, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    OK(cuStreamBeginCapture(on, RELAXED)); /* non-blocking: no conflict */
    spin(NULL, 1);
    end_capture(on, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, RELAXED));
    OK(cuStreamDestroy(blocking));
}

TEST(capture_is_bound_to_its_stream_and_thread)
{
    CUstream other = stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    CUevent between = event();
    GIVES(CUDA_ERROR_ILLEGAL_STATE, end());
    for (int joined = 0; joined < 2; joined++) {
        OK(cuStreamBeginCapture(on, modes[1]));
        GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(on, RELAXED));
        OK(cuEventRecord(between, on));
        OK(cuStreamWaitEvent(other, between, 0));
        fill(other, small, 16, 2);
        if (joined) {
            GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
            end_capture(on, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        } else {
            GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end());
        }
    }
    /* An event from outside, and one of another capture, cannot be waited for. */
    OK(cuEventRecord(idle, NULL));
    OK(cuStreamBeginCapture(on, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(on, idle, 0));
    end_capture(on, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    OK(cuStreamBeginCapture(on, RELAXED));
    OK(cuStreamBeginCapture(other, RELAXED));
    OK(cuEventRecord(between, other));
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(between));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(on, between, 0));
    end_capture(on, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    end_capture(other, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    OK(cuStreamDestroy(other));
    OK(cuEventDestroy(between));
    for (int i = 0; i < 3; i++) {
        struct caller caller = {end, modes[0], CUDA_SUCCESS};
        OK(cuStreamBeginCapture(on, modes[i]));
        caller.rc = elsewhere(caller);
        assert_int_equal(caller.rc, i == 2 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        if (i < 2)
            end_capture(on, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    }
}

/* A late fill, a copy of it on a side stream, a smaller fill behind that, and a word behind all; by
 * a capture, and as a child of another graph, in which one more word comes behind it. */
TEST(captured_work_runs_in_order_at_each_launch)
{
    CUstream side = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = alloc(WORDS * 4), b = alloc(WORDS * 4);
    CUgraph graph, parent, word_graph;
    CUgraphExec exec[2];
    CUgraphNode first, child, last, node;
    CUevent fork = event(), join = event();
    size_t nodes = 0;
    OK(cuGraphCreate(&graph, 0));
    OK(cuMemsetD32(a, 1, WORDS));
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCaptureToGraph(on, graph, NULL, NULL, 0, modes[0]));
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
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddEmptyNode(&first, parent, NULL, 0));
    OK(cuGraphAddChildGraphNode(&child, parent, &first, 1, graph));
    OK(cuStreamBeginCapture(on, RELAXED));
    BAD(cuMemFreeAsync(b, on));
    fill(on, a, 1, 8);
    OK(cuStreamEndCapture(on, &word_graph));
    OK(cuGraphAddChildGraphNode(&last, parent, &child, 1, word_graph));
    nodes = 1;
    OK(cuGraphGetNodes(graph, &node, &nodes));
    BAD(cuGraphAddEmptyNode(&child, parent, &node, 1));
    OK(cuGraphInstantiateWithFlags(&exec[0], graph, 0));
    OK(cuGraphInstantiateWithFlags(&exec[1], parent, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(parent));
    OK(cuGraphDestroy(word_graph));
    for (int i = 0; i < 4; i++) {
        late_fill(on, a, WORDS, 2, MS);
        OK(cuGraphLaunch(exec[i % 2], on));
        OK(cuStreamSynchronize(on));
        assert_int_equal(wrong(b, WORDS, 5), 0);
        assert_int_equal(wrong(a, 1, i % 2 ? 8 : 7), 0);
        assert_int_equal(wrong(a + 4, WORDS / 2 - 1, 6), 0);
        assert_int_equal(wrong(a + WORDS * 2, WORDS / 2, 5), 0);
    }
    for (int i = 0; i < 2; i++)
        OK(cuGraphExecDestroy(exec[i]));
    BAD(cuGraphExecDestroy(exec[1]));
    OK(cuStreamDestroy(side));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
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

int main(void)
{
    return play_tests(set_up, NULL);
}
