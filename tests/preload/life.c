/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lives made up at random: memory comes and goes on several streams, threads work meanwhile, processes
 * are forked and started, signals arrive, captures, contexts, peers and resets come in between, and in the
 * end the process leaves in one of seven ways, busy or not. `life FIRST-LAST` plays these seeds, each in a
 * process of its own; `life SEED` one of them.
 */
#include "tests/preload/scene.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 24, STREAMS = 4, BUSY_MAX = 3, STEPS = 40, CHILD_S = 20, TINY_CODE = 7, LEFT_CODE = 21 };

extern char **environ;

struct block {
    uint64_t at, words;
    uint32_t value;
    CUstream stream; /* its last work */
};

static uint64_t random_state;
static struct block blocks[BLOCKS];
static CUstream streams[STREAMS]; /* NULL: none, and the default one */
static pthread_t busy[BUSY_MAX];
static int num_busy, num_devices;
static atomic_bool stop_busy;
static volatile sig_atomic_t heard;
static bool listens;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void hear(int number)
{
    (void)number;
    heard = heard + 1;
}

static void listen_to_signals(void)
{
    struct sigaction action = {.sa_handler = hear, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
    listens = true;
}

static uint64_t draw_words(void)
{
    static const uint32_t most[] = {64, 4000, 100000, 900000};
    return draw(most[draw(4)]) + 1;
}

static CUstream some_stream(void)
{
    return streams[draw(STREAMS)];
}

static void renew(struct block *b)
{
    b->value = draw(UINT32_MAX);
    b->stream = some_stream();
    REQUIRE(gpu_fill(b->at, b->words, b->value, b->stream));
}

static uint32_t wrong_in(const struct block *b)
{
    return scene_wrong_words(b->at, b->words, b->value, b->stream);
}

static void give_or_take(void)
{
    struct block *b = &blocks[draw(BLOCKS)];
    if (b->at == 0) {
        b->words = draw_words();
        REQUIRE(gpu_malloc(&b->at, b->words * 4));
        renew(b);
        return;
    }
    if (draw(3) == 0)
        printf("  wrong words: %u\n", wrong_in(b));
    if (draw(4) == 0) /* work is under way when it is freed */
        REQUIRE(gpu_spin_fill(b->at, b->words, 1, 200000, b->stream));
    if (draw(6) == 0)
        REQUIRE(gpu_free_async(b->at, b->stream));
    else
        REQUIRE(gpu_free(b->at));
    b->at = 0;
}

static void check_all(void)
{
    uint32_t wrong = 0;
    for (int i = 0; i < BLOCKS; i++)
        wrong += blocks[i].at != 0 ? wrong_in(&blocks[i]) : 0;
    printf("  all of them, wrong words: %u\n", wrong);
}

static void change_streams(void)
{
    CUstream *s = &streams[draw(STREAMS)];
    if (*s == NULL) {
        REQUIRE(gpu_stream_create(s, draw(2) != 0));
        return;
    }
    /* What it was given goes on without it, and is waited for: nothing else would order what follows. */
    REQUIRE(gpu_stream_sync(*s));
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].stream == *s)
            blocks[i].stream = NULL;
    REQUIRE(gpu_stream_destroy(*s));
    *s = NULL;
}

static int work_a_while(int index, void *context)
{
    const uint32_t *rounds = context;
    uint32_t wrong = 0;
    CUstream stream = NULL;
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_stream_create(&stream, false));
    for (uint32_t i = 0; i < *rounds && !atomic_load(&stop_busy); i++) {
        uint64_t words = (i * 37 + (uint32_t)index * 1000) % 30000 + 1, block = 0;
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, words, i, stream));
        if (i % 4 == 0)
            wrong += scene_wrong_words(block, words, i, stream);
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_stream_destroy(stream));
    return (int)wrong;
}

static void *stay_busy(void *index)
{
    uint32_t rounds = UINT32_MAX;
    return (void *)(intptr_t)work_a_while((int)(intptr_t)index, &rounds);
}

static void add_busy(void)
{
    if (num_busy == BUSY_MAX)
        return;
    REQUIRE(pthread_create(&busy[num_busy], NULL, stay_busy, (void *)(intptr_t)num_busy));
    num_busy++;
}

static void end_busy(void)
{
    intptr_t wrong = 0;
    atomic_store(&stop_busy, true);
    for (; num_busy > 0; num_busy--) {
        void *said = NULL;
        REQUIRE(pthread_join(busy[num_busy - 1], &said));
        wrong += (intptr_t)said;
    }
    atomic_store(&stop_busy, false);
    printf("  busy threads, wrong words: %d\n", (int)wrong);
}

