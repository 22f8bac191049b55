/* SPDX-License-Identifier: BSD-2-Clause */
/* The checker reports each kind of hazard once, and nothing for programs that order their work.
 * A row is a script of words:
 *     aw      stream a, operation w (below). Streams a b c do not block, x and y do; n is the null
 *             stream, l the legacy and p the per-thread default stream.
 *     a- a+   destroys the stream, creates it again
 *     !a      records an event               ^b  b waits for it            &   the context does
 *     >ab     b waits for an event of a      $a  the host waits for one    ?a  the host asks it
 *     .a      the host waits for stream a    ,a  the host asks it          *   it waits for all
 *     @       record and wait of a context event                           F   a free
 *     ( )     begins and ends an ownership of block 0, [ ] of its lower half, { of its upper half
 *     =2      there were two hazards since the last such word
 * Rows are separated by slashes. */
#include "tests/sim/fixture.h"

#define WORDS 1024

static CUdeviceptr blocks[2], errors;
static CUstream streams[128];
static CUevent fence, all;
static uint32_t value;

enum how { FILL, LATE_FILL, EARLY, NOT_EARLY, CHECK, UPDATE, COPY, SET, SPIN };

static const struct operation {
    char letter;
    enum how how;
    int block;
    size_t first, words;
} operations[] = {
    {'w', FILL, 0, 0, WORDS},             /* writes all of block 0 */
    {'v', LATE_FILL, 0, 0, WORDS},        /* the same, late */
    {'W', FILL, 1, 0, WORDS},             /* and of block 1 */
    {'l', FILL, 0, 0, WORDS / 2},         /* the lower half */
    {'h', FILL, 0, WORDS / 2, WORDS / 2}, /* the upper half */
    {'k', FILL, 0, WORDS / 2 - 1, 1},     /* the last word of the lower half */
    {'m', SET, 0, WORDS / 2 - 2, 2},      /* two words, of which that is one, by a memset */
    {'r', CHECK, 0, 0, WORDS},            /* reads it, and adds to a sum */
    {'u', UPDATE, 0, 0, 1},               /* adds to its first word */
    {'c', COPY, 0, 0, WORDS},             /* copies block 0 to block 1 */
    {'e', EARLY, 0, 0, WORDS},            /* by a launch that may start early */
    {'E', EARLY, 1, 0, WORDS},
    {'o', NOT_EARLY, 0, 0, WORDS}, /* by one that says that it may not */
    {'s', SPIN, 0, 0, 0},
};

static void early_fill(CUstream on, CUdeviceptr at, uint64_t words, int allowed)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.programmaticStreamSerializationAllowed = allowed}};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, on, &attribute, 1};
    OK(cuLaunchKernelEx(&config, kernel("fill"), (void *[]){&at, &words, &value}, NULL));
}

static void operate(CUstream on, const struct operation *op)
{
    CUdeviceptr at = blocks[op->block] + op->first * 4;
    value++;
    switch (op->how) {
    case FILL:
        fill(on, at, op->words, value);
        break;
    case LATE_FILL:
        late_fill(on, at, op->words, value, 2 * MS);
        break;
    case EARLY:
    case NOT_EARLY:
        early_fill(on, at, op->words, op->how == EARLY);
        break;
    case CHECK:
        late_check(on, at, op->words, value, errors, MS);
        break;
    case UPDATE:
        late_check(on, errors + 4, 1, value, at, MS);
        break;
    case COPY:
        copy(on, blocks[1], at, op->words);
        break;
    case SET:
        OK(cuMemsetD32Async(at, 0, op->words, on));
        break;
    case SPIN:
        spin(on, MS);
        break;
    }
}

static void ask_until_done(CUresult (*ask)(void *), void *what)
{
    CUresult rc;
    while ((rc = ask(what)) == CUDA_ERROR_NOT_READY)
        ;
    OK(rc);
}

static CUresult ask_event(void *unused)
{
    return cuEventQuery(fence);
}

static CUresult ask_stream(void *stream)
{
    return cuStreamQuery(stream);
}

/* The words that begin with a sign, about streams `a` and `b`. */
static void order(char sign, CUstream a, CUstream b)
{
    if (strchr("!>$?", sign) != NULL)
        OK(cuEventRecord(fence, a));
    switch (sign) {
    case '!':
        break;
    case '^':
        OK(cuStreamWaitEvent(a, fence, 0));
        break;
    case '>':
        OK(cuStreamWaitEvent(b, fence, 0));
        break;
    case '$':
        OK(cuEventSynchronize(fence));
        break;
    case '?':
        ask_until_done(ask_event, NULL);
        break;
    case '.':
        OK(cuStreamSynchronize(a));
        break;
    case ',':
        ask_until_done(ask_stream, a);
        break;
    case '*':
        OK(cuCtxSynchronize());
        break;
    case '@':
        OK(cuCtxRecordEvent(NULL, all));
        OK(cuCtxWaitEvent(NULL, all));
        break;
    case '&':
        OK(cuCtxWaitEvent(NULL, fence));
        break;
    case 'F':
        OK(cuMemFree(alloc(4 * MIB)));
        break;
    case '(':
    case '[':
        simOwnerBegin(blocks[0], sign == '(' ? WORDS * 4 : WORDS * 2);
        break;
    case '{':
        simOwnerBegin(blocks[0] + WORDS * 2, WORDS * 2);
        break;
    case ']':
    case ')':
        simOwnerEnd(blocks[0]);
        break;
    default:
        fail_msg("no word %c", sign);
    }
}

