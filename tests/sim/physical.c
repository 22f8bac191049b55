/* SPDX-License-Identifier: BSD-2-Clause */
/* One sparse memory file per process, mapped once as a whole. This file makes system calls
 * directly, because the intercepted ones of a sanitizer would walk the shadow memory of the whole
 * span. */
#include "tests/sim/physical.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/sim/config.h"
#include "tests/sim/device.h"
#include "tests/sim/handles.h"
#include "tests/sim/space.h"

#define MAGIC 0x50485953u

static int file = -1;
static uint64_t file_inode;
static uint8_t *window;
static struct space offsets, addresses;
static uint64_t address_lo, address_hi;
static struct handles physicals = {.size = sizeof(struct physical)};
static uint64_t last_id;

static void *map(uint64_t size, int protection, int flags, int fd, uint64_t offset)
{
    long at = syscall(SYS_mmap, NULL, size, protection, flags | MAP_NORESERVE, fd, offset);
    return at == -1 ? MAP_FAILED : (void *)at;
}

static uint64_t inode_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

int physical_memory_file(const char *name)
{
    return (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
}

static int open_file(int device, uint64_t size)
{
    char name[32];
    snprintf(name, sizeof name, "simulated-gpu-%d", device);
    int fd = physical_memory_file(name);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

CUresult physical_init(void)
{
    /* There is room for four times the memory, so fragmentation never fails an allocation that
     * fits. */
    uint64_t span = 4 * config.capacity_bytes * config.devices + 16 * GIB;
    file = open_file(0, span);
    REFUSE(file < 0, OPERATING_SYSTEM);
    file_inode = inode_of(file);
    window = map(span, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint8_t *reserved = map(span + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REFUSE(window == MAP_FAILED || reserved == MAP_FAILED, OPERATING_SYSTEM);
    space_init(&offsets, 0, span);
    address_lo = round_up((uint64_t)(uintptr_t)reserved, PAGE_BYTES);
    address_hi = address_lo + span;
    space_init(&addresses, address_lo, span);
    return CUDA_SUCCESS;
}

static struct physical *blank(int device, uint64_t size)
{
    struct physical *physical = handles_take(&physicals);
    *physical = (struct physical){
        .magic = MAGIC, .references = 1, .device = device, .size = size, .fd = -1, .id = ++last_id};
    return physical;
}

static void discard(struct physical *physical)
{
    physical->magic = 0;
    handles_give(&physicals, physical);
}

struct physical *physical_create(int device, uint64_t size, bool own_file)
{
    if (!device_take(device, size))
        return NULL;
    struct physical *physical = blank(device, size);
    physical->own_file = own_file;
    if (own_file) {
        physical->fd = open_file(device, size);
        physical->host = physical->fd >= 0
                             ? map(size, PROT_READ | PROT_WRITE, MAP_SHARED, physical->fd, 0)
                             : MAP_FAILED;
        if (physical->host == MAP_FAILED) {
            if (physical->fd >= 0)
                close(physical->fd);
            physical->host = NULL;
        }
        physical->inode = inode_of(physical->fd);
    } else if (space_alloc(&offsets, size, PAGE_BYTES, &physical->offset)) {
        physical->fd = file;
        physical->inode = file_inode;
        physical->host = window + physical->offset;
    }
    if (physical->host == NULL) {
        device_give(device, size);
        discard(physical);
        return NULL;
    }
    return physical;
}

struct physical *physical_import(int fd, uint64_t offset, uint64_t size, int device)
{
    uint8_t *host = map(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (host == MAP_FAILED)
        return NULL;
    struct physical *physical = blank(device, size);
    physical->host = host;
    physical->fd = fd;
    physical->inode = inode_of(fd);
    physical->own_file = offset == 0;
    physical->imported = true;
    return physical;
}

bool physical_has_file(const struct physical *physical)
{
    return physical->inode != 0 && inode_of(physical->fd) == physical->inode;
}

int physical_export(const struct physical *physical)
{
    return physical->own_file && physical_has_file(physical)
               ? fcntl(physical->fd, F_DUPFD_CLOEXEC, 0)
               : -1;
}

bool physical_identify(int fd, int *device, uint64_t *size)
{
    char link[48], target[64] = "";
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, target, sizeof target - 1) < 0 || fstat(fd, &status) != 0 ||
        sscanf(target, "/memfd:simulated-gpu-%d", device) != 1)
        return false;
    *size = (uint64_t)status.st_size;
    return true;
}

struct physical *physical_retain(struct physical *physical)
{
    physical->references++;
    return physical;
}

void physical_release(struct physical *physical)
{
    if (--physical->references > 0)
        return;
    if (!physical->imported)
        device_give(physical->device, physical->size);
    if (physical->own_file || physical->imported) {
        syscall(SYS_munmap, physical->host, physical->size);
        if (physical_has_file(physical))
            close(physical->fd);
    } else if (!physical->shared) {
        if (physical->touched)
            madvise(physical->host, physical->size, MADV_REMOVE);
        space_free(&offsets, physical->offset, physical->size);
    }
    discard(physical);
}

bool physical_valid(const struct physical *physical)
{
    return (uintptr_t)physical >= 4096 && physical->magic == MAGIC;
}

bool address_alloc(uint64_t size, uint64_t *out)
{
    return space_alloc(&addresses, round_up(size, PAGE_BYTES), PAGE_BYTES, out);
}

bool address_ours(uint64_t addr)
{
    return addr >= address_lo && addr < address_hi;
}

void address_free(uint64_t addr, uint64_t size)
{
    space_free(&addresses, addr, round_up(size, PAGE_BYTES));
}
