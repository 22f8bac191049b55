/* SPDX-License-Identifier: BSD-2-Clause */
/* cuMemAlloc and cuMemFree: the measured error codes, rounding, capacity, waiting, attributes. */
#include <unistd.h>

#include "tests/sim/fixture.h"

static size_t used(void)
{
    size_t available, total;
    OK(cuMemGetInfo(&available, &total));
    return total - available;
}

static void misuse_gives_the_measured_codes(void **state)
{
    CUdeviceptr at = 0;
    int local;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&at, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 1));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, (size_t)1 << 45));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, SIZE_MAX));
    OK(cuMemFree(0));
    at = alloc(3 * MIB);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at + 512));
    OK(cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    at = alloc(100);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at + 1));
    OK(cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(0xdead0000));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree((CUdeviceptr)(uintptr_t)&local));
    void *host;
    OK(cuMemAllocHost(&host, 100));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree((CUdeviceptr)(uintptr_t)host));
    OK(cuMemFreeHost(host));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
}

static void vmm_memory_is_not_cuMemFrees(void **state)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = map(2 * MIB, &handle);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at, NULL));
    unmap(at, 2 * MIB, handle);
}

static void sizes_are_rounded_as_measured(void **state)
{
    size_t before = used();
    CUdeviceptr a = alloc(1), b = alloc(513), c = alloc(1);
    assert_int_equal(used() - before, 2 * MIB);
    assert_int_equal(a % 512, 0);
    assert_int_equal(b - a, 512);
    assert_int_equal(c - b, 1024);
    CUdeviceptr d = alloc(MIB), e = alloc(2 * MIB + 1);
    assert_int_equal(used() - before, (2 + 2 + 4) * MIB);
    assert_int_equal(d % (2 * MIB), 0);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemFree(d));
    OK(cuMemFree(e));
    assert_int_equal(used() - before, 2 * MIB);
    OK(cuMemFree(c));
    assert_int_equal(used(), before);
}

static void capacity_is_what_fits(void **state)
{
    CUdeviceptr blocks[100];
    int count = 0;
    size_t available;
    OK(cuMemGetInfo(&available, NULL));
    while (cuMemAlloc(&blocks[count], 16 * MIB) == CUDA_SUCCESS)
        count++;
    assert_int_equal(count, available / (16 * MIB));
    for (int i = 0; i < count; i += 2)
        OK(cuMemFree(blocks[i]));
    CUdeviceptr whole; /* physical memory is not fragmented by that, addresses are not either */
    OK(cuMemAlloc(&whole, (size_t)(count + 1) / 2 * 16 * MIB));
    OK(cuMemFree(whole));
    for (int i = 1; i < count; i += 2)
        OK(cuMemFree(blocks[i]));
}

static void free_waits_for_work_on_every_stream(void **state)
{
    const unsigned kinds[] = {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
    for (int i = 0; i < 3; i++) {
        CUdeviceptr unrelated = alloc(4 * MIB), at = alloc(4096);
        CUstream on = i < 2 ? stream(kinds[i]) : NULL;
        uint64_t start = simNow_ns();
        late_fill(on, at, 1024, 7, 20 * MS);
        OK(cuMemFree(unrelated));
        assert_true(simNow_ns() - start >= 20 * MS);
        assert_int_equal(simWorkPending(), 0);
        assert_int_equal(wrong(at, 1024, 7), 0);
        OK(cuMemFree(at));
    }
}

static void free_does_not_wait_for_another_device(void **state)
{
    CUcontext other;
    CUdeviceptr at = alloc(4 * MIB);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    CUmodule module;
    CUfunction function;
    uint64_t ns = 20 * MS, start = simNow_ns();
    OK(cuModuleLoadData(&module,
                        ".version 6.3\n.target sm_75\n.visible .entry spin(.param .u64 n){ret;}"));
    OK(cuModuleGetFunction(&function, module, "spin"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&ns}, NULL));
    OK(cuCtxPopCurrent(NULL));
    OK(cuMemFree(at));
    assert_true(simNow_ns() - start < 20 * MS);
    OK(cuDevicePrimaryCtxRelease(1));
}

/* Freed memory cannot be used. When it is allocated again, its contents have changed. */
static void freed_memory_is_gone(void **state)
{
    uint32_t word;
    CUdeviceptr keep = alloc(512), at = alloc(4096);
    OK(cuMemsetD32(at, 0x12345678, 1024));
    OK(cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&word, at, 4));
    assert_int_equal(alloc(4096), at);
    OK(cuMemcpyDtoH(&word, at, 4));
    assert_int_not_equal(word, 0x12345678);
    OK(cuMemFree(at));
    at = alloc(4 * MIB);
    OK(cuMemsetD32(at, 0x12345678, MIB));
    OK(cuMemFree(at));
    assert_int_equal(alloc(4 * MIB), at);
    OK(cuMemcpyDtoH(&word, at + 2 * MIB, 4));
    assert_int_not_equal(word, 0x12345678);
    OK(cuMemFree(at));
    OK(cuMemFree(keep));
}

