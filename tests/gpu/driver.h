/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The CUDA driver for the GPU programs. It is opened at run time, so they build without libcuda and
 * run on the real and on the simulated one. No lock: driver_open() runs before the program's
 * threads do.
 */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include <cuda.h>
#include <stdint.h>

/* What the programs answer when there is nothing to run on; test runners read it as "skipped". */
#define EXIT_SKIP 77

#define DRIVER_FUNCTION(symbol) __typeof__(symbol) *symbol;
extern struct driver {
    void *handle;
#include "tests/gpu/driver.def"
} driver;
#undef DRIVER_FUNCTION

/* Calls a driver function; a result other than success ends the program with status 2 and a line
 * on stderr. For calls that cannot fail in a sound run. */
#define DRIVER_CHECK(call) driver_check((call), #call, __FILE__, __LINE__)

void driver_check(CUresult result, const char *what, const char *file, int line);

/* Opens libcuda.so.1 (the loader's search, then the places where container runtimes mount it) and
 * finds every function of driver.def. Ends the program with EXIT_SKIP when there is no driver. */
void driver_open(void);

/* driver_open(), cuInit and the primary context of device `ordinal`, made current. Ends the program
 * with EXIT_SKIP when there is no such device. */
CUcontext driver_start(int ordinal);

/* Monotonic time of the machine. */
uint64_t driver_now_ns(void);

#endif
