/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies, memsets and launches: bytes, what is synchronous, what is refused. */
#include "tests/sim/fixture.h"

static CUdeviceptr a, b;
static uint8_t *host, *back;

static int set_up(void **state)
{
    fixture_start(state);
    a = alloc(MIB);
    b = alloc(MIB);
    host = malloc(MIB);
    back = malloc(MIB);
    for (size_t i = 0; i < MIB; i++)
        host[i] = (uint8_t)(i * 31 + i / 256);
    return 0;
}

static void linear_copies_move_every_byte(void **state)
{
    const size_t sizes[] = {1, 3, 64, 4097, MIB};
    for (int i = 0; i < 5; i++) {
        size_t n = sizes[i];
        memset(back, 0, MIB);
        OK(cuMemcpyHtoD(a, host, n));
        OK(cuMemcpyDtoD(b, a, n));
        OK(cuMemcpyDtoH(back, b, n));
        assert_memory_equal(host, back, n);
        memset(back, 0, MIB);
        OK(cuMemsetD8(b, 0, MIB));
        OK(cuMemcpyPeer(b, context, a, context, n));
        OK(cuMemcpyDtoHAsync(back, b, n, NULL)); /* pageable: complete on return */
        assert_memory_equal(host, back, n);
    }
    OK(cuMemcpyHtoD(a, NULL, 0));
}

static void unknown_addresses_are_refused(void **state)
{
    CUdeviceptr gone = alloc(4 * MIB);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr mapped = map(2 * MIB, &handle);
    OK(cuMemFree(gone));
    OK(cuMemUnmap(mapped, 2 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(a, gone, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(mapped, a, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(gone, a, 4, NULL));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(mapped, 2 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(4096, host, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, (CUdeviceptr)(uintptr_t)host, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(a, 4096, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a, NULL, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(4096, 0, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a + 2, 0, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(a, 0, 64 * MIB));
}

static void what_is_synchronous(void **state)
{
    uint8_t *pinned;
    uint64_t start = simNow_ns();
    OK(cuMemAllocHost((void **)&pinned, MIB));
    spin(NULL, 10 * MS);
    OK(cuMemsetD8(a, 1, 100));
    OK(cuMemcpyDtoD(b, a, 100));
    OK(cuMemcpyHtoDAsync(a, pinned, 100, NULL));
    OK(cuMemcpyHtoDAsync(a, host, 100, NULL)); /* pageable and small: staged */
    OK(cuMemcpyDtoHAsync(pinned, a, 100, NULL));
    assert_true(simNow_ns() - start < 10 * MS);
    OK(cuMemcpyHtoD(a, host, 100));
    assert_true(simNow_ns() - start >= 10 * MS);
    start = simNow_ns();
    spin(NULL, 10 * MS);
    OK(cuMemcpyDtoHAsync(back, a, 100, NULL)); /* to pageable memory: waits */
    assert_true(simNow_ns() - start >= 10 * MS);
    /* The copy reads page-locked memory when it runs, and staged memory when it is submitted. */
    pinned[0] = host[0] = 1;
    spin(NULL, MS);
    OK(cuMemcpyHtoDAsync(a, pinned, 1, NULL));
    OK(cuMemcpyHtoDAsync(b, host, 1, NULL));
    pinned[0] = host[0] = 2;
    OK(cuMemcpyDtoH(back, a, 1));
    assert_int_equal(back[0], 2);
    OK(cuMemcpyDtoH(back, b, 1));
    assert_int_equal(back[0], 1);
    OK(cuMemcpyHtoDAsync(b, host, MIB, NULL)); /* pageable and large: read before it returns */
    host[0] = 0;
    OK(cuMemcpyDtoH(back, b, 1));
    assert_int_equal(back[0], 2);
    OK(cuMemFreeHost(pinned));
}

static void memsets_write_whole_elements(void **state)
{
    const uint8_t want[] = {0,    0,    7,    7,    0,    0,    0,    0, 0xef,
                            0xbe, 0xad, 0xde, 0xef, 0xbe, 0xad, 0xde, 0};
    OK(cuMemsetD8(a, 0, MIB));
    OK(cuMemsetD8(a + 2, 7, 2));
    OK(cuMemsetD32(a + 8, 0xdeadbeef, 2));
    OK(cuMemcpyDtoH(back, a, sizeof want));
    assert_memory_equal(back, want, sizeof want);
}

static void launches_are_checked(void **state)
{
    uint64_t words = 100;
    uint32_t value = 78;
    void *params[] = {&a, &words, &value};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    OK(cuLaunchKernelEx(&config, kernel("fill"), params, NULL));
    assert_int_equal(wrong(a, 100, 78), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuLaunchKernel(kernel("fill"), 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuLaunchKernel(kernel("fill"), 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuLaunchKernel((CUfunction)(void *)host, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

static void modules_and_libraries_know_their_entries(void **state)
{
    static const char text[] =
        ".version 6.3\n.target sm_75\n.visible .entry fill(.param .u64 p)\n{ret;}\n"
        ".entry mystery()\n{ret;}\n";
    CUmodule module;
    CUlibrary library;
    CUfunction function;
    CUkernel found;
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "not a module"));
    OK(cuModuleLoadData(&module, text));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "spin"));
    OK(cuModuleGetFunction(&function, module, "mystery"));
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    OK(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&found, library, "fill"));
    uint64_t words = 10;
    uint32_t value = 4;
    OK(cuLaunchKernel((CUfunction)found, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a, &words, &value},
                      NULL));
    assert_int_equal(wrong(a, 10, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(linear_copies_move_every_byte), TEST(unknown_addresses_are_refused),
        TEST(what_is_synchronous),           TEST(memsets_write_whole_elements),
        TEST(launches_are_checked),          TEST(modules_and_libraries_know_their_entries),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
