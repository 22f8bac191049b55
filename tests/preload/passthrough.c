/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory that is no plain device memory: managed, stream-ordered, arrays, pinned and registered. */
#include "tests/preload/scene.h"

#include <string.h>

int main(void)
{
    const uint64_t words = 16 * KIB;
    uint64_t managed = 0;
    uint64_t device = 0;
    uint64_t ordered = 0;
    void *array = NULL;
    void *host = NULL;
    scene_start(1, 60);

    REQUIRE(gpu_malloc(&device, words * 4));
    REQUIRE(gpu_malloc_managed(&managed, words * 4));
    REQUIRE(gpu_fill(managed, words, 42, NULL));
    REQUIRE(gpu_sync());
    uint32_t *seen = (uint32_t *)(uintptr_t)managed;
    printf("managed: %u and %u from the host\n", seen[0], seen[words - 1]);
    printf("managed: %u wrong words\n", scene_wrong_words(managed, words, 42, NULL));
    printf("managed free: %d\n", gpu_free(managed));

    REQUIRE(gpu_malloc_async(&ordered, words * 4, NULL));
    REQUIRE(gpu_fill(ordered, words, 43, NULL));
    printf("ordered: %u wrong words\n", scene_wrong_words(ordered, words, 43, NULL));
    printf("ordered free: %d\n", gpu_free_async(ordered, NULL));

    if (scene_driver_has("cuArrayCreate_v2")) {
        printf("array: %d\n", gpu_array_create(&array, 64, 64));
        printf("array free: %d\n", gpu_array_destroy(array));
    }

    REQUIRE(gpu_host_alloc(&host, words * 4));
    memset(host, 0, words * 4);
    REQUIRE(gpu_fill((uint64_t)(uintptr_t)host, words, 44, NULL));
    REQUIRE(gpu_sync());
    printf("pinned: %u from the host\n", ((uint32_t *)host)[words - 1]);
    printf("pinned free: %d\n", gpu_host_free(host));

    void *pageable = aligned_alloc(4096, words * 4);
    EXPECT(pageable != NULL);
    memset(pageable, 5, words * 4);
    printf("register: %d\n", gpu_host_register(pageable, words * 4));
    REQUIRE(gpu_put_async(device, pageable, words * 4, NULL));
    printf("registered copy: %u wrong words\n", scene_wrong_words(device, words, 0x05050505, NULL));
    printf("unregister: %d\n", gpu_host_unregister(pageable));
    free(pageable);
    printf("device free: %d\n", gpu_free(device));
    printf("last error %d\n", gpu_last_error());
    return 0;
}
