/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Each call of the driver that a park and a wake make fails once, at its first, second, third ..
 * time. No byte is lost: the park is refused, or the memory comes back; the program goes on, and
 * sees no error, since the wake tries again.
 */
#include "tests/preload/park.h"

#include <stdarg.h>

enum { WORDS = 128 * 1024, BLOCKS = 3, MOST = 200 };

/* What the library calls for a park and a wake. */
static const char *const symbols[] = {
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuCtxRecordEvent",
    "cuEventQuery",
    "cuEventCreate",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuCtxPushCurrent_v2",
    "cuMemGetInfo_v2",
    "cuLaunchKernel",
    "cuCtxPopCurrent_v2",
    "cuCtxGetApiVersion",
    "cuDevicePrimaryCtxGetState",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxGetDevice",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuCtxGetCurrent",
    "cuCtxGetId",
};

/* Of retained copies alone. */
static bool is_of_retained(const char *symbol)
{
    return !strcmp(symbol, "cuLaunchKernel") || !strcmp(symbol, "cuCtxGetId");
}

static uint64_t blocks[BLOCKS];

static uint32_t wrong_words(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < BLOCKS; i++)
        wrong += scene_wrong_words(blocks[i], WORDS << i % 3, i + 1, NULL);
    return wrong;
}

__attribute__((format(printf, 1, 2))) static void fail_from(const char *spec, ...)
{
    char text[100];
    va_list arguments;
    va_start(arguments, spec);
    vsnprintf(text, sizeof text, spec, arguments);
    va_end(arguments);
    REQUIRE(SIM(simFailSpec)(text));
}

static void fail_no_more(void)
{
    SIM(simFailClear)(NULL);
}

/* A park and a use, in which the nth call fails. False: there are fewer calls. */
static bool walk(const char *symbol, unsigned nth, int code)
{
    uint64_t before = SIM(simCallCount)(symbol);
    EXPECT(before != UINT64_MAX);
    fail_from("%s:%u:%d", symbol, nth, code);
    int parked = asker_ask("park frameworks=0");
    int woke = asker_ask("wake");
    uint64_t calls = SIM(simCallCount)(symbol) - before;
    uint32_t first;
    int rc = gpu_get(&first, blocks[0], 4);
    fail_no_more();
    uint32_t wrong = rc ? 0 : wrong_words();
    if (rc || first != 1 || wrong ||
        (parked != PAGE_REPLY_DONE && parked != PAGE_REPLY_REFUSED &&
         parked != PAGE_REPLY_PARTLY)) {
        printf("%s, call %u: park %d, wake %d, the use %d, %u wrong words: %s\n", symbol, nth,
               parked, woke, rc, wrong, asker_reply());
        exit(1);
    }
    return calls >= nth;
}

ACT(no_byte_is_lost)
{
    scene_start(1, 600);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        blocks[i] = NEW_BLOCK(4 * WORDS << i % 3);
        REQUIRE(gpu_fill(blocks[i], WORDS << i % 3, i + 1, NULL));
    }
    REQUIRE(gpu_sync());
    if (!scene_simulated())
        return SCENE_SKIP;
    if (!asker_page())
        return 0;
    park();
    wake();
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        for (int code = 1; code <= 2; code++) {
            unsigned nth = 1;
            while (walk(symbols[i], nth, code))
                EXPECT(nth++ < MOST);
            if (nth == 1 && !is_of_retained(symbols[i]))
                printf("%s is not called\n", symbols[i]);
            EXPECT(nth > 1 || is_of_retained(symbols[i]));
        }
    return wrong_words() != 0;
}

static CUstream handlers_stream;
static CUcontext context;
static volatile sig_atomic_t handled, handlers_failures;

static void launch_in_handler(int signal_number)
{
    handlers_failures += gpu_fill(blocks[1], 64, 6, handlers_stream) != 0;
    handled++;
}

