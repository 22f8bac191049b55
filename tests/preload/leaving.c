/* SPDX-License-Identifier: BSD-2-Clause */
/* Ways in which processes and threads end, and signals meanwhile. */
#include "tests/preload/scene.h"

#include <sys/stat.h>

/* The process ends, in every way there is, while seven threads allocate, launch and free: it ends
 * at once and with its own code. Several times over, in processes forked before any CUDA call. */

enum { THREADS = 7, EXIT_CODE = 21 };

static atomic_int running;

static void *churn(void *context)
{
    uint64_t words = 4 * KIB * (uint64_t)(1 + (intptr_t)context);
    uint64_t block = 0;
    REQUIRE(gpu_open(0));
    atomic_fetch_add(&running, 1);
    while (gpu_malloc(&block, words * 4) == 0 && gpu_fill(block, words, 1, NULL) == 0 &&
           gpu_free(block) == 0)
        continue;
    while (pause() != 0) /* the process is ending, and the driver has */
        continue;
    return NULL;
}

enum way { BY_EXIT, BY_QUICK_EXIT, BY_UNDERSCORE_EXIT, BY_THREAD, BY_MAIN_GONE, WAYS };

static const char *const way_names[WAYS] = {"exit", "quick_exit", "_exit", "exit in a thread",
                                            "exit with main gone"};

static void *leave_later(void *context)
{
    scene_sleep_ms(20);
    exit(EXIT_CODE);
}

static void leave_busy(enum way way)
{
    scene_start(1, 100);
    for (intptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_detach(NEW_THREAD(churn, (void *)i)));
    while (atomic_load(&running) < THREADS)
        scene_sleep_ms(1);
    scene_sleep_ms(20);
    switch (way) {
    case BY_QUICK_EXIT:
        quick_exit(EXIT_CODE);
    case BY_UNDERSCORE_EXIT:
        _exit(EXIT_CODE);
    case BY_THREAD:
        NEW_THREAD(leave_later, NULL);
        pause();
        break;
    case BY_MAIN_GONE:
        NEW_THREAD(leave_later, NULL);
        pthread_exit(NULL);
    default:
        exit(EXIT_CODE);
    }
}

/* A real driver may end such a process by a signal, bare as well (580). */
static int try_to_leave(enum way way)
{
    int code, tries = 5;
    do {
        pid_t child = scene_fork();
        if (child == 0)
            leave_busy(way);
        code = scene_wait(child);
    } while (code < 0 && --tries && !scene_simulated());
    return code;
}

ACT(exit_threads)
{
    int wrong = 0;
    for (int i = 0; i < 2 * WAYS; i++) {
        int code = try_to_leave((enum way)(i % WAYS));
        if (code == SCENE_SKIP)
            scene_skip("not enough devices");
        printf("%s: left with %d\n", way_names[i % WAYS], code);
        fflush(stdout);
        wrong += code != EXIT_CODE;
    }
    return wrong != 0;
}

/* A daemon: it forks twice, leaves its session, its folder and every descriptor, and then uses the
 * GPU for the first time. SIGUSR1 finds it; nothing of the cache is written to the files that it
 * opens. */

struct word {
    int wrong, code;
    long bytes;
    mode_t mask;
    bool in_root;
};

static int work(int out)
{
    const uint64_t words = 64 * KIB;
    struct word word = {0};
    char folder[64] = "";
    int own = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    scene_start(1, 60);
    uint64_t block = NEW_FILLED(words, 3, NULL);
    for (int i = 0; i < 10; i++) {
        TAKE_AND_GIVE(4 * MIB);
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        scene_sleep_ms(2);
    }
    word.wrong = (int)scene_wrong_words(block, words, 3, NULL);
    word.code = gpu_free(block);
    word.bytes = own >= 0 ? (long)lseek(own, 0, SEEK_END) : 0;
    word.mask = umask(0);
    word.in_root = getcwd(folder, sizeof folder) != NULL && strcmp(folder, "/") == 0;
    return write(out, &word, sizeof word) != sizeof word;
}

ACT(daemonize)
{
    int ends[2];
    struct word word = {0};
    int count = 0;
    scene_watchdog(60);
    REQUIRE(pipe(ends));
    pid_t child = scene_fork();
    if (child == 0) {
        EXPECT(setsid() > 0);
        if (fork() != 0)
            _exit(0);
        umask(027);
        EXPECT(chdir("/") == 0);
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            EXPECT(dup2(null, fd) == fd);
        for (int fd = 3; fd < 256; fd++)
            if (fd != ends[1])
                close(fd);
        exit(work(ends[1]));
    }
    close(ends[1]);
    scene_wait(child);
    if (read(ends[0], &word, sizeof word) != sizeof word) {
        /* It ended without a word: there is no device. */
        scene_start(1, 60);
        printf("the daemon said nothing\n");
        return 1;
    }
    /* The pipe ends with the daemon, after it has written what processes write when they end. */
    char more;
    EXPECT(read(ends[0], &more, 1) == 0);
    printf("%d wrong words, free %d, %ld bytes by others, mask %o, in / %d\n", word.wrong,
           word.code, word.bytes, (unsigned)word.mask, word.in_root);
    return gpu_device_count(&count) != 0 || word.wrong != 0;
}

/* A program closes the descriptors that it does not know, as daemons do, and then opens its own
 * files. The cache must not write into them by an old number. It has to notice that a descriptor
 * which it needs is gone. It closes them with the GPU in use. */

