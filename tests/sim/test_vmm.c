/* SPDX-License-Identifier: BSD-2-Clause */
/* Virtual memory management: the rules of each call, access per device; multicast objects. */
#include "tests/sim/fixture.h"

#define NONE CU_MEM_ACCESS_FLAGS_PROT_NONE
#define READ CU_MEM_ACCESS_FLAGS_PROT_READ
#define BOTH CU_MEM_ACCESS_FLAGS_PROT_READWRITE

TEST(mappings_are_whole_and_do_not_overlap)
{
    CUmemAllocationProp prop = on_device(0), seen;
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr at, odd;
    CUmemAccessDesc access = {.location = prop.location, .flags = BOTH};
    CUcontext none;
    int fd;
    OK(cuCtxPopCurrent(&none)); /* no call needs a context */
    BAD(cuMemCreate(&a, MIB, &prop, 0));
    BAD(cuMemCreate(&a, 0, &prop, 0));
    prop.location.id = 7;
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&a, 2 * MIB, &prop, 0));
    prop.location.id = 0;
    BAD(cuMemAddressReserve(&odd, MIB, 0, 0, 0));
    BAD(cuMemAddressReserve(&odd, 2 * MIB, 3 * MIB, 0, 0));
    OK(cuMemAddressReserve(&odd, 2 * MIB, (size_t)1 << 30, 0, 0));
    assert_int_equal(odd % ((size_t)1 << 30), 0);
    OK(cuMemAddressFree(odd, 2 * MIB));
    OK(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&a, 4 * MIB, &prop, 0));
    OK(cuMemCreate(&b, 2 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&seen, a));
    assert_memory_equal(&seen, &prop, sizeof prop);
    BAD(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    BAD(cuMemMap(at, 2 * MIB, 0, a, 0)); /* not whole */
    BAD(cuMemMap(at, 2 * MIB, 2 * MIB, a, 0));
    BAD(cuMemMap(at, 4 * MIB, 2 * MIB, a, 0));
    BAD(cuMemMap(at + MIB, 4 * MIB, 0, a, 0));
    BAD(cuMemMap(at + 6 * MIB, 4 * MIB, 0, a, 0)); /* leaves the reservation */
    OK(cuMemMap(at, 4 * MIB, 0, a, 0));
    BAD(cuMemMap(at + 2 * MIB, 2 * MIB, 0, b, 0));
    OK(cuMemMap(at + 4 * MIB, 2 * MIB, 0, b, 0));
    BAD(cuMemUnmap(at, 2 * MIB));
    BAD(cuMemUnmap(at, 8 * MIB));
    BAD(cuMemAddressFree(at, 2 * MIB));
    BAD(cuMemAddressFree(at, 8 * MIB)); /* still mapped */
    BAD(cuMemSetAccess(at, 8 * MIB, &access, 1));
    OK(cuMemSetAccess(at, 6 * MIB, &access, 1)); /* over both */
    OK(cuMemUnmap(at, 6 * MIB));
    BAD(cuMemUnmap(at, 4 * MIB));
    OK(cuMemRelease(a));
    OK(cuMemRelease(b));
    BAD(cuMemRelease(b));
    OK(cuMemAddressFree(at, 8 * MIB));
    BAD(cuMemAddressFree(at, 8 * MIB));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&at, 1));
    OK(cuCtxPushCurrent(none));
}

/* A kernel that touches memory without access, or what is not there, fails its context for good. */
TEST(forbidden_access_is_an_illegal_address)
{
    static const struct {
        CUmemAccess_flags device0;
        CUdevice launcher; /* device 1 has access */
        CUdeviceptr wild;
    } rows[] = {{NONE, 0, 0}, {READ, 0, 0}, {BOTH, 0, 0x7000000000}, {BOTH, 0, 0}, {NONE, 1, 0}};
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    for (int i = 0; i < 5; i++) {
        CUresult wanted = i < 3 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
        CUmemGenericAllocationHandle handle;
        CUcontext own;
        uint64_t words = 4;
        uint32_t value = 1;
        unsigned long long granted = 99;
        CUdeviceptr any, at = map(2 * MIB, &handle), to = rows[i].wild != 0 ? rows[i].wild : at;
        allow(at, 2 * MIB, 0, rows[i].device0);
        allow(at, 2 * MIB, 1, BOTH);
        OK(cuMemGetAccess(&granted, &location, at));
        assert_int_equal(granted, rows[i].device0);
        OK(cuCtxCreate(&own, NULL, 0, rows[i].launcher));
        launch_here("fill", (void *[]){&to, &words, &value});
        GIVES(wanted, cuCtxSynchronize());
        GIVES(wanted, cuMemAlloc(&any, 1)); /* it sticks */
        GIVES(wanted, cuMemFree(i < 3 ? 0xdead0000 : any));
        OK(cuCtxDestroy(own));
        unmap(at, 2 * MIB, handle);
    }
}

