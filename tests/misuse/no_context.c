/* SPDX-License-Identifier: BSD-2-Clause */
/* Driver calls in a thread without a context, with good and with bad pointers. */
#include "tests/misuse/misuse.h"

int main(void)
{
    CUdeviceptr other = 0;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    uint64_t block = 0;
    CUcontext context = NULL;
    CUipcMemHandle handle;
    misuse_start();
    REQUIRE(gpu_malloc(&block, 4096));
    REQUIRE(cuCtxGetCurrent(&context));
    REQUIRE(cuCtxSetCurrent(NULL));
    misuse_expect("malloc", (int)cuMemAlloc(&other, 4096), CUDA_ERROR_INVALID_CONTEXT);
    misuse_report("memory information", (int)cuMemGetInfo(&free_bytes, &total_bytes));
    misuse_report("free of a wild pointer", (int)cuMemFree(0x12345000));
    misuse_report("range", (int)cuMemGetAddressRange(&other, &total_bytes, block));
    misuse_report("handle", (int)cuIpcGetMemHandle(&handle, block));
    CUpointer_attribute access = CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
    unsigned single = 7;
    unsigned plural = 7;
    void *answers[] = {&plural};
    misuse_report("access", (int)cuPointerGetAttribute(&single, access, block));
    misuse_report("access, among others", (int)cuPointerGetAttributes(1, &access, answers, block));
    printf("flags %u, %u\n", single, plural);
    REQUIRE(cuCtxSetCurrent(context));
    misuse_report("range", (int)cuMemGetAddressRange(&other, &total_bytes, block));
    misuse_report("handle", (int)cuIpcGetMemHandle(&handle, block));
    misuse_expect("free", gpu_free(block), 0);
    return misuse_end();
}
