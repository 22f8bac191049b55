/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the driver says of a pointer into device memory: the allocation in which it lies, its kind
 * and its device. The pointer is the allocation's base, its middle or its last byte. Of a freed one
 * the driver says nothing.
 */
#include "tests/preload/scene.h"

static void describe(const char *what, uint64_t block, size_t size_bytes, uint64_t address)
{
    uint64_t base = 0;
    size_t range_bytes = 0;
    bool is_device = false;
    int device = -1;
    int rc = gpu_address_range(&base, &range_bytes, address);
    printf("%s: %d, base %s, %s", what, rc, base == block ? "right" : "wrong",
           range_bytes == size_bytes ? "its size" : "another size");
    gpu_last_error();
    rc = gpu_pointer_is_device(&is_device, &device, address);
    printf("; attributes %d, %s memory of device %d\n", rc, is_device ? "device" : "no device",
           device);
}

int main(void)
{
    static const size_t sizes[] = {512, 5000, 1 * MIB, 2 * MIB, 7 * MIB, 40 * MIB};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t blocks[SIZES];
    scene_start(1, 60);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SIZES; i++)
            REQUIRE(gpu_malloc(&blocks[i], sizes[i]));
        for (int i = 0; i < SIZES; i++) {
            printf("%zu bytes\n", sizes[i]);
            describe("  base", blocks[i], sizes[i], blocks[i]);
            describe("  middle", blocks[i], sizes[i], blocks[i] + sizes[i] / 2);
            describe("  last", blocks[i], sizes[i], blocks[i] + sizes[i] - 1);
        }
        /* Behind the end, as far as rounding goes, there is no block. */
        describe("one past the end", blocks[1], sizes[1], blocks[1] + sizes[1]);
        describe("rounded up", blocks[1], sizes[1], blocks[1] + 5119);
        for (int i = 0; i < SIZES; i++)
            REQUIRE(gpu_free(blocks[i]));
    }

    void *host = NULL;
    bool is_device = true;
    int device = -1;
    uint64_t base = 0;
    size_t size_bytes = 0;
    REQUIRE(gpu_host_alloc(&host, 4096));
    printf("host: %d, %s memory\n",
           gpu_pointer_is_device(&is_device, &device, (uint64_t)(uintptr_t)host),
           is_device ? "device" : "no device");
    REQUIRE(gpu_host_free(host));
    printf("freed: %d\n", gpu_address_range(&base, &size_bytes, blocks[SIZES - 1] + 4096));
    printf("wild: %d\n", gpu_address_range(&base, &size_bytes, 0x1234000));
    printf("no arguments: %d\n", gpu_address_range(&base, NULL, 0x1234000));
    return 0;
}
