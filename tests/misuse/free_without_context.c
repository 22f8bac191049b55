/* SPDX-License-Identifier: BSD-2-Clause */
/* A runtime's free in a thread whose context was taken away: the block goes, and a context is
 * current again. */
#include "tests/misuse/misuse.h"

#include <dlfcn.h>

int main(void)
{
    uint64_t block = 0;
    CUcontext context = NULL;
    misuse_start();
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    EXPECT(driver);
    CUresult (*set)(CUcontext) =
        (CUresult (*)(CUcontext))(uintptr_t)dlsym(driver, "cuCtxSetCurrent");
    CUresult (*get)(CUcontext *) =
        (CUresult (*)(CUcontext *))(uintptr_t)dlsym(driver, "cuCtxGetCurrent");
    EXPECT(set && get);
    for (int i = 0; i < 4; i++) {
        REQUIRE(gpu_malloc(&block, 4096));
        /* What was handed out a second time is freed another way than what is new. */
        if (i % 2)
            REQUIRE(set(NULL));
        misuse_expect("free", gpu_free(block), 0);
        REQUIRE(get(&context));
        misuse_report("a context is current", context != NULL);
    }
    return misuse_end();
}
