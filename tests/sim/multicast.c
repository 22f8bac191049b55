/* SPDX-License-Identifier: BSD-2-Clause */
/* Multicast objects: their team, and memory that may not be bound. Binding itself is not simulated.
 * That memory of cuMemAlloc is refused is documented, not measured. */
#include <stdlib.h>

#include "tests/sim/api.h"
#include "tests/sim/device.h"
#include "tests/sim/memory.h"

struct multicast {
    struct multicast *next;
    CUmulticastObjectProp prop;
    uint32_t team; /* bit per device */
    bool released; /* it stays: a program may give its handle again */
};

static struct multicast *all;

static struct multicast *of_handle(CUmemGenericAllocationHandle handle)
{
    struct multicast *m = all;
    while (m != NULL && ((uintptr_t)m != handle || m->released))
        m = m->next;
    return m;
}

static CUresult create(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
    if (out == NULL || prop == NULL || prop->numDevices == 0 || prop->size == 0 ||
        prop->size % PAGE_BYTES != 0 || prop->handleTypes != 0 || prop->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct multicast *m = calloc(1, sizeof *m);
    REFUSE(m == NULL, OUT_OF_MEMORY);
    m->prop = *prop;
    m->next = all;
    all = m;
    *out = (uintptr_t)m;
    return CUDA_SUCCESS;
}

static CUresult add_device(CUmemGenericAllocationHandle handle, CUdevice device)
{
    struct multicast *m = of_handle(handle);
    REFUSE(m == NULL, INVALID_VALUE);
    REFUSE(!device_valid(device), INVALID_DEVICE);
    REFUSE((m->team >> device & 1) || (unsigned)__builtin_popcount(m->team) == m->prop.numDevices,
           INVALID_VALUE);
    m->team |= (uint32_t)1 << device;
    return CUDA_SUCCESS;
}

/* device -1 means the device of the memory. */
static CUresult bind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                     CUdeviceptr addr, size_t size, unsigned long long flags)
{
    struct multicast *m = of_handle(handle);
    const struct memory *memory = memory_find(addr);
    if (m == NULL || flags != 0 || size == 0 || (offset | size | addr) % PAGE_BYTES != 0 ||
        offset > m->prop.size || size > m->prop.size - offset || memory == NULL ||
        memory->kind != MEMORY_MAPPED || size > memory->range.hi - addr)
        return CUDA_ERROR_INVALID_VALUE;
    REFUSE((device >= 0 && device != memory->device) || !(m->team >> memory->device & 1),
           INVALID_DEVICE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool multicast_release(CUmemGenericAllocationHandle handle)
{
    struct multicast *m = of_handle(handle);
    if (m == NULL)
        return false;
    m->released = true;
    return true;
}

API(cuMulticastCreate, (CUmemGenericAllocationHandle * out, const CUmulticastObjectProp *prop),
    create(out, prop))
API(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device),
    add_device(handle, device))
API(cuMulticastBindAddr,
    (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr addr, size_t size,
     unsigned long long flags),
    bind(handle, -1, offset, addr, size, flags))
API(cuMulticastBindAddr_v2,
    (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUdeviceptr addr,
     size_t size, unsigned long long flags),
    NEEDS_DEVICE(device) bind(handle, device, offset, addr, size, flags))
