/* SPDX-License-Identifier: BSD-2-Clause */
/* Modules, libraries and functions. A function is an entry of a PTX text whose name kernels.def
 * knows. Driver lock. */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "tests/sim/kernel.h"

struct CUfunc_st {
    uint32_t magic;
    enum kernel kernel; /* KERNEL_COUNT: an entry that the simulator cannot run */
    char *name;
    CUmodule module; /* NULL for the kernel of a library */
    CUlibrary library;
};

/* Returns the CUfunction, or the CUkernel of a library, if it may be launched in the context.
 * Returns NULL if the handle is neither. */
CUfunction module_function(CUfunction handle, CUcontext context);

/* Unloads the context's modules. */
void module_unload_context(CUcontext context);

#endif
