/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Types of driver functions that <cuda.h> does not declare: those of cudaEGL.h and, for builds
 * against older headers, those of releases after 13.0. Each type is as in cudaTypedefs.h, under a
 * guard with the release that first declares it. Structs behind pointers are incomplete types. A
 * runtime of a newer release gets the newer functions from its driver, so our tables need them
 * (TABLES_KNOW in shim/route/resolve.c). Headers before 13.0 lack too many types: builds against
 * them have only the newer functions that begin captures, and those of checkpoints.
 */
#ifndef SHIM_CUDA_COMPAT_H
#define SHIM_CUDA_COMPAT_H

/* As in cudaEGL.h. That header needs those of EGL, and must not be included with this one. A frame
 * is passed by value, so size and alignment are part of the ABI: three planes and nine words. */
typedef struct CUeglStreamConnection_st *CUeglStreamConnection;
typedef struct {
    void *plane[3];
    unsigned format[9];
} CUeglFrame;
typedef CUresult(CUDAAPI *PFN_cuEGLStreamConsumerAcquireFrame_v7000)(CUeglStreamConnection *,
                                                                     CUgraphicsResource *,
                                                                     CUstream *, unsigned);
typedef CUresult(CUDAAPI *PFN_cuEGLStreamConsumerReleaseFrame_v7000)(CUeglStreamConnection *,
                                                                     CUgraphicsResource,
                                                                     CUstream *);
typedef CUresult(CUDAAPI *PFN_cuEGLStreamProducerPresentFrame_v7000)(CUeglStreamConnection *,
                                                                     CUeglFrame, CUstream *);
typedef CUresult(CUDAAPI *PFN_cuEGLStreamProducerReturnFrame_v7000)(CUeglStreamConnection *,
                                                                    CUeglFrame *, CUstream *);

#if CUDA_VERSION < 12080
typedef struct CUcheckpointLockArgs_st {
    unsigned timeoutMs, reserved0;
    cuuint64_t reserved1[7];
} CUcheckpointLockArgs;
typedef struct CUcheckpointRestoreArgs_st CUcheckpointRestoreArgs;
typedef struct CUcheckpointUnlockArgs_st CUcheckpointUnlockArgs;
typedef struct CUcheckpointCheckpointArgs_st CUcheckpointCheckpointArgs;
typedef enum {
    CU_PROCESS_STATE_RUNNING,
    CU_PROCESS_STATE_LOCKED,
    CU_PROCESS_STATE_CHECKPOINTED,
    CU_PROCESS_STATE_FAILED
} CUprocessState;
typedef CUresult(CUDAAPI *PFN_cuCheckpointProcessGetState_v12080)(int, CUprocessState *);
extern __typeof__(CUresult(int, CUprocessState *)) cuCheckpointProcessGetState;
typedef CUresult(CUDAAPI *PFN_cuCheckpointProcessCheckpoint_v12080)(int,
                                                                    CUcheckpointCheckpointArgs *);
typedef CUresult(CUDAAPI *PFN_cuCheckpointProcessLock_v12080)(int, CUcheckpointLockArgs *);
typedef CUresult(CUDAAPI *PFN_cuCheckpointProcessRestore_v12080)(int, CUcheckpointRestoreArgs *);
typedef CUresult(CUDAAPI *PFN_cuCheckpointProcessUnlock_v12080)(int, CUcheckpointUnlockArgs *);
#endif

#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
typedef CUresult(CUDAAPI *PFN_cuStreamBeginCaptureToCig_v13010)(CUstream,
                                                                CUstreamCigCaptureParams *);
typedef CUresult(CUDAAPI *PFN_cuStreamBeginCaptureToCig_v13010_ptsz)(CUstream,
                                                                     CUstreamCigCaptureParams *);
typedef CUresult(CUDAAPI *PFN_cuStreamEndCaptureToCig_v13010)(CUstream);
typedef CUresult(CUDAAPI *PFN_cuStreamEndCaptureToCig_v13010_ptsz)(CUstream);
#endif

#if CUDA_VERSION >= 13000 && CUDA_VERSION < 13020
typedef CUresult(CUDAAPI *PFN_cuLaunchHostFunc_v13010)(CUstream, CUhostFn, void *, unsigned);
typedef CUresult(CUDAAPI *PFN_cuLaunchHostFunc_v13010_ptsz)(CUstream, CUhostFn, void *, unsigned);
typedef CUresult(CUDAAPI *PFN_cuMulticastBindAddr_v13010)(CUmemGenericAllocationHandle, CUdevice,
                                                          size_t, CUdeviceptr, size_t,
                                                          unsigned long long);
typedef CUresult(CUDAAPI *PFN_cuMemcpyWithAttributesAsync_v13020)(CUdeviceptr, CUdeviceptr, size_t,
                                                                  CUmemcpyAttributes *, CUstream);
typedef CUresult(CUDAAPI *PFN_cuMemcpyWithAttributesAsync_v13020_ptsz)(CUdeviceptr, CUdeviceptr,
                                                                       size_t, CUmemcpyAttributes *,
                                                                       CUstream);
typedef CUresult(CUDAAPI *PFN_cuMemcpy3DWithAttributesAsync_v13020)(CUDA_MEMCPY3D_BATCH_OP *,
                                                                    unsigned long long, CUstream);
typedef CUresult(CUDAAPI *PFN_cuMemcpy3DWithAttributesAsync_v13020_ptsz)(CUDA_MEMCPY3D_BATCH_OP *,
                                                                         unsigned long long,
                                                                         CUstream);
#endif

#if CUDA_VERSION < 13030
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(void);
typedef CUresult(CUDAAPI *PFN_cuStreamBeginRecaptureToGraph_v13030)(CUstream, CUstreamCaptureMode,
                                                                    CUgraph,
                                                                    CUgraphRecaptureCallback,
                                                                    void *);
typedef CUresult(CUDAAPI *PFN_cuStreamBeginRecaptureToGraph_v13030_ptsz)(
    CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *);
#endif

#if CUDA_VERSION >= 13000 && CUDA_VERSION < 13050
typedef struct CUDA_FABRIC_COPY_BATCH_OP_st CUDA_FABRIC_COPY_BATCH_OP;
typedef CUresult(CUDAAPI *PFN_cuFabricCpyBatchAsync_v13050)(size_t, CUDA_FABRIC_COPY_BATCH_OP *,
                                                            unsigned long long, CUstream);
typedef CUresult(CUDAAPI *PFN_cuFabricCpyBatchAsync_v13050_ptsz)(size_t,
                                                                 CUDA_FABRIC_COPY_BATCH_OP *,
                                                                 unsigned long long, CUstream);
#endif

#endif
