/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See device.h and pool/backend.h. Rows that need the context push it if it is not current, and all
 * run in the relaxed capture mode, in which the driver forbids least (7 ns, measured on an H200): a
 * capture of the program's must not be broken by what we do beside it.
 */
#include "shim/device.h"

#include "pool/bits.h"
#include "shim/capture.h"
#include "shim/log.h"
#include "shim/reservation.h"
#include "shim/state.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

static _Atomic uint64_t peers_of[DEVICES_MAX];

/* The driver takes itself down at exit while threads of the program may still allocate. Its own calls
 * are ready for that; several at a time of ours, with state in between, might not be: once the process
 * leaves, no new visit begins, and those under way have a moment to end. */
#define LEAVE_PATIENCE_NS UINT64_C(100000000)

static atomic_bool leaving;
static atomic_int visits;

struct visit {
    bool pushed, mode_known;
    CUstreamCaptureMode mode;
    int saved_errno;
};

static struct device_backend *self(struct backend *b)
{
    return (struct device_backend *)(void *)b;
}

void device_leave(void)
{
    if (!state_is_on())
        return; /* a forked child: those who were in the driver are not here */
    uint64_t start_ns = state_clock_ns();
    atomic_store(&leaving, true);
    while (atomic_load(&visits) > 0 && state_clock_ns() - start_ns < LEAVE_PATIENCE_NS)
        sched_yield();
}

/* False: the process leaves, the driver is not to be called. */
static bool relax(struct visit *v)
{
    atomic_fetch_add(&visits, 1);
    if (atomic_load(&leaving)) {
        atomic_fetch_sub(&visits, 1);
        return false;
    }
    *v = (struct visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED, .saved_errno = errno};
    v->mode_known = real.cuThreadExchangeStreamCaptureMode &&
                    real.cuThreadExchangeStreamCaptureMode(&v->mode) == CUDA_SUCCESS;
    return true;
}

static bool enter(const struct device_backend *d, struct visit *v)
{
    CUcontext current = NULL;
    if (!relax(v))
        return false;
    if (real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != d->ctx)
        v->pushed = real.cuCtxPushCurrent_v2(d->ctx) == CUDA_SUCCESS;
    return true;
}

static void leave(struct visit *v)
{
    CUcontext ignored;
    if (v->pushed)
        real.cuCtxPopCurrent_v2(&ignored);
    if (v->mode_known)
        real.cuThreadExchangeStreamCaptureMode(&v->mode);
    errno = v->saved_errno;
    atomic_fetch_sub(&visits, 1);
}

