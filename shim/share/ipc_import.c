/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The importer's side, see ipc.h. One lock for the list of what is open; who opens or closes an entry
 * marks it and drops the lock for the calls, others that want the same entry wait.
 *
 * Closing waits for the work of the context before it takes the memory away (the driver's own close does
 * not return before the memory is out of use either). During a capture that would break the capture:
 * then the mapping stays until it is over. While it waits captures may begin: what is left to do
 * then is not forbidden in a visit's capture mode.
 */
#include "shim/share/ipc.h"

#include "pool/bits.h"
#include "pool/host.h"
#include "shim/driver/capture.h"
#include "shim/control/thread.h"
#include "shim/driver/device.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/visit.h"
#include "shim/share/ipc_door.h"
#include "shim/process/log.h"
#include "shim/driver/reservation.h"
#include "shim/process/state.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

/* How long this thread waits for an answer before it asks the exporter again, and how long until it
 * gives up. The exporter answers at once unless it is stopped or is just giving memory back. */
#define ASK_EVERY_MS 1000
#define GIVE_UP_MS 10000
/* Wait before a question that was not taken, or was dropped, is put again. */
#define PAUSE_NS 2000000
/* How long until memory that a capture kept from being taken away is tried again, where nothing tells of its end. */
#define TIDY_AGAIN_NS UINT64_C(100000000)

struct opened {
    struct opened *next;
    struct ipc_ticket ticket;
    CUcontext ctx;
    CUdevice device; /* of the context */
    CUdeviceptr addr; /* of the block */
    size_t size_bytes;
    CUdeviceptr base; /* of the mappings, or of the driver's own */
    uint64_t total_bytes; /* mapped; 0: the driver's */
    uint64_t peers; /* who got access with it (device_peers) */
    unsigned opens;
    bool busy;        /* being opened: all but ticket and ctx belong to who opens it */
    unsigned long long buffer_id;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct host_cache records = {.record_bytes = (sizeof(struct opened) + 15) / 16 * 16};
static struct opened *list, *closed; /* closed: to be taken away when no capture is open */
static atomic_int open_count, closed_count;

/* The device of that name; -1: it is not among this process's. */
static int find_device(const CUuuid *uuid)
{
    int devices = 0;
    real.cuDeviceGetCount(&devices);
    for (int i = 0; i < devices; i++) {
        CUdevice device;
        CUuuid one;
        if (real.cuDeviceGet(&device, i) == CUDA_SUCCESS &&
            real.cuDeviceGetUuid(&one, device) == CUDA_SUCCESS && !memcmp(&one, uuid, sizeof one))
            return device;
    }
    return -1;
}

/* The memory of a block, on its way to where it is mapped. */
struct arrival {
    const struct ipc_question *question;
    struct ipc_answer answer; /* the latest */
    int fds[IPC_BATCH];       /* its descriptors */
    CUdevice device;
    CUdeviceptr base; /* 0: nothing is reserved yet */
    uint64_t total_bytes; /* reserved; 0: the driver's own */
    uint64_t mapped_bytes, peers;
    CUresult rc;
};

static CUresult map_one(struct arrival *a, int fd, uint64_t size_bytes)
{
    CUmemGenericAllocationHandle handle;
    CUresult rc = real.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = real.cuMemMap(a->base + a->mapped_bytes, size_bytes, 0, handle, 0);
    if (rc == CUDA_SUCCESS)
        a->mapped_bytes += size_bytes;
    real.cuMemRelease(handle); /* the mapping keeps the memory */
    return rc;
}

/* The mappings lie side by side and go together (measured). */
static void unmap_all(CUdeviceptr base, uint64_t mapped_bytes, uint64_t total_bytes)
{
    if (mapped_bytes)
        real.cuMemUnmap(base, mapped_bytes);
    reservation_destroy(base, total_bytes);
}

/* The first answer says how much there is. An exporter whose later answers say another size is not
 * the library's: the open fails. */
static CUresult reserve(struct arrival *a)
{
    const struct ipc_answer *now = &a->answer;
    if (now->offset_bytes > now->total_bytes ||
        now->size_bytes > now->total_bytes - now->offset_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (a->base)
        return a->total_bytes == now->total_bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    CUresult rc = reservation_create(&a->base, now->total_bytes, GRANULE_BYTES);
    if (rc == CUDA_SUCCESS)
        a->total_bytes = now->total_bytes;
    else
        a->base = 0;
    return rc;
}

static CUresult allow(struct arrival *a)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = a->device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    a->peers = device_peers(a->device);
    CUresult rc = real.cuMemSetAccess(a->base, a->total_bytes, &desc, 1);
    if (rc == CUDA_SUCCESS && a->peers)
        /* Not all devices need be peers of the memory's own. */
        device_allow(a->device, a->base, a->total_bytes);
    return rc;
}

/* The chunks of one answer; after the last one the memory can be reached. */
static void map_chunks(void *data)
{
    struct arrival *a = data;
    a->rc = a->answer.count ? reserve(a) : CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < a->answer.count && a->rc == CUDA_SUCCESS; i++) {
        bool fits = a->answer.chunk_bytes[i] <= a->total_bytes - a->mapped_bytes;
        a->rc = fits ? map_one(a, a->fds[i], a->answer.chunk_bytes[i]) : CUDA_ERROR_INVALID_VALUE;
    }
    if (a->rc == CUDA_SUCCESS && a->mapped_bytes == a->total_bytes)
        a->rc = allow(a);
}

