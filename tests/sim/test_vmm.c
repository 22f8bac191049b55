/* SPDX-License-Identifier: BSD-2-Clause */
/* Virtual memory management: the rules of each call, access per device, contents, life beyond a
 * context. */
#include "tests/sim/fixture.h"

static size_t used(void)
{
    return simDeviceBytesUsed(0);
}

static void granularity_is_two_mib(void **state)
{
    CUmemAllocationProp prop = on_device(0);
    size_t bytes = 0;
    OK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(bytes, 2 * MIB);
    OK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    assert_int_equal(bytes, 2 * MIB);
    CUmemGenericAllocationHandle handle;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, MIB, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
    prop = on_device(7);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, 2 * MIB, &prop, 0));
}

static void reservations_cost_no_memory(void **state)
{
    CUdeviceptr huge, aligned;
    size_t before = used(), whole = (size_t)1 << 44;
#ifdef __SANITIZE_THREAD__
    whole = (size_t)1 << 38; /* its shadow leaves no more */
#endif
    OK(cuMemAddressReserve(&huge, whole, 0, 0, 0));
    OK(cuMemAddressReserve(&aligned, 2 * MIB, (size_t)1 << 30, 0, 0));
    assert_int_equal(aligned % ((size_t)1 << 30), 0);
    assert_int_equal(used(), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&aligned, MIB, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&aligned, 2 * MIB, 3 * MIB, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(huge, 2 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(huge + 2 * MIB, whole));
    OK(cuMemAddressFree(huge, whole));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(huge, whole));
}

static void mappings_are_whole_and_do_not_overlap(void **state)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&a, 4 * MIB, &prop, 0));
    OK(cuMemCreate(&b, 2 * MIB, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, 2 * MIB, 0, a, 0)); /* not whole */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, 2 * MIB, 2 * MIB, a, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(at + MIB, 4 * MIB, 0, a, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemMap(at + 6 * MIB, 4 * MIB, 0, a, 0)); /* leaves the reservation */
    OK(cuMemMap(at, 4 * MIB, 0, a, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(at + 2 * MIB, 2 * MIB, 0, b, 0));
    OK(cuMemMap(at + 4 * MIB, 2 * MIB, 0, b, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, 2 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, 8 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 8 * MIB)); /* still mapped */
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(at, 8 * MIB, &access, 1));
    OK(cuMemSetAccess(at, 6 * MIB, &access, 1)); /* over both */
    OK(cuMemUnmap(at, 6 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, 4 * MIB));
    OK(cuMemRelease(a));
    OK(cuMemRelease(b));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(b));
    OK(cuMemAddressFree(at, 8 * MIB));
}

/* Physical memory lives as long as a handle or a mapping. It keeps its bytes when it is mapped
 * elsewhere. */
static void remapped_memory_keeps_its_bytes(void **state)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at;
    size_t before = used();
    OK(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    assert_int_equal(used() - before, 2 * MIB);
    OK(cuMemMap(at, 2 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    allow(at, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill(NULL, at, MIB / 2, 77);
    OK(cuCtxSynchronize());
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 4096)));
    OK(cuMemUnmap(at, 2 * MIB));
    assert_int_equal(used() - before, 2 * MIB);
    OK(cuMemMap(at + 4 * MIB, 2 * MIB, 0, again, 0));
    allow(at + 4 * MIB, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    assert_int_equal(wrong(at + 4 * MIB, MIB / 2, 77), 0);
    OK(cuMemUnmap(at + 4 * MIB, 2 * MIB));
    OK(cuMemRelease(again));
    assert_int_equal(used(), before);
    OK(cuMemAddressFree(at, 8 * MIB));
}

static void copies_cross_handles(void **state)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle parts[3];
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, 6 * MIB, 0, 0, 0));
    for (int i = 2; i >= 0; i--) { /* physical order is not address order */
        OK(cuMemCreate(&parts[i], 2 * MIB, &prop, 0));
        OK(cuMemMap(at + (size_t)i * 2 * MIB, 2 * MIB, 0, parts[i], 0));
    }
    allow(at, 6 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    uint32_t *host = malloc(6 * MIB), *back = calloc(1, 6 * MIB);
    for (uint32_t i = 0; i < 6 * MIB / 4; i++)
        host[i] = i * 2654435761u;
    OK(cuMemcpyHtoD(at, host, 6 * MIB));
    OK(cuMemcpyDtoH(back, at, 6 * MIB));
    assert_memory_equal(host, back, 6 * MIB);
    OK(cuMemsetD32(at + 2 * MIB - 40, 5, 20));
    assert_int_equal(wrong(at + 2 * MIB - 40, 20, 5), 0);
    CUdeviceptr base;
    size_t size;
    OK(cuMemGetAddressRange(&base, &size, at + 3 * MIB)); /* the handle's range */
    assert_int_equal(base, at + 2 * MIB);
    assert_int_equal(size, 2 * MIB);
    free(host);
    free(back);
    OK(cuMemUnmap(at, 6 * MIB));
    for (int i = 0; i < 3; i++)
        OK(cuMemRelease(parts[i]));
    OK(cuMemAddressFree(at, 6 * MIB));
}

