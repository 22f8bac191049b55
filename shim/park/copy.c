/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See copy.h; the numbers below are those of its steps.
 */
#include "shim/park/copy.h"

#include "pool/bits.h"
#include "shim/driver/call_scope.h"
#include "shim/park/node.h"
#include "shim/park/store_file.h"
#include "shim/park/uncached.h"
#include "shim/process/futex.h"
#include "shim/process/own_thread.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define LANE_BYTES (2 * COPY_HALF_BYTES)
#define STACK_BYTES (256 * 1024)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* A half of a lane: its stream, and the piece of the job that it holds. */
struct half {
    CUstream stream;
    char *staging;
    uint64_t from, to; /* equal: none */
};

static char *staging; /* NULL: there is none */
static unsigned num_lanes;
static bool is_registered;
static struct half halves[COPY_LANES_MAX][2];
static CUcontext opened;

/* Where the threads run: the park thread elsewhere between the jobs. */
static struct node_processors allowed, near;
static bool binds; /* there was a device that the kernel names processors near */

/* The job. Written before `jobs` goes up, but for the atomic words. */
static struct {
    struct copy_job what;
    uint64_t size_bytes;
    _Atomic uint64_t next; /* the next byte that no lane has taken */
    atomic_bool stopped;
    _Atomic CUresult code;
} job;

static _Atomic uint32_t jobs;    /* a futex: how many have begun */
static _Atomic uint32_t busy;    /* a futex: workers that have not ended the latest one */
static _Atomic uint32_t workers; /* a futex: threads that are there */
static atomic_uint lanes_taken;
static atomic_bool finishes;

static void fail(CUresult code)
{
    CUresult none = CUDA_SUCCESS;

    atomic_compare_exchange_strong(&job.code, &none, code);
    atomic_store(&job.stopped, true);
}

