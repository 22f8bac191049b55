/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of every kind but mappings: what each call refuses, sizes, contents, waiting, attributes;
 * copies, memsets and launches. */
#include "tests/sim/fixture.h"

static uint8_t host[MIB], back[MIB];

TEST(misuse_gives_the_measured_codes)
{
    const size_t pitch_width = 1000;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0, gone = alloc(4 * MIB), live = alloc(MIB);
    void *pinned;
    int local;
    BAD(cuMemAlloc(&at, 0));
    BAD(cuMemAlloc(NULL, 1));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, (size_t)1 << 45));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&at, SIZE_MAX));
    for (size_t size = 100; size < 8 * MIB; size += 3 * MIB) {
        at = alloc(size);
        BAD(cuMemFree(at + 1));
        BAD(cuMemFree(at + 512));
        OK(cuMemFree(at));
        BAD(cuMemFree(at));
    }
    OK(cuMemFree(0));
    BAD(cuMemFree(0xdead0000));
    BAD(cuMemFree((CUdeviceptr)(uintptr_t)&local));
    OK(cuMemAllocHost(&pinned, 100));
    BAD(cuMemFree((CUdeviceptr)(uintptr_t)pinned));
    OK(cuMemFreeHost(pinned));
    BAD(cuMemFreeHost(pinned));
    OK(cuMemHostRegister(host, MIB, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(host, MIB, 0));
    OK(cuMemHostUnregister(host));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(host));
    BAD(cuMemAllocPitch(&at, &(size_t){0}, pitch_width, 10, 3));
    BAD(cuMemAllocPitch(NULL, &(size_t){0}, pitch_width, 10, 4));
    /* Copies and memsets find holes, not the device. */
    at = map(2 * MIB, &handle);
    BAD(cuMemFree(at));
    BAD(cuMemFreeAsync(at, NULL));
    unmap(at, 2 * MIB, handle);
    OK(cuMemFree(gone));
    BAD(cuMemcpyDtoD(live, gone, 4));
    BAD(cuMemcpyDtoD(at, live, 4));
    BAD(cuMemcpyDtoDAsync(gone, live, 4, NULL));
    BAD(cuMemcpyHtoD(4096, host, 4));
    BAD(cuMemcpyDtoH(back, (CUdeviceptr)(uintptr_t)host, 4));
    BAD(cuMemcpyDtoH((void *)(uintptr_t)gone, live, 4));
    BAD(cuMemcpyHtoD(live, NULL, 4));
    OK(cuMemcpyHtoD(live, NULL, 0));
    BAD(cuMemsetD8(4096, 0, 4));
    BAD(cuMemsetD32(live + 2, 0, 1));
    BAD(cuMemsetD8(live, 0, 64 * MIB));
    OK(cuMemFree(live));
}

