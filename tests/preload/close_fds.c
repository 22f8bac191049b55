/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program closes the descriptors that it does not know, as daemons do, and then opens its own
 * files. The cache must not write into them by an old number. It has to notice that a descriptor
 * which it needs is gone. It closes them with the GPU in use.
 */
#include "tests/preload/scene.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { FILES = 64 };

/* Those with a path are the simulated driver's memory: a program that closes it loses it bare. */
static void close_all(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char link[64];
        char target[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target);
        if (length > 0 && target[0] != '/')
            close(fd);
    }
}

int main(void)
{
    const uint64_t words = 64 * KIB;
    int files[FILES];
    uint64_t block = 0;
    uint32_t wrong = 0;
    long written = 0;
    scene_start(1, 60);
    if (!scene_simulated())
        scene_skip("a real driver does not survive this");
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 3, NULL));
    REQUIRE(gpu_sync());

    close_all();
    for (int i = 0; i < FILES; i++) {
        char name[] = "/tmp/gpucache-scene-XXXXXX";
        files[i] = mkstemp(name);
        EXPECT(files[i] >= 0);
        REQUIRE(unlink(name));
    }
    for (int i = 0; i < 20; i++) {
        uint64_t other = 0;
        REQUIRE(gpu_malloc(&other, 4 * MIB));
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
    REQUIRE(gpu_free(block));
    return written != 0 || wrong != 0;
}
