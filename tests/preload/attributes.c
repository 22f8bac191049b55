/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pointer attributes that libraries key their own caches by: where an allocation begins and
 * ends, its number, its context and kind; asked one by one and all at once, for two blocks that lie
 * side by side and for one reissued at an address of before.
 */
#include "tests/preload/scene.h"

static unsigned long long describe(const char *what, uint64_t block, size_t size_bytes,
                                   uint64_t address)
{
    CUdeviceptr start = 0;
    size_t range_bytes = 0;
    unsigned long long id = 0;
    CUcontext context = NULL;
    CUcontext current = NULL;
    unsigned mapped = 0;
    unsigned managed = 7;
    CUdeviceptr device = 0;
    REQUIRE(cuCtxGetCurrent(&current));
    REQUIRE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
    REQUIRE(cuPointerGetAttribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
    REQUIRE(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    printf("%s: start %s, %s; ", what, start == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size");

    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_CONTEXT,    CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    };
    void *answers[] = {&range_bytes, &start, &context, &mapped, &managed, &device};
    REQUIRE(cuPointerGetAttributes(sizeof asked / sizeof *asked, asked, answers, address));
    printf("together: start %s, %s, %s context, mapped %u, managed %u, pointer %s\n",
           start == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size",
           context == current ? "its" : "another", mapped, managed,
           device == address ? "right" : "wrong");
    return id;
}

int main(void)
{
    static const size_t sizes[] = {768, 96 * KIB, 2 * MIB, 6 * MIB};
    scene_start(1, 60);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t a = 0;
        uint64_t b = 0;
        REQUIRE(gpu_malloc(&a, sizes[i]));
        REQUIRE(gpu_malloc(&b, sizes[i]));
        printf("%zu bytes\n", sizes[i]);
        unsigned long long id_a = describe("  base", a, sizes[i], a);
        unsigned long long id_b = describe("  other", b, sizes[i], b + sizes[i] - 1);
        printf("  numbers %s\n", id_a != id_b ? "differ" : "are one");
        REQUIRE(gpu_free(a));
        REQUIRE(gpu_malloc(&a, sizes[i]));
        printf("  reissued: %s number\n",
               describe("  base", a, sizes[i], a) != id_a ? "a new" : "the old");
        REQUIRE(gpu_free(a));
        REQUIRE(gpu_free(b));
    }
    return 0;
}
