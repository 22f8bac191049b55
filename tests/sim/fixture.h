/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of the simulated driver share: a context, the kernels, and short names for
 * frequent calls. The tests are driver API programs that are linked with the simulated library. */
#ifndef SIM_FIXTURE_H
#define SIM_FIXTURE_H

#include "tests/sim/sim.h"
#include "tests/unit/cases.h"

#include <cuda.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MS ((uint64_t)1000000)

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)
#define GIVES(code, call) assert_int_equal((call), (code))
#define BAD(call) GIVES(CUDA_ERROR_INVALID_VALUE, call)

/* The primary context of device 0, current in the main thread. */
extern CUcontext context;

/* Set-up of a group: initialises CUDA and loads the kernels into the primary context of device
 * 0. */
int fixture_start(void **state);
/* Set-up and tear-down of a test: clears faults, and fails if there was a hazard. */
int fixture_clean(void **state);

CUfunction kernel(const char *name);

CUdeviceptr alloc(size_t bytes);
CUstream stream(unsigned flags);
CUevent event(void);

/* Loads the kernels into the current context and launches one on its null stream. */
void launch_here(const char *name, void **params);

/* Launches of the main context's kernels. A word has 4 bytes. */
void fill(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value);
void copy(CUstream on, CUdeviceptr dst, CUdeviceptr src, uint64_t words);
void spin(CUstream on, uint64_t ns);
void late_fill(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value, uint64_t ns);
void late_check(CUstream on, CUdeviceptr at, uint64_t words, uint32_t value, CUdeviceptr errors,
                uint64_t ns);
void wait_flag(CUstream on, CUdeviceptr flag);

/* Device memory of the current context's device that is in use. */
size_t used(void);

/* Waits for the context and counts the words in [at, at + 4 * words) that are not value. */
uint64_t wrong(CUdeviceptr at, uint64_t words, uint32_t value);

/* Maps one new handle, readable and writable on device 0. */
CUdeviceptr map(size_t bytes, CUmemGenericAllocationHandle *handle);
CUmemAllocationProp on_device(int device);
void allow(CUdeviceptr at, size_t bytes, int device, CUmemAccess_flags flags);
/* Undoes map. */
void unmap(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle);

/* Each test begins without faults, and ends without a hazard. */
#undef TEST
#define TEST(name) TEST_WITH(name, fixture_clean, fixture_clean)

#endif
