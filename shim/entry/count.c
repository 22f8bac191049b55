/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrappers of the driver's other kinds of memory. They pass the call to the driver, look at its
 * answer (shim/entry/retry.h), and count the successful calls of some rows. No state, no lock.
 */
#include "shim/control/flush.h"
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/hooks.h"
#include "shim/entry/current.h"
#include "shim/entry/oom.h"
#include "shim/entry/retry.h"
#include "shim/park/gate.h"
#include "shim/park/whole.h"
#include "shim/process/state.h"
#include "shim/stats/counters.h"
#include "shim/trace/beside.h"

/* UCX and other libraries patch the first bytes of allocation functions to watch them, and can move
 * only a few kinds of instructions. A saved register puts five bytes of pushes and moves first. */
#if defined(__x86_64__)
#define LONG_PROLOGUE() __asm__ volatile("" ::: "rbx")
#else
#define LONG_PROLOGUE() ((void)0)
#endif

/* A program may take all its device memory by these calls (PyTorch with expandable segments does),
 * or all that it has on one of several devices. It is flushed by signal, asks neighbours and is
 * asked by them like any other. So the first call starts the library, and each context has a
 * record. Memory of the host starts nothing. */
static inline void note_memory(enum counter kind)
{
    if (kind != COUNTER_HOST && !state_is_off())
        current_context();
    if (kind == COUNTER_ASYNC) /* the driver may keep that memory when it is freed */
        control_ensure_thread();
}

/* The first stream-ordered allocation: from now on limits count the driver's own pools, also where
 * we have none. */
static inline void count_memory(enum counter kind)
{
    bool first = kind == COUNTER_ASYNC && !counter_get(kind);
    counter_add(kind, 1);
    if (first)
        flush_limits_changed();
}

/* Does the call bring in what another process or driver has? A compile-time constant. */
static inline bool shares(enum hook_id hook)
{
    switch (hook) {
    case HOOK_cuMemImportFromShareableHandle:
    case HOOK_cuMemPoolImportFromShareableHandle:
    case HOOK_cuImportExternalMemory:
    case HOOK_cuIpcOpenEventHandle:
        return true;
    default:
        return false;
    }
}

/* Does the call wait for GPU work? A compile-time constant. */
static inline bool waits(enum hook_id hook)
{
#if CUDA_VERSION >= 13000
    if (hook == HOOK_cuCtxSynchronize_v2)
        return true;
#endif
    return hook == HOOK_cuCtxSynchronize || hook == HOOK_cuStreamSynchronize ||
           hook == HOOK_cuStreamSynchronize_ptsz || hook == HOOK_cuEventSynchronize;
}

/* What a successful call of a row gave, in terms of its parameters. */
#define BYTES_OF_cuMemAllocAsync bytesize
#define BYTES_OF_cuMemAllocAsync_ptsz bytesize
#define BYTES_OF_cuMemAllocFromPoolAsync bytesize
#define BYTES_OF_cuMemAllocFromPoolAsync_ptsz bytesize
#define BYTES_OF_cuMemAllocManaged bytesize
#define BYTES_OF_cuMemCreate size
#define BYTES_OF_cuArrayCreate_v2                                                                  \
    array_bytes(desc->Format, desc->NumChannels, desc->Width, desc->Height, 1)
#define BYTES_OF_cuArray3DCreate_v2 array3d_bytes(desc)
#define BYTES_OF_cuMipmappedArrayCreate array3d_bytes(desc)
#define BYTES_OF_cuMemHostAlloc bytesize
#define BYTES_OF_cuMemAllocHost_v2 bytesize
#define BYTES_OF_cuMemHostRegister_v2 bytesize

/* Bytes of the elements of an array, without what the driver adds. */
static uint64_t array_bytes(CUarray_format format, unsigned channels, size_t width, size_t height,
                            size_t depth)
{
    unsigned each = format == CU_AD_FORMAT_FLOAT || format == CU_AD_FORMAT_SIGNED_INT32 ||
                            format == CU_AD_FORMAT_UNSIGNED_INT32
                        ? 4
                    : format == CU_AD_FORMAT_SIGNED_INT8 || format == CU_AD_FORMAT_UNSIGNED_INT8
                        ? 1
                        : 2;
    return (uint64_t)width * (height ? height : 1) * (depth ? depth : 1) * channels * each;
}

/* The same. To some arrays the program maps memory of its own. */
static uint64_t array3d_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    if (desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    return array_bytes(desc->Format, desc->NumChannels, desc->Width, desc->Height, desc->Depth);
}

