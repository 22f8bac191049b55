/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What the kinds of park_quiet.h share: functions, kernels, addresses.
 */
#include "tests/gpu/park_quiet.h"
#include "tests/preload/kernels.h"

#include <dlfcn.h>
#include <stdio.h>

struct quiet_calls call;
struct quiet_kernels kernel;

void quiet_load(const char *cubin)
{
    CUmodule module;
    CUlibrary library;
    CUresult rc;

#define FUNCTION(symbol) *(void **)&call.symbol = dlsym(driver.handle, #symbol);
#include "tests/gpu/park_quiet.def"
    DRIVER_CHECK(driver.cuModuleLoadData(&module, kernels_ptx));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.fill_late, module, "spin_fill"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.copy, module, "copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.spin, module, "spin"));
    if (call.cuLibraryLoadData &&
        !call.cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0) &&
        call.cuLibraryGetKernel(&kernel.fill_anywhere, library, "spin_fill"))
        kernel.fill_anywhere = NULL;
    if (!cubin || !call.cuModuleLoad)
        return;
    rc = call.cuModuleLoad(&module, cubin);
    if (rc) {
        fprintf(stderr, "%s: cuModuleLoad answers %d\n", cubin, (int)rc);
        return;
    }
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.child_forget, module, "child_forget"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.child_tail, module, "child_tail"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.late_copy, module, "late_copy"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.start_graph, module, "start_graph"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.from_texture, module, "from_texture"));
    DRIVER_CHECK(driver.cuModuleGetFunction(&kernel.loop_fill, module, "loop_fill"));
}

CUdeviceptr lane_part(const struct lane *l, unsigned part)
{
    return l->at + part * l->kind->part_bytes;
}

CUdeviceptr lane_source(const struct lane *l, unsigned part)
{
    return l->source + part * l->kind->part_bytes;
}

uint32_t *lane_pinned(const struct lane *l, unsigned part)
{
    return l->pinned + part * l->kind->part_bytes / 4;
}

uint64_t lane_words(const struct lane *l)
{
    return l->kind->part_bytes / 4;
}

CUresult quiet_fill(CUstream stream, CUdeviceptr at, uint64_t n_words, uint32_t v)
{
    uint64_t ns = LATE_NS;

    return driver.cuLaunchKernel(kernel.fill_late, 1, 1, 1, 64, 1, 1, 0, stream,
                                 (void *[]){&at, &n_words, &v, &ns}, NULL);
}

CUresult quiet_spin(CUstream stream)
{
    uint64_t ns = LATE_NS;

    return driver.cuLaunchKernel(kernel.spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&ns}, NULL);
}

CUresult quiet_set_source(struct lane *l, unsigned part, uint32_t v)
{
    return driver.cuMemsetD32Async(lane_source(l, part), v, lane_words(l), l->stream);
}
