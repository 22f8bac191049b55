/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See export.h. The control thread answers questions (a duty). No lock.
 */
#include "shim/share/export.h"

#include "pool/bits.h"
#include "shim/context/context.h"
#include "shim/context/redzone.h"
#include "shim/control/thread.h"
#include "shim/driver/call_scope.h"
#include "shim/process/log.h"
#include "shim/process/state.h"
#include "shim/share/ticket.h"
#include "shim/socket/listener.h"

#include <fcntl.h>
#include <string.h>

/* After so many answers the control thread turns to its other duties. An answer takes about a
 * millisecond of the driver's time. */
enum { ANSWERS_AT_A_TIME = 4 };

/* Is the block that the ticket names live, and exported? */
static bool find_exported(const struct ticket *ticket, struct pool_block *block)
{
    return pool_lookup(ticket->addr, block) == POOL_OK && block->addr == ticket->addr &&
           block->serial == ticket->serial && block->exposed;
}

static const struct context *owner_of(const struct pool_block *block)
{
    return pool_owner(block->pool);
}

/* Small blocks share a segment, and one of them has its address. */
bool export_is_native(const struct pool_block *block)
{
    return block->segment_addr == block->addr && block->size_bytes >= GRANULE_BYTES;
}

bool export_is_capable(const struct pool_block *block)
{
    if (block->segment_addr)
        return true;
    return real.cuMemExportToShareableHandle &&
           hooks_present(HOOK_cuMemImportFromShareableHandle) &&
           owner_of(block)->backend.prop.requestedHandleTypes ==
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/* One answer under way. */
struct export_reply {
    const struct ticket *ticket;
    CUdevice device;
    CUdeviceptr end;     /* of the block */
    CUdeviceptr at;      /* start of the next chunk; or the segment */
    uint64_t done_bytes; /* before that chunk */
    int fds[TICKET_BATCH];
    struct ticket_answer answer;
    CUresult rc;
};

/* Adds up the chunks that hold the block, in the sizes that the driver says of each mapping. The
 * next chunk to be sent has to start where one of them does. */
static void measure(struct export_reply *r)
{
    CUdeviceptr base;
    size_t size;
    bool found = false;
    for (CUdeviceptr at = r->ticket->addr; at < r->end; at = base + size) {
        r->rc = real.cuMemGetAddressRange_v2(&base, &size, at);
        if (r->rc != CUDA_SUCCESS)
            return;
        if (at == r->ticket->addr)
            r->answer.offset_bytes = at - base;
        if (r->answer.total_bytes == r->done_bytes) {
            r->at = base;
            found = true;
        }
        r->answer.total_bytes += size;
    }
    if (!found)
        r->rc = CUDA_ERROR_INVALID_VALUE;
}

/* Gets the next chunks as descriptors. A handle of our own holds each chunk before we look once
 * more whether the block is live. If it is, these chunks were the ones that held it. */
static void export_batch(struct export_reply *r)
{
    CUmemGenericAllocationHandle held[TICKET_BATCH];
    struct pool_block block;
    uint32_t n = 0;
    while (n < TICKET_BATCH && r->at < r->end && r->rc == CUDA_SUCCESS) {
        CUdeviceptr base;
        size_t size;
        r->rc = real.cuMemGetAddressRange_v2(&base, &size, r->at);
        if (r->rc == CUDA_SUCCESS)
            r->rc = real.cuMemRetainAllocationHandle(&held[n], (void *)(uintptr_t)r->at);
        if (r->rc != CUDA_SUCCESS)
            break;
        r->answer.chunk_bytes[n++] = size;
        r->at = base + size;
    }
    if (r->rc == CUDA_SUCCESS && !find_exported(r->ticket, &block))
        r->rc = CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < n; i++) {
        int fd = -1;
        if (r->rc == CUDA_SUCCESS)
            r->rc = real.cuMemExportToShareableHandle(&fd, held[i],
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (fd >= 0) {
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            r->fds[r->answer.count++] = fd;
        }
        real.cuMemRelease(held[i]);
    }
}

static void collect_chunks(void *data)
{
    struct export_reply *r = data;
    r->rc = real.cuDeviceGetUuid(&r->answer.device, r->device);
    if (r->rc == CUDA_SUCCESS)
        measure(r);
    if (r->rc == CUDA_SUCCESS)
        export_batch(r);
}

static void name_native(void *data)
{
    struct export_reply *r = data;
    r->rc = real.cuDeviceGetUuid(&r->answer.device, r->device);
    if (r->rc == CUDA_SUCCESS)
        r->rc = real.cuIpcGetMemHandle(&r->answer.native, r->at);
}

static void run_for_reply(CUcontext ctx, void (*work)(void *), struct export_reply *r)
{
    if (!call_scope_run(ctx, work, r))
        r->rc = CUDA_ERROR_DEINITIALIZED;
}

static void answer_question(const struct ticket_question *question, uint64_t number)
{
    struct export_reply r = {.ticket = &question->ticket,
                             .done_bytes = question->done_bytes,
                             .rc = CUDA_ERROR_INVALID_VALUE};
    struct pool_block block;
    if (find_exported(&question->ticket, &block)) {
        struct context *c = pool_owner(block.pool);
        redzone_hide(&block);
        r.end = block.addr + block.requested_bytes;
        r.answer.size_bytes = block.requested_bytes;
        r.device = c->device;
        if (block.segment_addr) {
            r.at = block.segment_addr;
            r.answer.offset_bytes = block.addr - block.segment_addr;
            r.answer.kind = TICKET_NATIVE;
            run_for_reply(c->backend.ctx, name_native, &r);
            /* If the block is still live, the segment was its own when the driver named it. */
            if (!find_exported(&question->ticket, &block))
                r.rc = CUDA_ERROR_INVALID_VALUE;
        } else {
            r.answer.kind = TICKET_CHUNKS;
            run_for_reply(c->backend.ctx, collect_chunks, &r);
        }
    }
    uint32_t num_fds = r.answer.count;
    r.answer.rc = (int)r.rc;
    if (r.rc != CUDA_SUCCESS) {
        r.answer.kind = TICKET_REFUSED;
        r.answer.count = 0;
    }
    listener_answer(number, &r.answer, r.fds, r.answer.count);
    socket_close_all(r.fds, num_fds);
}

static uint64_t answer_some(uint64_t now_ns)
{
    struct ticket_question question;
    uint64_t number;
    for (int i = 0; state_is_on() && i < ANSWERS_AT_A_TIME; i++) {
        if (!listener_next(&question, &number))
            return DUTY_NEVER;
        answer_question(&question, number);
    }
    return 0;
}

static struct duty answer_duty = {.run = answer_some, .due_ns = DUTY_NEVER};

/* On the listener's thread. */
static void question_waits(void)
{
    control_due(&answer_duty, 0);
}

CUresult export_block_ticket(const struct pool_block *block, CUipcMemHandle *handle)
{
    struct ticket ticket = {.magic = TICKET_MAGIC, .addr = block->addr, .serial = block->serial};
    if (!export_is_capable(block)) {
        log_once(LOG_LEVEL_WARN,
                 "the program shares memory by legacy IPC, which this driver does not allow for "
                 "mapped memory: run it with GPUCACHE_BACKING=segment");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    /* Made by the listener's thread, the control thread would share its empty descriptor table. */
    control_ensure_thread();
    if (!listener_open(&ticket.token, question_waits)) {
        /* As a segment, a block that is not small needs no socket (export_is_native). */
        bool helps = !block->segment_addr && block->requested_bytes > SMALL_MAX_BYTES;
        log_once(LOG_LEVEL_WARN,
                 "the program shares memory by legacy IPC, but the library cannot make a thread "
                 "and a socket for it: raise the limit of threads%s",
                 helps ? ", or run the program with GPUCACHE_BACKING=segment" : "");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    context_expose(block->addr);
    ticket.check = ticket_check(&ticket);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}