/* By what the program names it. */
#define NAME_OF_cuMemAllocAsync *dptr
#define NAME_OF_cuMemAllocAsync_ptsz *dptr
#define NAME_OF_cuMemAllocFromPoolAsync *dptr
#define NAME_OF_cuMemAllocFromPoolAsync_ptsz *dptr
#define NAME_OF_cuMemAllocManaged *dptr
#define NAME_OF_cuMemCreate *handle
#define NAME_OF_cuArrayCreate_v2 *array
#define NAME_OF_cuArray3DCreate_v2 *array
#define NAME_OF_cuMipmappedArrayCreate *array
#define NAME_OF_cuMemHostAlloc *p
#define NAME_OF_cuMemAllocHost_v2 *p
#define NAME_OF_cuMemHostRegister_v2 p
#define NAMED(name) ((uint64_t)(uintptr_t)(name))

/* The kind of memory for a trace. cuMemCreate gives memory of the host, too. */
#define KIND_OF_ASYNC COUNTER_ASYNC
#define KIND_OF_MANAGED COUNTER_MANAGED
#define KIND_OF_ARRAY COUNTER_ARRAY
#define KIND_OF_HOST COUNTER_HOST
#define KIND_OF_VMM                                                                                \
    (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? COUNTER_VMM : COUNTER_HOST)

#define HOOK_COUNTED(symbol, pfn, params, args, counter, devices)                                  \
    CUresult symbol params                                                                         \
    {                                                                                              \
        LONG_PROLOGUE();                                                                           \
        note_memory(COUNTER_##counter);                                                            \
        CUresult rc = retry_##symbol args;                                                         \
        if (rc == CUDA_SUCCESS) {                                                                  \
            count_memory(COUNTER_##counter);                                                       \
            TRACE_BESIDE(PASSED, 0, .a = NAMED(NAME_OF_##symbol), .b = BYTES_OF_##symbol,          \
                         .aux = KIND_OF_##counter, .caller = __builtin_return_address(0));         \
        } else if (COUNTER_##counter != COUNTER_HOST && rc == CUDA_ERROR_OUT_OF_MEMORY &&          \
                   trace_is_on()) {                                                                \
            oom_note(rc, BYTES_OF_##symbol, __builtin_return_address(0), 0, false);                \
        }                                                                                          \
        return rc;                                                                                 \
    }
#define HOOK_PASSED(symbol, pfn, params, args, devices)                                            \
    CUresult symbol params                                                                         \
    {                                                                                              \
        if (shares(HOOK_##symbol))                                                                 \
            atomic_store(&whole_shares, true);                                                     \
        if (!waits(HOOK_##symbol))                                                                 \
            return retry_##symbol args;                                                            \
        atomic_fetch_add(&call_scope_program_waits, 1);                                            \
        CUresult rc = retry_##symbol args;                                                         \
        atomic_fetch_sub(&call_scope_program_waits, 1);                                            \
        return rc;                                                                                 \
    }
#define HOOK_RELEASED(symbol, pfn, params, args, named)                                            \
    CUresult symbol params                                                                         \
    {                                                                                              \
        LONG_PROLOGUE();                                                                           \
        TRACE_BESIDE(PASSED_FREE, 0, .a = NAMED(named));                                           \
        CUresult rc = retry_##symbol args;                                                         \
        if (rc != CUDA_SUCCESS)                                                                    \
            TRACE_BESIDE(FREE_FAILED, 0, .a = NAMED(named), .b = (uint64_t)rc,                     \
                         .caller = __builtin_return_address(0));                                   \
        return rc;                                                                                 \
    }
/* No mark is held while memory goes back. */
#define HOOK_NAMES(symbol, pfn, params, args, devices)                                             \
    CUresult symbol params                                                                         \
    {                                                                                              \
        struct retry_steps steps = {0};                                                            \
        CUresult rc;                                                                               \
        do {                                                                                       \
            struct gate_use use;                                                                   \
            rc = gate_use_begin(&use);                                                             \
            if (rc != CUDA_SUCCESS)                                                                \
                return rc;                                                                         \
            rc = real.symbol args;                                                                 \
            gate_use_end(&use);                                                                    \
        } while (retry_is_error(rc) && retry_note_error(rc) && retry_release(devices, &steps));    \
        return rc;                                                                                 \
    }
#define HOOK_QUESTION(symbol, pfn, params, args, addr)                                             \
    CUresult symbol params                                                                         \
    {                                                                                              \
        struct gate_use use;                                                                       \
        CUresult rc = gate_ask_begin(&use, addr);                                                  \
        if (rc != CUDA_SUCCESS)                                                                    \
            return rc;                                                                             \
        rc = real.symbol args;                                                                     \
        gate_use_end(&use);                                                                        \
        return rc;                                                                                 \
    }
#define HOOK_WOKEN(symbol, pfn, params, args)                                                      \
    CUresult symbol params                                                                         \
    {                                                                                              \
        return real.symbol args;                                                                   \
    }
#include "shim/driver/hooks.def"