TEST(launches_are_checked)
{
    CUdeviceptr at = alloc(400);
    uint64_t words = 100;
    uint32_t value = 78;
    void *params[] = {&at, &words, &value};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    CUmodule module;
    CUlibrary library;
    CUfunction fill = kernel("fill"), mystery;
    CUkernel found;
    CUcontext other;
    CUstream on = stream(CU_STREAM_NON_BLOCKING);
    OK(cuLaunchKernelEx(&config, fill, params, NULL));
    assert_int_equal(wrong(at, 100, 78), 0);
    BAD(cuLaunchKernel(fill, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    BAD(cuLaunchKernel(fill, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuLaunchKernel((CUfunction)(void *)host, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "not a module"));
    OK(cuModuleLoadData(&module, ".version 6.3\n.target sm_75\n.entry mystery()\n{ret;}\n"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&mystery, module, "fill"));
    OK(cuModuleGetFunction(&mystery, module, "mystery"));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernel(mystery, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    OK(cuLibraryLoadData(&library, ".version 6.3 .target sm_75 .visible .entry fill(..){ret;}",
                         NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&found, library, "fill"));
    value = 4;
    OK(cuLaunchKernel((CUfunction)found, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    assert_int_equal(wrong(at, 100, 4), 0);
    at += 2; /* not a word */
    OK(cuCtxCreate(&other, NULL, 0, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          cuLaunchKernel((CUfunction)found, 1, 1, 1, 1, 1, 1, 0, on, params, NULL));
    launch_here("fill", params);
    GIVES(CUDA_ERROR_MISALIGNED_ADDRESS, cuCtxSynchronize());
    OK(cuCtxDestroy(other));
    OK(cuMemFree(at - 2));
}

TEST(sizes_are_rounded_as_measured)
{
    size_t before = used(), pitch;
    CUdeviceptr a = alloc(1), b = alloc(513), c = alloc(1), rows;
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
    OK(cuMemAllocPitch(&rows, &pitch, 600, 10, 4));
    assert_int_equal(pitch, 1024);
    OK(cuMemFree(rows));
}

TEST(free_waits_for_its_own_device)
{
    CUcontext other;
    CUstream streams[] = {stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING), NULL};
    uint64_t ns = 20 * MS, start;
    CUdeviceptr at = alloc(4096);
    for (int i = 0; i < 3; i++) {
        CUdeviceptr unrelated = alloc(4 * MIB);
        start = simNow_ns();
        late_fill(streams[i], at, 1024, 7, ns);
        OK(cuMemFree(unrelated));
        assert_true(simNow_ns() - start >= ns);
        assert_int_equal(simWorkPending(), 0);
        assert_int_equal(wrong(at, 1024, 7), 0);
    }
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    start = simNow_ns();
    launch_here("spin", (void *[]){&ns});
    OK(cuCtxPopCurrent(NULL));
    OK(cuMemFree(at));
    assert_true(simNow_ns() - start < ns);
    OK(cuDevicePrimaryCtxRelease(1));
}

/* When freed memory is allocated again, its contents have changed. */
TEST(freed_memory_is_gone)
{
    CUdeviceptr keep = alloc(512);
    for (size_t size = 4 * KIB; size < 8 * MIB; size *= 1024) {
        uint32_t word;
        CUdeviceptr at = alloc(size), middle = at + size / 2;
        OK(cuMemsetD32(at, 0x12345678, size / 4));
        OK(cuMemFree(at));
        BAD(cuMemcpyDtoH(&word, at, 4));
        assert_int_equal(alloc(size), at);
        OK(cuMemcpyDtoH(&word, middle, 4));
        assert_int_not_equal(word, 0x12345678);
        OK(cuMemFree(at));
    }
    OK(cuMemFree(keep));
}

TEST(dma_bufs_are_of_whole_pages_with_memory)
{
    CUdeviceptr small = alloc(5000), large = alloc(3 * MIB), page = small & ~UINT64_C(4095);
    const CUmemRangeHandleType type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    int fd = -1;
    OK(cuMemGetHandleForAddressRange(&fd, page, 8192, type, 0));
    assert_int_equal(close(fd), 0);
    OK(cuMemGetHandleForAddressRange(&fd, large + 4096, 4096, type, 0));
    assert_int_equal(close(fd), 0);
    BAD(cuMemGetHandleForAddressRange(&fd, large + 512, 4096, type, 0));
    BAD(cuMemGetHandleForAddressRange(&fd, large, 5000, type, 0));
    BAD(cuMemGetHandleForAddressRange(&fd, 0x10000, 4096, type, 0));
    BAD(cuMemGetHandleForAddressRange(NULL, large, 4096, type, 0));
    OK(cuMemFree(small));
    OK(cuMemFree(large));
    BAD(cuMemGetHandleForAddressRange(&fd, large, 4096, type, 0));
}

static uint64_t ask(CUpointer_attribute which, CUdeviceptr at)
{
    uint64_t value = 0; /* little-endian hosts only */
    OK(cuPointerGetAttribute(&value, which, at));
    return value;
}
#define ASK(which, at) ask(CU_POINTER_ATTRIBUTE_##which, at)

TEST(attributes_tell_the_allocation)
{
    static const size_t sizes[] = {512, 700 * KIB, 3 * MIB};
    CUmemGenericAllocationHandle handle;
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    CUdeviceptr at = alloc(5000), base, other = alloc(5000), mapped = map(2 * MIB, &handle);
    CUcontext owner = NULL;
    CUipcMemHandle ipc;
    size_t size;
    unsigned on = 1;
    OK(cuMemGetAddressRange(&base, &size, at + 4999));
    assert_int_equal(base, at);
    assert_int_equal(size, 5000);
    /* The bytes behind it belong to no block, though the size is rounded. */
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, at + 5000));
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, at + 5119));
    BAD(cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at + 5000));
    OK(cuMemGetAddressRange(NULL, NULL, 4096));
    assert_int_equal(ASK(CONTEXT, at + 100), (uintptr_t)context);
    assert_int_equal(ASK(MEMORY_TYPE, at), CU_MEMORYTYPE_DEVICE);
    assert_int_equal(ASK(IS_LEGACY_CUDA_IPC_CAPABLE, at), 1);
    assert_int_not_equal(ASK(BUFFER_ID, at), ASK(BUFFER_ID, other));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    assert_int_equal(simSyncMemops(at + 100), 1);
    assert_int_equal(simSyncMemops(other), 0);
    OK(cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, other));
    assert_int_equal(ASK(SYNC_MEMOPS, other), 1);
    assert_int_equal(ASK(CONTEXT, mapped), 0);
    assert_int_equal(ASK(IS_LEGACY_CUDA_IPC_CAPABLE, mapped), 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, mapped));
    BAD(cuIpcGetMemHandle(&ipc, mapped));
    unmap(mapped, 2 * MIB, handle);
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_CONTEXT};
    void *answers[] = {&size, &owner};
    OK(cuPointerGetAttributes(2, asked, answers, at));
    assert_int_equal(size, 5000);
    assert_ptr_equal(owner, context);
    OK(cuPointerGetAttributes(2, asked, answers, 4096));
    assert_int_equal(size, 0);
    assert_null(owner);
    OK(cuMemFree(at));
    OK(cuMemFree(other));
    /* Small blocks lie in the mapping of their page. */
    for (int i = 0; i < 3; i++) {
        CUdeviceptr block[2] = {alloc(sizes[i]), alloc(sizes[i])};
        int small = sizes[i] < MIB;
        for (int j = 0; j < 2; j++) {
            CUdeviceptr last = block[j] + sizes[i] - 1;
            assert_int_equal(ASK(MAPPING_SIZE, last), small ? 2 * MIB : 4 * MIB);
            assert_int_equal(ASK(MAPPING_BASE_ADDR, last), small ? block[0] : block[j]);
        }
        assert_true((ASK(MEMORY_BLOCK_ID, block[0]) == ASK(MEMORY_BLOCK_ID, block[1])) == small);
        OK(cuMemFree(block[0]));
        OK(cuMemFree(block[1]));
    }
}

