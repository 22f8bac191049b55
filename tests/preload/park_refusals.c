/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What refuses a park: GPU work that runs, a stream capture, a request that makes no sense, and a
 * use that comes first. The program goes on as without it.
 */
#include "tests/preload/park_world.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

ACT(work_that_runs_refuses)
{
    begin(1);
    uint32_t *held = scene_hold(stream);
    expect_refused("GPU work still runs");
    scene_let_go(held);
    REQUIRE(gpu_stream_sync(stream));
    park();
    return wrong_a() != 0;
}

/* A context of the device needs no pool of its own to use memory of another one's. */
ACT(work_of_a_context_without_a_pool_refuses)
{
    begin(1);
    CUcontext first = CURRENT_CONTEXT(), other = NEW_CONTEXT();
    CUstream its = NEW_STREAM(false);
    uint32_t *held = scene_hold(its);
    REQUIRE(gpu_fill(a, WORDS, 7, its));
    REQUIRE(cuCtxSetCurrent(first));
    expect_refused("GPU work still runs");
    scene_let_go(held);
    REQUIRE(cuCtxSetCurrent(other));
    REQUIRE(gpu_stream_sync(its));
    REQUIRE(cuCtxDestroy(other));
    REQUIRE(cuCtxSetCurrent(first));
    park();
    EXPECT(scene_wrong_words(a, WORDS, 7, NULL) == 0);
    return 0;
}

ACT(an_open_capture_refuses)
{
    begin(1);
    park();
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_refused("capture");
    REQUIRE(gpu_fill(b, WORDS, 4, stream));
    REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
    park();
    return wrong_a() != 0;
}

ACT(one_answer_each)
{
    begin(1);
    park();
    park();
    wake();
    wake();
    park_as("park keep=1000000000", PAGE_REPLY_DONE);
    expect_parked(false);
    expect_code(asker_ask("park gpu=9"), PAGE_REPLY_REFUSED);
    expect_code(asker_ask("park wait=x"), PAGE_REPLY_BAD);
    expect_code(asker_ask("set PARK=off"), PAGE_REPLY_DONE);
    expect_refused("GPUCACHE_PARK=off");
    return wrong_a() != 0;
}

enum { ASKED_MS = 10000 };

static atomic_bool answered;

/* It waits for work so long. */
static void *ask_for_a_park(void *code)
{
    char words[32];
    snprintf(words, sizeof words, "park wait=%d", ASKED_MS);
    *(int *)code = asker_ask(words);
    atomic_store(&answered, true);
    return NULL;
}

/* The kernel waits for the host, which launches so long after the request. Returns the answer. */
static int use_while_a_park_waits(unsigned ms)
{
    int code = 0;
    uint32_t *held = scene_hold(stream);
    pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
    scene_sleep_ms(ms);
    uint64_t start_ns = scene_now_ns();
    REQUIRE(gpu_fill(b, WORDS, 8, NULL));
    EXPECT(scene_now_ns() - start_ns < ASKED_MS / 2 * MS_NS);
    scene_let_go(held);
    REQUIRE(pthread_join(asker, NULL));
    return code;
}

/* The park that waits for the kernel gives way. Where the machine is busy, the use may come before
 * the park begins: then it is parked after it. */
ACT(a_use_cancels_a_park_that_waits)
{
    int code = PAGE_REPLY_DONE;
    begin(1);
    for (unsigned ms = 100; ms <= ASKED_MS / 2 && code == PAGE_REPLY_DONE; ms *= 2)
        code = use_while_a_park_waits(ms);
    expect_code(code, PAGE_REPLY_REFUSED);
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 8, NULL);
}

/* Copies take long here, so the launch comes while they are made. The small block keeps the chunk
 * of the words that scene_wrong_words counts in from being idle: a park begins with a flush, and
 * with SIM_UNMAP_FAULTS a flush of idle memory beside a launch ends the context. */
