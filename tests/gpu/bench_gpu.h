/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The GPU for the benchmarks: the calls that they time, and the calls that keep the device busy.
 * bench_runtime.c makes them over the CUDA runtime, bench_driver.c over the driver API. A stream is
 * a cudaStream_t or a CUstream; NULL is the legacy default stream. On an error a call ends the
 * program with status 2, unless it says otherwise. A thread calls gpu_thread() before all others.
 */
#ifndef TESTS_GPU_BENCH_GPU_H
#define TESTS_GPU_BENCH_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Device 0 and the kernels; status 77 when there is none. Stream-ordered memory is kept by the
 * driver until the process ends: its release threshold is the largest there is. */
void gpu_start(void);
/* Makes device 0 current in the calling thread. */
void gpu_thread(void);

/* A stream that does not wait for the legacy one. It lives as long as the process. */
void *gpu_stream_create(void);
void gpu_stream_synchronize(void *stream);
void gpu_synchronize(void);

void *gpu_malloc(size_t size_bytes);
void gpu_free(void *block);
void *gpu_malloc_async(size_t size_bytes, void *stream);
void gpu_free_async(void *block, void *stream);
/* Gives the memory that stream-ordered allocation keeps back to the driver. */
void gpu_trim_async(void);
void *gpu_malloc_host(size_t size_bytes);

/* The smallest useful kernel: 32 threads that write one word each at block. */
void gpu_launch(void *block, void *stream);
/* Reads size_bytes at from and writes them at to, with many threads. */
void gpu_copy(void *to, const void *from, size_t size_bytes, void *stream);
/* One thread block that is busy for ns. */
void gpu_spin(uint64_t ns, void *stream);
void gpu_copy_in(void *to, const void *host, size_t size_bytes, void *stream);
void gpu_copy_out(void *host, const void *from, size_t size_bytes, void *stream);

/* Bytes that the driver says are free. */
size_t gpu_mem_info(void);
/* Frees an address that no allocator handed out. The error is expected. */
void gpu_free_foreign(void);

/* Monotonic time of the machine. */
uint64_t gpu_now_ns(void);

#ifdef __cplusplus
}
#endif
#endif
