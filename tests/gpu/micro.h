/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The CUDA calls that micro.c times, once over the runtime (micro_runtime.c) and once over the
 * driver API (micro_driver.c). Every call ends the program with status 2 on an error, unless it
 * says otherwise. Any thread may call after its own micro_thread().
 */
#ifndef TESTS_GPU_MICRO_H
#define TESTS_GPU_MICRO_H

#include <stddef.h>

/* Device 0, the kernel; status 77 when there is none. */
void micro_start(void);
/* Makes device 0 current in the calling thread. */
void micro_thread(void);
void *micro_malloc(size_t size_bytes);
void micro_free(void *block);
void *micro_malloc_async(size_t size_bytes);
void micro_free_async(void *block);
/* A kernel that does nothing, on the legacy stream. */
void micro_launch(void);
void micro_synchronize(void);
void micro_mem_info(void);
/* Frees an address that no allocator handed out; the error is expected. */
void micro_free_foreign(void);

#endif
