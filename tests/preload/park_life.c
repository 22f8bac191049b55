/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device memory of the process is on the host while the process forks, closes its descriptors,
 * ends contexts, and ends; other devices.
 */
#include "tests/preload/park_world.h"

#include <glob.h>

/* ---- The process */

ACT(forks_leave_the_bytes_alone)
{
    begin(1);
    park();
    for (int quick = 0; quick < 2; quick++) {
        pid_t child = scene_fork();
        if (!child) {
            if (quick)
                _exit(0);
            exit(0);
        }
        EXPECT(scene_wait(child) == 0);
    }
    expect_parked(true);
    return wrong_a() != 0;
}

ACT(closed_descriptors_are_not_missed)
{
    begin(1);
    if (!scene_simulated())
        scene_skip("a real driver does not survive this");
    (void)asker_page();
    park();
    for (int fd = 3; fd < 200; fd++)
        close(fd);
    return wrong_a() != 0;
}

/* Writable mappings that are large enough for parked bytes. */
enum { BIG_BYTES = 160 << 20, STAGING_BYTES = 64 << 20, MAPPING_BYTES_LEAST = 8 << 20 };

struct mappings {
    unsigned count;
    unsigned long from[256], to[256];
    uint64_t new_bytes; /* of those that are in no older list */
};

static bool lies_within(const struct mappings *m, unsigned long from, unsigned long to)
{
    for (unsigned i = 0; i < m->count; i++)
        if (from < m->to[i] && to > m->from[i])
            return true;
    return false;
}

/* The mappings of now. Those that were not in *before are in no core dump and in no child. */
static void read_mappings(struct mappings *m, const struct mappings *before)
{
    char line[512], rights[5];
    unsigned long from = 0, to = 0;
    bool is_new = false;
    *m = (struct mappings){0};
    FILE *maps = fopen("/proc/self/smaps", "r");
    EXPECT(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s ", &from, &to, rights) == 3) {
            is_new = rights[1] == 'w' && to - from >= MAPPING_BYTES_LEAST &&
                     !(before && lies_within(before, from, to));
            if (!is_new)
                continue;
            EXPECT(m->count < 256);
            m->from[m->count] = from;
            m->to[m->count++] = to;
        } else if (is_new && before && strncmp(line, "VmFlags:", 8) == 0) {
            if (!strstr(line, " dc") || !strstr(line, " dd"))
                fprintf(stderr, "%lx-%lx: %s", from, to, line);
            EXPECT(strstr(line, " dc") && strstr(line, " dd"));
            m->new_bytes += to - from;
        }
    }
    fclose(maps);
}

static int has_no_copy(const char *place)
{
    static struct mappings before, parked;
    char words[64];
    begin(1);
    uint64_t big = NEW_BLOCK(BIG_BYTES);
    REQUIRE(gpu_memset(big, 1, BIG_BYTES));
    REQUIRE(gpu_sync());
    read_mappings(&before, NULL);
    snprintf(words, sizeof words, "park wait=2000 to=%s", place);
    park_as(words, PAGE_REPLY_DONE);
    read_mappings(&parked, &before);
    EXPECT(!asker_page() || parked.new_bytes >= BIG_BYTES + STAGING_BYTES);
    return wrong_a() != 0;
}

ACT_IS(ACT(a_core_dump_and_a_child_have_no_copy), has_no_copy("host"))
ACT_IS(ACT(a_core_dump_and_a_child_have_no_copy_of_a_file), has_no_copy("/tmp"))

/* The result is taken once main has ended. */
static void take_result(void)
{
    if (gpu_get(here, a, BYTES) || here[0] != VALUE || here[WORDS - 1] != VALUE)
        _exit(1);
}

ACT(a_result_is_there_at_exit)
{
    begin(1);
    REQUIRE(atexit(take_result));
    park();
    return 0;
}

/* Handlers run last to first. The driver's own is there since cuInit, and the library's since the
 * first allocation: one of the program's that came between both runs when the library has left. */

static bool has_page, by_thread;
static pthread_t user;
static atomic_bool may_use;

static bool page_is_there(void)
{
    char pattern[600];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*-%d-*%s", getenv("GPUCACHE_DIR"), (int)getpid(),
             PAGE_SUFFIX);
    int rc = glob(pattern, GLOB_NOSORT, NULL, &found);
    globfree(&found);
    return rc != GLOB_NOMATCH;
}

static void *use_all(void *unused)
{
    while (!atomic_load(&may_use))
        scene_sleep_ms(1);
    REQUIRE(cuCtxSetCurrent(context));
    take_result();
    if (gpu_fill(b, WORDS, 9, stream) || scene_wrong_words(b, WORDS, 9, stream))
        _exit(1);
    return unused;
}

