/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Copies between device memory and a store (store.h). Up to COPY_LANES_MAX threads, the park thread
 * among them, each with two halves of staging memory and a stream for each half:
 * the GPU moves one half beside the thread's own copy of the other. Registered memory makes that
 * fast. Where the driver registers none, makes no stream, or the process may make no thread, the
 * copies are slower and right: a lane without streams uses the context's own stream.
 *
 * 1. One thread, the park thread, calls these functions. A worker works only between the start of a
 *    job and its end, for which copy_run waits. So nothing else needs a lock.
 * 2. A lane takes the next COPY_HALF_BYTES of the job, and asks goes_on before it does. All its own
 *    transfers are done when it ends, also after an error or a stop.
 * 3. The streams do not wait for the context's own stream, and the driver's calls are call scopes.
 *    The program's streams and events see none of it.
 * 4. The kernel gives host memory, and clears it, when it is first touched. In a copy that took
 *    more than half of the time: 16 GiB went out in 1.07 s and came back in 0.43 s (H100, 16
 *    processors). So copy_touch has all threads do that before, while the program may still use the
 *    GPU, and more threads than copy: they have nothing else to wait for. Each call of the kernel
 *    is for COPY_HALF_BYTES, so that a thread of the program that maps memory waits for no more.
 * 5. The threads run near the GPU (node.h), if the kernel names processors there.
 * 6. To register staging memory takes as long as to copy as much. So there are no more lanes than
 *    the bytes that are to be copied fill.
 */
#ifndef SHIM_COPY_H
#define SHIM_COPY_H

#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_HALF_BYTES (UINT64_C(4) << 20)
enum { COPY_LANES_MAX = 8, COPY_THREADS_MAX = 16 };

/* A range of device memory and its place on the host. */
struct copy_part {
    uint64_t addr, size_bytes;
    char *host;
    uint64_t at; /* copy.c's: the sum of the sizes before it */
};

enum copy_way { COPY_OUT, COPY_BACK, COPY_TOUCH };
enum copy_end { COPY_DONE, COPY_STOPPED, COPY_FAILED };

struct copy_job {
    enum copy_way way;
    struct copy_part *parts;
    size_t num_parts;
    bool (*goes_on)(void); /* NULL, or asked between two steps; false stops the job */
    bool awaited;          /* see call_scope_is_awaited */
    bool in_file;          /* the host's side: see store_file.h */
};

/* Makes staging memory for so many bytes, registered in ctx for all contexts, and the workers, as
 * far as they are not there. No GPU work uses it. False: there is no host memory for the staging.
 */
bool copy_begin(CUcontext ctx, uint64_t size_bytes);
/* Unregisters the staging memory, until the next copy_begin. */
void copy_unpin(CUcontext ctx);
/* Frees both. Waits for the GPU work of the process. ctx: any context that lives; NULL: there is
 * none, or work runs; then registered memory stays for the next copies. */
void copy_finish(CUcontext ctx);

/* The threads of later jobs run near the device. */
void copy_near(CUdevice device);
/* Makes the streams for jobs in ctx, and destroys them. */
void copy_open(CUcontext ctx);
void copy_close(void);
/* Copies all parts. *code is the driver's, of COPY_FAILED. Where a file fails, it is
 * CUDA_ERROR_OPERATING_SYSTEM. */
enum copy_end copy_run(const struct copy_job *what, CUresult *code);
/* Can host memory be touched ahead? Since Linux 5.14. */
bool copy_can_touch(void);
/* Step 4, of host memory that can be written. COPY_FAILED: the kernel has no more. Between
 * copy_begin and copy_finish; needs no copy_open. */
enum copy_end copy_touch(char *from, uint64_t size_bytes, bool (*goes_on)(void));

#endif
