/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Which address the driver is asked about. The pool's memory is mapped, so about some of it the
 * driver would say more than it says of memory of cuMemAlloc. There it is asked about an address
 * that is no device memory. It refuses that one as it refuses memory that was freed, and in calls
 * for mapped memory as it refuses memory of cuMemAlloc (measured, driver 580). No state, no lock.
 */
#ifndef SHIM_HIDE_H
#define SHIM_HIDE_H

#include "shim/driver/hooks.h"

#include <stdbool.h>
#include <stdint.h>

/* No device memory. */
static inline CUdeviceptr hide_host_address(void)
{
    static const char host_memory;
    return (CUdeviceptr)(uintptr_t)&host_memory;
}

static inline CUdeviceptr hide_pool_address(CUdeviceptr addr, bool hidden)
{
    return hidden ? hide_host_address() : addr;
}

#endif
