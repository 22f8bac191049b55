/* SPDX-License-Identifier: BSD-2-Clause */
/* The inside of the stand-in CUDA runtime: how its files reach the driver, the calling thread's
 * context and the last error. It holds no state and no exported function. Public headers only. */
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The release that this build stands in for, as cudaRuntimeGetVersion has it. */
#ifndef RUNTIME_VERSION
#define RUNTIME_VERSION 13000
#endif

/* One index for each name x version x flag that the runtime asks the driver for. */
enum driver_entry {
#define ENTRY(name, version, flag, first, last) ENTRY_##name##_##version##_##flag,
#include "tests/sim/entries.def"
    DRIVER_ENTRIES
};

/* What cuGetProcAddress answered, NULL where it had nothing; filled by driver_load. */
extern void (*driver_entries[DRIVER_ENTRIES])(void);

/* Opens the driver, once in the process: dlopen("libcuda.so.1"), one dlsym, the whole list of
 * entries, cuInit. Returns cudaErrorInsufficientDriver without a driver, else cuInit's result;
 * later calls return the first one's result. */
cudaError_t driver_load(void);

/* Retains a primary context. On the simulated driver no hook sees it, as with NVIDIA's runtimes
 * (measured). On any other driver it calls the exported function. */
cudaError_t driver_retain(CUcontext *context, CUdevice device);

/* cuGetProcAddress as the runtime found it; the 4-argument form leaves *status alone. */
cudaError_t driver_lookup(const char *symbol, void **pfn, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status);

/* The driver function of one row of entries.def, with its type of cudaTypedefs.h. */
#define ENTRY_AS(pfn_type, name, version, flag)                                                    \
    ((pfn_type)driver_entries[ENTRY_##name##_##version##_##flag])
#define CALL_AS(pfn_type, name, version, flag, ...)                                                \
    (driver_entries[ENTRY_##name##_##version##_##flag] != NULL                                     \
         ? error_of(ENTRY_AS(pfn_type, name, version, flag)(__VA_ARGS__))                          \
         : cudaErrorCallRequiresNewerDriver)
#define CALL(name, version, ...) CALL_AS(PFN_##name##_v##version, name, version, 0, __VA_ARGS__)

/* The same for a function without parameters. */
#define CALL0(name, version)                                                                       \
    (driver_entries[ENTRY_##name##_##version##_0] != NULL                                          \
         ? error_of(ENTRY_AS(PFN_##name##_v##version, name, version, 0)())                         \
         : cudaErrorCallRequiresNewerDriver)

/* The same call on the per-thread default stream's variant where `per_thread` says so. */
#define CALL_PTSZ(per_thread, name, version, ptsz_version, ...)                                    \
    ((per_thread)                                                                                  \
         ? CALL_AS(PFN_##name##_v##ptsz_version##_ptsz, name, ptsz_version, 2, __VA_ARGS__)        \
         : CALL(name, version, __VA_ARGS__))
#define CALL_PTDS(per_thread, name, version, ptds_version, ...)                                    \
    ((per_thread)                                                                                  \
         ? CALL_AS(PFN_##name##_v##ptds_version##_ptds, name, ptds_version, 2, __VA_ARGS__)        \
         : CALL(name, version, __VA_ARGS__))

/* Exports `name` and its twin for programs built with a per-thread default stream; both call
 * name_flavour(per_thread, arguments...). */
#define TWIN_UNPACK(...) __VA_ARGS__
#define TWINS(name, suffix, params, args)                                                          \
    cudaError_t name params                                                                        \
    {                                                                                              \
        return name##_flavour(false, TWIN_UNPACK args);                                            \
    }                                                                                              \
    cudaError_t name##_##suffix params                                                             \
    {                                                                                              \
        return name##_flavour(true, TWIN_UNPACK args);                                             \
    }

/* For functions that answer a cudaError_t: the answer is that of the call if it fails. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudaError_t tried = (call);                                                                \
        if (tried != cudaSuccess)                                                                  \
            return tried;                                                                          \
    } while (0)

/* The runtime's code for a driver result. */
cudaError_t error_of(CUresult result);

/* Keeps a failure as the thread's last error; returns its argument. */
cudaError_t error_record(cudaError_t error);

/* Sees that the calling thread has a context: its current one, else the primary context of its
 * device, retained and made current. False, and the error recorded, if that fails. */
bool context_enter(void);

/* As context_enter, but opens the driver only and needs no context. */
bool driver_enter(void);

/* The thread's device for the next context_enter. */
int context_device(void);

/* Selects the thread's device; from release 12 on also makes its primary context current. */
cudaError_t context_select(int device);

/* The primary context of a device, retained if it was not; does not touch the current one. */
cudaError_t context_primary(int device, CUcontext *context);

/* Resets the primary context of the thread's device; the next call creates it again. */
cudaError_t context_reset(void);

/* A whole API call: ready the context (or the driver), make the call, keep its error. */
#define IN_CONTEXT(call) (context_enter() ? error_record(call) : cudaPeekAtLastError())
#define IN_DRIVER(call) (driver_enter() ? error_record(call) : cudaPeekAtLastError())
