/* SPDX-License-Identifier: BSD-2-Clause */
/* A command is what a piece of work does. Streams, graphs and the clock pass it around. These
 * functions say which memory it touches and how long it takes, and run it. Driver lock. */
#ifndef SIM_COMMAND_H
#define SIM_COMMAND_H

#include "tests/sim/driver.h"

enum command_kind {
    COMMAND_MARKER, /* no effect: events, joins, empty graph nodes */
    COMMAND_KERNEL,
    COMMAND_COPY,
    COMMAND_SET,
    COMMAND_HOST_FUNCTION, /* hostcall.h */
    COMMAND_WAIT_VALUE,    /* for a word of 64 bits to be at least the value */
    COMMAND_WAIT_MEMORY,   /* for 32 bits of memory to be at least the value */
    COMMAND_POOL_FREE,     /* cuMemFreeAsync: gives the memory back when it is reached */
};

enum kernel {
#define KERNEL(name, sizes) KERNEL_##name,
#include "tests/sim/kernels.def"
    KERNEL_COUNT
};

#define KERNEL_PARAMETERS_MAX 5

struct copy {
    uint64_t dst, src;
    size_t size;
    bool dst_host, src_host; /* the address is the host's, whatever the driver knows of it */
    void *staging;           /* a malloc'd copy of the source, freed when done; or NULL */
};

struct command {
    enum command_kind kind;
    union {
        struct {
            enum kernel kernel;
            bool early; /* may start before the kernels that it follows end */
            uint64_t args[KERNEL_PARAMETERS_MAX];
        } launch;
        struct copy copy;
        struct {
            uint64_t dst;
            size_t count; /* of elements */
            unsigned element_bytes;
            uint32_t value;
        } set;
        struct {
            void (*function)(void *data);
            void *data;
        } host;
        struct {
            const _Atomic uint64_t *word;
            uint64_t value;
        } wait;
        struct {
            uint64_t addr;
            uint32_t value;
        } wait_memory;
        struct {
            uint64_t addr;
        } pool_free;
    };
};

enum access_kind { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };

struct access {
    uint64_t addr;
    size_t size;
    enum access_kind kind;
};

#define COMMAND_ACCESSES_MAX 3

/* Fills out (room for COMMAND_ACCESSES_MAX) with the device memory that the command touches.
 * Returns the count. */
unsigned command_accesses(const struct command *command, struct access *out);

const char *command_name(const struct command *command);
uint64_t command_duration_ns(const struct command *command);

/* Runs the command as seen from the context. Returns CUDA_ERROR_ILLEGAL_ADDRESS if the command
 * touches memory that does not exist or that the context cannot access. */
CUresult command_run(struct command *command, struct CUctx_st *context);

/* The command has no duration: it ends when a word in memory has some value. command_holds: it
 * has. */
bool command_condition(const struct command *command);
bool command_holds(const struct command *command, struct CUctx_st *context);

/* Frees what a command owns that never ran. */
void command_drop(struct command *command);

#endif