static int row_reserve(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    CUdeviceptr at = 0;
    struct visit v;
    if (!relax(&v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = reservation_create(&at, size_bytes, b->granularity_bytes);
    leave(&v);
    *addr = at;
    return (int)rc;
}

static void row_unreserve(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct visit v;
    if (!relax(&v))
        return;
    reservation_destroy(addr, size_bytes);
    leave(&v);
}

static int row_create(struct backend *b, uint64_t size_bytes, uint64_t *handle)
{
    CUmemGenericAllocationHandle h = 0;
    struct visit v;
    if (!relax(&v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = atomic_load_explicit(&real.cuMemCreate, memory_order_relaxed)(&h, size_bytes, &self(b)->prop, 0);
    leave(&v);
    *handle = h;
    return (int)rc;
}

static void row_release(struct backend *b, uint64_t handle, uint64_t size_bytes)
{
    struct visit v;
    if (!relax(&v))
        return;
    real.cuMemRelease(handle);
    leave(&v);
}

static int row_map(struct backend *b, uint64_t addr, uint64_t size_bytes, uint64_t handle)
{
    struct visit v;
    if (!relax(&v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = real.cuMemMap(addr, size_bytes, 0, handle, 0);
    leave(&v);
    return (int)rc;
}

CUresult device_allow(CUdevice device, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc[DEVICES_MAX + 1];
    size_t count = 0;
    uint64_t allowed = device_peers(device);
    for (int d = 0; d <= DEVICES_MAX; d++) {
        bool wanted = d == DEVICES_MAX || (d != device && (allowed >> d & 1));
        if (wanted)
            desc[count++] = (CUmemAccessDesc){
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d == DEVICES_MAX ? device : d},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    }
    return real.cuMemSetAccess(addr, size_bytes, desc, count);
}

static int row_allow(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct visit v;
    if (!relax(&v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = device_allow(self(b)->device, addr, size_bytes);
    leave(&v);
    return (int)rc;
}

static void row_unmap(struct backend *b, uint64_t addr, uint64_t size_bytes)
{
    struct visit v;
    if (!relax(&v))
        return;
    real.cuMemUnmap(addr, size_bytes);
    leave(&v);
}

static int row_segment_alloc(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    CUdeviceptr at = 0;
    struct visit v;
    if (!enter(self(b), &v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = atomic_load_explicit(&real.cuMemAlloc_v2, memory_order_relaxed)(&at, size_bytes);
    leave(&v);
    *addr = at;
    return (int)rc;
}

/* The stream for nothing but frees. Two threads may make one each: the one too many is destroyed again. It
 * dies with its context. */
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

/* cuMemFree waits for all work of the context and holds up launches meanwhile (2 ms for 1 GiB in pieces of
 * 32 MiB). Freed in stream order, on a stream that has no other work, the same memory is back as soon as
 * that stream is synchronised: after 45 us for 64 MiB, 300 us for 1 GiB, with a kernel running and no launch
 * held up (H200). CUDA documents it for memory of cudaMalloc, too. */
static bool free_beside(struct device_backend *d, CUdeviceptr addr)
{
    CUstream stream = atomic_load(&d->base.frees_beside) ? freeing_stream(d) : NULL;
    if (!stream)
        return false;
    CUresult rc = real.cuMemFreeAsync(addr, stream);
    if (rc != CUDA_SUCCESS) {
        atomic_store(&d->base.frees_beside, false);
        return false;
    }
    real.cuStreamSynchronize(stream);
    return true;
}

static int row_segment_free(struct backend *b, uint64_t addr, bool idle)
{
    struct visit v;
    CUresult rc = CUDA_SUCCESS;
    if (!enter(self(b), &v))
        return CUDA_ERROR_DEINITIALIZED;
    if (!idle || !free_beside(self(b), addr))
        rc = atomic_load_explicit(&real.cuMemFree_v2, memory_order_relaxed)(addr);
    leave(&v);
    return (int)rc;
}

static struct device_fence *fence_at(struct backend *b, uint64_t fence)
{
    return &self(b)->fences[fence];
}

static int row_fence_create(struct backend *b, uint64_t *fence)
{
    struct device_backend *d = self(b);
    unsigned at = atomic_fetch_add(&d->fence_count, 1);
    if (at >= DEVICE_FENCES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *fence = at;
    if (atomic_load(&d->context_events)) {
        struct visit v;
        if (!enter(d, &v))
            return CUDA_ERROR_DEINITIALIZED;
        if (real.cuEventCreate(&d->fences[at].event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            d->fences[at].event = NULL;
        leave(&v);
    }
    return 0;
}

/* Events die with their context. */
static void row_fence_destroy(struct backend *b, uint64_t fence)
{
    struct device_backend *d = self(b);
    CUevent event = fence_at(b, fence)->event;
    if (!event || atomic_load(&d->gone))
        return;
    struct visit v;
    if (!enter(d, &v))
        return;
    real.cuEventDestroy_v2(event);
    leave(&v);
}

static bool is_capture_error(CUresult rc)
{
    return rc >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && rc <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static enum fence_record draw_number(struct device_backend *d, struct device_fence *f)
{
    atomic_store(&f->number, atomic_fetch_add(&d->numbers_drawn, 1) + 1);
    return FENCE_RECORDED;
}

static enum fence_record row_fence_record(struct backend *b, uint64_t fence)
{
    struct device_backend *d = self(b);
    struct device_fence *f = fence_at(b, fence);
    if (!f->event || !atomic_load(&d->context_events))
        return draw_number(d, f);
    if (!capture_hold_off())
        return FENCE_REFUSED;
    struct visit v;
    if (!enter(d, &v)) {
        capture_let_go();
        return FENCE_REFUSED;
    }
    CUresult rc = real.cuCtxRecordEvent(d->ctx, f->event);
    leave(&v);
    capture_let_go();
    if (is_capture_error(rc))
        return FENCE_REFUSED;
    if (rc == CUDA_SUCCESS) {
        atomic_store(&f->number, 0);
        return FENCE_RECORDED;
    }
    /* A driver without the call, or a broken context: in that the synchronisation fails as well, and
     * nothing becomes ready any more. */
    log_once(LOG_LEVEL_INFO, "cuCtxRecordEvent gave %d: fences by synchronisation from here on", (int)rc);
    atomic_store(&d->context_events, false);
    atomic_store(&b->has_order, false);
    return draw_number(d, f);
}

static enum fence_state row_fence_query(struct backend *b, uint64_t fence)
{
    struct device_backend *d = self(b);
    struct device_fence *f = fence_at(b, fence);
    uint64_t number = atomic_load(&f->number);
    if (number)
        return number <= atomic_load(&d->numbers_done) ? FENCE_DONE : FENCE_BUSY;
    struct visit v;
    if (!enter(d, &v))
        return FENCE_BUSY;
    CUresult rc = real.cuEventQuery(f->event);
    leave(&v);
    if (rc == CUDA_SUCCESS)
        return FENCE_DONE;
    return rc == CUDA_ERROR_NOT_READY || is_capture_error(rc) ? FENCE_BUSY : FENCE_LOST;
}

static int row_fence_order(struct backend *b, uint64_t fence)
{
    struct device_backend *d = self(b);
    struct device_fence *f = fence_at(b, fence);
    if (atomic_load(&f->number))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!capture_hold_off())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct visit v;
    if (!enter(d, &v)) {
        capture_let_go();
        return CUDA_ERROR_DEINITIALIZED;
    }
    CUresult rc = real.cuCtxWaitEvent(d->ctx, f->event);
    leave(&v);
    capture_let_go();
    return (int)rc;
}

/* Whatever was drawn before the synchronisation began is done after it. */
static int synchronise(struct device_backend *d)
{
    uint64_t drawn = atomic_load(&d->numbers_drawn), done = atomic_load(&d->numbers_done);
    if (!capture_hold_off())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct visit v;
    if (!enter(d, &v)) {
        capture_let_go();
        return CUDA_ERROR_DEINITIALIZED;
    }
    CUresult rc = real.cuCtxSynchronize();
    leave(&v);
    capture_let_go();
    while (rc == CUDA_SUCCESS && done < drawn &&
           !atomic_compare_exchange_weak(&d->numbers_done, &done, drawn))
        ;
    return (int)rc;
}

/* CUDA has no timed wait: look, awake at first (a sleep takes 60 us or more), then ever less often (10 to 100
 * us). A look takes the driver's lock, which other threads want for their launches: awake, too, it is let
 * alone for a while in between. Without a limit the driver waits. */
#define WAIT_AWAKE_NS UINT64_C(20000)
#define WAIT_LOOK_NS UINT64_C(1000)
static int row_fence_wait(struct backend *b, uint64_t fence, uint64_t timeout_ns)
{
    struct device_backend *d = self(b);
    struct device_fence *f = fence_at(b, fence);
    if (atomic_load(&f->number))
        return synchronise(d);
    if (timeout_ns == UINT64_MAX) {
        struct visit v;
        if (!enter(d, &v))
            return CUDA_ERROR_DEINITIALIZED;
        CUresult rc = real.cuEventSynchronize(f->event);
        leave(&v);
        return (int)rc;
    }
    uint64_t start_ns = state_clock_ns(), pause_ns = 10000;
    for (;;) {
        enum fence_state s = row_fence_query(b, fence);
        if (s == FENCE_DONE)
            return 0;
        if (s == FENCE_LOST)
            return CUDA_ERROR_UNKNOWN;
        uint64_t waited_ns = state_clock_ns() - start_ns;
        if (waited_ns >= timeout_ns)
            return CUDA_ERROR_NOT_READY;
        if (waited_ns < WAIT_AWAKE_NS) {
            while (state_clock_ns() - start_ns < waited_ns + WAIT_LOOK_NS)
                ;
            continue;
        }
        int saved_errno = errno;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
        errno = saved_errno;
        pause_ns = min_u64(pause_ns * 2, 100000);
    }
}

static int row_mem_info(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t free_now = 0, total = 0;
    struct visit v;
    if (!enter(self(b), &v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = atomic_load_explicit(&real.cuMemGetInfo_v2, memory_order_relaxed)(&free_now, &total);
    leave(&v);
    *free_bytes = free_now;
    *total_bytes = total;
    return (int)rc;
}

static uint64_t row_now_ns(struct backend *b)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
    .fence_create = row_fence_create,
    .fence_destroy = row_fence_destroy,
    .fence_record = row_fence_record,
    .fence_query = row_fence_query,
    .fence_order = row_fence_order,
    .fence_wait = row_fence_wait,
    .mem_info = row_mem_info,
    .now_ns = row_now_ns,
};

static int attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    return real.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

/* Arena memory must look as much like cuMemAlloc's as it can: open to network cards and to the engine that
 * decompresses, where there is one, and exportable.
 * Neither costs anything (measured on an H200). */
static bool init_arena(struct device_backend *d)
{
    size_t granularity = 0;
    d->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
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
        !real.cuMemAddressReserve || !hooks_present(HOOK_cuMemAddressFree) || !hooks_present(HOOK_cuMemMap) ||
        !hooks_present(HOOK_cuMemUnmap) || !real.cuMemRelease || !hooks_present(HOOK_cuMemSetAccess) ||
        !hooks_present(HOOK_cuMemCreate) ||
        !real.cuMemGetAllocationGranularity)
        return false;
    CUresult rc = real.cuMemGetAllocationGranularity(&granularity, &d->prop,
                                                     CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return rc == CUDA_SUCCESS && granularity && GRANULE_BYTES % granularity == 0;
}

/* Of what it takes the driver has all where it has memory pools. */
static bool frees_beside(CUdevice device)
{
    return real.cuMemFreeAsync && real.cuStreamCreate && real.cuStreamSynchronize &&
           real.cuStreamDestroy_v2 && attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
}

void device_init(struct device_backend *d, CUcontext ctx, CUdevice device, bool single_stream)
{
    size_t total = 0;
    d->ctx = ctx;
    d->device = device;
    bool events = real.cuCtxRecordEvent && real.cuCtxWaitEvent && real.cuEventCreate &&
                  real.cuEventQuery && real.cuEventSynchronize && real.cuEventDestroy_v2;
    atomic_store(&d->context_events, events);
    real.cuDeviceTotalMem_v2(&total, device);
    d->base = (struct backend){
        .ops = &rows,
        .granularity_bytes = GRANULE_BYTES,
        .total_bytes = total,
        .nomem_code = CUDA_ERROR_OUT_OF_MEMORY,
        .has_arena = init_arena(d),
        .has_order = events,
        .frees_beside = frees_beside(device),
        .single_stream = single_stream,
    };
}

uint64_t device_peers(CUdevice owner)
{
    return owner >= 0 && owner < DEVICES_MAX ? atomic_load(&peers_of[owner]) : 0;
}

void device_peer_allow(CUdevice owner, CUdevice peer, bool allowed)
{
    if (owner < 0 || owner >= DEVICES_MAX || peer < 0 || peer >= DEVICES_MAX)
        return;
    if (allowed)
        atomic_fetch_or(&peers_of[owner], UINT64_C(1) << peer);
    else
        atomic_fetch_and(&peers_of[owner], ~(UINT64_C(1) << peer));
}

CUresult device_peer_range(CUdevice peer, bool allowed, uint64_t addr, uint64_t size_bytes)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
                            .flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE};
    struct visit v;
    if (!relax(&v))
        return CUDA_ERROR_DEINITIALIZED;
    CUresult rc = real.cuMemSetAccess(addr, size_bytes, &desc, 1);
    leave(&v);
    return rc;
}

bool device_visit(struct device_backend *d, void (*work)(void *arg), void *arg)
{
    struct visit v;
    if (d ? !enter(d, &v) : !relax(&v))
        return false;
    work(arg);
    leave(&v);
    return true;
}
