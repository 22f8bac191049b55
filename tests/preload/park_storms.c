/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parks and wakes beside threads that do whatever a program may do, all at once and at random
 * moments. Each checks that its bytes are its own. PARK_CYCLES: requests of each act.
 */
#include "tests/preload/park_world.h"

#include <sys/resource.h>

enum { CROWD = 60, CROWD_MAX = 1100, OWN_WORDS = 16 * 1024 };

static atomic_bool stops;
static _Atomic uint32_t wrong_words;

static unsigned cycles(void)
{
    const char *text = getenv("PARK_CYCLES");
    /* A sanitizer needs less luck with the moments, and takes many times as long. */
    return text ? (unsigned)atoi(text) : scene_sanitized() ? 10 : 30;
}

static uint32_t random_below(uint32_t *seed, uint32_t n)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed % n;
}

/* Requests at random moments. What they answer depends on what the threads do. */
static void ask_at_random(unsigned count)
{
    static const char *const asks[] = {"park wait=5",  "park wait=50",       "wake",
                                       "park wait=20", "park keep=10000000", "park frameworks=0",
                                       "look",         "flush wait=0",       "park wait=1"};
    static uint32_t seed = 12345;
    for (unsigned i = 0; i < count; i++) {
        int code = asker_ask(asks[random_below(&seed, sizeof asks / sizeof asks[0])]);
        EXPECT(code == -1 || code == PAGE_REPLY_DONE || code == PAGE_REPLY_REFUSED ||
               code == PAGE_REPLY_PARTLY);
        usleep(random_below(&seed, 20000));
    }
}

static atomic_bool all_rest;

/* The same, and at least one park comes through. */
static void park_at_random(unsigned count)
{
    ask_at_random(count);
    atomic_store(&all_rest, true);
    while (asker_page() && !asker_figure("num_parks"))
        ask_at_random(1);
    atomic_store(&all_rest, false);
}

/* All rest at the same time, so that some parks come through. */
static void rest_with_others(void)
{
    while ((atomic_load(&all_rest) || scene_now_ns() / (30 * MS_NS) % 2) && !atomic_load(&stops))
        usleep(500);
}

static pthread_t threads[CROWD_MAX];
static int crowd;

static void start(int count, void *(*run)(void *))
{
    pthread_attr_t small;
    crowd = count;
    atomic_store(&stops, false);
    REQUIRE(pthread_attr_init(&small));
    REQUIRE(pthread_attr_setstacksize(&small, 256 * KIB));
    for (int i = 0; i < count; i++)
        REQUIRE(pthread_create(&threads[i], &small, run, (void *)(intptr_t)i));
}

static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_comes = PTHREAD_COND_INITIALIZER;

static void await_stop(void)
{
    pthread_mutex_lock(&stop_lock);
    while (!atomic_load(&stops))
        pthread_cond_wait(&stop_comes, &stop_lock);
    pthread_mutex_unlock(&stop_lock);
}

