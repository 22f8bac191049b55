/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See mapping.h. One thread makes a mapping; nothing here is shared.
 */
#include "shim/share/mapping.h"

#include "pool/bits.h"
#include "shim/driver/access.h"
#include "shim/driver/call_scope.h"
#include "shim/driver/device.h"
#include "shim/driver/device_fence.h"
#include "shim/driver/reservation.h"
#include "shim/process/clock.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* How long this thread waits for an answer before it asks the exporter again, and how long until it
 * gives up. The exporter answers at once unless it is stopped or is giving memory back. An answer
 * is lost where others flood the exporter. A question that still waits there is work for it, also
 * if nobody wants the answer any more: asked again after 1 s, an exporter with twelve importers and
 * 0.4 s for each fell behind for good. Such driver calls were seen on a machine with four H200s
 * while 12 processes made contexts. */
#define FIRST_WAIT_MS 10000
#define GIVE_UP_MS 60000
/* The pause before a question that was not taken, or was dropped, is sent again. */
#define PAUSE_NS 2000000

/* The device with this UUID; -1: this process does not see it. */
static int find_device_of_uuid(const CUuuid *uuid)
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

/* The memory of a block, while it is fetched and mapped. */
struct arrival {
    const struct ticket_question *question;
    struct ticket_answer answer; /* the latest */
    int fds[TICKET_BATCH];       /* its descriptors */
    CUdevice device;             /* of the current context */
    CUdeviceptr base;            /* 0: nothing is reserved yet */
    uint64_t total_bytes;        /* reserved; 0: the driver opened it */
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

/* One call of the driver unmaps mappings that lie side by side (measured). */
static void unmap_all(CUdeviceptr base, uint64_t mapped_bytes, uint64_t total_bytes)
{
    if (mapped_bytes)
        real.cuMemUnmap(base, mapped_bytes);
    reservation_destroy(base, total_bytes);
}

/* The first answer says how much memory comes. If a later answer says another size, the exporter is
 * not this library, and the open fails. */
static CUresult reserve_arrival(struct arrival *a)
{
    const struct ticket_answer *now = &a->answer;
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
    a->peers = access_peers(a->device);
    CUresult rc = real.cuMemSetAccess(a->base, a->total_bytes, &desc, 1);
    if (rc == CUDA_SUCCESS && a->peers)
        /* May fail: not each of the peers need be a peer of the memory's own device. */
        access_allow(a->device, a->base, a->total_bytes);
    return rc;
}

/* Maps the chunks of one answer. After the last one it gives access to the memory. */
static void map_chunks(void *data)
{
    struct arrival *a = data;
    a->rc = a->answer.count ? reserve_arrival(a) : CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < a->answer.count && a->rc == CUDA_SUCCESS; i++) {
        bool fits = a->answer.chunk_bytes[i] <= a->total_bytes - a->mapped_bytes;
        a->rc = fits ? map_one(a, a->fds[i], a->answer.chunk_bytes[i]) : CUDA_ERROR_INVALID_VALUE;
    }
    if (a->rc == CUDA_SUCCESS && a->mapped_bytes == a->total_bytes)
        a->rc = allow(a);
}

static void give_arrival_up(void *data)
{
    const struct arrival *a = data;
    unmap_all(a->base, a->mapped_bytes, a->total_bytes);
}

/* Asks until an answer comes, the exporter is gone, or time is up. While the exporter is stopped,
 * its socket keeps the question. */
static CUresult ask_exporter(struct arrival *a)
{
    uint64_t now_ns, end_ns = clock_now_ns() + GIVE_UP_MS * MS_NS;
    uint64_t wait_ms = FIRST_WAIT_MS;
    while ((now_ns = clock_now_ns()) < end_ns) {
        int reply, failed = socket_ask(a->question, &reply);
        if (failed == ECONNREFUSED)
            return CUDA_ERROR_INVALID_HANDLE; /* as natively: the process is gone (measured) */
        if (failed && failed != EAGAIN && failed != ETOOMANYREFS)
            return CUDA_ERROR_OPERATING_SYSTEM;
        enum socket_got got = SOCKET_DROPPED;
        if (!failed)
            got = ticket_receive(reply, &a->answer, a->fds,
                                 (int)min_u64(wait_ms, (end_ns - now_ns) / MS_NS));
        socket_close(reply);
        switch (got) {
        case SOCKET_GOT:
            return CUDA_SUCCESS;
        case SOCKET_FOREIGN:
            return CUDA_ERROR_INVALID_HANDLE;
        case SOCKET_BROKEN:
            return CUDA_ERROR_INVALID_VALUE;
        case SOCKET_DROPPED:
            clock_sleep(PAUSE_NS);
            break;
        case SOCKET_LATE:
            wait_ms *= 2;
            break;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Asks once and uses the answer. */
static CUresult fetch_some(struct arrival *a, unsigned flags, mapping_open_fn native)
{
    CUresult rc = ask_exporter(a);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (a->answer.kind == TICKET_REFUSED) {
        rc = a->answer.rc ? (CUresult)a->answer.rc : CUDA_ERROR_INVALID_VALUE;
    } else if (find_device_of_uuid(&a->answer.device) < 0) {
        rc = CUDA_ERROR_INVALID_DEVICE;
    } else if (a->answer.kind == TICKET_NATIVE) {
        /* Between two answers a block of chunks cannot become an allocation of the driver's. */
        rc = a->base ? CUDA_ERROR_INVALID_VALUE : native(&a->base, a->answer.native, flags);
    } else if (a->answer.kind == TICKET_CHUNKS) {
        rc = call_scope_run(NULL, map_chunks, a) ? a->rc : CUDA_ERROR_DEINITIALIZED;
    } else {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    socket_close_all(a->fds, a->answer.count);
    return rc;
}

CUresult mapping_create(struct mapping *m, const struct ticket *ticket, unsigned flags,
                        mapping_open_fn native)
{
    struct ticket_question question = {.ticket = *ticket};
    struct arrival a = {.question = &question};
    int saved_errno = errno;
    CUresult rc = real.cuCtxGetDevice(&a.device);
    do {
        question.done_bytes = a.mapped_bytes;
        if (rc == CUDA_SUCCESS)
            rc = fetch_some(&a, flags, native);
    } while (rc == CUDA_SUCCESS && a.answer.kind == TICKET_CHUNKS &&
             a.mapped_bytes < a.total_bytes);
    if (rc != CUDA_SUCCESS && a.total_bytes)
        call_scope_run(NULL, give_arrival_up, &a);
    errno = saved_errno;
    if (rc == CUDA_SUCCESS)
        *m = (struct mapping){a.base, a.total_bytes, a.base + a.answer.offset_bytes,
                              a.answer.size_bytes, a.peers};
    return rc;
}

void mapping_destroy(const struct mapping *m, bool context_is_gone)
{
    if (m->total_bytes)
        unmap_all(m->base, m->total_bytes, m->total_bytes);
    else if (!context_is_gone)
        real.cuIpcCloseMemHandle(m->base);
}

bool mapping_is_supported(void)
{
    return hooks_present(HOOK_cuMemImportFromShareableHandle) && real.cuMemAddressReserve &&
           hooks_present(HOOK_cuMemMap) && hooks_present(HOOK_cuMemSetAccess) &&
           hooks_present(HOOK_cuMemUnmap) && hooks_present(HOOK_cuMemRelease) &&
           hooks_present(HOOK_cuMemAddressFree);
}
