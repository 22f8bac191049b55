/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The wrapped functions that make and destroy stream-ordered pools of the driver's. The library
 * trims those pools (shim/driver/async_pool.h). No lock.
 */
#include "shim/driver/async_pool.h"
#include "shim/driver/hooks.h"
#include "shim/entry/retry.h"
#include "shim/entry/start.h"
#include "shim/process/cancel.h"

/* The slot of the driver's function may be filled while another thread still fills the rest.
 * Whoever sees the new pool calls functions of the rest, so this thread fills them first. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    hooks_init();
    bool off = library_is_off();
    unsigned mark = off ? 0 : async_pool_make_begins(props);
    CUresult rc = retry_cuMemPoolCreate(pool, props);
    if (rc == CUDA_SUCCESS && !off) {
        int cancel = cancel_forbid();
        async_pool_made(*pool, props, mark);
        cancel_allow(cancel);
    }
    return rc;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (library_is_off())
        return real.cuMemPoolDestroy(pool);
    int cancel = cancel_forbid();
    async_pool_destroy_begins(pool);
    CUresult rc = real.cuMemPoolDestroy(pool);
    async_pool_destroy_over(pool, rc == CUDA_SUCCESS);
    cancel_allow(cancel);
    return rc;
}