static void pitch_is_a_multiple_of_512(void **state)
{
    CUdeviceptr at;
    size_t pitch;
    OK(cuMemAllocPitch(&at, &pitch, 1000, 10, 4));
    assert_int_equal(pitch, 1024);
    OK(cuMemFree(at));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&at, &pitch, 1000, 10, 3));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(NULL, &pitch, 1000, 10, 4));
}

static void dma_bufs_are_of_whole_pages_with_memory(void **state)
{
    CUdeviceptr small = alloc(5000), large = alloc(3 * MIB), page = small & ~UINT64_C(4095);
    const CUmemRangeHandleType type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    int fd = -1;
    OK(cuMemGetHandleForAddressRange(&fd, page, 8192, type, 0));
    assert_int_equal(close(fd), 0);
    OK(cuMemGetHandleForAddressRange(&fd, large + 4096, 4096, type, 0));
    assert_int_equal(close(fd), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, large + 512, 4096, type, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, large, 5000, type, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, 0x10000, 4096, type, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetHandleForAddressRange(NULL, large, 4096, type, 0));
    OK(cuMemFree(small));
    OK(cuMemFree(large));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, large, 4096, type, 0));
}

static void range_and_attributes_tell_the_allocation(void **state)
{
    CUdeviceptr at = alloc(5000), base, other = alloc(5000);
    size_t size;
    OK(cuMemGetAddressRange(&base, &size, at + 4999));
    assert_int_equal(base, at);
    assert_int_equal(size, 5000);
    /* The bytes behind it belong to no block, though the size is rounded. */
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, at + 5000));
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, at + 5119));
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, 4096));
    OK(cuMemGetAddressRange(NULL, NULL, 4096));

    CUcontext owner = NULL;
    unsigned type = 0, capable = 0, ordinal = 99;
    unsigned long long id = 0, other_id = 0;
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at + 100));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
    assert_ptr_equal(owner, context);
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(capable, 1);
    assert_int_equal(ordinal, 0);
    assert_int_not_equal(id, other_id);
    unsigned on = 1, seen = 0;
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    assert_int_equal(seen, 1);
    assert_int_equal(simSyncMemops(at + 100), 1);
    assert_int_equal(simSyncMemops(other), 0);

    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    OK(cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, other));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, other));
    assert_int_equal(seen, 1);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at + 5000));

    CUmemGenericAllocationHandle handle;
    CUdeviceptr mapped = map(2 * MIB, &handle);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, mapped));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, mapped));
    assert_null(owner);
    assert_int_equal(capable, 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, mapped));
    CUipcMemHandle ipc;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, mapped));
    unmap(mapped, 2 * MIB, handle);

    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT};
    void *answers[] = {&size, &owner};
    OK(cuPointerGetAttributes(2, asked, answers, at));
    assert_int_equal(size, 5000);
    OK(cuPointerGetAttributes(2, asked, answers, 4096));
    assert_int_equal(size, 0);
    assert_null(owner);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, 4096));
    OK(cuMemFree(at));
    OK(cuMemFree(other));
}

static void small_blocks_lie_in_the_mapping_of_their_page(void **state)
{
    static const size_t sizes[] = {512, 32 * KIB, 3 * MIB};
    for (int i = 0; i < 3; i++) {
        CUdeviceptr block[2] = {alloc(sizes[i]), alloc(sizes[i])}, base[2];
        size_t size[2];
        unsigned long long id[2];
        for (int j = 0; j < 2; j++) {
            CUdeviceptr last = block[j] + sizes[i] - 1;
            OK(cuPointerGetAttribute(&base[j], CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, last));
            OK(cuPointerGetAttribute(&size[j], CU_POINTER_ATTRIBUTE_MAPPING_SIZE, last));
            OK(cuPointerGetAttribute(&id[j], CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, last));
            assert_int_equal(size[j], sizes[i] < MIB ? 2 * MIB : 4 * MIB);
        }
        assert_int_equal(base[0], block[0]);
        assert_int_equal(base[1], sizes[i] < MIB ? block[0] : block[1]);
        assert_true((id[0] == id[1]) == (sizes[i] < MIB));
        OK(cuMemFree(block[0]));
        OK(cuMemFree(block[1]));
    }
}

static void only_managed_memory_takes_advice(void **state)
{
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUdeviceptr plain = alloc(4096), managed;
    int word = -77;
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemAdvise_v2(plain, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemRangeGetAttribute(&word, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 4096));
    assert_int_equal(word, -77);
    OK(cuMemAdvise_v2(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    OK(cuMemRangeGetAttribute(&word, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, managed, 4096));
    assert_int_equal(word, CU_DEVICE_INVALID);
    OK(cuMemFree(managed));
    OK(cuMemFree(plain));
}

static void kernels_cannot_touch_what_is_not_there(void **state)
{
    CUcontext own;
    CUmodule module;
    CUfunction function;
    CUdeviceptr at = 0x7000000000;
    uint64_t words = 4;
    uint32_t value = 1;
    OK(cuCtxCreate(&own, NULL, 0, 0));
    OK(cuModuleLoadData(&module, ".version 6.3\n.target sm_75\n.entry fill(.param .u64 p){ret;}"));
    OK(cuModuleGetFunction(&function, module, "fill"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&at, &words, &value}, NULL));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&at, 1)); /* it sticks */
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(alloc(1)));
}