static void use_behind_the_library(void)
{
    if (has_page && page_is_there())
        _exit(2);
    atomic_store(&may_use, true);
    if (by_thread ? pthread_join(user, NULL) : use_all(NULL) != NULL)
        _exit(3);
}

/* Parked, with that handler. */
static void begin_late(void)
{
    scene_start(1, 300);
    REQUIRE(atexit(use_behind_the_library));
    begin(1);
    scene_watchdog(60);
    has_page = asker_page();
    EXPECT(!has_page || page_is_there());
    park();
}

ACT(a_result_is_there_behind_the_librarys_exit)
{
    begin_late();
    return 0;
}

ACT(a_thread_may_use_it_behind_the_librarys_exit)
{
    begin_late();
    by_thread = true;
    user = NEW_THREAD(use_all, NULL);
    return 0;
}

/* All of two pools: what the first one has back goes away again, and comes with the next try. */
ACT(a_wake_behind_the_librarys_exit_tries_again)
{
    begin_late();
    CUcontext own = NEW_CONTEXT();
    (void)NEW_FILLED(WORDS, 5, NULL);
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuCtxSetCurrent(context));
    park();
    if (!scene_simulated())
        scene_skip("only the simulated driver fails");
    if (has_page)
        REQUIRE(SIM(simFailSpec)("cuMemcpyHtoDAsync_v2:2:1"));
    return own == context;
}

ACT(contexts_end_while_it_is_away)
{
    CUdeviceptr block;
    int failures = 0;
    begin(1);
    for (int i = 0; i < 3; i++) {
        CUcontext own = NEW_CONTEXT();
        REQUIRE(cuMemAlloc(&block, 8 * MIB));
        REQUIRE(cuMemsetD8(block, 1, 8 * MIB));
        REQUIRE(cuCtxSynchronize());
        park();
        REQUIRE(cuCtxDestroy(own));
        REQUIRE(cuCtxSetCurrent(context));
        failures += wrong_a() != 0; /* the other stays */
        park();
        if (i == 2)
            break;
    }
    REQUIRE(gpu_reset());
    REQUIRE(gpu_open(0));
    context = CURRENT_CONTEXT();
    uint64_t again = NEW_BLOCK(BYTES);
    REQUIRE(gpu_fill(again, WORDS, 2, NULL));
    REQUIRE(gpu_sync());
    park();
    return failures + (scene_wrong_words(again, WORDS, 2, NULL) != 0);
}

static CUcontext ending;

static void *end_a_context(void *unused)
{
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(ending ? (int)cuCtxDestroy(ending) : gpu_reset());
    return unused;
}

static void *ask(void *words)
{
    (void)asker_ask(words);
    return NULL;
}

/* A call of the library's waits in the driver while another thread ends a context. */
static void end_within(const char *call, char *words)
{
    bool asked = asker_page();
    if (asked)
        REQUIRE(SIM(simHold)(call));
    pthread_t asker = NEW_THREAD(ask, words);
    scene_await_held(asked);
    pthread_t ender = NEW_THREAD(end_a_context, NULL);
    scene_sleep_ms(20);
    SIM(simLetGo)(call);
    REQUIRE(pthread_join(asker, NULL));
    REQUIRE(pthread_join(ender, NULL));
}

ACT(contexts_end_in_each_state)
{
    static const char *const calls[] = {"cuCtxRecordEvent", "cuMemcpyDtoHAsync_v2",
                                        "cuMemUnmap",       "cuMemCreate",
                                        "cuMemMap",         "cuMemcpyHtoDAsync_v2"};
    static char park_now[] = "park wait=2000", wake_now[] = "wake";
    begin(1);
    if (!scene_simulated())
        return SCENE_SKIP;
    for (int i = 0; i < 12; i++) {
        ending = i % 2 ? NULL : NEW_CONTEXT(); /* or the first one, by a reset */
        if (ending) {
            REQUIRE(gpu_memset(NEW_BLOCK(8 * MIB), 1, 8 * MIB));
            REQUIRE(gpu_sync());
            REQUIRE(cuCtxSetCurrent(context));
        }
        b = NEW_FILLED(WORDS, (uint32_t)i, NULL); /* is to be copied, whatever is retained */
        REQUIRE(gpu_sync());
        if (i >= 6)
            park();
        end_within(calls[i / 2], i < 6 ? park_now : wake_now);
        if (!ending) {
            REQUIRE(gpu_open(0));
            stream = NEW_STREAM(false);
            a = NEW_FILLED(WORDS, VALUE, NULL);
            REQUIRE(gpu_sync());
        }
        EXPECT(wrong_a() == 0);
        park();
        EXPECT(wrong_a() == 0);
    }
    return 0;
}

/* One use brings the memory of all pools back, or none: where the driver lacks memory for one of
 * them, the others give theirs back, and the next try is right. */
