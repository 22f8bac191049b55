/* SPDX-License-Identifier: BSD-2-Clause */
/* The few GPU calls that the test programs make, without the way to the driver. gpu_runtime.c makes
 * them through the CUDA runtime, and gpu_driver.c through the driver's functions. gpu_resolve.c
 * finds those by one of the routes. A program links with one of them and is the same on the
 * simulated driver and on a real one.
 *
 * Every call returns the CUDA code, 0 being success; cudaError_t and CUresult share their numbers.
 * Device addresses are integers. A stream of NULL is the default stream of the build. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the calls go through the CUDA runtime, which keeps a last error. */
extern const bool gpu_is_runtime;

/* Opens the driver and makes a device's primary context current; then every other call may come. */
int gpu_open(int device);
int gpu_device_count(int *count);
int gpu_sync(void);

/* Runtime: cudaGetLastError. Driver: always 0. */
int gpu_last_error(void);

/* Memory. malloc and free tell the simulator's hazard checker whose the bytes are (track.h). */
int gpu_malloc(uint64_t *address, size_t size_bytes);
int gpu_free(uint64_t address);
int gpu_malloc_nowhere(size_t size_bytes); /* malloc with NULL for the address's place */
int gpu_malloc_pitch(uint64_t *address, size_t *pitch_bytes, size_t width_bytes, size_t height);
int gpu_malloc_async(uint64_t *address, size_t size_bytes, CUstream stream);
int gpu_free_async(uint64_t address, CUstream stream);
int gpu_host_alloc(void **pointer, size_t size_bytes); /* pinned, mapped at the same address */
int gpu_host_free(void *pointer);
int gpu_mem_info(size_t *free_bytes, size_t *total_bytes); /* either may be NULL */

/* Copies and memsets; those with a stream are the asynchronous forms. */
int gpu_put(uint64_t to, const void *from, size_t size_bytes);
int gpu_get(void *to, uint64_t from, size_t size_bytes);
int gpu_move(uint64_t to, uint64_t from, size_t size_bytes);
int gpu_put_async(uint64_t to, const void *from, size_t size_bytes, CUstream stream);
int gpu_get_async(void *to, uint64_t from, size_t size_bytes, CUstream stream);
int gpu_move_async(uint64_t to, uint64_t from, size_t size_bytes, CUstream stream);
int gpu_memset(uint64_t to, int byte, size_t size_bytes);
int gpu_memset_async(uint64_t to, int byte, size_t size_bytes, CUstream stream);

/* Streams and events. */
int gpu_stream_create(CUstream *stream, bool blocking); /* blocking: ordered with the legacy one */
int gpu_stream_destroy(CUstream stream);
int gpu_stream_sync(CUstream stream);
int gpu_stream_query(CUstream stream);
int gpu_stream_wait(CUstream stream, CUevent event);
int gpu_event_create(CUevent *event);
int gpu_event_destroy(CUevent event);
int gpu_event_record(CUevent event, CUstream stream);
int gpu_event_query(CUevent event);
int gpu_event_sync(CUevent event);

/* Captures and graphs. */
int gpu_capture_begin(CUstream stream, CUstreamCaptureMode mode);
int gpu_capture_end(CUstream stream, CUgraph *graph);
int gpu_capture_exchange(CUstreamCaptureMode *mode);
int gpu_graph_instantiate(CUgraphExec *exec, CUgraph graph);
int gpu_graph_launch(CUgraphExec exec, CUstream stream);
int gpu_graph_destroy(CUgraph graph, CUgraphExec exec);

/* The primary context's end: cudaDeviceReset, cuDevicePrimaryCtxReset. gpu_open opens it again. */
int gpu_reset(void);

/* Peers: access of the current device to another one's memory. */
int gpu_peer_can(bool *can, int device, int peer);
int gpu_peer_enable(int peer);
int gpu_peer_disable(int peer);

/* Handles of memory for another process. */
int gpu_ipc_export(CUipcMemHandle *handle, uint64_t address);
int gpu_ipc_open(uint64_t *address, CUipcMemHandle handle);
int gpu_ipc_close(uint64_t address);

/* What the driver says of a pointer: its allocation, and what kind of memory it is. */
int gpu_address_range(uint64_t *base, size_t *size_bytes, uint64_t address);
int gpu_pointer_is_device(bool *is_device, int *device, uint64_t address);

/* Launches a kernel of kernels.h by its place there, on 64 blocks of 128 threads. */
enum gpu_kernel {
    GPU_FILL,
    GPU_COPY,
    GPU_CHECK,
    GPU_SPIN,
    GPU_SPIN_FILL,
    GPU_SPIN_CHECK,
    GPU_WAIT_FLAG,
    GPU_KERNELS
};
extern const char *const gpu_kernel_names[GPU_KERNELS];
int gpu_launch(enum gpu_kernel kernel, CUstream stream, void **params);
/* With leave to start before the kernels right before it in the stream end. */
int gpu_launch_early(enum gpu_kernel kernel, CUstream stream, void **params);

int gpu_fill(uint64_t ptr, uint64_t n_words, uint32_t value, CUstream stream);
int gpu_copy(uint64_t dst, uint64_t src, uint64_t n_words, CUstream stream);
int gpu_check(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t errors_ptr, CUstream stream);
int gpu_spin(uint64_t ns, CUstream stream);
int gpu_spin_fill(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t ns, CUstream stream);
int gpu_spin_check(uint64_t ptr, uint64_t n_words, uint32_t value, uint64_t errors_ptr, uint64_t ns,
                   CUstream stream);
int gpu_wait_flag(uint64_t flag_ptr, CUstream stream); /* one thread */