static void host_memory_is_read_and_written_by_kernels(void **state)
{
    uint32_t *host, *managed;
    CUdeviceptr device;
    OK(cuMemHostAlloc((void **)&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    fill(NULL, (CUdeviceptr)(uintptr_t)host, 1024, 5);
    OK(cuCtxSynchronize());
    assert_int_equal(host[1023], 5);
    OK(cuMemAllocManaged(&device, 4096, CU_MEM_ATTACH_GLOBAL));
    managed = (uint32_t *)(uintptr_t)device;
    managed[0] = 1;
    fill(NULL, device, 1024, 6);
    OK(cuCtxSynchronize());
    assert_int_equal(managed[0], 6);
    OK(cuMemFree(device));
    OK(cuMemFreeHost(host));
    uint32_t plain[16] = {0};
    OK(cuMemHostRegister(plain, sizeof plain, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(plain, sizeof plain, 0));
    fill(NULL, (CUdeviceptr)(uintptr_t)plain, 16, 9);
    OK(cuCtxSynchronize());
    assert_int_equal(plain[15], 9);
    OK(cuMemHostUnregister(plain));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(plain));
}

static void async_free_takes_plain_memory(void **state)
{
    CUdeviceptr at = alloc(4 * MIB);
    size_t before = used();
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    spin(on, MS);
    OK(cuMemFreeAsync(at, on));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at, on));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    OK(cuStreamSynchronize(on));
    assert_int_equal(before - used(), 4 * MIB);
}

static cuuint64_t pool_bytes(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t bytes = 0;
    OK(cuMemPoolGetAttribute(pool, which, &bytes));
    return bytes;
}

/* Freed memory of a pool stays taken up to the threshold, serves the pool, and goes by a trim. */
static void pools_keep_what_their_threshold_says(void **state)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool pool, current;
    CUdeviceptr at, other;
    size_t before = used();
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&current, 0));
    assert_ptr_equal(current, pool);
    OK(cuMemAllocAsync(&at, 8 * MIB, NULL));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuCtxSynchronize());
    assert_int_equal(used(), before);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocAsync(&at, 8 * MIB, NULL));
    OK(cuMemAllocAsync(&other, 4 * MIB, NULL));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemPoolTrimTo(pool, 0)); /* the free may not have been reached: it waits for nothing */
    OK(cuCtxSynchronize());
    OK(cuMemAllocAsync(&at, 6 * MIB, NULL));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuCtxSynchronize());
    uint64_t reserved = pool_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    assert_int_equal(pool_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 * MIB);
    assert_int_equal(pool_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 12 * MIB);
    assert_in_range(reserved, 10 * MIB, 12 * MIB);
    assert_int_equal(used() - before, reserved);
    OK(cuMemPoolTrimTo(pool, 5 * MIB));
    assert_int_equal(used() - before, 5 * MIB);
    OK(cuMemFreeAsync(other, NULL));
    OK(cuCtxSynchronize());
    assert_int_equal(used() - before, 5 * MIB);
    OK(cuMemPoolDestroy(pool));
    assert_int_equal(used(), before);
    OK(cuDeviceGetMemPool(&current, 0));
    assert_ptr_not_equal(current, pool);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo(pool, 0));
}

/* Peer access between contexts does not matter for memory of a pool. */
static void memory_of_a_pool_is_for_its_device(void **state)
{
    CUcontext other;
    CUmemoryPool pool;
    CUdeviceptr at;
    CUmemAccess_flags flags;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolGetAccess(&flags, pool, &location));
    assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemAllocAsync(&at, 4096, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuCtxCreate(&other, NULL, 0, 1));
    OK(cuCtxEnablePeerAccess(context, 0));
    OK(cuMemsetD32(at, 3, 16)); /* refused by the device, not by the call */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuStreamSynchronize(NULL));
}

int main(void)
{
    setenv("SIM_CAPACITY", "512M", 1);
    const struct CMUnitTest tests[] = {
        TEST(misuse_gives_the_measured_codes),
        TEST(vmm_memory_is_not_cuMemFrees),
        TEST(sizes_are_rounded_as_measured),
        TEST(capacity_is_what_fits),
        TEST(free_waits_for_work_on_every_stream),
        TEST(free_does_not_wait_for_another_device),
        TEST(freed_memory_is_gone),
        TEST(pitch_is_a_multiple_of_512),
        TEST(range_and_attributes_tell_the_allocation),
        TEST(small_blocks_lie_in_the_mapping_of_their_page),
        TEST(only_managed_memory_takes_advice),
        TEST(dma_bufs_are_of_whole_pages_with_memory),
        TEST(kernels_cannot_touch_what_is_not_there),
        TEST(host_memory_is_read_and_written_by_kernels),
        TEST(async_free_takes_plain_memory),
        TEST(pools_keep_what_their_threshold_says),
        TEST(memory_of_a_pool_is_for_its_device),
    };
    return RUN(tests);
}