static void *launch(void *rc)
{
    REQUIRE(cuCtxSetCurrent(context));
    *(int *)rc = gpu_fill(blocks[0], WORDS, 5, NULL) || gpu_sync();
    return NULL;
}

/* A signal comes to a thread whose launch waits for its memory, and its handler launches, too. */
ACT(a_handler_may_launch_while_its_thread_waits)
{
    int rc = -1;
    if (scene_sanitized()) /* the simulated driver allocates memory in the handler */
        return SCENE_SKIP;
    scene_start(1, 600);
    context = CURRENT_CONTEXT();
    handlers_stream = NEW_STREAM(false);
    NEW_BLOCKS(blocks, 2, 4 * WORDS);
    REQUIRE(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = launch_in_handler}, NULL));
    if (!scene_simulated())
        return SCENE_SKIP;
    if (!asker_page())
        return 0;
    park();
    fail_from("%s:1+:2", "cuMemCreate");
    pthread_t thread = NEW_THREAD(launch, &rc);
    scene_sleep_ms(200);
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_kill(thread, SIGUSR2));
        scene_sleep_ms(50);
    }
    EXPECT(rc == -1);
    fail_no_more();
    REQUIRE(pthread_join(thread, NULL));
    EXPECT(handled > 0 && !handlers_failures);
    return rc || scene_wrong_words(blocks[0], WORDS, 5, NULL) ||
           scene_wrong_words(blocks[1], 64, 6, NULL);
}

/* One block, filled. False: bare, or another driver than the simulated one; *rc is the act's. */
static bool begin_one(int *rc)
{
    scene_start(1, 300);
    blocks[0] = NEW_FILLED(WORDS, 1, NULL);
    REQUIRE(gpu_sync());
    *rc = scene_simulated() ? 0 : SCENE_SKIP;
    return asker_page() && scene_simulated();
}

/* The driver has no memory for long: the use gets its error, nothing is lost, and a later one is
 * right. */
ACT(without_memory_the_use_fails_and_later_ones_are_right)
{
    uint32_t first = 0;
    int rc;
    if (!begin_one(&rc))
        return rc;
    expect_code(asker_ask("set PARK_WAIT=300ms"), PAGE_REPLY_DONE);
    park();
    fail_from("%s:1+:2", "cuMemCreate");
    EXPECT(gpu_get(&first, blocks[0], 4) == CUDA_ERROR_OUT_OF_MEMORY);
    expect_parked(true);
    EXPECT(gpu_get(&first, blocks[0], 4) == CUDA_ERROR_OUT_OF_MEMORY);
    fail_no_more();
    return scene_wrong_words(blocks[0], WORDS, 1, NULL) != 0;
}

/* The driver records an event of the context no more, and later again. */
ACT(an_event_that_fails_ends_no_later_park)
{
    int rc;
    if (!begin_one(&rc))
        return rc;
    park();
    wake();
    fail_from("cuCtxRecordEvent:1+:1");
    expect_refused("the driver does not say whether GPU work runs");
    fail_no_more();
    for (int i = 0; i < 2; i++) {
        park();
        EXPECT(scene_wrong_words(blocks[0], WORDS, 1, NULL) == 0);
    }
    REQUIRE(gpu_spin_fill(blocks[0], WORDS, 2, 3000 * MS_NS, NULL));
    expect_refused("GPU work still runs");
    REQUIRE(gpu_sync());
    park();
    return scene_wrong_words(blocks[0], WORDS, 2, NULL) != 0;
}

/* What the driver does not unmap stays on the device, so the next use need not wait for it. */
ACT(memory_that_the_driver_does_not_unmap_stays)
{
    int rc;
    if (!begin_one(&rc))
        return rc;
    fail_from("cuMemUnmap:1+:1");
    park_as("park", PAGE_REPLY_PARTLY);
    EXPECT(strstr(asker_reply(), "\"other\""));
    expect_parked(false);
    uint64_t start_ns = scene_now_ns();
    EXPECT(scene_wrong_words(blocks[0], WORDS, 1, NULL) == 0);
    EXPECT(scene_now_ns() - start_ns < 5000 * MS_NS);
    fail_no_more();
    park();
    EXPECT(scene_wrong_words(blocks[0], WORDS, 1, NULL) == 0);
    return 0;
}

