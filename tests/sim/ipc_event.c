/* SPDX-License-Identifier: BSD-2-Clause */
/* The shared page of an interprocess event, and its handles. */
#include "tests/sim/ipc_event.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/alloc.h"
#include "tests/sim/api.h"
#include "tests/sim/memory.h"
#include "tests/sim/physical.h"
#include "tests/sim/thread.h"

#define MAGIC 0x49504345u

struct page {
    _Atomic uint64_t recorded, completed;
};

struct ipc_event {
    struct page *page;
    int fd;
    struct memory *memory; /* lets streams wait for a word of the page */
};

struct ticket {
    uint32_t magic;
    int process, fd;
    uint64_t inode;
};

static struct ipc_event *map(int fd)
{
    struct page *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct ipc_event *shared = malloc(sizeof *shared);
    if (page == MAP_FAILED || shared == NULL) {
        close(fd);
        free(shared);
        return NULL;
    }
    struct memory *memory =
        memory_add(MEMORY_REGISTERED, (uint64_t)(uintptr_t)page, 4096, thread_current());
    memory->context = NULL; /* goes with the event, not with the context */
    memory->host = (uint8_t *)page;
    *shared = (struct ipc_event){.page = page, .fd = fd, .memory = memory};
    return shared;
}

struct ipc_event *ipc_event_create(void)
{
    int fd = physical_memory_file("simulated-gpu-event");
    if (fd < 0 || ftruncate(fd, 4096) != 0)
        return NULL;
    return map(fd);
}

void ipc_event_destroy(struct ipc_event *shared)
{
    if (shared == NULL)
        return;
    memory_drop(shared->memory);
    munmap(shared->page, 4096);
    close(shared->fd);
    free(shared);
}

struct publication {
    int fd; /* of its own: the event may be destroyed before */
    uint64_t number;
};

static void publish(void *data)
{
    struct publication *publication = data;
    struct page *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, publication->fd, 0);
    if (page != MAP_FAILED) {
        uint64_t known = atomic_load(&page->completed);
        while (known < publication->number &&
               !atomic_compare_exchange_weak(&page->completed, &known, publication->number))
            ;
        munmap(page, 4096);
    }
    close(publication->fd);
    free(publication);
}

void ipc_event_record(struct ipc_event *shared, CUstream stream)
{
    struct publication *publication = never_null(malloc(sizeof *publication));
    publication->fd = fcntl(shared->fd, F_DUPFD_CLOEXEC, 0);
    publication->number = atomic_fetch_add(&shared->page->recorded, 1) + 1;
    struct command command = {.kind = COMMAND_HOST_FUNCTION, .host = {publish, publication}};
    stream_submit(stream, &command);
}

bool ipc_event_done(const struct ipc_event *shared)
{
    return atomic_load(&shared->page->completed) >= atomic_load(&shared->page->recorded);
}

void ipc_event_order(struct ipc_event *shared, CUstream stream)
{
    uint64_t number = atomic_load(&shared->page->recorded);
    struct command command = {.kind = COMMAND_WAIT_VALUE,
                              .wait = {&shared->page->completed, number}};
    stream_submit(stream, &command);
}

static CUresult get(CUipcEventHandle *out, CUevent event)
{
    struct stat status;
    TRY(event_check(event));
    REFUSE(out == NULL || event->shared == NULL, INVALID_VALUE);
    REFUSE(fstat(event->shared->fd, &status) != 0, OPERATING_SYSTEM);
    struct ticket ticket = {MAGIC, getpid(), event->shared->fd, status.st_ino};
    memset(out, 0, sizeof *out);
    memcpy(out, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUevent *out, CUipcEventHandle handle)
{
    struct ticket ticket;
    struct stat status;
    char path[64];
    memcpy(&ticket, &handle, sizeof ticket);
    REFUSE(out == NULL || ticket.magic != MAGIC, INVALID_VALUE);
    REFUSE(ticket.process == getpid(), INVALID_CONTEXT);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.process, ticket.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    REFUSE(fd < 0, INVALID_VALUE);
    if (fstat(fd, &status) != 0 || status.st_ino != ticket.inode) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct ipc_event *shared = map(fd);
    REFUSE(shared == NULL, MAP_FAILED);
    CUresult rc = event_create(thread_current(), CU_EVENT_DISABLE_TIMING, out);
    if (rc == CUDA_SUCCESS)
        (*out)->shared = shared;
    else
        ipc_event_destroy(shared);
    return rc;
}

API(cuIpcGetEventHandle, (CUipcEventHandle * out, CUevent event), get(out, event))
API(cuIpcOpenEventHandle, (CUevent * out, CUipcEventHandle handle), open_handle(out, handle))