TEST(host_and_managed_memory_are_the_kernels_too)
{
    const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUdeviceptr managed, plain = alloc(4096);
    uint32_t *pinned;
    int word = -77;
    OK(cuMemHostAlloc((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostRegister(host, MIB, 0));
    uint32_t *places[] = {pinned, (uint32_t *)(uintptr_t)managed, (uint32_t *)(void *)host};
    for (int i = 0; i < 3; i++) {
        places[i][0] = 1;
        fill(NULL, (CUdeviceptr)(uintptr_t)places[i], 1024, 6);
        OK(cuCtxSynchronize());
        assert_int_equal(places[i][0], 6);
        assert_int_equal(places[i][1023], 6);
    }
    /* Only managed memory takes advice. */
    BAD(cuMemAdvise_v2(plain, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    BAD(cuMemRangeGetAttribute(&word, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 4096));
    OK(cuMemAdvise_v2(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    OK(cuMemRangeGetAttribute(&word, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, managed, 4096));
    assert_int_equal(word, CU_DEVICE_INVALID);
    OK(cuMemHostUnregister(host));
    OK(cuMemFree(managed));
    OK(cuMemFree(plain));
    OK(cuMemFreeHost(pinned));
}

static cuuint64_t pool_bytes(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t bytes = 0;
    OK(cuMemPoolGetAttribute(pool, which, &bytes));
    return bytes;
}

static void free_async(CUdeviceptr at)
{
    OK(cuMemFreeAsync(at, NULL));
    BAD(cuMemFreeAsync(at, NULL));
    BAD(cuMemFree(at));
    OK(cuCtxSynchronize());
}

/* Freed memory of a pool stays taken up to the threshold, serves the pool, and goes by a trim. */
TEST(pools_keep_what_their_threshold_says)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool pool, current;
    CUdeviceptr at, other;
    size_t before = used();
    free_async(alloc(4 * MIB)); /* plain memory, which no pool keeps */
    assert_int_equal(used(), before);
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&current, 0));
    assert_ptr_equal(current, pool);
    OK(cuMemAllocAsync(&at, 8 * MIB, NULL));
    free_async(at);
    assert_int_equal(used(), before);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocAsync(&at, 8 * MIB, NULL));
    OK(cuMemAllocAsync(&other, 4 * MIB, NULL));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemPoolTrimTo(pool, 0)); /* the free may not have been reached: it waits for nothing */
    OK(cuCtxSynchronize());
    OK(cuMemAllocAsync(&at, 6 * MIB, NULL));
    free_async(at);
    uint64_t reserved = pool_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    assert_int_equal(pool_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 * MIB);
    assert_int_equal(pool_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 12 * MIB);
    assert_int_equal(pool_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 12 * MIB);
    assert_in_range(reserved, 10 * MIB, 12 * MIB);
    assert_int_equal(used() - before, reserved);
    OK(cuMemPoolTrimTo(pool, 5 * MIB));
    assert_int_equal(used() - before, 5 * MIB);
    free_async(other);
    assert_int_equal(used() - before, 5 * MIB);
    OK(cuMemPoolDestroy(pool));
    assert_int_equal(used(), before);
    OK(cuDeviceGetMemPool(&current, 0));
    assert_ptr_not_equal(current, pool);
    BAD(cuMemPoolTrimTo(pool, 0));
}

/* What is freed in a stream serves an allocation that finds no other memory. */
TEST(a_full_device_waits_for_frees_in_streams)
{
    CUdeviceptr at, next;
    size_t available;
    OK(cuMemGetInfo(&available, NULL));
    OK(cuMemAllocAsync(&at, available, NULL));
    spin(NULL, MS);
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemAllocAsync(&next, available, NULL));
    free_async(next);
}

