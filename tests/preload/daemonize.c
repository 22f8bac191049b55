/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A daemon: it forks twice, leaves its session, its folder and every descriptor, and then uses the
 * GPU for the first time. SIGUSR1 finds it; nothing of the cache is written to the files that it
 * opens.
 */
#include "tests/preload/scene.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
    uint64_t block = 0;
    char folder[64] = "";
    int own = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 3, NULL));
    for (int i = 0; i < 10; i++) {
        uint64_t other = 0;
        REQUIRE(gpu_malloc(&other, 4 * MIB));
        REQUIRE(gpu_free(other));
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

int main(void)
{
    int ends[2];
    struct word word = {0};
    int count = 0;
    scene_watchdog(60);
    REQUIRE(pipe(ends));
    pid_t child = fork();
    EXPECT(child >= 0);
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
    EXPECT(waitpid(child, NULL, 0) == child);
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