/* The part that holds the job's byte `at`. */
static size_t find_part(uint64_t at)
{
    size_t low = 0, high = job.what.num_parts;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (job.what.parts[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* For each part of the half's piece: */
enum step { TRANSFER, COPY };

/* False: the file is bad. */
static bool copy_staged(char *host, char *staged, size_t size_bytes)
{
    if (job.what.in_file)
        return job.what.way == COPY_OUT ? store_file_put(host, staged, size_bytes)
                                        : store_file_get(staged, host, size_bytes);
    if (job.what.way == COPY_OUT)
        uncached_copy(host, staged, size_bytes);
    else
        memcpy(staged, host, size_bytes); /* the GPU reads it next */
    return true;
}

static void do_part(struct half *h, enum step step, const struct copy_part *p, uint64_t from,
                    uint64_t to)
{
    char *host = p->host + (from - p->at), *staged = h->staging + (from - h->from);
    CUdeviceptr addr = p->addr + (from - p->at);
    size_t size = to - from;
    CUresult rc = CUDA_SUCCESS;

    if (step == COPY)
        rc = copy_staged(host, staged, size) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    else if (job.what.way == COPY_OUT)
        rc = atomic_load(&real_cuMemcpyDtoHAsync_v2)(staged, addr, size, h->stream);
    else
        rc = atomic_load(&real_cuMemcpyHtoDAsync_v2)(addr, staged, size, h->stream);
    if (rc != CUDA_SUCCESS)
        fail(rc);
}

static void do_piece(struct half *h, enum step step)
{
    uint64_t from = h->from;

    for (size_t i = find_part(from); from < h->to && !atomic_load(&job.code); i++) {
        const struct copy_part *p = &job.what.parts[i];
        uint64_t to = min_u64(h->to, p->at + p->size_bytes);

        do_part(h, step, p, from, to);
        from = to;
    }
}

/* Waits for the half's transfer, and copies what came. */
static void settle_half(struct half *h)
{
    if (h->from == h->to)
        return;
    CUresult rc = real.cuStreamSynchronize(h->stream);
    if (rc != CUDA_SUCCESS) {
        fail(rc);
        (void)real.cuStreamSynchronize(h->stream); /* an unmap may come next */
    }
    if (rc == CUDA_SUCCESS && job.what.way == COPY_OUT && !atomic_load(&job.stopped))
        do_piece(h, COPY);
    h->from = h->to = 0;
}

/* Takes the next piece. False: there is none, or the job was stopped. */
static bool take_piece(struct half *h)
{
    if (job.what.goes_on && !job.what.goes_on())
        atomic_store(&job.stopped, true);
    if (atomic_load(&job.stopped))
        return false;
    uint64_t from = atomic_fetch_add(&job.next, COPY_HALF_BYTES);
    if (from >= job.size_bytes)
        return false;
    h->from = from;
    h->to = min_u64(from + COPY_HALF_BYTES, job.size_bytes);
    return true;
}

static void run_lane(struct half lane[2])
{
    struct call_scope scope;
    bool was_awaited = call_scope_is_awaited; /* the park thread's other calls are, too */

    call_scope_is_awaited = job.what.awaited;
    if (call_scope_enter(&scope, opened)) {
        for (unsigned i = 0;; i ^= 1) {
            settle_half(&lane[i]);
            if (!take_piece(&lane[i]))
                break;
            if (job.what.way == COPY_BACK)
                do_piece(&lane[i], COPY);
            do_piece(&lane[i], TRANSFER);
        }
        settle_half(&lane[0]);
        settle_half(&lane[1]);
        call_scope_end(&scope);
    } else {
        fail(CUDA_ERROR_INVALID_CONTEXT);
    }
    call_scope_is_awaited = was_awaited;
}

/* Step 4. */
static void touch(void)
{
    struct half h = {0};

    while (take_piece(&h))
        if (madvise(job.what.parts->host + h.from, h.to - h.from, MADV_POPULATE_WRITE))
            fail(CUDA_ERROR_OUT_OF_MEMORY);
}

static void run_lanes(unsigned lane)
{
    if (binds)
        node_bind(&near);
    if (job.what.way == COPY_TOUCH)
        touch();
    else if (lane < num_lanes)
        run_lane(halves[lane]);
}

static void run_worker(void)
{
    unsigned lane = atomic_fetch_add(&lanes_taken, 1);

    for (uint32_t seen = 0;;) {
        uint32_t now = atomic_load(&jobs);

        if (atomic_load(&finishes)) /* it is set before `jobs` goes up */
            break;
        if (now == seen) {
            futex_wait(&jobs, seen, FUTEX_FOREVER, FUTEX_OF_PROCESS);
            continue;
        }
        seen = now;
        run_lanes(lane);
        if (atomic_fetch_sub(&busy, 1) == 1)
            futex_wake_all(&busy, FUTEX_OF_PROCESS);
    }
    atomic_fetch_sub(&workers, 1);
    futex_wake_all(&workers, FUTEX_OF_PROCESS);
}

static void make_workers(void)
{
    static const struct own_thread thread = {"gpucache-copy", STACK_BYTES, run_worker};

    node_allowed(&allowed);
    uint64_t most = min_u64(node_count(&allowed), COPY_THREADS_MAX);
    atomic_store(&jobs, 0);
    atomic_store(&finishes, false);
    atomic_store(&lanes_taken, 1); /* lane 0 is the park thread's */
    for (unsigned i = 1; i < most; i++) {
        atomic_fetch_add(&workers, 1);
        if (own_thread_start(&thread))
            continue;
        atomic_fetch_sub(&workers, 1);
        break;
    }
}

static void register_staging(CUcontext ctx)
{
    struct call_scope scope;

    if (!call_scope_enter(&scope, ctx))
        return;
    CUresult rc =
        real.cuMemHostRegister_v2(staging, num_lanes * LANE_BYTES, CU_MEMHOSTREGISTER_PORTABLE);
    is_registered |= rc == CUDA_SUCCESS || rc == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    call_scope_end(&scope);
}

/* May the mapping go? The driver must not know the address any more: the program may get it from
 * mmap, and register it. */
static bool unregister_staging(CUcontext ctx)
{
    struct call_scope scope;
    CUresult rc = CUDA_ERROR_INVALID_CONTEXT;

    if (!is_registered)
        return true;
    if (ctx && call_scope_enter(&scope, ctx)) {
        rc = real.cuMemHostUnregister(staging);
        call_scope_end(&scope);
    }
    is_registered = rc != CUDA_SUCCESS && rc != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return !is_registered;
}

/* False: the driver may still know the address, so that it stays. */
static bool free_staging(CUcontext ctx)
{
    if (staging && !unregister_staging(ctx))
        return false;
    if (staging)
        munmap(staging, num_lanes * LANE_BYTES);
    staging = NULL;
    return true;
}

static bool make_staging(unsigned lanes)
{
    uint64_t size = lanes * LANE_BYTES;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return false;
    madvise(p, size, MADV_DONTFORK);
    madvise(p, size, MADV_DONTDUMP);
    staging = p;
    num_lanes = lanes;
    for (unsigned i = 0; i < lanes; i++)
        for (unsigned j = 0; j < 2; j++)
            halves[i][j].staging = staging + i * LANE_BYTES + j * COPY_HALF_BYTES;
    return true;
}

bool copy_begin(CUcontext ctx, uint64_t size_bytes)
{
    uint64_t lanes = min_u64(size_bytes / LANE_BYTES + 1, COPY_LANES_MAX); /* step 6 */

    if ((!staging || (lanes > num_lanes && free_staging(ctx))) && !make_staging((unsigned)lanes))
        return false;
    register_staging(ctx); /* the context that it was registered in may have ended */
    if (!atomic_load(&workers))
        make_workers();
    return true;
}

void copy_unpin(CUcontext ctx)
{
    unregister_staging(ctx);
}

void copy_finish(CUcontext ctx)
{
    atomic_store(&finishes, true);
    atomic_fetch_add(&jobs, 1);
    futex_wake_all(&jobs, FUTEX_OF_PROCESS);
    futex_await_zero(&workers, FUTEX_FOREVER, FUTEX_OF_PROCESS);
    free_staging(ctx);
}

void copy_open(CUcontext ctx)
{
    struct call_scope scope;

    opened = ctx;
    if (!call_scope_enter(&scope, ctx))
        return;
    for (unsigned i = 0; i <= atomic_load(&workers) && i < num_lanes; i++)
        for (unsigned j = 0; j < 2; j++)
            if (real.cuStreamCreate(&halves[i][j].stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
                halves[i][j].stream = NULL;
    call_scope_end(&scope);
}

void copy_close(void)
{
    struct call_scope scope;
    bool entered = call_scope_enter(&scope, opened);

    for (unsigned i = 0; i < COPY_LANES_MAX; i++)
        for (unsigned j = 0; j < 2; j++) {
            if (entered && halves[i][j].stream)
                real.cuStreamDestroy_v2(halves[i][j].stream);
            halves[i][j].stream = NULL;
        }
    if (entered)
        call_scope_end(&scope);
}

void copy_near(CUdevice device)
{
    struct call_scope scope;
    int domain = 0, bus = -1, number = -1;

    near = allowed;
    if (!call_scope_begin(&scope))
        return;
    real.cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
    real.cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    real.cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
    call_scope_end(&scope);
    const struct node_place place = {(unsigned)domain, (unsigned)bus, (unsigned)number};
    binds |= bus >= 0 && number >= 0 && node_near("", &place, &allowed, &near);
}

enum copy_end copy_run(const struct copy_job *what, CUresult *code)
{
    uint64_t size_bytes = 0;

    for (size_t i = 0; i < what->num_parts; i++) {
        what->parts[i].at = size_bytes;
        size_bytes += what->parts[i].size_bytes;
    }
    job.what = *what;
    job.size_bytes = size_bytes;
    atomic_store(&job.next, 0);
    atomic_store(&job.stopped, false);
    atomic_store(&job.code, CUDA_SUCCESS);
    if (size_bytes > COPY_HALF_BYTES) {
        atomic_store(&busy, atomic_load(&workers));
        atomic_fetch_add(&jobs, 1);
        futex_wake_all(&jobs, FUTEX_OF_PROCESS);
    }
    run_lanes(0);
    if (binds)
        node_bind(&allowed);
    futex_await_zero(&busy, FUTEX_FOREVER, FUTEX_OF_PROCESS); /* step 1 */
    *code = atomic_load(&job.code);
    if (*code != CUDA_SUCCESS)
        return COPY_FAILED;
    return atomic_load(&job.stopped) ? COPY_STOPPED : COPY_DONE;
}

bool copy_can_touch(void)
{
    return !madvise(staging, 0, MADV_POPULATE_WRITE);
}

enum copy_end copy_touch(char *from, uint64_t size_bytes, bool (*goes_on)(void))
{
    struct copy_part part = {.host = from, .size_bytes = size_bytes};
    CUresult code;

    return copy_run(&(struct copy_job){COPY_TOUCH, &part, 1, goes_on, false, false}, &code);
}
