/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A chain of programs, none of them this cache's business but the last: sh, env, python, and this
 * program again, which uses the GPU. Output and exit code come through.
 */
#include "tests/preload/scene.h"

#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        char command[4096];
        snprintf(command, sizeof command, "import os; os.execv('%s', ['%s', 'last'])", argv[0],
                 argv[0]);
        execlp("sh", "sh", "-c", "echo in sh; exec env python3 -c \"$0\"", command, (char *)NULL);
        return 127;
    }
    const uint64_t words = 4 * KIB;
    uint64_t block = 0;
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, words * 4));
    REQUIRE(gpu_fill(block, words, 4, NULL));
    printf("last: %u wrong words\n", scene_wrong_words(block, words, 4, NULL));
    REQUIRE(gpu_free(block));
    return 33;
}
