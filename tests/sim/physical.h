/* SPDX-License-Identifier: BSD-2-Clause */
/* Physical memory of the virtual devices: counted against the capacity, backed by shared pages of
 * the host (a sparse memory file), so that it can be mapped at any device address and seen by other
 * processes. Device addresses are not host addresses: nothing is mapped there, a host access to one
 * faults as it does with a real device. Driver lock. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "tests/sim/driver.h"

struct physical {
    uint32_t magic;
    unsigned references;
    int device;
    uint64_t size;  /* a multiple of PAGE_BYTES */
    uint8_t *host;  /* where the host reaches the bytes */
    int fd;         /* the memory file; the program may have closed it, or put another file there */
    uint64_t inode; /* tells */
    uint64_t offset; /* in that file */
    bool own_file;   /* fd belongs to this memory alone and can be handed to other processes */
    bool imported;   /* another process's memory: counted there */
    bool touched;
    bool shared;      /* another process may have it open: its bytes stay (measured), its place too */
    uint64_t id;      /* unique in the process */
    unsigned handles; /* references that the program holds by cuMemCreate and the like */
    CUmemAllocationProp properties; /* of VMM memory */
};

/* Reserves the address spaces. Called once. */
CUresult physical_init(void);

/* size is a multiple of PAGE_BYTES. NULL when the device has not that much left. One reference. */
struct physical *physical_create(int device, uint64_t size, bool own_file);

/* Memory of another process: [offset, offset + size) of its file; takes over fd. NULL on failure.
 */
struct physical *physical_import(int fd, uint64_t offset, uint64_t size, int device);

struct physical *physical_retain(struct physical *physical);
/* The last reference gives the memory back to the device; its contents are gone. */
void physical_release(struct physical *physical);

/* fd is still the memory's file. */
bool physical_has_file(const struct physical *physical);

/* A new descriptor of an own_file's memory, or -1. */
int physical_export(const struct physical *physical);

/* Which device the memory file behind a descriptor belongs to, and its size. False for any other
 * file. */
bool physical_identify(int fd, int *device, uint64_t *size);

/* The handle is a live physical. */
bool physical_valid(const struct physical *physical);

/* Device addresses: whole pages, never readable by the host. */
bool address_alloc(uint64_t size, uint64_t *out);
void address_free(uint64_t addr, uint64_t size);
/* The address lies where address_alloc hands out, in use or not. */
bool address_ours(uint64_t addr);

#endif
