/* SPDX-License-Identifier: BSD-2-Clause */
/* Legacy IPC of device memory. A handle names a part of the exporter's memory file. For a small
 * allocation it carries the offset in its page. The opener maps the whole physical memory once,
 * even if it opens several allocations in it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/api.h"
#include "tests/sim/config.h"
#include "tests/sim/hazard.h"
#include "tests/sim/memory.h"
#include "tests/sim/thread.h"

#define MAGIC 0x49504331u

struct ticket {
    uint32_t magic;
    int process, fd, device;
    uint64_t inode, file_offset, extent; /* of the physical memory */
    uint64_t offset;                     /* of the allocation in it */
    uint64_t id; /* of the allocation: another one at the same place is another handle */
};

_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a handle is 64 bytes");

static CUresult get(CUipcMemHandle *out, CUdeviceptr addr)
{
    struct memory *memory = memory_find(addr);
    if (out == NULL || memory == NULL || memory->pooled ||
        (memory->kind != MEMORY_PAGES && memory->kind != MEMORY_SMALL))
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = memory->physical;
    REFUSE(!physical_has_file(physical), OPERATING_SYSTEM);
    struct ticket ticket = {.magic = MAGIC,
                            .process = getpid(),
                            .fd = physical->fd,
                            .device = memory->device,
                            .inode = physical->inode,
                            .file_offset = physical->offset,
                            .extent = physical->size,
                            .offset = (uint64_t)(memory->host - physical->host),
                            .id = memory->buffer_id};
    physical->shared = true;
    memset(out, 0, sizeof *out);
    memcpy(out, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

/* Returns the opened memory of this physical memory, or NULL. */
static struct memory *opened(const struct ticket *ticket)
{
    for (struct memory *memory = memory_from(0); memory != NULL;
         memory = memory_from(memory->range.hi)) {
        if (memory->kind == MEMORY_IMPORTED && memory->physical->offset == ticket->file_offset &&
            memory->context == thread_current() && memory->physical->inode == ticket->inode)
            return memory;
    }
    return NULL;
}

static CUresult open_file(const struct ticket *ticket, int *out)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->process, ticket->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) /* measured: so it is when the exporter is gone */
        return kill(ticket->process, 0) != 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (fstat(fd, &status) != 0 || status.st_ino != ticket->inode) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = fd;
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    struct ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    REFUSE(out == NULL || ticket.magic != MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
           INVALID_VALUE);
    REFUSE(ticket.process == getpid(), INVALID_CONTEXT);
    REFUSE(thread_current()->device != ticket.device && !config.peers, PEER_ACCESS_UNSUPPORTED);
    struct memory *memory = opened(&ticket);
    if (memory == NULL) {
        int fd;
        uint64_t addr;
        TRY(open_file(&ticket, &fd));
        struct physical *physical =
            physical_import(fd, ticket.file_offset, ticket.extent, ticket.device);
        if (physical == NULL) {
            close(fd);
            return CUDA_ERROR_MAP_FAILED;
        }
        physical->offset = ticket.file_offset;
        if (!address_alloc(ticket.extent, &addr)) {
            physical_release(physical);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memory = memory_add(MEMORY_IMPORTED, addr, ticket.extent, thread_current());
        memory->device = ticket.device;
        memory->physical = physical;
        memory->host = physical->host;
    }
    memory->opens++;
    *out = memory->range.lo + ticket.offset;
    return CUDA_SUCCESS;
}

static CUresult close_handle(CUdeviceptr addr)
{
    struct memory *memory = memory_find(addr);
    REFUSE(memory == NULL || memory->kind != MEMORY_IMPORTED, INVALID_VALUE);
    if (--memory->opens > 0)
        return CUDA_SUCCESS;
    context_wait(memory->context);
    hazard_release(memory->range.lo, memory->range.hi, "cuIpcCloseMemHandle");
    memory_give_back(memory);
    return CUDA_SUCCESS;
}

API(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr addr), get(out, addr))
API(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags),
    open_handle(out, handle, flags))
API(cuIpcCloseMemHandle, (CUdeviceptr addr), close_handle(addr))
