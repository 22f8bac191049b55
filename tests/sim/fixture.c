/* SPDX-License-Identifier: BSD-2-Clause */
/* Implementation of fixture.h. */
#include "tests/sim/fixture.h"

#include "tests/preload/kernels.h"

CUcontext context;
static CUmodule module;

int fixture_start(void **state)
{
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, kernels_ptx));
    return 0;
}

int fixture_clean(void **state)
{
    simFailClear(NULL);
    uint64_t hazards = simHazardCount();
    simHazardReset();
    return hazards != 0;
}

CUfunction kernel(const char *name)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

CUdeviceptr alloc(size_t bytes)
{
    CUdeviceptr at;
    OK(cuMemAlloc(&at, bytes));
    return at;
}

CUstream stream(unsigned flags)
{
    CUstream made;
    OK(cuStreamCreate(&made, flags));
    return made;
}

CUevent event(void)
{
    CUevent made;
    OK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    return made;
}

void launch_here(const char *name, void **params)
{
    CUmodule here;
    CUfunction function;
    OK(cuModuleLoadData(&here, kernels_ptx));
    OK(cuModuleGetFunction(&function, here, name));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

size_t used(void)
{
    size_t available, total;
    OK(cuMemGetInfo(&available, &total));
    return total - available;
}

static void launch(const char *name, CUstream on, void **params)
{
    OK(cuLaunchKernel(kernel(name), 4, 1, 1, 128, 1, 1, 0, on, params, NULL));
}

void fill(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value)
{
    launch("fill", on, (void *[]){&at, &words, &value});
}

void copy(CUstream on, CUdeviceptr dst, CUdeviceptr src, uint64_t words)
{
    launch("copy", on, (void *[]){&dst, &src, &words});
}

void spin(CUstream on, uint64_t ns)
{
    launch("spin", on, (void *[]){&ns});
}

void late_fill(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value, uint64_t ns)
{
    launch("spin_fill", on, (void *[]){&at, &words, &value, &ns});
}

void late_check(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value, CUdeviceptr errors,
                uint64_t ns)
{
    launch("spin_check", on, (void *[]){&at, &words, &value, &errors, &ns});
}

void wait_flag(CUstream on, CUdeviceptr flag)
{
    launch("wait_flag", on, (void *[]){&flag});
}

uint64_t wrong(CUdeviceptr at, uint64_t words, uint32_t value)
{
    uint64_t differ = 0;
    uint32_t *host = malloc(words * 4);
    assert_non_null(host);
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(host, at, words * 4));
    for (uint64_t i = 0; i < words; i++)
        differ += host[i] != value;
    free(host);
    return differ;
}

CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

void allow(CUdeviceptr at, size_t bytes, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = flags};
    OK(cuMemSetAccess(at, bytes, &access, 1));
}

CUdeviceptr map(size_t bytes, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr at;
    CUmemAllocationProp prop = on_device(0);
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemCreate(handle, bytes, &prop, 0));
    OK(cuMemMap(at, bytes, 0, *handle, 0));
    allow(at, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return at;
}

void unmap(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle)
{
    OK(cuMemUnmap(at, bytes));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, bytes));
}