ACT(a_use_cancels_the_copies)
{
    int code = 0, failures = 0;
    uint64_t big[4];
    begin(1);
    NEW_BLOCK(4);
    NEW_BLOCKS(big, 4, 32 * MIB);
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 4; j++)
            REQUIRE(gpu_fill(big[j], 8 * MIB, 11, NULL));
        REQUIRE(gpu_sync());
        atomic_store(&answered, false);
        pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
        do { /* at any time of it: host memory is made ready before the copies */
            scene_sleep_ms(5u << i);
            uint64_t start_ns = scene_now_ns();
            REQUIRE(gpu_fill(b, WORDS, 8, NULL));
            EXPECT(scene_now_ns() - start_ns < 8000 * MS_NS);
        } while (!atomic_load(&answered));
        REQUIRE(pthread_join(asker, NULL));
        EXPECT(code <= 0 || code == PAGE_REPLY_REFUSED);
        failures += wrong_a() != 0 || scene_wrong_words(b, WORDS, 8, NULL) != 0;
        for (int j = 0; j < 4; j++)
            failures += scene_wrong_words(big[j], 8 * MIB, 11, NULL) != 0;
    }
    /* In that variant they all take longer than the sleep. */
    EXPECT(!asker_page() || !getenv("SIM_REALTIME") || asker_figure("park_refusals") > 0);
    return failures;
}

/* The control thread finds no capture when the request comes, and the park thread finds one: before
 * the gate is closed, or behind it. */
ACT(a_capture_that_begins_beside_the_request_refuses)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemHostRegister_v2"};
    int code = 0;
    begin(1);
    if (!scene_simulated())
        return SCENE_SKIP;
    for (int i = 0; i < 2; i++) {
        TAKE_AND_GIVE(64 * MIB); /* a request to park begins with a flush */
        if (asker_page())
            REQUIRE(SIM(simHold)(calls[i]));
        pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
        scene_await_held(asker_page() != NULL);
        REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        SIM(simLetGo)(calls[i]);
        REQUIRE(pthread_join(asker, NULL));
        expect_code(code, PAGE_REPLY_REFUSED);
        EXPECT(!asker_page() || strstr(asker_reply(), "\"a capture is open\""));
        expect_parked(false);
        REQUIRE(gpu_fill(b, WORDS, 4, stream));
        REQUIRE(gpu_graph_destroy(END_CAPTURE(stream), NULL));
        park();
        EXPECT(wrong_a() == 0);
    }
    return 0;
}

/* ---- Contexts that end */

static CUcontext ending; /* NULL: the second device's primary one */

static void *end_it(void *unused)
{
    REQUIRE(ending ? cuCtxDestroy(ending) : cuDevicePrimaryCtxRelease(1));
    return unused;
}

/* It has no pool. A primary one of another device uses no memory that is parked. */
static const char *make_it(int device)
{
    if (device == 0) {
        ending = NEW_CONTEXT();
        REQUIRE(cuCtxSetCurrent(context));
        return "cuCtxDestroy_v2";
    }
    ending = NULL;
    REQUIRE(cuDevicePrimaryCtxRetain(&(CUcontext){NULL}, device));
    return "cuDevicePrimaryCtxRelease_v2";
}

static void expect_told_of_it(int code)
{
    expect_code(code, PAGE_REPLY_REFUSED);
    if (asker_page() && !strstr(asker_reply(), "\"a context is ending\""))
        printf("%s\n", asker_reply());
    EXPECT(!asker_page() || strstr(asker_reply(), "\"a context is ending\""));
    expect_parked(false);
}

/* Host memory is made ready before the gate is closed, and a file is not. */
ACT(a_context_that_is_ending_refuses)
{
    begin(2);
    if (!scene_simulated())
        return SCENE_SKIP;
    for (int device = 0; device < 2; device++) {
        const char *call = make_it(device);
        REQUIRE(SIM(simHold)(call));
        pthread_t ender = NEW_THREAD(end_it, NULL);
        scene_await_held(1);
        expect_told_of_it(asker_ask("park wait=20"));
        expect_told_of_it(asker_ask("park wait=20 to=/tmp"));
        SIM(simLetGo)(call);
        REQUIRE(pthread_join(ender, NULL));
        park();
        EXPECT(wrong_a() == 0);
    }
    return 0;
}