static void give_up(void *data)
{
    const struct arrival *a = data;
    unmap_all(a->base, a->mapped_bytes, a->total_bytes);
}

/* Asks until there is an answer, the exporter is gone, or time is up. While the exporter is stopped
 * its door keeps the question. */
static CUresult ask(struct arrival *a)
{
    uint64_t end_ns = state_clock_ns() + GIVE_UP_MS * UINT64_C(1000000);
    while (state_clock_ns() < end_ns) {
        int reply, failed = ipc_wire_ask(a->question, &reply);
        if (failed == ECONNREFUSED)
            return CUDA_ERROR_INVALID_HANDLE; /* as the driver's of a gone process (measured) */
        if (failed && failed != EAGAIN && failed != ETOOMANYREFS)
            return CUDA_ERROR_OPERATING_SYSTEM;
        enum ipc_got got = IPC_DROPPED;
        if (!failed)
            got = ipc_wire_receive(reply, &a->answer, a->fds, ASK_EVERY_MS);
        ipc_wire_close(reply);
        switch (got) {
        case IPC_GOT:
            return CUDA_SUCCESS;
        case IPC_FOREIGN:
            return CUDA_ERROR_INVALID_HANDLE;
        case IPC_BROKEN:
            return CUDA_ERROR_INVALID_VALUE;
        case IPC_DROPPED:
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
            break;
        case IPC_LATE:
            break;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Asks once, and takes what came. */
static CUresult fetch_some(struct arrival *a, unsigned flags, ipc_open_fn native)
{
    CUresult rc = ask(a);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (a->answer.kind == IPC_REFUSED) {
        rc = a->answer.rc ? (CUresult)a->answer.rc : CUDA_ERROR_INVALID_VALUE;
    } else if (find_device(&a->answer.device) < 0) {
        rc = CUDA_ERROR_INVALID_DEVICE;
    } else if (a->answer.kind == IPC_NATIVE) {
        /* Nothing of a block's first chunks makes a segment of the driver's. */
        rc = a->base ? CUDA_ERROR_INVALID_VALUE : native(&a->base, a->answer.native, flags);
    } else if (a->answer.kind == IPC_CHUNKS) {
        rc = visit_run(NULL, map_chunks, a) ? a->rc : CUDA_ERROR_DEINITIALIZED;
    } else {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    ipc_wire_close_all(a->fds, a->answer.count);
    return rc;
}

/* Fills what a new entry has to tell of the memory. */
static CUresult fetch(struct opened *o, unsigned flags, ipc_open_fn native)
{
    struct ipc_question question = {.ticket = o->ticket};
    struct arrival a = {.question = &question};
    int saved_errno = errno;
    CUresult rc = real.cuCtxGetDevice(&a.device);
    do {
        question.done_bytes = a.mapped_bytes;
        if (rc == CUDA_SUCCESS)
            rc = fetch_some(&a, flags, native);
    } while (rc == CUDA_SUCCESS && a.answer.kind == IPC_CHUNKS && a.mapped_bytes < a.total_bytes);
    if (rc != CUDA_SUCCESS && a.total_bytes)
        visit_run(NULL, give_up, &a);
    errno = saved_errno;
    if (rc != CUDA_SUCCESS)
        return rc;
    o->peers = a.peers;
    o->base = a.base;
    o->total_bytes = a.total_bytes;
    o->addr = a.base + a.answer.offset_bytes;
    o->size_bytes = a.answer.size_bytes;
    real.cuPointerGetAttribute(&o->buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, o->addr);
    real.cuCtxGetDevice(&o->device);
    return CUDA_SUCCESS;
}

bool ipc_is_ours(const CUipcMemHandle *handle)
{
    struct ipc_ticket ticket;
    memcpy(&ticket, handle, sizeof ticket);
    return ticket.magic == IPC_MAGIC && ticket.check == ipc_ticket_check(&ticket);
}

static void remove_entry(struct opened **head, struct opened *gone)
{
    while (*head != gone)
        head = &(*head)->next;
    *head = gone->next;
}

static struct opened *find_ticket(const struct ipc_ticket *ticket, CUcontext ctx)
{
    for (struct opened *o = list; o; o = o->next)
        if (o->ctx == ctx && memcmp(&o->ticket, ticket, sizeof *ticket) == 0)
            return o;
    return NULL;
}

static struct opened *add(const struct ipc_ticket *ticket, CUcontext ctx)
{
    struct opened *o = host_cache_ensure(&records, 1) ? host_cache_get(&records) : NULL;
    if (o) {
        *o = (struct opened){.next = list, .ticket = *ticket, .ctx = ctx, .busy = true};
        list = o;
    }
    return o;
}

/* An entry that is in no list. */
struct departure {
    const struct opened *entry;
    bool refused; /* a capture is open: nothing was taken away */
};

static void take_away(void *data)
{
    struct departure *d = data;
    const struct opened *o = d->entry;
    CUcontext ignored;
    bool pushed = real.cuCtxPushCurrent_v2(o->ctx) == CUDA_SUCCESS;
    d->refused = device_fence_drain(o->ctx) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (d->refused)
        ;
    else if (o->total_bytes)
        unmap_all(o->base, o->total_bytes, o->total_bytes);
    else
        real.cuIpcCloseMemHandle(o->base);
    if (pushed)
        real.cuCtxPopCurrent_v2(&ignored);
}

static uint64_t tidy(uint64_t now_ns);
static struct duty tidy_duty = {.run = tidy, .needs_calm = true, .due_ns = DUTY_NEVER};

/* Lock held on entry and exit. What has to stay is the control thread's to take away. */
static void clear_closed(void)
{
    while (closed && !capture_open()) {
        struct opened *o = closed;
        struct departure d = {.entry = o};
        closed = o->next;
        atomic_fetch_sub(&closed_count, 1);
        pthread_mutex_unlock(&lock);
        visit_run(NULL, take_away, &d);
        pthread_mutex_lock(&lock);
        if (d.refused) {
            o->next = closed;
            closed = o;
            atomic_fetch_add(&closed_count, 1);
            /* By a capture that has begun, whose end runs the duty, or by one that is not known. */
            control_due(&tidy_duty, capture_open() ? 0 : state_clock_ns() + TIDY_AGAIN_NS);
            return;
        }
        host_cache_put(&records, o);
    }
    if (closed)
        control_due(&tidy_duty, 0);
}

bool ipc_any_closed(void)
{
    return atomic_load_explicit(&closed_count, memory_order_relaxed) != 0;
}

static uint64_t tidy(uint64_t now_ns)
{
    pthread_mutex_lock(&lock);
    clear_closed();
    pthread_mutex_unlock(&lock);
    return DUTY_NEVER;
}

/* Access that was given to others while the memory was on its way: who gives it walks over what is open. */
struct late_access {
    CUdevice device;
    CUdeviceptr base;
    uint64_t total_bytes;
    bool wanted;
};

static void allow_late(void *data)
{
    const struct late_access *late = data;
    device_allow(late->device, late->base, late->total_bytes);
}

CUresult ipc_open(CUdeviceptr *addr, const CUipcMemHandle *handle, unsigned flags, ipc_open_fn native)
{
    struct ipc_ticket ticket;
    CUcontext ctx = NULL;
    CUresult rc = real.cuCtxGetCurrent(&ctx);
    memcpy(&ticket, handle, sizeof ticket);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (!addr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (!ctx || ipc_door_is_ours(&ticket.token))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!hooks_present(HOOK_cuMemImportFromShareableHandle) || !real.cuMemAddressReserve ||
        !hooks_present(HOOK_cuMemMap) ||
        !hooks_present(HOOK_cuMemSetAccess) || !hooks_present(HOOK_cuMemUnmap) || !real.cuMemRelease ||
        !hooks_present(HOOK_cuMemAddressFree))
        return CUDA_ERROR_NOT_SUPPORTED;
    bool mapped = false;
    struct late_access late = {.wanted = false};
    pthread_mutex_lock(&lock);
    clear_closed();
    struct opened *o;
    while ((o = find_ticket(&ticket, ctx)) && o->busy)
        pthread_cond_wait(&changed, &lock);
    if (!o && !(o = add(&ticket, ctx)))
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (o && o->busy) {
        pthread_mutex_unlock(&lock);
        rc = fetch(o, flags, native);
        pthread_mutex_lock(&lock);
        o->busy = false;
        pthread_cond_broadcast(&changed);
        if (rc == CUDA_SUCCESS) {
            atomic_fetch_add(&open_count, 1);
            mapped = o->total_bytes != 0;
            late = (struct late_access){o->device, o->base, o->total_bytes, device_peers(o->device) != o->peers};
        } else {
            remove_entry(&list, o);
            host_cache_put(&records, o);
        }
    }
    if (rc == CUDA_SUCCESS) {
        o->opens++;
        *addr = o->addr;
    }
    pthread_mutex_unlock(&lock);
    if (mapped)
        atomic_fetch_or(&pool_watch, POOL_WATCH_ANSWERS); /* of submissions */
    if (mapped && late.wanted)
        visit_run(NULL, allow_late, &late);
    return rc;
}

static struct opened *find_around(CUdeviceptr addr)
{
    for (struct opened *o = list; o; o = o->next)
        if (!o->busy && addr >= o->addr && addr - o->addr < o->size_bytes)
            return o;
    return NULL;
}

bool ipc_any_open(void)
{
    return atomic_load_explicit(&open_count, memory_order_acquire) != 0;
}

bool ipc_close(CUdeviceptr addr, CUresult *rc)
{
    CUcontext ctx = NULL;
    if (!ipc_any_open())
        return false;
    bool current = real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx;
    pthread_mutex_lock(&lock);
    struct opened *o = find_around(addr);
    bool mine = o != NULL;
    if (mine) {
        *rc = CUDA_SUCCESS;
        if (o->addr != addr) {
            *rc = CUDA_ERROR_INVALID_VALUE;
        } else if (!current) {
            *rc = CUDA_ERROR_INVALID_CONTEXT;
        } else if (--o->opens == 0) {
            remove_entry(&list, o);
            atomic_fetch_sub(&open_count, 1);
            o->next = closed;
            closed = o;
            atomic_fetch_add(&closed_count, 1);
            clear_closed();
            if (closed)
                control_need();
        }
    }
    pthread_mutex_unlock(&lock);
    return mine;
}

static void take_away_after_context(void *data)
{
    const struct opened *o = data;
    if (o->total_bytes)
        unmap_all(o->base, o->total_bytes, o->total_bytes);
}

void ipc_forget(CUcontext ctx)
{
    struct opened **heads[] = {&list, &closed};
    if (!ctx)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2; i++)
        for (struct opened **at = heads[i]; *at;) {
            struct opened *o = *at;
            if (o->ctx != ctx || o->busy) {
                at = &o->next;
                continue;
            }
            *at = o->next;
            atomic_fetch_sub(i == 0 ? &open_count : &closed_count, 1);
            pthread_mutex_unlock(&lock);
            visit_run(NULL, take_away_after_context, o);
            pthread_mutex_lock(&lock);
            host_cache_put(&records, o);
            at = heads[i]; /* the list may have changed */
        }
    pthread_mutex_unlock(&lock);
}

bool ipc_find(CUdeviceptr addr, struct ipc_range *range)
{
    if (!ipc_any_open())
        return false;
    pthread_mutex_lock(&lock);
    const struct opened *o = find_around(addr);
    if (o)
        *range = (struct ipc_range){o->addr, o->size_bytes, o->ctx, o->device, o->buffer_id};
    pthread_mutex_unlock(&lock);
    return o != NULL;
}

void ipc_for_each_range(CUdevice device, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes), void *arg)
{
    struct range {
        uint64_t addr, size_bytes;
    } *ranges = NULL;
    size_t count = 0, at = 0;
    if (!ipc_any_open())
        return;
    pthread_mutex_lock(&lock);
    for (const struct opened *o = list; o; o = o->next)
        count++;
    if (count)
        ranges = host_pages(count * sizeof *ranges);
    for (const struct opened *o = list; o && ranges; o = o->next)
        if (!o->busy && o->device == device && o->total_bytes)
            ranges[at++] = (struct range){o->base, o->total_bytes};
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < at; i++)
        f(arg, ranges[i].addr, ranges[i].size_bytes);
    host_pages_free(ranges, count * sizeof *ranges);
}

size_t ipc_imports_elsewhere(CUdevice device, CUcontext *ctx, CUdevice *owner, size_t max)
{
    size_t count = 0;
    if (!ipc_any_open())
        return 0;
    pthread_mutex_lock(&lock);
    for (const struct opened *o = list; o; o = o->next) {
        bool known = o->busy || o->device == device || !o->total_bytes;
        for (size_t i = 0; i < count && !known; i++)
            known = ctx[i] == o->ctx;
        if (!known && count < max) {
            owner[count] = o->device;
            ctx[count++] = o->ctx;
        }
    }
    pthread_mutex_unlock(&lock);
    return count;
}

size_t ipc_contexts(CUcontext *ctx, size_t max)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2; i++)
        for (const struct opened *o = i ? closed : list; o; o = o->next) {
            bool known = false;
            for (size_t at = 0; at < count && !known; at++)
                known = ctx[at] == o->ctx;
            if (!known && count < max)
                ctx[count++] = o->ctx;
        }
    pthread_mutex_unlock(&lock);
    return count;
}