/* A try to wake fails, and the driver does not unmap what the try has mapped. The next try finds
 * the old mapping at the address. */
ACT(a_mapping_that_stays_hinders_no_later_try)
{
    int rc;
    if (!begin_one(&rc))
        return rc;
    expect_code(asker_ask("set PARK_WAIT=2s"), PAGE_REPLY_DONE);
    static const char *const steps[] = {"cuMemSetAccess", "cuMemcpyHtoDAsync_v2"};
    for (int i = 0; i < 2; i++) {
        park();
        fail_from("%s:1:1", steps[i]);
        fail_from("cuMemUnmap:1:1");
        EXPECT(scene_wrong_words(blocks[0], WORDS, 1, NULL) == 0);
        fail_no_more();
    }
    park();
    EXPECT(scene_wrong_words(blocks[0], WORDS, 1, NULL) == 0);
    return 0;
}

/* ---- Errors that stick. All that follows fails with them, as bare. */

static void show_end(const char *when)
{
    uint64_t block = 0;
    uint32_t first;
    printf("%s: %d, ", when, gpu_get(&first, blocks[0], 4));
    printf("%d %d %d, ", gpu_sync(), gpu_fill(blocks[0], WORDS, 2, NULL), gpu_malloc(&block, 512));
    printf("%d %d, ", gpu_malloc(&block, 40 * MIB), gpu_free(blocks[0]));
    printf("%d %d\n", gpu_mem_info(&(size_t){0}, NULL), gpu_last_error());
}

static void write_nowhere(void)
{
    REQUIRE(gpu_fill(0x1000, 1024, 1, NULL));
}

static void begin_block(void)
{
    scene_start(1, 60);
    blocks[0] = NEW_FILLED(WORDS, 1, NULL);
    REQUIRE(gpu_sync());
}

ACT(a_park_of_a_broken_context_changes_no_error)
{
    begin_block();
    write_nowhere();
    int code = asker_ask("park wait=2000");
    EXPECT(code == -1 || code == PAGE_REPLY_REFUSED);
    show_end("before");
    expect_code(asker_ask("park"), PAGE_REPLY_REFUSED);
    return 0;
}

ACT(work_that_wakes_breaks_its_context_as_bare)
{
    begin_block();
    park();
    write_nowhere();
    expect_parked(false);
    show_end("parked");
    expect_code(asker_ask("park"), PAGE_REPLY_REFUSED);
    return 0;
}

/* A context is lost in a copy of the library's. Bare, it is lost by then. Another one is not. */
static int lose_context(const char *copy)
{
    begin_block();
    if (!scene_simulated())
        return SCENE_SKIP;
    CUcontext first = CURRENT_CONTEXT(), other = NEW_CONTEXT();
    blocks[1] = NEW_FILLED(WORDS, 2, NULL);
    REQUIRE(gpu_sync());
    REQUIRE(cuCtxSetCurrent(first));
    bool out = !strcmp(copy, "cuMemcpyDtoHAsync_v2");
    if (!out)
        park();
    if (asker_page())
        fail_from("%s:1:700!", copy);
    else
        write_nowhere();
    if (out)
        expect_code(asker_ask("park"), PAGE_REPLY_REFUSED);
    show_end(copy);
    expect_refused("a context is lost");
    expect_code(asker_ask("wake"), PAGE_REPLY_DONE);
    REQUIRE(cuCtxSetCurrent(other));
    return scene_wrong_words(blocks[1], WORDS, 2, NULL) != 0;
}

ACT_IS(ACT(a_loss_in_the_copies_is_told), lose_context("cuMemcpyDtoHAsync_v2"))
ACT_IS(ACT(a_loss_in_the_copies_back_is_told), lose_context("cuMemcpyHtoDAsync_v2"))
