/* SPDX-License-Identifier: BSD-2-Clause */
/* See life.h: signals, other processes, captures, contexts and peers. */
#include "tests/preload/life.h"

#include <spawn.h>

static volatile sig_atomic_t heard;

static void hear(int number)
{
    heard = heard + 1;
}

void life_listen_to_signals(void)
{
    struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
    life.listens = true;
}

void life_be_signalled(void)
{
    int before = heard, times = 1 + (int)life_draw(20);
    if (!life.listens)
        life_listen_to_signals();
    for (int i = 0; i < times; i++)
        raise(SIGUSR1);
    printf("  heard %d of %d\n", heard - before, times);
    for (int i = 0; i < times; i++)
        kill(getpid(), SIGUSR1);
}

void life_ask_by_environment(void)
{
    static const char *const requests[] = {"1", "device=0", "keep=1M"};
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", requests[life_draw(3)], 1));
    TAKE_AND_GIVE(4096);
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
}

/* In a forked child: the driver refuses everything, and then it leaves. */
static void be_a_child(uint32_t how, char *self)
{
    uint64_t block = 0;
    bool refused = gpu_malloc(&block, 4096) != 0 &&
                   (life.blocks[0].at == 0 || gpu_free(life.blocks[0].at) != 0);
    alarm(CHILD_S);
    if (how & 1 && life.listens)
        raise(SIGUSR1);
    if (how & 2)
        setenv("GPUCACHE_EMPTY_CACHE", "1", 1);
    pid_t grandchild = how & 4 ? fork() : -1;
    if (grandchild == 0)
        _exit(3);
    if (grandchild > 0)
        waitpid(grandchild, NULL, 0);
    unsetenv("GPUCACHE_EMPTY_CACHE");
    switch (how / 8 % 4) {
    case 0:
        _exit(refused ? 5 : 6);
    case 1:
        exit(refused ? 5 : 6);
    case 2:
        quick_exit(refused ? 5 : 6);
    default:
        scene_leave_sanitizer();
        execl("/proc/self/exe", self, "tiny", (char *)NULL);
        _exit(127);
    }
}

int life_give_birth(int index, void *context)
{
    const struct birth *b = context;
    pid_t child = scene_fork();
    if (child == 0)
        be_a_child(b->how, b->self);
    return scene_wait(child);
}

int life_start(char *self, const char *what)
{
    char *arguments[] = {self, (char *)(uintptr_t)what, NULL};
    pid_t child = 0;
    fflush(stdout);
    REQUIRE(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ));
    return scene_wait(child);
}

void life_capture(void)
{
    const uint64_t words = life_draw_words();
    struct block b = {.words = words, .value = life_draw(1000)};
    uint32_t wrong = 0;
    CUstream stream = NEW_STREAM(false);
    REQUIRE(gpu_malloc(&b.at, words * 4));
    REQUIRE(gpu_fill(b.at, words, 0, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(b.at, words, b.value, stream));
    uint64_t inside = NEW_BLOCK(life_draw_words() * 4);
    if (life.listens)
        raise(SIGUSR1);
    REQUIRE(gpu_free(inside));
    CUgraph graph = END_CAPTURE(stream);
    CUgraphExec exec = NEW_EXEC(graph);
    REQUIRE(gpu_graph_destroy(graph, NULL));
    for (int i = 0; i < 3; i++) {
        REQUIRE(gpu_fill(b.at, words, 0, stream));
        REQUIRE(gpu_graph_launch(exec, stream));
        wrong += scene_wrong_words(b.at, words, b.value, stream);
    }
    REQUIRE(gpu_graph_destroy(NULL, exec));
    REQUIRE(gpu_stream_destroy(stream));
    REQUIRE(gpu_free(b.at));
    printf("  captured, wrong words: %u\n", wrong);
}

#define DRIVER(name) ((__typeof__(&(name)))(uintptr_t)scene_driver_symbol(#name))

/* A context of the program's own, which ends with memory in it. */
void life_live_in_a_context(void)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    CUresult (*destroy)(CUcontext);
    CUcontext own = NULL, before = NULL;
    struct block b = {.words = life_draw_words(), .value = life_draw(1000)};
    *(void **)&create = scene_driver_symbol("cuCtxCreate_v2");
    *(void **)&destroy = scene_driver_symbol("cuCtxDestroy_v2");
    REQUIRE(DRIVER(cuCtxGetCurrent)(&before));
    REQUIRE(create(&own, 0, 0));
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    uint64_t freed = NEW_BLOCK(b.words * 8);
    REQUIRE(gpu_memset(b.at, 9, b.words * 4));
    REQUIRE(gpu_free(freed));
    printf("  in a context, wrong bytes: %zu", scene_wrong_bytes(b.at, b.words * 4, 9));
    if (life_draw(2) != 0)
        printf(", freed %d", gpu_free(b.at));
    printf(", ended %d\n", (int)destroy(own));
    REQUIRE(DRIVER(cuCtxSetCurrent)(before));
}

static void forget_everything(void)
{
    memset(life.blocks, 0, sizeof life.blocks);
    memset(life.streams, 0, sizeof life.streams);
}

void life_reset(void)
{
    life_end_busy();
    printf("  reset %d\n", gpu_reset());
    forget_everything();
    REQUIRE(gpu_open(0));
    gpu_last_error();
}

void life_visit_a_peer(void)
{
    bool can = false;
    struct block b = {.words = life_draw_words(), .value = life_draw(1000)};
    if (life.num_devices < 2 || gpu_peer_can(&can, 0, 1) != 0 || !can)
        return;
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    REQUIRE(gpu_fill(b.at, b.words, b.value, NULL));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    uint64_t here = NEW_BLOCK(b.words * 4);
    bool access = life_draw(2) != 0;
    if (access) {
        REQUIRE(gpu_peer_enable(1));
        REQUIRE(gpu_copy(here, b.at, b.words, NULL));
    } else {
        REQUIRE(gpu_move(here, b.at, b.words * 4));
    }
    uint32_t wrong = scene_wrong_words(here, b.words, b.value, NULL);
    if (access)
        REQUIRE(gpu_peer_disable(1));
    REQUIRE(gpu_free(here));
    if (life_draw(3) == 0) { /* whose context ends with the block */
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_reset());
        REQUIRE(gpu_open(0));
    } else {
        REQUIRE(gpu_free(b.at));
    }
    printf("  peer, access %d, wrong words: %u\n", access, wrong);
}

void life_commit_sins(void)
{
    uint64_t block = NEW_BLOCK((life_draw_words() + 256) * 4);
    printf("  inside %d", gpu_free(block + 512));
    printf(", free %d", gpu_free(block));
    printf(", of NULL %d", gpu_free(0));
    printf(", wild %d", gpu_free(0x1234567000));
    gpu_last_error();
    printf(", too much %d\n", gpu_malloc(&block, (size_t)1 << 60));
    gpu_last_error();
}
