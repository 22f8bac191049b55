/* SPDX-License-Identifier: BSD-2-Clause */
/* Physical memory of the virtual devices, counted against the capacity. Shared pages of the host (a
 * sparse memory file) back it, so it can be mapped at any device address and in other processes.
 * Nothing is mapped at device addresses: a host access there faults, as with a real device. Driver
 * lock. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "tests/sim/driver.h"

struct physical {
    uint32_t magic;
    unsigned references;
    int device;
    uint64_t size;   /* a multiple of PAGE_BYTES */
    uint8_t *host;   /* where the host reaches the bytes */
    int fd;          /* the memory file, unless the program closed or replaced it */
    uint64_t inode;  /* of the memory file */
    uint64_t offset; /* in that file */
    bool own_file;   /* fd belongs to this memory alone and can go to other processes */
    bool imported;   /* from another process, where it counts */
    bool touched;
    bool shared;      /* another process may have it open: bytes and place stay (measured) */
    uint64_t id;      /* unique in the process */
    unsigned handles; /* references that the program holds by cuMemCreate and similar calls */
    CUmemAllocationProp properties; /* of VMM memory */
    uint64_t first_addr;            /* .. where it was mapped first; 0: nowhere, or no longer */
};

/* Reserves the address spaces. Called once. */
CUresult physical_init(void);
/* A new file in memory, which an exec closes, or -1. By the system call: glibc before 2.27 has no
 * function for it, and the driver runs there too. */
int physical_memory_file(const char *name);

/* size is a multiple of PAGE_BYTES. Returns one reference, or NULL if the device has less left. */
struct physical *physical_create(int device, uint64_t size, bool own_file);

/* Imports memory of another process: [offset, offset + size) of its file. Takes over fd. Returns
 * NULL on failure. */
struct physical *physical_import(int fd, uint64_t offset, uint64_t size, int device);

struct physical *physical_retain(struct physical *physical);
/* Without references the memory goes back to the device and loses its contents. */
void physical_release(struct physical *physical);

/* fd is still the memory's file. */
bool physical_has_file(const struct physical *physical);

/* Returns a new descriptor of an own_file's memory, or -1. */
int physical_export(const struct physical *physical);

/* Finds the device and the size of the memory file behind a descriptor. Returns false for any other
 * file. */
bool physical_identify(int fd, int *device, uint64_t *size);

/* The handle is a live physical. */
bool physical_valid(const struct physical *physical);

/* Allocates device addresses: whole pages that the host can never read. */
bool address_alloc(uint64_t size, uint64_t *out);
void address_free(uint64_t addr, uint64_t size);
/* The address is in the span of address_alloc, in use or not. */
bool address_ours(uint64_t addr);

#endif
