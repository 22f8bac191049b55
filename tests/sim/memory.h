/* SPDX-License-Identifier: BSD-2-Clause */
/* All memory that the driver knows, by device address: its owner, and where the host finds its
 * bytes. Driver lock. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "tests/sim/context.h"
#include "tests/sim/physical.h"
#include "tests/sim/range.h"

/* memmove of a device's bytes. The thread sanitizer sees the first bytes of each 4 KiB: who uses a
 * block beside it uses more than that. */
void memory_move(void *to, const void *from, size_t size);

enum memory_kind {
    MEMORY_PAGES,    /* cuMemAlloc of 1 MiB and more: pages of its own */
    MEMORY_SMALL,    /* cuMemAlloc below: a part of a page */
    MEMORY_MAPPED,   /* cuMemMap */
    MEMORY_IMPORTED, /* cuIpcOpenMemHandle */
    MEMORY_MANAGED,
    MEMORY_HOST,       /* cuMemHostAlloc */
    MEMORY_REGISTERED, /* cuMemHostRegister */
};

struct memory {
    struct range range; /* first: a struct range is cast to its memory */
    enum memory_kind kind;
    int device;
    CUcontext context; /* NULL for MEMORY_MAPPED */
    uint64_t size;     /* as asked for; the range is rounded up */
    uint8_t *host;
    struct physical *physical;   /* NULL for host memory */
    struct block *block;         /* of MEMORY_SMALL */
    uint32_t readable, writable; /* MEMORY_MAPPED: bit per device */
    uint64_t buffer_id;
    bool sync_memops;
    bool freeing;   /* cuMemFreeAsync is on its way */
    bool pooled;    /* came from a memory pool */
    unsigned opens; /* MEMORY_IMPORTED: times opened */
    CUmemoryPool pool;
};

/* Returns the memory that contains the address, or NULL. */
struct memory *memory_find(uint64_t addr);
/* The same for questions about a pointer. The bytes behind the size that was asked for belong to
 * no block. */
struct memory *memory_asked(uint64_t addr);
/* Returns the lowest memory that ends above the address, or NULL. */
struct memory *memory_from(uint64_t addr);

/* The address belongs to the device, with or without memory, and never to the host. (vmm.c) */
bool memory_reserved(uint64_t addr);

/* Returns where the host reaches the device address as seen from the context, and the bytes in one
 * piece there. NULL: no memory, or no access. With a NULL context access does not matter. */
void *memory_at(CUcontext context, uint64_t addr, bool write, size_t *room);
/* Returns false for mapped memory that the context's device cannot read. NULL: any context. */
bool memory_is_for(const struct memory *memory, CUcontext context);

/* All bytes lie in known memory: the call finds a hole, not the device. Mapped memory has to be
 * accessible from the context, unless that is NULL. (Two H200s, driver 580: a copy from mapped
 * memory without access is refused, a copy from memory of cuMemAlloc is not.) */
bool memory_covers(uint64_t addr, uint64_t size, CUcontext context);

/* Ends a multicast object. Returns false if the handle is none. (multicast.c) */
bool multicast_release(CUmemGenericAllocationHandle handle);

/* Adds memory at [addr, addr + extent) with a new buffer id. */
struct memory *memory_add(enum memory_kind kind, uint64_t addr, uint64_t extent, CUcontext context);
/* Takes the memory out of the registry, releases its physical memory and frees the struct. */
void memory_drop(struct memory *memory);

/* Allocates device memory for cuMemAlloc and memory pools. */
CUresult memory_alloc(CUcontext context, uint64_t size, CUdeviceptr *out);
/* Undoes memory_alloc. Does not wait for work. */
void memory_give_back(struct memory *memory);

/* Frees all memory of the context, and its shared pages. */
void memory_free_context(CUcontext context);

/* Allocations that are parts of a page. */
void small_free(struct memory *memory);
struct memory *small_alloc(CUcontext context, uint64_t size);
void small_free_blocks(CUcontext context);

#endif