/* A kernel that touches memory without access fails its context for good. */
static void forbidden_access_is_an_illegal_address(void **state)
{
    const CUmemAccess_flags flags[] = {CU_MEM_ACCESS_FLAGS_PROT_NONE,
                                       CU_MEM_ACCESS_FLAGS_PROT_READ};
    for (int i = 0; i < 3; i++) {
        CUmemGenericAllocationHandle handle;
        CUcontext own;
        CUmodule module;
        CUfunction function;
        uint64_t words = 4;
        uint32_t value = 1;
        CUdeviceptr at = map(2 * MIB, &handle);
        allow(at, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        allow(at, 2 * MIB, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (i < 2)
            allow(at, 2 * MIB, 0, flags[i]);
        OK(cuCtxCreate(&own, NULL, 0, i == 2)); /* device 1 has access */
        OK(cuModuleLoadData(&module,
                            ".version 6.3\n.target sm_75\n.entry fill(.param .u64 p){ret;}"));
        OK(cuModuleGetFunction(&function, module, "fill"));
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&at, &words, &value},
                          NULL));
        GIVES(i == 2 ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        unsigned long long granted = 99;
        CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
        OK(cuMemGetAccess(&granted, &location, at));
        assert_int_equal(granted, i < 2 ? flags[i] : CU_MEM_ACCESS_FLAGS_PROT_NONE);
        OK(cuCtxDestroy(own));
        OK(cuCtxSetCurrent(context));
        unmap(at, 2 * MIB, handle);
    }
}

static void needs_no_context(void **state)
{
    CUmemGenericAllocationHandle handle;
    OK(cuCtxSetCurrent(NULL));
    CUcontext now;
    OK(cuCtxGetCurrent(&now));
    assert_null(now);
    CUdeviceptr at = map(2 * MIB, &handle);
    unmap(at, 2 * MIB, handle);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&at, 1));
    OK(cuCtxSetCurrent(context));
}

static void survives_the_reset_of_a_context(void **state)
{
    CUcontext own;
    CUmemGenericAllocationHandle handle;
    size_t before = simDeviceBytesUsed(1);
    CUmemAllocationProp prop = on_device(1);
    CUdeviceptr at, plain;
    OK(cuDevicePrimaryCtxRetain(&own, 1));
    OK(cuCtxPushCurrent(own));
    OK(cuMemAlloc(&plain, 4 * MIB));
    OK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemMap(at, 2 * MIB, 0, handle, 0));
    allow(at, 2 * MIB, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemsetD32(at, 31, MIB / 2));
    OK(cuDevicePrimaryCtxReset(1));
    assert_int_equal(simDeviceBytesUsed(1) - before, 2 * MIB); /* cuMemAlloc's is gone */
    OK(cuDevicePrimaryCtxRetain(&own, 1));
    assert_int_equal(wrong(at, MIB / 2, 31), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain));
    unmap(at, 2 * MIB, handle);
    assert_int_equal(simDeviceBytesUsed(1), before);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuCtxPopCurrent(NULL));
}

static void capacity_is_shared_with_cuMemAlloc(void **state)
{
    size_t available, total;
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    OK(cuMemGetInfo(&available, &total));
    OK(cuMemCreate(&handle, available, &prop, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, 2 * MIB));
    OK(cuMemRelease(handle));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, available + 2 * MIB, &prop, 0));
    OK(cuMemFree(alloc(2 * MIB)));
}

static void properties_and_attributes_come_back(void **state)
{
    CUmemAllocationProp prop = on_device(1), seen;
    CUmemGenericAllocationHandle handle;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&seen, handle));
    assert_memory_equal(&seen, &prop, sizeof prop);
    int fd;
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&seen, handle));
}

static void only_mapped_memory_is_bound_to_a_multicast_object(void **state)
{
    CUmulticastObjectProp prop = {.numDevices = 1, .size = 8 * MIB};
    CUmemAllocationProp here = on_device(0);
    CUmemGenericAllocationHandle object, memory;
    CUdeviceptr at, plain = alloc(8 * MIB);
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(cuMemCreate(&memory, 4 * MIB, &here, 0));
    OK(cuMemMap(at, 4 * MIB, 0, memory, 0));
    OK(cuMulticastCreate(&object, &prop));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMulticastBindAddr(object, 0, at, 4 * MIB, 0));
    OK(cuMulticastAddDevice(object, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(object, 0, plain, 4 * MIB, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(memory, 0, at, 4 * MIB, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(object, 6 * MIB, at, 4 * MIB, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(object, 0, at + 2 * MIB, 4 * MIB, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastBindAddr(object, 2 * MIB, at, 4 * MIB, 0));
    OK(cuMemUnmap(at, 4 * MIB));
    OK(cuMemRelease(memory));
    OK(cuMemRelease(object));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(object));
    OK(cuMemAddressFree(at, 4 * MIB));
    OK(cuMemFree(plain));
}

int main(void)
{
    setenv("SIM_CAPACITY", "256M", 1);
    const struct CMUnitTest tests[] = {
        TEST(granularity_is_two_mib),
        TEST(reservations_cost_no_memory),
        TEST(mappings_are_whole_and_do_not_overlap),
        TEST(remapped_memory_keeps_its_bytes),
        TEST(copies_cross_handles),
        TEST(forbidden_access_is_an_illegal_address),
        TEST(needs_no_context),
        TEST(survives_the_reset_of_a_context),
        TEST(capacity_is_shared_with_cuMemAlloc),
        TEST(properties_and_attributes_come_back),
        TEST(only_mapped_memory_is_bound_to_a_multicast_object),
    };
    return RUN(tests);
}