TEST(only_mapped_memory_is_bound_to_a_multicast_object)
{
    CUmulticastObjectProp prop = {.numDevices = 1, .size = 8 * MIB};
    CUmemGenericAllocationHandle object, memory;
    CUdeviceptr at = map(4 * MIB, &memory), plain = alloc(8 * MIB);
    OK(cuMulticastCreate(&object, &prop));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMulticastBindAddr(object, 0, at, 4 * MIB, 0));
    OK(cuMulticastAddDevice(object, 0));
    BAD(cuMulticastAddDevice(object, 1));
    BAD(cuMulticastBindAddr(object, 0, plain, 4 * MIB, 0));
    BAD(cuMulticastBindAddr(memory, 0, at, 4 * MIB, 0));
    BAD(cuMulticastBindAddr(object, 6 * MIB, at, 4 * MIB, 0));
    BAD(cuMulticastBindAddr(object, 0, at + 2 * MIB, 4 * MIB, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastBindAddr(object, 2 * MIB, at, 4 * MIB, 0));
    unmap(at, 4 * MIB, memory);
    OK(cuMemRelease(object));
    BAD(cuMemRelease(object));
    OK(cuMemFree(plain));
}

/* SIM_UNMAP_FAULTS: whatever memory the work uses. */
TEST(an_unmap_beside_work_ends_the_context)
{
    for (int works = 0; works < 2; works++) {
        CUcontext own;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr at = map(2 * MIB, &handle), any;
        OK(cuCtxCreate(&own, NULL, 0, 0));
        OK(cuMemAlloc(&any, 64 * KIB));
        launch_here("spin", (void *[]){&(uint64_t){MS}});
        if (!works)
            OK(cuCtxSynchronize());
        unmap(at, 2 * MIB, handle);
        GIVES(works ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS, cuCtxSynchronize());
        OK(cuCtxDestroy(own));
    }
}

/* A node names memory that is there, when it is made and when it is changed. */
TEST(nodes_of_graphs_name_memory_that_is_there)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = map(2 * MIB, &handle), word = alloc(4);
    uint32_t found = 0;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode set, copy, none;
    CUDA_MEMSET_NODE_PARAMS fives = {
        .dst = at, .elementSize = 4, .value = 5, .width = 1, .height = 1};
    CUDA_MEMCPY3D get = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = at,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = &found,
                         .WidthInBytes = 4,
                         .Height = 1,
                         .Depth = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&set, graph, NULL, 0, &fives, context));
    OK(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &get, context));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    assert_int_equal(found, 5);
    unmap(at, 2 * MIB, handle);
    BAD(cuGraphAddMemsetNode(&none, graph, NULL, 0, &fives, context));
    BAD(cuGraphAddMemcpyNode(&none, graph, NULL, 0, &get, context));
    BAD(cuGraphMemsetNodeSetParams(set, &fives));
    BAD(cuGraphMemcpyNodeSetParams(copy, &get));
    BAD(cuGraphExecMemsetNodeSetParams(exec, set, &fives, context));
    BAD(cuGraphExecMemcpyNodeSetParams(exec, copy, &get, context));
    fives.dst = get.srcDevice = word;
    fives.value = 6;
    OK(cuGraphExecMemsetNodeSetParams(exec, set, &fives, context));
    OK(cuGraphExecMemcpyNodeSetParams(exec, copy, &get, context));
    BAD(cuGraphExecMemcpyNodeSetParams(exec, set, &get, context));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    assert_int_equal(found, 6);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(word));
}

int main(void)
{
    setenv("SIM_CAPACITY", "512M", 1);
    setenv("SIM_UNMAP_FAULTS", "1", 1);
    return play_tests(fixture_start, NULL);
}
