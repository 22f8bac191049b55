/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs a fuzz target without a fuzzing engine: `PROGRAM FILE|FOLDER...` replays inputs,
 * `PROGRAM --random SEED SECONDS` makes them up. An input that fails is left in the file
 * fuzz-failed-<seed> of the working directory. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX 4096

static uint8_t input[INPUT_MAX];
static size_t input_bytes;
static char failed_name[64];

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    input_bytes = fread(input, 1, sizeof input, f);
    fclose(f);
    fprintf(stderr, "%s\n", path);
    return LLVMFuzzerTestOneInput(input, input_bytes);
}

static int replay(const char *path, unsigned *count)
{
    DIR *dir = opendir(path);
    int rc = 0;
    if (!dir) {
        ++*count;
        return replay_file(path);
    }
    for (struct dirent *e; !rc && (e = readdir(dir));) {
        char name[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        ++*count;
        rc = replay_file(name);
    }
    closedir(dir);
    return rc;
}

static void keep_input(int sig)
{
    int fd = open(failed_name, O_CREAT | O_WRONLY | O_TRUNC, 0666);
    if (fd >= 0 && write(fd, input, input_bytes) == (ssize_t)input_bytes)
        close(fd);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Numerical Recipes' 64-bit congruence and xorshift: the same inputs on every machine. */
static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = *state;
    return (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd) >> 32;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int random_inputs(uint64_t seed, double seconds)
{
    double end = seconds_now() + seconds;
    uint64_t first = seed;
    signal(SIGABRT, keep_input);
    signal(SIGSEGV, keep_input);
    do {
        uint64_t state = seed;
        snprintf(failed_name, sizeof failed_name, "fuzz-failed-%llu", (unsigned long long)seed);
        input_bytes = 16 + random_next(&state) % (INPUT_MAX / (1 + random_next(&state) % 16) - 16);
        for (size_t i = 0; i < input_bytes; i++)
            input[i] = (uint8_t)random_next(&state);
        int rc = LLVMFuzzerTestOneInput(input, input_bytes);
        if (rc)
            return rc;
        seed++;
    } while (seconds_now() < end);
    fprintf(stderr, "seeds %llu to %llu\n", (unsigned long long)first,
            (unsigned long long)seed - 1);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned count = 0;
    if (argc == 4 && !strcmp(argv[1], "--random"))
        return random_inputs(strtoull(argv[2], NULL, 10), strtod(argv[3], NULL));
    for (int i = 1; i < argc; i++) {
        int rc = replay(argv[i], &count);
        if (rc)
            return rc;
    }
    if (!count) {
        fprintf(stderr, "usage: %s FILE|FOLDER...\n       %s --random SEED SECONDS\n", argv[0],
                argv[0]);
        return 2;
    }
    return 0;
}
