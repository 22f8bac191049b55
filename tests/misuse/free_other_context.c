/* SPDX-License-Identifier: BSD-2-Clause */
/* A block freed while another context of the device is current, then once more in its own. */
#include "tests/misuse/misuse.h"

int main(void)
{
    CUcontext own = NULL;
    CUcontext other = NULL;
    uint64_t block = 0;
    misuse_start();
    REQUIRE(cuCtxGetCurrent(&own));
    REQUIRE(gpu_malloc(&block, 4 * MIB));
    REQUIRE(cuCtxCreate(&other, NULL, 0, 0));
    misuse_report("free elsewhere", gpu_free(block));
    REQUIRE(cuCtxSetCurrent(own));
    misuse_report("free at home", gpu_free(block));
    REQUIRE(cuCtxDestroy(other));
    return misuse_end();
}