/* Peer access between contexts does not matter for memory of a pool. */
TEST(memory_of_a_pool_is_for_its_device)
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
    free_async(at);
}

TEST(copies_move_every_byte)
{
    static const size_t sizes[] = {1, 3, 64, 4097, MIB};
    static const uint8_t want[] = {0, 0, 7, 7, 0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 0};
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle parts[2];
    CUdeviceptr a = alloc(MIB), at, b;
    OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    for (size_t i = 2; i-- > 0;) { /* physical order is not address order */
        OK(cuMemCreate(&parts[i], 2 * MIB, &prop, 0));
        OK(cuMemMap(at + i * 2 * MIB, 2 * MIB, 0, parts[i], 0));
    }
    allow(at, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    b = at + 2 * MIB - 32; /* crosses a handle */
    for (size_t i = 0; i < MIB; i++)
        host[i] = (uint8_t)(i * 31 + i / 256);
    for (int i = 0; i < 5; i++) {
        size_t n = sizes[i];
        memset(back, 0, MIB);
        OK(cuMemsetD8(b, 0, MIB));
        OK(cuMemcpyHtoD(a, host, n));
        if (i % 2)
            OK(cuMemcpyDtoD(b, a, n));
        else
            OK(cuMemcpyPeer(b, context, a, context, n));
        OK(cuMemcpyDtoHAsync(back, b, n, NULL)); /* pageable: complete on return */
        assert_memory_equal(host, back, n);
    }
    OK(cuMemsetD8(a, 0, MIB));
    OK(cuMemsetD8(a + 2, 7, 2));
    OK(cuMemsetD32(a + 8, 0xdeadbeef, 1));
    OK(cuMemcpyDtoH(back, a, sizeof want));
    assert_memory_equal(back, want, sizeof want);
    OK(cuMemUnmap(at, 4 * MIB));
    OK(cuMemRelease(parts[0]));
    OK(cuMemRelease(parts[1]));
    OK(cuMemAddressFree(at, 4 * MIB));
    OK(cuMemFree(a));
}

TEST(what_is_synchronous)
{
    CUdeviceptr a = alloc(MIB), b = alloc(MIB);
    uint8_t *pinned;
    uint64_t start = simNow_ns();
    OK(cuMemAllocHost((void **)&pinned, MIB));
    spin(NULL, 10 * MS);
    OK(cuMemsetD8(a, 1, 100));
    OK(cuMemcpyDtoD(b, a, 100));
    OK(cuMemcpyHtoDAsync(a, pinned, 100, NULL));
    OK(cuMemcpyHtoDAsync(a, host, 64 * KIB, NULL)); /* pageable and small: staged */
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
    OK(cuMemcpyDtoH(back + 1, b, 1));
    OK(cuMemcpyHtoDAsync(b, host, MIB, NULL)); /* pageable and large: read before it returns */
    host[0] = 0;
    OK(cuMemcpyDtoH(back + 2, b, 1));
    assert_memory_equal(back, ((uint8_t[]){2, 1, 2}), 3);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

int main(void)
{
    setenv("SIM_CAPACITY", "512M", 1);
    return play_tests(fixture_start, NULL);
}
