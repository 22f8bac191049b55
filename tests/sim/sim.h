/* SPDX-License-Identifier: BSD-2-Clause */
/* The test-control side of the simulated driver: functions that only the simulated libcuda.so.1
 * exports. A program that also runs on a real driver looks them up at run time: void *driver =
 * dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
 *     __typeof__(simCallCount) *count = dlsym(driver, "simCallCount");   NULL on a real driver
 * All may be called from any thread at any time. config.def lists the environment variables. */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* Exit code of a process with hazards under SIM_HAZARD=abort. */
#define SIM_HAZARD_EXIT 86

/* Virtual time of the host. */
SIM_EXPORT uint64_t simNow_ns(void);
/* Lets virtual time pass. Work that ends by then completes. */
SIM_EXPORT void simAdvance_ns(uint64_t ns);

/* Device memory that this process takes. */
SIM_EXPORT uint64_t simDeviceBytesUsed(int device);

/* Pieces of submitted work that are not complete. No time passes. */
SIM_EXPORT uint64_t simWorkPending(void);

/* The program's allocator has handed out this device memory, or takes it back. With that the hazard
 * checker can tell a reuse of memory from sharing within the program. simOwnerEnd comes before the
 * memory is freed. */
SIM_EXPORT void simOwnerBegin(uint64_t addr, size_t size_bytes);
SIM_EXPORT void simOwnerEnd(uint64_t addr);

/* Hazards since the start or the last reset. */
SIM_EXPORT uint64_t simHazardCount(void);
SIM_EXPORT void simHazardReset(void);

/* Calls of a simulated function by its exact symbol ("cuMemAlloc_v2"). UINT64_MAX for other
 * symbols. */
SIM_EXPORT uint64_t simCallCount(const char *symbol);

/* The device's graphs keep this much memory that they do not use: cuDeviceGraphMemTrim gives it
 * back. Returns -1 if the device has less left, else 0. */
SIM_EXPORT int simGraphMemory(int device, uint64_t bytes);

/* The memory around the address has SYNC_MEMOPS. 0 if there is no memory. */
SIM_EXPORT int simSyncMemops(uint64_t addr);

/* The nth call from now (1 = the next) of the symbol fails with code, once. Returns -1 for an
 * unknown symbol, else 0. */
SIM_EXPORT int simFail(const char *symbol, unsigned nth, int code);
/* Adds a fault as in SIM_FAIL: "symbol:N:code", "symbol:N+:code" or "symbol:pP:code". With a '!'
 * behind the code the error sticks to the current context. Returns 0 or -1. */
SIM_EXPORT int simFailSpec(const char *spec);
/* Calls of a symbol wait before the driver does anything, until simLetGo. How many do at present:
 * simHeld. -1 for an unknown symbol, else 0. */
SIM_EXPORT int simHold(const char *symbol);
SIM_EXPORT void simLetGo(const char *symbol);
SIM_EXPORT unsigned simHeld(void);

/* What a kernel in the stream does with an instantiated graph: launches it from the device, in no
 * call of the program's. exec, stream: CUgraphExec, CUstream. Returns the driver's code. */
SIM_EXPORT int simDeviceLaunch(void *exec, void *stream);

/* Forgets the faults of a symbol, or all for NULL. */
SIM_EXPORT void simFailClear(const char *symbol);

#endif