enum { FILES = 64 };

/* Those with a path are the simulated driver's memory: a program that closes it loses it bare. */
static void close_all(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char link[64], target[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target);
        if (length > 0 && target[0] != '/')
            close(fd);
    }
}

ACT(close_fds)
{
    const uint64_t words = 64 * KIB;
    int files[FILES];
    uint32_t wrong = 0;
    long written = 0;
    scene_start(1, 60);
    if (!scene_simulated())
        scene_skip("a real driver does not survive this");
    uint64_t block = NEW_FILLED(words, 3, NULL);
    REQUIRE(gpu_sync());

    close_all();
    for (int i = 0; i < FILES; i++) {
        char name[] = "/tmp/gpucache-scene-XXXXXX";
        files[i] = mkstemp(name);
        EXPECT(files[i] >= 0);
        REQUIRE(unlink(name));
    }
    for (int i = 0; i < 20; i++) {
        uint64_t other = NEW_BLOCK(4 * MIB);
        REQUIRE(gpu_fill(other, words, 1, NULL));
        REQUIRE(gpu_free(other));
        if (scene_preloaded())
            REQUIRE(raise(SIGUSR1));
        scene_sleep_ms(5);
    }
    wrong = scene_wrong_words(block, words, 3, NULL);
    for (int i = 0; i < FILES; i++) {
        written += lseek(files[i], 0, SEEK_END);
        /* Still the program's file, and still open. */
        EXPECT(write(files[i], "x", 1) == 1);
        REQUIRE(close(files[i]));
    }
    printf("%ld bytes by others, %u wrong words\n", written, wrong);
    return written != 0 || wrong != 0;
}

/* Each of hundreds of short-lived threads allocates, frees half, and leaves the rest to the main
 * thread. What a thread had of its own must not be lost with it. */

enum { WAVES = 18, SHORT_THREADS = 8, BLOCKS = 6 };

static uint64_t blocks[SHORT_THREADS][BLOCKS];

static int short_life(int index, void *context)
{
    const uint32_t *value = context;
    uint32_t wrong = 0;
    REQUIRE(gpu_open(0));
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t words = (uint64_t)(index + 1) * (uint64_t)(i + 1) * 200;
        REQUIRE(gpu_malloc(&blocks[index][i], words * 4));
        REQUIRE(gpu_fill(blocks[index][i], words, *value + (uint32_t)i, CU_STREAM_PER_THREAD));
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        uint64_t words = (uint64_t)(index + 1) * (uint64_t)(i + 1) * 200;
        wrong +=
            scene_wrong_words(blocks[index][i], words, *value + (uint32_t)i, CU_STREAM_PER_THREAD);
        REQUIRE(gpu_free(blocks[index][i]));
    }
    REQUIRE(gpu_stream_sync(CU_STREAM_PER_THREAD));
    return (int)wrong;
}

ACT(short_threads)
{
    size_t before = 0;
    uint32_t wrong = 0;
    scene_start(1, 120);
    for (uint32_t wave = 0; wave < WAVES; wave++) {
        /* The first waves bring what threads and streams cost natively. */
        if (wave == WAVES / 3)
            before = FREE_BYTES();
        wrong += (uint32_t)scene_threads(SHORT_THREADS, short_life, &wave);
        for (int t = 0; t < SHORT_THREADS; t++) {
            for (int i = 1; i < BLOCKS; i += 2) {
                uint64_t words = (uint64_t)(t + 1) * (uint64_t)(i + 1) * 200;
                wrong += scene_wrong_words(blocks[t][i], words, wave + (uint32_t)i, NULL);
                REQUIRE(gpu_free(blocks[t][i]));
            }
        }
    }
    size_t after = FREE_BYTES();
    printf("%u wrong words\n", wrong);
    /* A real driver keeps memory for the streams of threads that are gone. */
    if (scene_simulated())
        printf("memory %s\n", after + 32 * MIB >= before ? "kept" : "lost");
    return wrong != 0;
}

/* Flushes asked for all the time while four threads allocate, launch and free: nothing is damaged
 * and nothing hangs. Bare, no handler would take the signal, and none is sent. */

enum { STORM_THREADS = 5, ROUNDS = 100 };

static atomic_int working = STORM_THREADS - 1;

static int storm_work(uint32_t seed)
{
    uint32_t wrong = 0;
    CUstream stream = NEW_STREAM(seed % 2 == 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t words = (i % 13 + 1) * (i % 5 == 0 ? 10000 : 700);
        uint64_t block = NEW_FILLED(words, seed + i, stream);
        wrong += scene_wrong_words(block, words, seed + i, stream);
        REQUIRE(gpu_fill(block, words, 0, stream));
        REQUIRE(gpu_free(block));
    }
    REQUIRE(gpu_stream_destroy(stream));
    atomic_fetch_sub(&working, 1);
    return (int)wrong;
}

static int storm_body(int index, void *context)
{
    if (index != 0) {
        REQUIRE(gpu_open(0));
        return storm_work((uint32_t)index * 1000);
    }
    while (atomic_load(&working) > 0) {
        if (scene_preloaded())
            REQUIRE(kill(getpid(), SIGUSR1));
        usleep(500);
    }
    return 0;
}

ACT(signal_storm)
{
    scene_start(1, 120);
    NEW_BLOCK(4096);
    int wrong = scene_threads(STORM_THREADS, storm_body, NULL);
    printf("%d wrong words\n", wrong);
    return wrong != 0;
}
