/* SPDX-License-Identifier: BSD-2-Clause */
/* A program of CUDA's first years, which needs no more than a driver of that time has. It finds a
 * dozen functions by dlsym, allocates, copies, and frees. Then it asks for names that the driver
 * may lack. It closes the driver and opens it again. */
#include "tests/preload/scene.h"

static void *driver;

#define FIND(function)                                                                             \
    __typeof__(&(function)) own_##function;                                                        \
    find(&own_##function, #function)

static void find(void *slot, const char *name)
{
    void *symbol = dlsym(driver, name);
    if (symbol == NULL)
        printf("no %s\n", name);
    EXPECT(symbol != NULL);
    memcpy(slot, &symbol, sizeof symbol);
}

#undef cuCtxCreate
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);

/* The primary context comes and goes with those who retain it. */
static void primary(void)
{
    if (dlsym(driver, "cuDevicePrimaryCtxRetain") == NULL)
        return;
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuDevicePrimaryCtxGetState);
    CUresult (*release)(CUdevice);
    find(&release, "cuDevicePrimaryCtxRelease");
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    CUcontext context = NULL;
    CUdeviceptr block = 0;
    unsigned flags = 0;
    int active = 0;
    for (int i = 0; i < 3; i++) {
        REQUIRE(own_cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(own_cuCtxSetCurrent(context));
        REQUIRE(own_cuMemAlloc_v2(&block, 100000));
        REQUIRE(own_cuMemFree_v2(block));
        REQUIRE(own_cuCtxSetCurrent(NULL));
        REQUIRE(release(0));
        REQUIRE(own_cuDevicePrimaryCtxGetState(0, &flags, &active));
        printf("primary context: %s\n", active ? "stays" : "gone");
    }
}

/* Opens the driver, uses it and closes it. */
static unsigned play(void)
{
    static const char *const names[] = {
        "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemCreate",          "cuMemFreeAsync",
        "cuCtxRecordEvent", "cuLaunchKernelEx",    "cuStreamBeginCapture", "cuMemAllocAsync_ptsz"};
    CUcontext context = NULL;
    unsigned wrong = 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(driver != NULL);
    FIND(cuInit);
    FIND(cuCtxCreate_v2);
    FIND(cuCtxDestroy_v2);
    FIND(cuMemAlloc_v2);
    FIND(cuMemAllocPitch_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemGetInfo_v2);
    FIND(cuMemGetAddressRange_v2);
    FIND(cuMemcpyHtoD_v2);
    FIND(cuMemcpyDtoH_v2);
    int rc = own_cuInit(0);
    if (rc == CUDA_ERROR_NO_DEVICE)
        scene_skip("no device");
    REQUIRE(rc);
    REQUIRE(own_cuCtxCreate_v2(&context, 0, 0));
    for (unsigned i = 0; i < 200; i++) {
        size_t size_bytes = 4096 * (i % 9 + 1) * (i % 4 == 0 ? 100 : 1), free_bytes = 0, range = 0;
        unsigned out = i, back = 0;
        CUdeviceptr block = 0, base = 0;
        REQUIRE(own_cuMemAlloc_v2(&block, size_bytes));
        REQUIRE(own_cuMemcpyHtoD_v2(block + size_bytes - 4, &out, sizeof out));
        REQUIRE(own_cuMemcpyDtoH_v2(&back, block + size_bytes - 4, sizeof back));
        REQUIRE(own_cuMemGetInfo_v2(&free_bytes, NULL));
        REQUIRE(own_cuMemGetAddressRange_v2(&base, &range, block + 100));
        wrong += back != out || base != block || range < size_bytes || free_bytes == 0;
        REQUIRE(own_cuMemFree_v2(block));
    }
    CUdeviceptr rows = 0;
    size_t pitch = 0;
    REQUIRE(own_cuMemAllocPitch_v2(&rows, &pitch, 1000, 10, 4));
    REQUIRE(own_cuMemFree_v2(rows));
    printf("%u wrong, free of nothing %d\n", wrong, (int)own_cuMemFree_v2(0));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        printf("%s: %s\n", names[i], dlsym(driver, names[i]) != NULL ? "there" : "missing");
    REQUIRE(own_cuCtxDestroy_v2(context));
    primary();
    printf("closed: %d\n", dlclose(driver));
    return wrong;
}

int main(void)
{
    unsigned wrong = 0;
    scene_watchdog(60);
    for (int i = 0; i < 3; i++)
        wrong += play();
    return wrong != 0;
}