static void be_signalled(void)
{
    int before = heard, times = 1 + (int)draw(20);
    if (!listens)
        listen_to_signals();
    for (int i = 0; i < times; i++)
        raise(SIGUSR1);
    printf("  heard %d of %d\n", heard - before, times);
    for (int i = 0; i < times; i++)
        kill(getpid(), SIGUSR1);
}

static void ask_by_environment(void)
{
    static const char *const requests[] = {"1", "device=0", "keep=1M"};
    uint64_t block = 0;
    REQUIRE(setenv("GPUCACHE_EMPTY_CACHE", requests[draw(3)], 1));
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(gpu_free(block));
    REQUIRE(unsetenv("GPUCACHE_EMPTY_CACHE"));
}

/* In a forked child: the driver refuses everything, and then it leaves. */
static void be_a_child(uint32_t how, char *self)
{
    uint64_t block = 0;
    bool refused = gpu_malloc(&block, 4096) != 0 && (blocks[0].at == 0 || gpu_free(blocks[0].at) != 0);
    alarm(CHILD_S);
    if (how & 1 && listens)
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

struct birth {
    uint32_t how;
    char *self;
};

static int give_birth(int index, void *context)
{
    const struct birth *b = context;
    int status = -1;
    (void)index;
    fflush(stdout);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0)
        be_a_child(b->how, b->self);
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int start(char *self, const char *what)
{
    char *arguments[] = {self, (char *)(uintptr_t)what, NULL};
    int status = -1;
    pid_t child = 0;
    fflush(stdout);
    REQUIRE(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ));
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void capture(void)
{
    const uint64_t words = draw_words();
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t inside = 0;
    struct block b = {.words = words, .value = draw(1000)};
    uint32_t wrong = 0;
    REQUIRE(gpu_stream_create(&stream, false));
    REQUIRE(gpu_malloc(&b.at, words * 4));
    REQUIRE(gpu_fill(b.at, words, 0, stream));
    REQUIRE(gpu_stream_sync(stream));
    REQUIRE(gpu_capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REQUIRE(gpu_fill(b.at, words, b.value, stream));
    REQUIRE(gpu_malloc(&inside, draw_words() * 4));
    if (listens)
        raise(SIGUSR1);
    REQUIRE(gpu_free(inside));
    REQUIRE(gpu_capture_end(stream, &graph));
    REQUIRE(gpu_graph_instantiate(&exec, graph));
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

#define DRIVER(name) ((__typeof__(&(name)))(uintptr_t)symbol(#name))

static void *symbol(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = dlsym(driver, name);
    EXPECT(found != NULL);
    dlclose(driver);
    return found;
}

/* A context of the program's own, which ends with memory in it. */
static void live_in_a_context(void)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    CUresult (*destroy)(CUcontext);
    CUcontext own = NULL;
    CUcontext before = NULL;
    struct block b = {.words = draw_words(), .value = draw(1000)};
    void *found = symbol("cuCtxCreate_v2");
    memcpy(&create, &found, sizeof create);
    found = symbol("cuCtxDestroy_v2");
    memcpy(&destroy, &found, sizeof destroy);
    REQUIRE(DRIVER(cuCtxGetCurrent)(&before));
    REQUIRE(create(&own, 0, 0));
    uint64_t freed = 0;
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    REQUIRE(gpu_malloc(&freed, b.words * 8));
    REQUIRE(gpu_memset(b.at, 9, b.words * 4));
    REQUIRE(gpu_free(freed));
    printf("  in a context, wrong bytes: %zu", scene_wrong_bytes(b.at, b.words * 4, 9));
    if (draw(2) != 0)
        printf(", freed %d", gpu_free(b.at));
    printf(", ended %d\n", (int)destroy(own));
    REQUIRE(DRIVER(cuCtxSetCurrent)(before));
}

static void forget_everything(void)
{
    memset(blocks, 0, sizeof blocks);
    memset(streams, 0, sizeof streams);
}

static void reset(void)
{
    end_busy();
    printf("  reset %d\n", gpu_reset());
    forget_everything();
    REQUIRE(gpu_open(0));
    gpu_last_error();
}

static void visit_a_peer(void)
{
    bool can = false;
    struct block b = {.words = draw_words(), .value = draw(1000)};
    uint64_t here = 0;
    if (num_devices < 2 || gpu_peer_can(&can, 0, 1) != 0 || !can)
        return;
    REQUIRE(gpu_open(1));
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    REQUIRE(gpu_fill(b.at, b.words, b.value, NULL));
    REQUIRE(gpu_sync());
    REQUIRE(gpu_open(0));
    REQUIRE(gpu_malloc(&here, b.words * 4));
    bool access = draw(2) != 0;
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
    if (draw(3) == 0) { /* whose context ends with the block */
        REQUIRE(gpu_open(1));
        REQUIRE(gpu_reset());
        REQUIRE(gpu_open(0));
    } else {
        REQUIRE(gpu_free(b.at));
    }
    printf("  peer, access %d, wrong words: %u\n", access, wrong);
}

static void commit_sins(void)
{
    uint64_t block = 0;
    REQUIRE(gpu_malloc(&block, (draw_words() + 256) * 4));
    printf("  inside %d", gpu_free(block + 512));
    printf(", free %d", gpu_free(block));
    printf(", of NULL %d", gpu_free(0));
    printf(", wild %d", gpu_free(0x1234567000));
    gpu_last_error();
    printf(", too much %d\n", gpu_malloc(&block, (size_t)1 << 60));
    gpu_last_error();
}

static void step(char *self)
{
    uint32_t rounds = 4 + draw(40);
    struct birth birth = {0, self};
    uint32_t what = draw(60);
    if (what > 16) {
        for (uint32_t i = 0; i < rounds; i++)
            give_or_take();
        return;
    }
    printf("%u\n", what);
    switch (what) {
    case 0:
    case 1:
        check_all();
        break;
    case 2:
    case 3:
    case 4:
        change_streams();
        break;
    case 5:
        printf("  threads, wrong words: %d\n", scene_threads(3, work_a_while, &rounds));
        break;
    case 6:
        add_busy();
        break;
    case 7:
        end_busy();
        break;
    case 8:
        be_signalled();
        break;
    case 9:
        ask_by_environment();
        break;
    case 10:
        birth.how = draw(32);
        printf("  child %u: %d\n", birth.how, give_birth(0, &birth));
        break;
    case 11:
        birth.how = draw(32);
        printf("  child %u of a thread: %d\n", birth.how, scene_elsewhere(give_birth, &birth));
        break;
    case 12:
        printf("  another program: %d\n", start(self, "tiny"));
        break;
    case 13:
        capture();
        break;
    case 14:
        live_in_a_context();
        break;
    case 15:
        draw(2) != 0 ? reset() : commit_sins();
        break;
    case 16:
        visit_a_peer();
        break;
    }
}

static void *leave_later(void *context)
{
    (void)context;
    scene_sleep_ms(2);
    exit(LEFT_CODE);
}

static int leave(char *self)
{
    pthread_t thread;
    printf("leaves");
    if (draw(2) != 0)
        end_busy();
    fflush(stdout);
    scene_leave();
    switch (draw(7)) {
    case 0:
        exit(LEFT_CODE);
    case 1:
        quick_exit(LEFT_CODE);
    case 2:
        _exit(LEFT_CODE);
    case 3:
        REQUIRE(pthread_create(&thread, NULL, leave_later, NULL));
        pthread_exit(NULL);
    case 4:
        scene_leave_sanitizer();
        execl("/proc/self/exe", self, "tiny", (char *)NULL);
        return 127;
    case 5:
        if (num_busy == 0)
            gpu_reset();
        return LEFT_CODE;
    default:
        return LEFT_CODE;
    }
}

static int live(char *self, uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    if (draw(2) != 0)
        listen_to_signals();
    scene_start(1, 100);
    REQUIRE(gpu_device_count(&num_devices));
    for (int i = 0; i < STEPS; i++)
        step(self);
    check_all();
    return leave(self);
}

static int be_tiny(void)
{
    struct block b = {.words = 5000, .value = 12};
    scene_start(1, CHILD_S);
    REQUIRE(gpu_malloc(&b.at, b.words * 4));
    REQUIRE(gpu_fill(b.at, b.words, b.value, NULL));
    return wrong_in(&b) == 0 && gpu_free(b.at) == 0 ? TINY_CODE : 1;
}

int main(int argc, char **argv)
{
    unsigned long seed = 0, last = 0;
    int failed = 0;
    EXPECT(argc == 2);
    if (strcmp(argv[1], "tiny") == 0)
        return be_tiny();
    if (sscanf(argv[1], "%lu-%lu", &seed, &last) < 2)
        return live(argv[0], seed);
    for (; seed <= last; seed++) {
        char text[32];
        snprintf(text, sizeof text, "%lu", seed);
        int code = start(argv[0], text);
        if (code == SCENE_SKIP)
            scene_skip("not enough devices");
        printf("seed %lu: left with %d\n", seed, code);
        failed += code != LEFT_CODE && code != TINY_CODE;
    }
    return failed != 0;
}
