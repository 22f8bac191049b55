/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that looks names up with a version. The driver exports its functions without one, so
 * that finds none of them. The runtime's have one, and lead to the driver as the linked ones do. */
#include "tests/preload/scene.h"

#include <cuda_runtime_api.h>

static const char runtime_version[] = "libcudart.so.13";

static void *ask(const char *where, void *handle, const char *name, const char *version)
{
    void *symbol = dlvsym(handle, name, version);
    printf("%s in %s, version %s: %s\n", name, where, version,
           symbol != NULL ? "found" : "missing");
    return symbol;
}

int main(void)
{
    static const char *const versions[] = {"libcuda.so.1", "GLIBC_2.2.5", "Base"};
    static const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress_v2",
                                        "cuMemAlloc"};
    cudaError_t (*by_version_malloc)(void **, size_t), (*by_version_free)(void *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *runtime = dlopen("libcudart.so.13", RTLD_NOW),
         *p = NULL;
    EXPECT(driver != NULL && runtime != NULL);
    scene_start(1, 60);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t j = 0; j < sizeof versions / sizeof *versions; j++) {
            ask("the driver", driver, names[i], versions[j]);
            ask("the process", RTLD_DEFAULT, names[i], versions[j]);
        }
    struct {
        const char *name;
        void *handle;
    } places[] = {
        {"the runtime", runtime}, {"the process", RTLD_DEFAULT}, {"what comes next", RTLD_NEXT}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        void *symbol = ask(places[i].name, places[i].handle, "cudaMalloc", runtime_version);
        memcpy(&by_version_malloc, &symbol, sizeof symbol);
        symbol = ask(places[i].name, places[i].handle, "cudaFree", runtime_version);
        memcpy(&by_version_free, &symbol, sizeof symbol);
        EXPECT(by_version_malloc != NULL && by_version_free != NULL);
        for (int round = 0; round < 50; round++) {
            REQUIRE(by_version_malloc(&p, MIB));
            REQUIRE(gpu_fill((uint64_t)(uintptr_t)p, MIB / 4, 7, NULL));
            EXPECT(scene_wrong_words((uint64_t)(uintptr_t)p, MIB / 4, 7, NULL) == 0);
            REQUIRE(cudaFree(p));
            REQUIRE(cudaMalloc(&p, MIB));
            REQUIRE(by_version_free(p));
        }
        printf("a second free: %d\n", (int)by_version_free(p));
    }
    return 0;
}
