/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See device.h and pool/backend.h. The rows of fences are in device_fence.c. All rows are call
 * scopes; those that need the context enter it. The one lock is that of device_identity.
 */
#include "shim/driver/device.h"

#include "pool/bits.h"
#include "pool/spin.h"
#include "shim/driver/access.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/reservation.h"
#include "shim/process/clock.h"
#include "shim/trace/steps.h"
#include "shim/trace/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

__thread unsigned char device_ends_of[BACKENDS_MAX] __attribute__((tls_model("initial-exec")));
__thread int device_frees_here __attribute__((tls_model("initial-exec")));

static _Atomic(CUcontext) primaries[DEVICES_MAX];
static _Atomic(const struct device_lender *) lender;

void device_set_lender(const struct device_lender *to)
{
    atomic_store(&lender, to);
}

static int row_reserve(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    CUdeviceptr at = 0;
    struct call_scope scope;
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = reservation_create(&at, size_bytes, b->granularity_bytes);
    call_scope_end(&scope);
    *addr = at;
    return (int)rc;
}

static void row_unreserve(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct call_scope scope;
    if (!call_scope_begin(&scope))
        return;
    reservation_retire(addr, size_bytes);
    call_scope_end(&scope);
}

/* When a call of the driver begins; 0: nobody wants to know. */
static uint64_t call_begins(void)
{
    return trace_is_on() ? clock_now_ns() : 0;
}

/* Notes a try at device memory that failed, as a step of an allocation. */
static void note_refusal(CUresult rc)
{
    if (rc == CUDA_ERROR_OUT_OF_MEMORY)
        TRACE_STEP(REFUSED);
}

/* Records device memory that came or went. */
static void trace_memory(struct backend *b, enum trace_kind kind, uint64_t a, uint64_t size_bytes,
                         uint64_t begin_ns)
{
    if (trace_is_on())
        trace_note(kind, &(struct trace_event){
                             .a = a,
                             .b = size_bytes,
                             .context = device_self(b)->number,
                             .aux = begin_ns ? trace_aux(clock_now_ns() - begin_ns) : 0});
}

static int row_create(struct backend *b, uint64_t size_bytes, uint64_t *handle)
{
    CUmemGenericAllocationHandle h = 0;
    struct call_scope scope;
    uint64_t begin_ns = call_begins();
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = atomic_load_explicit(&real.cuMemCreate, memory_order_relaxed)(
        &h, size_bytes, &device_self(b)->prop, 0);
    call_scope_end(&scope);
    if (rc == CUDA_SUCCESS)
        trace_memory(b, TRACE_CREATE, h, size_bytes, begin_ns);
    note_refusal(rc);
    *handle = h;
    return (int)rc;
}

static void row_release(struct backend *b, uint64_t handle, uint64_t size_bytes)
{
    struct call_scope scope;
    uint64_t begin_ns = call_begins();
    if (!call_scope_begin(&scope))
        return;
    TRACE_STEP(RELEASED);
    real.cuMemRelease(handle);
    call_scope_end(&scope);
    trace_memory(b, TRACE_RELEASE, handle, size_bytes, begin_ns);
}

static int row_map(struct backend *b, uint64_t addr, uint64_t size_bytes, uint64_t handle)
{
    struct call_scope scope;
    uint64_t begin_ns = call_begins();
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = real.cuMemMap(addr, size_bytes, 0, handle, 0);
    call_scope_end(&scope);
    if (rc == CUDA_SUCCESS)
        trace_memory(b, TRACE_MAP, addr, size_bytes, begin_ns);
    return (int)rc;
}

static int row_allow(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct call_scope scope;
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = access_allow(device_self(b)->device, addr, size_bytes);
    call_scope_end(&scope);
    return (int)rc;
}

static int row_unmap(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct call_scope scope;
    uint64_t begin_ns = call_begins();
    if (!call_scope_begin(&scope))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = real.cuMemUnmap(addr, size_bytes);
    call_scope_end(&scope);
    if (rc == CUDA_SUCCESS)
        trace_memory(b, TRACE_UNMAP, addr, size_bytes, begin_ns);
    return (int)rc;
}