static int stop(int count)
{
    pthread_mutex_lock(&stop_lock);
    atomic_store(&stops, true);
    pthread_cond_broadcast(&stop_comes);
    pthread_mutex_unlock(&stop_lock);
    for (int i = 0; i < count; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    return atomic_load(&wrong_words) != 0 || wrong_a() != 0;
}

/* Of a large crowd only the last go on, for which there are no records left. */
static void *launch_in_a_crowd(void *arg)
{
    int index = (int)(intptr_t)arg;
    uint64_t mine = b + 4 * (uint64_t)index;
    REQUIRE(cuCtxSetCurrent(context));
    for (uint32_t i = 1; !atomic_load(&stops); i++) {
        uint32_t got;
        REQUIRE(gpu_memset_async(mine, (int)(i % 256), 4, NULL));
        REQUIRE(gpu_get(&got, mine, 4));
        if (got != i % 256 * 0x1010101)
            atomic_fetch_add(&wrong_words, 1);
        if (index < crowd - CROWD)
            await_stop();
        rest_with_others();
    }
    return NULL;
}

/* Few enough to be followed, each of them; then more, which refuse all parks. */
ACT(a_crowd_launches)
{
    begin(1);
    start(CROWD, launch_in_a_crowd);
    park_at_random(cycles());
    int failures = stop(CROWD);
    start(CROWD_MAX, launch_in_a_crowd);
    ask_at_random(cycles());
    return failures + stop(CROWD_MAX);
}

/* Everything that touches memory, in any order, with pauses of any length. */
static void *live_at_random(void *arg)
{
    uint32_t seed = 77 + (uint32_t)(intptr_t)arg, value = seed << 8, found;
    uint32_t *host = malloc(4 * OWN_WORDS);
    REQUIRE(cuCtxSetCurrent(context));
    CUstream own = NEW_STREAM(false);
    uint64_t block = NEW_BLOCK(4 * OWN_WORDS), other, errors = NEW_BLOCK(4);
    REQUIRE(gpu_fill(block, OWN_WORDS, value, own));
    while (!atomic_load(&stops)) {
        switch (random_below(&seed, 7)) {
        case 0:
            REQUIRE(gpu_fill(block, OWN_WORDS, ++value, own));
            break;
        case 1:
            REQUIRE(gpu_get_async(host, block, 4 * OWN_WORDS, own));
            REQUIRE(gpu_stream_sync(own));
            atomic_fetch_add(&wrong_words, host[0] != value || host[OWN_WORDS - 1] != value);
            break;
        case 2:
            other = NEW_BLOCK(4 * OWN_WORDS << random_below(&seed, 6));
            REQUIRE(gpu_copy(other, block, OWN_WORDS, own));
            REQUIRE(gpu_stream_sync(own));
            REQUIRE(gpu_free(block));
            block = other;
            break;
        case 3:
            REQUIRE(gpu_malloc_async(&other, 4 * OWN_WORDS, own));
            REQUIRE(gpu_copy(other, block, OWN_WORDS, own));
            REQUIRE(gpu_copy(block, other, OWN_WORDS, own));
            REQUIRE(gpu_free_async(other, own));
            break;
        case 4:
            REQUIRE(gpu_memset_async(errors, 0, 4, own));
            REQUIRE(gpu_check(block, OWN_WORDS, value, errors, own));
            REQUIRE(gpu_get_async(&found, errors, 4, own));
            REQUIRE(gpu_stream_sync(own));
            atomic_fetch_add(&wrong_words, found);
            break;
        case 5:
            for (int i = 0; i < OWN_WORDS; i++)
                host[i] = value + 1;
            REQUIRE(gpu_put_async(block, host, 4 * OWN_WORDS, own));
            value++;
            break;
        default:
            usleep(random_below(&seed, 30000));
        }
        rest_with_others();
    }
    REQUIRE(gpu_stream_sync(own));
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_free(errors));
    free(host);
    return NULL;
}

/* So many threads, and one more that does something beside them; NULL: none. */
static int live_beside(int count, void *(*run_beside)(void *), unsigned times)
{
    pthread_t beside;
    begin(1);
    start(count, live_at_random);
    if (run_beside)
        REQUIRE(pthread_create(&beside, NULL, run_beside, NULL));
    park_at_random(times * cycles());
    int failures = stop(count);
    return failures + (run_beside ? pthread_join(beside, NULL) : 0);
}

ACT_IS(ACT(threads_live_at_random), live_beside(6, NULL, 1))

static void *send_signals(void *unused)
{
    while (!atomic_load(&stops)) {
        if (scene_preloaded()) /* bare it would end the process */
            REQUIRE(kill(getpid(), SIGUSR1));
        usleep(300);
    }
    return NULL;
}

ACT_IS(ACT(flushes_by_signal_come_beside), live_beside(4, send_signals, 1))

