/* SPDX-License-Identifier: BSD-2-Clause */
/* A profiler's library that the driver loads by CUDA_INJECTION64_PATH when it is initialised. It
 * looks names up in every way while the driver starts. Its own thread allocates later. Argument:
 * its path. */
#include "tests/preload/scene.h"

static int number(void *library, const char *name)
{
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    int (*function)(void);
    if (symbol == NULL)
        return -1;
    memcpy(&function, &symbol, sizeof function);
    return function();
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    REQUIRE(setenv("CUDA_INJECTION64_PATH", argv[1], 1));
    const uint64_t words = 64 * KIB;
    uint64_t block = 0;
    uint32_t wrong = 0;
    scene_start(1, 60);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
    printf("loaded %d, started %d times, %d look-ups failed\n", library != NULL,
           number(library, "injection_starts"), number(library, "injection_failures"));
    for (uint32_t i = 0; i < 20; i++) {
        REQUIRE(gpu_malloc(&block, words * 4));
        REQUIRE(gpu_fill(block, words, i, NULL));
        wrong += scene_wrong_words(block, words, i, NULL);
        REQUIRE(gpu_free(block));
    }
    printf("%u wrong words, its own thread: %d\n", wrong, number(library, "injection_allocates"));
    return wrong != 0;
}
