/* SPDX-License-Identifier: BSD-2-Clause */
/* Advice about managed memory, and stream attributes. These calls check their arguments and have no
 * effect on simulated memory. */
#include "tests/sim/api.h"
#include "tests/sim/memory.h"

static CUresult managed(CUdeviceptr addr, size_t size)
{
    struct memory *memory = memory_find(addr);
    bool whole = memory != NULL && memory->kind == MEMORY_MANAGED && size > 0 &&
                 size <= memory->range.hi - addr;
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Answers as for managed memory without advice. */
static CUresult range_attribute(void *out, size_t out_bytes, CUmem_range_attribute which,
                                CUdeviceptr addr, size_t size)
{
    TRY(managed(addr, size));
    REFUSE(out == NULL || out_bytes == 0 || out_bytes % 4 != 0, INVALID_VALUE);
    int value = which == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
    for (size_t i = 0; i < out_bytes / 4; i++)
        ((int *)out)[i] = value;
    return CUDA_SUCCESS;
}

static CUresult range_attributes(void **out, size_t *out_bytes, CUmem_range_attribute *which,
                                 size_t count, CUdeviceptr addr, size_t size)
{
    TRY(managed(addr, size));
    REFUSE(out == NULL || out_bytes == NULL || which == NULL || count == 0, INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        TRY(range_attribute(out[i], out_bytes[i], which[i], addr, size));
    return CUDA_SUCCESS;
}

/* An H200's streams have these attributes, and 4 domains. They do not change what simulated work
 * does, and no call reads them back. So this function only checks the values. */
#define DOMAINS 4

static CUresult set_attribute(CUstreamAttrID which, const CUstreamAttrValue *value)
{
    bool valid = false;
    switch ((int)which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        valid = true;
        break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        valid = value->syncPolicy >= CU_SYNC_POLICY_AUTO &&
                value->syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        valid =
            value->memSyncDomainMap.default_ < DOMAINS && value->memSyncDomainMap.remote < DOMAINS;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        valid = (unsigned)value->memSyncDomain <= CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
        break;
    }
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemAdvise_v2, (CUdeviceptr addr, size_t size, CUmem_advise advice, CUmemLocation location),
    managed(addr, size))
API(cuMemRangeGetAttribute,
    (void *out, size_t out_bytes, CUmem_range_attribute which, CUdeviceptr addr, size_t size),
    range_attribute(out, out_bytes, which, addr, size))
API(cuMemRangeGetAttributes,
    (void **out, size_t *out_bytes, CUmem_range_attribute *which, size_t count, CUdeviceptr addr,
     size_t size),
    range_attributes(out, out_bytes, which, count, addr, size))
API_STREAM(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
           (CUdeviceptr addr, size_t size, CUmemLocation location, unsigned flags, CUstream stream),
           STREAM(stream),
           NEEDS(managed(addr, size) == CUDA_SUCCESS, INVALID_VALUE)
               stream_submit(on, &(struct command){.kind = COMMAND_MARKER}))
API_STREAM(cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
           (CUstream stream, CUstreamAttrID which, const CUstreamAttrValue *value), STREAM(stream),
           NEEDS(value != NULL, INVALID_VALUE) set_attribute(which, value))
API_STREAM(cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, (CUstream to, CUstream from),
           STREAM(to), stream_resolve(STREAM(from), &on))
