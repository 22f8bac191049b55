/* SPDX-License-Identifier: BSD-2-Clause */
/* A chain of programs, none of them this cache's business but the last: sh, env, python, and this
 * program again, which uses the GPU. Output and exit code come through. */
#include "tests/preload/scene.h"

enum { EXIT_CODE = 33 };

static void start_chain(const char *self)
{
    static const char script[] = "echo in sh; exec env python3 -c \"$0\" \"$1\"";
    static const char python[] = "import os, sys\n"
                                 "print('in python', flush=True)\n"
                                 "os.execv(sys.argv[1], [sys.argv[1], 'last'])\n";
    scene_leave_sanitizer();
    execlp("sh", "sh", "-c", script, python, self, (char *)NULL);
    _exit(127);
}

static int last(void)
{
    const uint64_t words = 4 * KIB;
    scene_start(1, 60);
    uint64_t block = NEW_FILLED(words, 4, NULL);
    printf("last: %u wrong words\n", scene_wrong_words(block, words, 4, NULL));
    REQUIRE(gpu_free(block));
    return EXIT_CODE;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return last();
    pid_t child = scene_fork();
    if (child == 0)
        start_chain(argv[0]);
    int code = scene_wait(child);
    printf("ended with %d\n", code);
    return code == SCENE_SKIP ? SCENE_SKIP : code != EXIT_CODE;
}