/* The stream for frees only. It is made before the first segment: on a full device it could not be
 * made, and the pool relies on frees that wait for nothing. Two threads may make one each: then one
 * of them is destroyed. The stream ends with its context. */
static CUstream freeing_stream(struct device_backend *d)
{
    CUstream now = atomic_load(&d->freeing_stream), made;
    if (now || real.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return now;
    if (atomic_compare_exchange_strong(&d->freeing_stream, &now, made))
        return made;
    real.cuStreamDestroy_v2(made);
    return now;
}

static int row_segment_alloc(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    CUdeviceptr at = 0;
    struct call_scope scope;
    uint64_t begin_ns = call_begins();
    if (!call_scope_enter(&scope, device_self(b)->ctx))
        return CUDA_ERROR_DEINITIALIZED;
    if (!atomic_load(&b->frees_beside) && atomic_load(&device_self(b)->has_frees_beside))
        atomic_store(&b->frees_beside, freeing_stream(device_self(b)) != NULL);
    CUresult rc = atomic_load_explicit(&real.cuMemAlloc_v2, memory_order_relaxed)(&at, size_bytes);
    call_scope_end(&scope);
    if (rc == CUDA_SUCCESS)
        trace_memory(b, TRACE_SEGMENT, at, size_bytes, begin_ns);
    note_refusal(rc);
    *addr = at;
    return (int)rc;
}

/* cuMemFree waits for all work of the device, and holds up launches meanwhile (2 ms for 1 GiB in
 * pieces of 32 MiB, H200). A free in stream order, on a stream without other work, gives the memory
 * back once that stream is synchronised. Beside a running kernel that takes 45 us for 64 MiB and
 * 300 us for 1 GiB, and holds up no launch (H200). CUDA documents such frees for memory of
 * cudaMalloc too. False: the driver does not free so. The context may end meanwhile, and takes the
 * memory along. Then the address may be another context's, and no free is made. */
static bool free_beside(struct device_backend *d, CUdeviceptr addr)
{
    CUstream stream = atomic_load(&d->base.frees_beside) ? atomic_load(&d->freeing_stream) : NULL;
    if (!stream)
        return false;
    CUresult rc = real.cuMemFreeAsync(addr, stream);
    if (rc != CUDA_SUCCESS) {
        if (rc != CUDA_ERROR_INVALID_VALUE && rc != CUDA_ERROR_UNKNOWN && error_is_end(rc))
            return true;
        atomic_store(&d->has_frees_beside, false);
        atomic_store(&d->base.frees_beside, false);
        return atomic_load(&d->base.gone);
    }
    real.cuStreamSynchronize(stream);
    return true;
}

/* See Note [Frees of segments]. */
static bool row_segment_free_begin(struct backend *b, bool waits)
{
    struct device_backend *d = device_self(b);
    bool begun = false;
    atomic_fetch_add(&d->waiting_frees, 1);
    for (unsigned turn = 0; !begun && !atomic_load(&b->gone); turn++) {
        device_frees_here++;
        atomic_fetch_add(&d->segment_frees, 1);
        begun = atomic_load(&d->enders) <= device_ends_of[d->number - 1] && !atomic_load(&b->gone);
        if (begun)
            break;
        atomic_fetch_sub(&d->segment_frees, 1);
        device_frees_here--;
        if (!waits || turn == CONTEXT_AWAIT_TURNS)
            break;
        spin_pause(turn);
    }
    atomic_fetch_sub(&d->waiting_frees, 1);
    return begun;
}

static void row_segment_free_end(struct backend *b)
{
    atomic_fetch_sub(&device_self(b)->segment_frees, 1);
    device_frees_here--;
}

static int row_segment_free(struct backend *b, uint64_t addr, bool idle)
{
    struct call_scope scope;
    CUresult rc = CUDA_SUCCESS;
    uint64_t begin_ns = call_begins();
    if (!call_scope_enter(&scope, device_self(b)->ctx))
        return CUDA_ERROR_DEINITIALIZED;
    TRACE_STEP(RELEASED);
    call_scope_wait_begin(); /* for GPU work, where queues are full: step 6 */
    if (!idle || !free_beside(device_self(b), addr))
        rc = atomic_load_explicit(&real.cuMemFree_v2, memory_order_relaxed)(addr);
    call_scope_wait_end();
    call_scope_end(&scope);
    if (rc == CUDA_SUCCESS)
        trace_memory(b, TRACE_SEGMENT_FREE, addr, 0, begin_ns);
    return (int)rc;
}

static int row_fence_order(struct backend *b, uint64_t fence)
{
    TRACE_STEP(ORDERED);
    return device_fence_order(b, fence);
}

static int row_fence_wait(struct backend *b, uint64_t fence, uint64_t timeout_ns)
{
    TRACE_STEP(WAITED);
    return device_fence_wait(b, fence, timeout_ns);
}

static int row_mem_info(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t free_now = 0, total = 0;
    struct call_scope scope;
    if (!call_scope_enter(&scope, device_self(b)->ctx))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc =
        atomic_load_explicit(&real.cuMemGetInfo_v2, memory_order_relaxed)(&free_now, &total);
    call_scope_end(&scope);
    *free_bytes = free_now;
    *total_bytes = total;
    return (int)rc;
}

static bool row_ask_others(struct backend *b, uint64_t size_bytes, struct lend_attempt *attempt)
{
    const struct device_lender *l = atomic_load(&lender);
    return l && l->ask(device_self(b)->device, size_bytes, attempt);
}

static void row_ask_in_background(struct backend *b, uint64_t size_bytes)
{
    const struct device_lender *l = atomic_load(&lender);
    if (l)
        l->ask_in_background(device_self(b)->device, size_bytes);
}

/* Steps of the coarse clock, 1 to 4 ms, are longer than what a move takes (time_budget.h). */
static uint64_t row_now_ns(struct backend *b)
{
    return clock_now_ns();
}

static const struct backend_ops rows = {
    .reserve = row_reserve,
    .unreserve = row_unreserve,
    .create = row_create,
    .release = row_release,
    .map = row_map,
    .allow = row_allow,
    .unmap = row_unmap,
    .segment_alloc = row_segment_alloc,
    .segment_free = row_segment_free,
    .segment_free_begin = row_segment_free_begin,
    .segment_free_end = row_segment_free_end,
    .fence_create = device_fence_create,
    .fence_destroy = device_fence_destroy,
    .fence_record = device_fence_record,
    .fence_query = device_fence_query,
    .fence_order = row_fence_order,
    .fence_wait = row_fence_wait,
    .fence_await = device_fence_await,
    .drain = device_fence_drain_all,
    .mem_info = row_mem_info,
    .ask_others = row_ask_others,
    .ask_in_background = row_ask_in_background,
    .now_ns = row_now_ns,
};

static int attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    return real.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

/* Arena memory must look as much like cuMemAlloc's as it can. So it can be exported, and network
 * cards and the engine that decompresses may use it. This costs nothing (measured on an H200). */
static bool init_arena(struct device_backend *d)
{
    size_t granularity = 0;
    d->prop =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->device}};
    if (attribute(d->device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        d->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (attribute(d->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        d->prop.allocFlags.gpuDirectRDMACapable = 1;
#if CUDA_VERSION >= 12080
    if (attribute(d->device, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK))
        d->prop.allocFlags.usage |= CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
#endif
    if (!attribute(d->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
        !real.cuMemAddressReserve || !real.cuMemGetAllocationGranularity ||
        !hooks_present(HOOK_cuMemAddressFree) || !hooks_present(HOOK_cuMemMap) ||
        !hooks_present(HOOK_cuMemUnmap) || !hooks_present(HOOK_cuMemSetAccess) ||
        !hooks_present(HOOK_cuMemCreate) || !hooks_present(HOOK_cuMemRelease))
        return false;
    CUresult rc = real.cuMemGetAllocationGranularity(&granularity, &d->prop,
                                                     CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return rc == CUDA_SUCCESS && granularity && GRANULE_BYTES % granularity == 0;
}

/* A driver with memory pools has all of this. */
static bool frees_beside(CUdevice device)
{
    return hooks_present(HOOK_cuMemFreeAsync) && hooks_present(HOOK_cuStreamCreate) &&
           hooks_present(HOOK_cuStreamSynchronize) && hooks_present(HOOK_cuStreamDestroy_v2) &&
           attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
}

void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream)
{
    size_t total = 0;
    d->ctx = ctx;
    d->device = device;
    bool events = device_fence_has_events();
    atomic_store(&d->context_events, events);
    real.cuDeviceTotalMem_v2(&total, device);
    d->base = (struct backend){
        .ops = &rows,
        .granularity_bytes = GRANULE_BYTES,
        .total_bytes = total,
        .nomem_code = CUDA_ERROR_OUT_OF_MEMORY,
        .has_arena = init_arena(d),
        .has_order = events,
        .single_stream = single_stream,
    };
    atomic_store(&d->has_frees_beside, frees_beside(device));
    device_fence_start(d);
}

void device_renew(struct device_backend *d, CUcontext ctx, bool single_stream)
{
    bool events = device_fence_has_events();
    d->ctx = ctx;
    atomic_store(&d->context_events, events);
    atomic_store(&d->base.has_order, events);
    atomic_store(&d->has_frees_beside, frees_beside(d->device));
    atomic_store(&d->base.frees_beside, false);
    d->base.single_stream = single_stream;
    atomic_store(&d->freeing_stream, NULL);
    atomic_store(&d->numbers_drawn, 0);
    atomic_store(&d->numbers_done, 0);
    for (int i = 0; i < DEVICE_FENCES; i++) {
        d->fences[i].event = NULL;
        atomic_store(&d->fences[i].number, 0);
    }
    atomic_store(&d->fence_count, 0);
    device_fence_start(d);
    atomic_store(&d->base.gone, false);
    int over = DESTRUCTION_OVER; /* else the new context is being destroyed already */
    atomic_compare_exchange_strong(&d->destruction, &over, DESTRUCTION_NONE);
}

CUcontext device_primary(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? atomic_load(&primaries[device]) : NULL;
}

void device_set_primary(CUdevice device, CUcontext primary)
{
    if (device >= 0 && device < DEVICES_MAX)
        atomic_store(&primaries[device], primary);
}

const struct device_identity *device_identity(CUdevice device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct device_identity known[DEVICES_MAX];
    static atomic_bool is_known[DEVICES_MAX];
    struct device_identity now = {.total_bytes = 0};
    struct call_scope scope;
    size_t total = 0;
    if (device < 0 || device >= DEVICES_MAX)
        return NULL;
    if (!atomic_load(&is_known[device]) && call_scope_begin(&scope)) {
        real.cuDeviceGetName(now.name, sizeof now.name, device);
        real.cuDeviceTotalMem_v2(&total, device);
        now.total_bytes = total;
        device_uuid(device, &now.uuid);
        call_scope_end(&scope);
        pthread_mutex_lock(&lock);
        if (!atomic_load(&is_known[device]))
            known[device] = now;
        atomic_store(&is_known[device], true);
        pthread_mutex_unlock(&lock);
    }
    return atomic_load(&is_known[device]) ? &known[device] : NULL;
}

bool device_primary_is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* cuDeviceGetUuid gives the UUID of the whole GPU. The second version, which drivers have since
 * 11.4, gives that of the part where the device is one. */
void device_uuid(CUdevice device, struct device_uuid *out)
{
    CUuuid whole, part;
    *out = (struct device_uuid){0};
    if (!real.cuDeviceGetUuid || real.cuDeviceGetUuid(&whole, device) != CUDA_SUCCESS)
        return;
    if (!real.cuDeviceGetUuid_v2 || real.cuDeviceGetUuid_v2(&part, device) != CUDA_SUCCESS)
        part = whole;
    bool is_part = memcmp(&whole, &part, sizeof whole) != 0;
    memcpy(out->bytes, &part, sizeof out->bytes);
    const unsigned char *b = out->bytes;
    snprintf(out->text, sizeof out->text,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             is_part ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
             b[10], b[11], b[12], b[13], b[14], b[15]);
}