static void play_word(const char *word, const char *script)
{
    CUstream a = streams[(int)word[0]];
    if (word[0] == '=') {
        if (simHazardCount() != strtoull(word + 1, NULL, 10))
            fail_msg("%s: %s: %llu hazards", script, word, (unsigned long long)simHazardCount());
        simHazardReset();
    } else if (strchr("abcxynlp", word[0]) == NULL) {
        order(word[0], word[1] != '\0' ? streams[(int)word[1]] : NULL,
              word[1] != '\0' ? streams[(int)word[2]] : NULL);
    } else if (word[1] == '-') {
        OK(cuStreamDestroy(a));
    } else if (word[1] == '+') {
        streams[(int)word[0]] = stream(CU_STREAM_NON_BLOCKING);
    } else {
        size_t i = 0;
        while (i < sizeof operations / sizeof *operations && operations[i].letter != word[1])
            i++;
        operate(a, &operations[i]);
    }
}

/* Plays one row. With `whole` its last write is in the memory then, without a hazard. */
static void play(const char *row, bool whole)
{
    char words[128], *rest = words;
    snprintf(words, sizeof words, "%s%s", row, whole ? " =0" : "");
    for (const char *name = "abcxy"; *name != '\0'; name++)
        streams[(int)*name] = stream(strchr("abc", *name) ? CU_STREAM_NON_BLOCKING : 0);
    for (int i = 0; i < 2; i++)
        blocks[i] = alloc(WORDS * 4);
    fence = event();
    all = event();
    streams['l'] = CU_STREAM_LEGACY;
    streams['p'] = CU_STREAM_PER_THREAD;
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        play_word(word, row);
    OK(cuCtxSynchronize());
    assert_int_equal(simWorkPending(), 0);
    simHazardReset();
    if (whole && wrong(blocks[0], WORDS, value) != 0)
        fail_msg("%s: wrong contents", row);
    OK(cuEventDestroy(fence));
    OK(cuEventDestroy(all));
    for (int i = 0; i < 2; i++) {
        simOwnerEnd(blocks[0] + WORDS * 2 * (size_t)i);
        OK(cuMemFree(blocks[i]));
    }
}

static void play_all(const char *rows, bool whole)
{
    char text[2048], *rest = text;
    assert_true(strlen(rows) < sizeof text);
    strcpy(text, rows);
    for (char *row; (row = strsep(&rest, "/")) != NULL;)
        play(row, whole);
}

TEST(hazards_are_reported)
{
    play_all(/* writes, reads and updates of the same bytes */
             "aw bw =1/ar bw =1/aw br =1/aw bc =1/ac bw =1/bm ac =1/ar bu =1/au br =1/ar br =0/"
             "al bk =1/al bh =0/ah bl =0/aw bk bl =2/al aw bh bk =2/am bk =1/ah bw =1/aw * bl ch "
             "=0/aw ar br =1/"
             "aw a- a+ aw =1/av a- a+ aW .a bw =1/aw !a !b ^c cw =1/"
             /* the legacy stream waits for blocking streams and they for it, not for others */
             "xw nw yw lw pw nw =0/aw nw =1/nw aw =1/xw yw =1/xw aw =1/pw xw =1/xw x- aw =1/"
             /* one ownership, the next one, and each of its streams */
             "( aw bw aw ) =0/( aw bw ) ( bw =1 )/( aw ) ( aw =0 bw =1 )/( aw ) bw =1/"
             "aw ( bw =1 )/( ar ) ( br bw =1 )/( aw ) ( aw ) ( bw =2 )/( ( aw ) bw =1/"
             "( aw ) [ bl =1 ]/[ aw bw =1/( aw bk ) ( bw =1 cw =2 )/{ ah ( ) bh =1/"
             "( aw ) ( aw ) ( aw ) ( bw =2 )/"
             /* an early launch overlaps the kernels before it back to one that is not early */
             "aw aW ae =0/aw ae =1/aw ao =0/aw aE ae =1/aw aW aE =1 ae =0/aw >aa as ae =0 ae =1/"
             "aw >aa ae =1/aw @ ae =0/aw am ae =0 ae =1/aw * ae =0/aw $a ae =0/aw ae =1 aw =0",
             false);
}

