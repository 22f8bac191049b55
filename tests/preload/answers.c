/* SPDX-License-Identifier: BSD-2-Clause */
/* A call that fails for want of memory is made again if a device that it needs has idle memory.
 * Idle memory of another device is no reason, and no device's is if the call takes memory of the
 * host: the program would lose its idle memory in vain. A call may name its devices by the current
 * context, a peer, a green context, a handle, a place, a pool or a stream.
 *
 * On a real GPU the driver has memory, so each call is made once. */
#include "tests/preload/scene.h"

enum { DEVICES = 2, MOST_DEVICES = 3 };

static CUcontext contexts[MOST_DEVICES];
static CUgreenCtx green; /* of device 0, or NULL: the driver has none */
static size_t granule_bytes;

static CUmemLocation place(int device)
{
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUmemGenericAllocationHandle physical_of_second(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = place(1)};
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemCreate(&handle, granule_bytes, &prop, 0));
    return handle;
}

static int reach_second(void)
{
    int rc = cuCtxEnablePeerAccess(contexts[1], 0);
    if (rc == 0)
        REQUIRE(cuCtxDisablePeerAccess(contexts[1]));
    return rc;
}

static int make_green_stream(void)
{
    CUstream stream = NULL;
    int rc = cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0);
    if (rc == 0)
        REQUIRE(cuStreamDestroy(stream));
    return rc;
}

static int map_of_second(void)
{
    CUmemGenericAllocationHandle handle = physical_of_second();
    CUdeviceptr at = 0;
    REQUIRE(cuMemAddressReserve(&at, granule_bytes, 0, 0, 0));
    int rc = cuMemMap(at, granule_bytes, 0, handle, 0);
    if (rc == 0)
        REQUIRE(cuMemUnmap(at, granule_bytes));
    REQUIRE(cuMemAddressFree(at, granule_bytes));
    REQUIRE(cuMemRelease(handle));
    return rc;
}

static int allow_second(void)
{
    CUmemAccessDesc access = {.location = place(1), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = physical_of_second();
    CUdeviceptr at = 0;
    REQUIRE(cuMemAddressReserve(&at, granule_bytes, 0, 0, 0));
    REQUIRE(cuMemMap(at, granule_bytes, 0, handle, 0));
    int rc = cuMemSetAccess(at, granule_bytes, &access, 1);
    REQUIRE(cuMemUnmap(at, granule_bytes));
    REQUIRE(cuMemAddressFree(at, granule_bytes));
    REQUIRE(cuMemRelease(handle));
    return rc;
}

static int take_from_pool_of_second(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = place(1)};
    CUmemoryPool pool = NULL;
    CUdeviceptr block = 0;
    REQUIRE(cuMemPoolCreate(&pool, &props));
    int rc = cuMemAllocFromPoolAsync(&block, granule_bytes, pool, NULL);
    if (rc == 0)
        REQUIRE(cuMemFreeAsync(block, NULL));
    REQUIRE(gpu_sync());
    REQUIRE(cuMemPoolDestroy(pool));
    return rc;
}

static int take_physical(CUmemLocation location)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
    CUmemGenericAllocationHandle handle = 0;
    int rc = cuMemCreate(&handle, granule_bytes, &prop, 0);
    if (rc == 0)
        REQUIRE(cuMemRelease(handle));
    return rc;
}

static int take_physical_of_second(void)
{
    return take_physical(place(1));
}

static int take_physical_of_host(void)
{
    return take_physical((CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA});
}

/* Of a batch a part may be submitted already: it is not made again, whatever is idle. */
static int submit_batch(void)
{
    return cuStreamBatchMemOp(NULL, 0, NULL, 0);
}

/* needs: a bit for each device whose memory the call may take. 0: it is made only to fail. */
static const struct call {
    const char *symbol;
    int (*make)(void);
    int current;
    unsigned needs;
} calls[] = {
    {"cuCtxEnablePeerAccess", reach_second, 0, 1u << 0 | 1u << 1},
    {"cuGreenCtxStreamCreate", make_green_stream, 1, 1u << 0},
    {"cuMemMap", map_of_second, 0, 1u << 1},
    {"cuMemSetAccess", allow_second, 0, 1u << 1},
    {"cuMemAllocFromPoolAsync", take_from_pool_of_second, 1, 1u << 1},
    {"cuMemCreate", take_physical_of_second, 0, 1u << 1},
    {"cuMemCreate", take_physical_of_host, 0, 0},
    {"cuStreamBatchMemOp_v2", submit_batch, 0, 0},
};
enum { NUM_CALLS = sizeof calls / sizeof calls[0] };

static void open_devices(int count)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = place(1)};
    CUdevResource whole, part;
    CUdevResourceDesc description = NULL;
    unsigned groups = 1;
    for (int i = 0; i < count; i++)
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[i], i));
    REQUIRE(
        cuMemGetAllocationGranularity(&granule_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    if (!scene_driver_has("cuGreenCtxStreamCreate") ||
        cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cuDevSmResourceSplitByCount(&part, &groups, &whole, NULL, 0, 16) != CUDA_SUCCESS)
        return;
    REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

static void leave_idle_on(int device)
{
    REQUIRE(cuCtxSetCurrent(contexts[device]));
    TAKE_AND_GIVE(8 * MIB);
}

/* Makes the call, which fails once, with idle memory on this device alone. */
static int make(const struct call *c, int device, bool again)
{
    uint64_t before = SIM(simCallCount)(c->symbol);
    REQUIRE(cuCtxSetCurrent(contexts[c->current]));
    REQUIRE(SIM(simFail)(c->symbol, 1, CUDA_ERROR_OUT_OF_MEMORY));
    int rc = c->make();
    int made = (int)(SIM(simCallCount)(c->symbol) - before);
    if (rc == (again ? 0 : CUDA_ERROR_OUT_OF_MEMORY) && made == (again ? 2 : 1))
        return 0;
    printf("%s with idle memory on device %d: %d after %d calls\n", c->symbol, device, rc, made);
    return 1;
}

static int make_all(int device, bool needed)
{
    int wrong = 0;
    for (const struct call *c = calls; c < calls + NUM_CALLS; c++)
        if ((c->needs >> device & 1) == needed && (c->make != make_green_stream || green != NULL)) {
            if (needed)
                leave_idle_on(device);
            wrong += make(c, device, needed && scene_preloaded());
        }
    return wrong;
}

static int make_each_once(void)
{
    int wrong = 0;
    for (const struct call *c = calls; c < calls + NUM_CALLS; c++) {
        REQUIRE(cuCtxSetCurrent(contexts[c->current]));
        if (c->needs && (c->make != make_green_stream || green != NULL))
            wrong += c->make() != 0;
    }
    return wrong;
}

int main(void)
{
    int count = 0, wrong = 0;
    scene_start(DEVICES, 60);
    REQUIRE(gpu_device_count(&count));
    count = count < MOST_DEVICES ? count : MOST_DEVICES;
    open_devices(count);
    wrong += make_each_once();
    for (int device = 0; device < count && scene_simulated(); device++) {
        leave_idle_on(device);
        /* What another device's pool gave back just now may be why a call is made again. The calls
         * that need no memory of this device leave what is idle here. Each of the others takes it.
         */
        scene_sleep_ms(scene_preloaded() ? 150 : 0);
        wrong += make_all(device, false);
        wrong += make_all(device, true);
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
