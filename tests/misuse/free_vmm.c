/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory mapped by the program itself, freed as if it had been allocated. */
#include "tests/misuse/misuse.h"

int main(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr mapped = 0;
    misuse_start();
    REQUIRE(cuMemAddressReserve(&mapped, 4 * MIB, 0, 0, 0));
    REQUIRE(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    REQUIRE(cuMemMap(mapped, 4 * MIB, 0, handle, 0));
    REQUIRE(cuMemSetAccess(mapped, 4 * MIB, &access, 1));
    REQUIRE(gpu_memset(mapped, 6, 4 * MIB));
    misuse_expect("free", gpu_free(mapped), CUDA_ERROR_INVALID_VALUE);
    misuse_expect("free in stream order", gpu_free_async(mapped, NULL), CUDA_ERROR_INVALID_VALUE);
    printf("%zu wrong bytes\n", scene_wrong_bytes(mapped, 4 * MIB, 6));
    REQUIRE(cuMemUnmap(mapped, 4 * MIB));
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemAddressFree(mapped, 4 * MIB));
    return misuse_end();
}