TEST(every_way_to_order_is_known)
{
    play_all("av >ab bw/av $a bw/av ?a bw/av .a bw/av ,a bw/av * bw/av @ bw/av >ac >cb bw/av F bw/"
             "xv nw/nv xw/pv nw/nv pw/xv x- nw/xv as x- nw/av a- @ bw/av bs a- b- @ cw/av @ pw/"
             "av a- bs b- @ cw/av @ bw @ cw/av @ bs @ cw/av bs !b @ & cw/xv @ nw/av @ xw nw yw",
             true);
}

/* Long chains of owners without a host wait are checked exactly, at little cost. */
TEST(many_owners_in_stream_order_are_fine)
{
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    blocks[0] = alloc(64);
    for (int i = 0; i < 5000; i++) {
        simOwnerBegin(blocks[0], 64);
        fill(a, blocks[0], 16, 1);
        simOwnerEnd(blocks[0]);
    }
    assert_int_equal(simHazardCount(), 0);
    simOwnerBegin(blocks[0], 64);
    fill(b, blocks[0], 16, 2);
    simOwnerEnd(blocks[0]);
    assert_true(simHazardCount() >= 1);
    OK(cuCtxSynchronize());
    simHazardReset();
}

/* All that use it are. The checker does not watch the host's memory. */
TEST(unmapping_memory_in_use_is_reported)
{
    CUmemGenericAllocationHandle handle;
    CUstream both[] = {stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING)};
    CUdeviceptr to = alloc(WORDS * 8);
    void *host;
    OK(cuMemAllocHost(&host, WORDS * 4));
    for (int looked = 0; looked < 2; looked++) {
        CUdeviceptr at = map(2 * MIB, &handle);
        for (size_t i = 0; i < 2; i++) {
            copy(both[i], to + i * WORDS * 4, at, WORDS);
            fill(both[i], (CUdeviceptr)(uintptr_t)host, WORDS, 1);
        }
        simAdvance_ns(MS); /* complete, but the host has not looked */
        for (int i = 0; looked && i < 2; i++)
            OK(cuStreamSynchronize(both[i]));
        unmap(at, 2 * MIB, handle);
        assert_int_equal(simHazardCount(), looked ? 0 : 2);
        simHazardReset();
    }
    OK(cuMemFreeHost(host));
    OK(cuMemFree(to));
}

TEST(freeing_memory_that_a_peer_uses_is_reported)
{
    CUcontext other;
    CUdeviceptr at = alloc(2 * MIB), from;
    CUstream on_other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    OK(cuCtxEnablePeerAccess(context, 0));
    OK(cuMemAlloc(&from, 2 * MIB));
    OK(cuStreamCreate(&on_other, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyDtoDAsync(at, from, 2 * MIB, on_other));
    OK(cuCtxPopCurrent(NULL));
    OK(cuMemFree(at)); /* waits for device 0 only, as measured */
    assert_int_equal(simHazardCount(), 1);
    simHazardReset();
    OK(cuDevicePrimaryCtxRelease(1));
}

TEST(async_pool_orders_its_own_reuse)
{
    CUstream both[] = {stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING)};
    for (int i = 0; i < 20; i++) {
        CUdeviceptr at;
        OK(cuMemAllocAsync(&at, 64 * KIB, both[i % 2]));
        late_fill(both[i % 2], at, 16 * KIB, 1, MS);
        OK(cuMemFreeAsync(at, both[i % 2]));
        simAdvance_ns(MS / 2);
    }
    assert_int_equal(simHazardCount(), 0);
}

/* The kernel of shim/park/hash.c reads pages and a key, and writes 32 bytes for each page. */
TEST(hashes_read_what_they_are_of)
{
    static const char text[] = ".version 6.0\n.target sm_50\n.entry gpucache_page_hash(";
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr pages = alloc(6 * MIB), key = alloc(4 * MIB), out = alloc(4096);
    CUdeviceptr used[] = {pages, pages + 4 * MIB - 64, key, key + 515 * 4096 - 64, out, out + 32};
    CUdeviceptr free_ones[] = {pages + 4 * MIB, key + 515 * 4096, out + 64};
    uint64_t count = 2;
    CUmodule module;
    CUfunction hash;
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&hash, module, "gpucache_page_hash"));
    for (size_t i = 0; i < 9; i++) {
        OK(cuLaunchKernel(hash, 2, 1, 1, 256, 1, 1, 0, a, (void *[]){&pages, &count, &key, &out},
                          NULL));
        fill(b, i < 6 ? used[i] : free_ones[i - 6], 8, 1);
        assert_int_equal(simHazardCount(), i < 6);
        OK(cuCtxSynchronize());
        simHazardReset();
    }
    OK(cuModuleUnload(module));
}

static int set_up(void **state)
{
    fixture_start(state);
    errors = alloc(8);
    return 0;
}

int main(void)
{
    return play_tests(set_up, NULL);
}