ACT(two_pools_come_back_together)
{
    enum { CALLS = 7 };
    begin(1);
    CUcontext own = NEW_CONTEXT();
    uint64_t its = NEW_FILLED(WORDS, 5, NULL);
    REQUIRE(cuCtxSynchronize());
    unsigned rounds = 2 + (scene_simulated() && asker_page() ? CALLS : 0);
    for (unsigned i = 0; i < rounds; i++) {
        park();
        if (i >= 2) {
            char text[40];
            snprintf(text, sizeof text, "cuMemCreate:%u:2", i - 1);
            REQUIRE(SIM(simFailSpec)(text));
            (void)asker_ask("wake");
        }
        REQUIRE(cuCtxSetCurrent(i == 1 ? context : own));
        EXPECT((i == 1 ? wrong_a() : scene_wrong_words(its, WORDS, 5, NULL)) == 0);
        expect_parked(false);
        REQUIRE(cuCtxSetCurrent(i == 1 ? own : context));
        EXPECT((i == 1 ? scene_wrong_words(its, WORDS, 5, NULL) : wrong_a()) == 0);
        REQUIRE(cuCtxSetCurrent(context));
        if (i >= 2)
            SIM(simFailClear)(NULL);
    }
    return 0;
}

ACT(limits_hold)
{
    begin(1);
    uint64_t more, live = NEW_BLOCK(32 * MIB);
    REQUIRE(gpu_memset(live, 5, 32 * MIB));
    REQUIRE(gpu_sync());
    expect_code(asker_ask("set MAX_RESERVED=64M"), PAGE_REPLY_DONE);
    park();
    /* What is on the host counts, so that all of it has room again. */
    int rc = gpu_malloc(&more, 128 * MIB);
    EXPECT(!asker_page() || (rc && asker_figure("reserved_bytes") <= 64 * MIB));
    return wrong_a() != 0 || scene_wrong_words(live, 8 * MIB, 0x5050505, NULL);
}

/* ---- Devices */

ACT(peers_reach_it_afterwards)
{
    bool can = false;
    CUcontext second;
    begin(2);
    REQUIRE(gpu_peer_can(&can, 1, 0));
    if (!can)
        return SCENE_SKIP;
    REQUIRE(gpu_open(1));
    second = CURRENT_CONTEXT();
    REQUIRE(gpu_peer_enable(0));
    REQUIRE(cuCtxSetCurrent(context));
    park();
    REQUIRE(cuCtxSetCurrent(second));
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_fill(b, WORDS, 12, NULL));
    REQUIRE(gpu_sync());
    /* Its work is waited for, though it has no pool. */
    REQUIRE(gpu_spin_fill(b, WORDS, 13, 3000 * MS_NS, NULL));
    if (asker_page() && scene_simulated())
        expect_refused("GPU work still runs");
    REQUIRE(gpu_sync());
    /* And now it has one, which may stay. */
    uint64_t own = NEW_FILLED(WORDS, 3, NULL);
    CUstream its = NEW_STREAM(false);
    uint32_t *held = scene_hold(its);
    REQUIRE(gpu_fill(b, WORDS, 13, its));
    expect_code(asker_ask("park wait=20 gpu=0"), PAGE_REPLY_REFUSED);
    scene_let_go(held);
    REQUIRE(gpu_stream_sync(its));
    EXPECT(scene_wrong_words(own, WORDS, 3, NULL) == 0);
    /* To lose access changes the rights of mapped memory. */
    REQUIRE(cuCtxSetCurrent(context));
    park();
    REQUIRE(cuCtxSetCurrent(second));
    REQUIRE(gpu_peer_disable(0));
    expect_parked(false);
    REQUIRE(gpu_open(0));
    return wrong_a() != 0 || scene_wrong_words(b, WORDS, 13, NULL);
}

/* The park of one device waits for the work of the other, whichever is current. */
ACT(the_current_device_does_not_matter)
{
    begin(2);
    REQUIRE(gpu_open(1));
    uint64_t other = NEW_BLOCK(BYTES);
    CUstream its = NEW_STREAM(false);
    for (int current = 1; current >= 0; current--) {
        REQUIRE(gpu_open(1));
        uint32_t *held = scene_hold(its);
        REQUIRE(gpu_fill(other, WORDS, 21, its));
        REQUIRE(gpu_open(current));
        expect_code(asker_ask("park wait=20 gpu=0"), PAGE_REPLY_REFUSED);
        EXPECT(!asker_page() || strstr(asker_reply(), "GPU work still runs"));
        scene_let_go(held);
        park_as("park wait=2000 gpu=0", PAGE_REPLY_DONE);
        REQUIRE(gpu_open(1));
        EXPECT(scene_wrong_words(other, WORDS, 21, its) == 0);
        REQUIRE(gpu_open(0));
        EXPECT(wrong_a() == 0);
    }
    return 0;
}