/* The ender waits until no copy is under way. Where the machine is busy, it comes too late. */
ACT(an_end_beside_the_copies_stops_them)
{
    static const char copy[] = "cuMemcpyDtoHAsync_v2";
    int code = PAGE_REPLY_DONE;
    begin(1);
    if (!scene_simulated())
        return SCENE_SKIP;
    for (unsigned ms = 20; ms <= 5120 && code == PAGE_REPLY_DONE; ms *= 2) {
        (void)make_it(0);
        REQUIRE(gpu_fill(b, WORDS, ms, NULL)); /* is to be copied, whatever is retained */
        REQUIRE(gpu_sync());
        if (asker_page())
            REQUIRE(SIM(simHold)(copy));
        pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
        scene_await_held(asker_page() != NULL);
        pthread_t ender = NEW_THREAD(end_it, NULL);
        scene_sleep_ms(ms);
        SIM(simLetGo)(copy);
        REQUIRE(pthread_join(asker, NULL));
        REQUIRE(pthread_join(ender, NULL));
    }
    expect_told_of_it(code);
    park();
    return wrong_a() != 0;
}

/* ---- Host memory */

/* The kernel takes its time for much host memory that goes back. No use waits for that. */

static atomic_bool unmaps_slowly;

int munmap(void *addr, size_t size_bytes)
{
    if (size_bytes >= 64 * MIB && atomic_load(&unmaps_slowly))
        scene_sleep_ms(1500);
    return (int)syscall(SYS_munmap, addr, size_bytes);
}

/* In place of the C library's. The kernel has no page for what is to be there ahead, as where it
 * cannot write. */
static atomic_bool has_no_page;

int madvise(void *addr, size_t size_bytes, int advice)
{
    if (advice == MADV_POPULATE_WRITE && size_bytes && atomic_load(&has_no_page)) {
        errno = EFAULT;
        return -1;
    }
    return (int)syscall(SYS_madvise, addr, size_bytes, advice);
}

ACT(host_memory_that_the_kernel_does_not_give_refuses)
{
    begin(1);
    if (madvise(NULL, 0, MADV_POPULATE_WRITE))
        return SCENE_SKIP;
    atomic_store(&has_no_page, true);
    expect_refused("the kernel refuses the process more host memory");
    atomic_store(&has_no_page, false);
    EXPECT(wrong_a() == 0);
    park();
    return wrong_a() != 0;
}

ACT(a_use_that_cancels_waits_for_no_host_memory)
{
    int code = 0;
    uint64_t longest_ns = 0, big[4];
    begin(1);
    if (!scene_simulated()) /* a real one unmaps in calls of its own */
        return SCENE_SKIP;
    NEW_BLOCKS(big, 4, 32 * MIB);
    for (int i = 0; i < 4; i++)
        REQUIRE(gpu_fill(big[i], 8 * MIB, 11, NULL));
    REQUIRE(gpu_sync());
    atomic_store(&unmaps_slowly, true);
    for (int i = 1; i < 3; i++) {
        atomic_store(&answered, false);
        pthread_t asker = NEW_THREAD(ask_for_a_park, &code);
        do {
            scene_sleep_ms(5u << i);
            uint64_t start_ns = scene_now_ns();
            REQUIRE(gpu_fill(b, WORDS, 8, NULL));
            longest_ns =
                scene_now_ns() - start_ns > longest_ns ? scene_now_ns() - start_ns : longest_ns;
        } while (!atomic_load(&answered));
        REQUIRE(pthread_join(asker, NULL));
    }
    EXPECT(longest_ns < 1000 * MS_NS);
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 8, NULL);
}
