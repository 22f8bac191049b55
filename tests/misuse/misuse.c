/* SPDX-License-Identifier: BSD-2-Clause */
/* The helpers of misuse.h. State: how many codes were not the native ones; one thread. */
#include "tests/misuse/misuse.h"

static int failures;

void misuse_start(void)
{
    scene_start(1, 60);
    uint64_t block = NEW_BLOCK(64 * KIB);
    REQUIRE(gpu_memset(block, 0, 64 * KIB));
    REQUIRE(gpu_free(block));
}

void misuse_report(const char *what, int rc)
{
    int last = gpu_last_error();
    printf("%s: %d, last error %d, then %d\n", what, rc, last, gpu_last_error());
}

void misuse_expect(const char *what, int rc, int native)
{
    int last = gpu_last_error();
    int then = gpu_last_error();
    printf("%s: %d, last error %d, then %d\n", what, rc, last, then);
    bool right = rc == native && last == (gpu_is_runtime ? native : 0) && then == 0;
    if (!right)
        printf("natively %d\n", native);
    failures += !right;
}

int misuse_end(void)
{
    const uint64_t words = 64 * KIB;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t block = NEW_BLOCK(words * 4);
        REQUIRE(gpu_fill(block, words, i, NULL));
        wrong += scene_wrong_words(block, words, i, NULL);
        REQUIRE(gpu_free(block));
    }
    printf("afterwards: %u wrong words, last error %d\n", wrong, gpu_last_error());
    return failures != 0 || wrong != 0;
}