static void *open_and_close_libraries(void *unused)
{
    while (!atomic_load(&stops)) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *other = dlopen("libnsl.so.1", RTLD_NOW);
        EXPECT(driver && dlsym(driver, "cuMemAlloc_v2"));
        if (other)
            dlclose(other);
        dlclose(driver);
    }
    return NULL;
}

ACT_IS(ACT(libraries_come_and_go_beside), live_beside(4, open_and_close_libraries, 1))

static void *make_and_destroy_contexts(void *unused)
{
    for (unsigned char i = 1; !atomic_load(&stops); i++) {
        CUdeviceptr block;
        unsigned char got[4];
        CUcontext own = NEW_CONTEXT();
        REQUIRE(cuMemAlloc(&block, 4 * MIB));
        REQUIRE(cuMemsetD8(block, i, 4 * MIB));
        usleep(i * 97 % 3000);
        REQUIRE(cuMemcpyDtoH(got, block + 4 * MIB - 4, 4));
        atomic_fetch_add(&wrong_words, got[0] != i || got[3] != i);
        REQUIRE(cuCtxDestroy(own)); /* with the block */
        rest_with_others();
    }
    return NULL;
}

ACT_IS(ACT(contexts_come_and_go_beside), live_beside(3, make_and_destroy_contexts, 1))

/* Nobody allocates in them. A park asks whether their work is done, by events of theirs. */
static void *make_and_destroy_empty_contexts(void *unused)
{
    for (unsigned i = 0; !atomic_load(&stops); i++) {
        CUcontext own = NEW_CONTEXT();
        usleep(i * 97 % 3000);
        REQUIRE(cuCtxDestroy(own));
        rest_with_others();
    }
    return NULL;
}

/* The simulated driver takes its time for each question, so that a context may end in between. */
ACT(empty_contexts_come_and_go_beside)
{
    scene_cost("cuCtxGetApiVersion", "300000");
    scene_cost("cuEventQuery", "300000");
    return live_beside(0, make_and_destroy_empty_contexts, 3);
}

static void *fork_all_the_time(void *unused)
{
    while (!atomic_load(&stops)) {
        pid_t child = fork();
        if (!child)
            _exit(0);
        EXPECT(child > 0 && scene_wait(child) == 0);
        usleep(2000);
    }
    return NULL;
}

ACT_IS(ACT(forks_come_beside), live_beside(3, fork_all_the_time, 1))

/* Limits that fall while the process is parked, and rise again. Without files and host memory the
 * driver may bring no device memory back: then the use would wait until the limit rises. */
ACT(limits_of_the_process_change)
{
    static const __rlimit_resource_t which[] = {RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS,
                                                RLIMIT_DATA};
    uint32_t seed = 4711, got = 0;
    if (scene_sanitized()) /* its runtime ends the process when memory is short */
        return SCENE_SKIP;
    begin(1);
    if (!scene_simulated()) /* what a real driver does without memory is its own */
        return SCENE_SKIP;
    (void)asker_page();
    for (unsigned i = 0; i < cycles(); i++) {
        struct rlimit before, now;
        unsigned limit = i % 4;
        REQUIRE(getrlimit(which[limit], &before));
        now = before;
        now.rlim_cur = random_below(&seed, limit ? 1 << 30 : 4);
        if (now.rlim_cur > now.rlim_max)
            now.rlim_cur = now.rlim_max;
        if (i % 3 == 0)
            park();
        REQUIRE(setrlimit(which[limit], &now));
        int code = asker_ask("park");
        EXPECT(code == -1 || code == PAGE_REPLY_DONE || code == PAGE_REPLY_REFUSED);
        if (which[limit] == RLIMIT_MEMLOCK)
            REQUIRE(gpu_get(&got, a, 4));
        REQUIRE(setrlimit(which[limit], &before));
        REQUIRE(gpu_get(&got, a, 4));
        EXPECT(got == VALUE && wrong_a() == 0);
    }
    park();
    return wrong_a() != 0;
}
