/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See redzone.h. The work runs on a stream that belongs to the context's record and is in no order
 * with the program's streams. So the host waits for all earlier work first, and for this work last.
 */
#include "shim/context/redzone.h"

#include "shim/driver/call_scope.h"
#include "shim/driver/capture.h"
#include "shim/driver/device_fence.h"
#include "shim/process/log.h"
#include "shim/stats/counters.h"

#include <errno.h>
#include <stdlib.h>

/* Not zero, not a letter, not a number that programs fill memory with. */
#define PATTERN 0xd5

atomic_bool redzone_in_use;

struct look {
    struct context *c;
    CUdeviceptr addr;
    unsigned char *bytes; /* the bytes are read into it; NULL: the pattern is written instead */
    CUresult rc;
};

/* Two threads may make one each: then one of them is destroyed. */
static CUresult stream_of(struct context *c, CUstream *out)
{
    CUstream none = NULL, made;
    *out = atomic_load(&c->redzone_stream);
    if (*out)
        return CUDA_SUCCESS;
    CUresult rc = real.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (atomic_compare_exchange_strong(&c->redzone_stream, &none, made)) {
        *out = made;
    } else {
        real.cuStreamDestroy_v2(made);
        *out = none;
    }
    return CUDA_SUCCESS;
}

static void write_or_read(void *arg)
{
    struct look *l = arg;
    CUstream stream;
    l->rc = l->bytes ? device_fence_drain(l->c->backend.ctx) : CUDA_SUCCESS;
    if (l->rc == CUDA_SUCCESS)
        l->rc = stream_of(l->c, &stream);
    if (l->rc != CUDA_SUCCESS)
        return;
    call_scope_wait_begin();
    if (l->bytes)
        l->rc =
            atomic_load(&real_cuMemcpyDtoHAsync_v2)(l->bytes, l->addr, l->c->redzone_bytes, stream);
    else
        l->rc = atomic_load(&real_cuMemsetD8Async)(l->addr, PATTERN, l->c->redzone_bytes, stream);
    if (l->rc == CUDA_SUCCESS)
        l->rc = real.cuStreamSynchronize(stream);
    call_scope_wait_end();
}

bool redzone_fill(struct context *c, uint64_t addr)
{
    struct look l = {.c = c, .addr = addr};
    return call_scope_run(c->backend.ctx, write_or_read, &l) && l.rc == CUDA_SUCCESS;
}

static void judge(const struct look *l, const struct pool_block *block)
{
    uint64_t first = UINT64_MAX, changed = 0;
    for (uint64_t i = 0; i < l->c->redzone_bytes; i++)
        if (l->bytes[i] != PATTERN) {
            if (!changed++)
                first = i;
        }
    if (!changed || context_expose(block->addr) != POOL_OK)
        return;
    counter_add(COUNTER_REDZONE, 1);
    log_warn("a write past the end of the block of %llu bytes at 0x%llx: %llu of the %llu bytes "
             "behind it changed, the first at offset %llu; its memory is not used again",
             (unsigned long long)block->requested_bytes, (unsigned long long)block->addr,
             (unsigned long long)changed, (unsigned long long)l->c->redzone_bytes,
             (unsigned long long)(block->requested_bytes + first));
}

void redzone_check(uint64_t addr)
{
    int saved_errno = errno;
    struct pool_block block;
    struct look l = {0};
    if (pool_lookup(addr, &block) != POOL_OK || block.addr != addr || block.exposed)
        return;
    l.c = pool_owner(block.pool);
    if (!l.c->redzone_bytes)
        return;
    redzone_hide(&block);
    l.addr = addr + block.requested_bytes;
    l.bytes = malloc(l.c->redzone_bytes);
    if (l.bytes && !capture_open() && call_scope_run(l.c->backend.ctx, write_or_read, &l) &&
        l.rc == CUDA_SUCCESS)
        judge(&l, &block);
    free(l.bytes);
    errno = saved_errno;
}
