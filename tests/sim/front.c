/* SPDX-License-Identifier: BSD-2-Clause */
/* A libcuda.so.1 in front of the driver. Each function jumps to the same function of the driver
 * behind it, which this library opens by its path and searches with dlsym. The libcuda.so.1 of
 * Windows' subsystem for Linux does the same. Two functions are looked up again at every call, and
 * the library looks itself up. With FRONT_UNTIL it has the functions until that CUDA version only,
 * as the symbol table of an old driver. x86-64. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef FRONT_UNTIL
#define FRONT_UNTIL 99999
#endif
/* These are not from cuda.h, because it renames functions. */
typedef int CUresult;
typedef uint64_t CUdeviceptr;

#define STRING_OF(text) #text
#define STRING(text) STRING_OF(text)
#define EXPORT __attribute__((visibility("default")))

/* The control functions of the simulated driver that the scenes use. */
#define CONTROL(F) F(simOwnerBegin) F(simOwnerEnd) F(simHazardCount) F(simCallCount)

static const char *const names[] = {
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns) #symbol,
#define UNSIMULATED(symbol, base, since, flags) #symbol,
#include "tests/sim/variants.def"
#define NAME(symbol) #symbol,
    CONTROL(NAME)};

enum { FUNCTIONS = sizeof names / sizeof *names };

void *front_targets[FUNCTIONS] __attribute__((visibility("hidden"), used));

/* One jump for each name, in the order of the table. */
#define JUMP(symbol, since)                                                                        \
    ".if " #since " <= " STRING(FRONT_UNTIL) "\n"                                                  \
                                             ".ifnc " #symbol ",cuMemAlloc_v2\n"                   \
                                             ".ifnc " #symbol ",cuMemFree_v2\n"                    \
                                             ".globl " #symbol "\n"                                \
                                             ".type " #symbol ", @function\n" #symbol ":\n"        \
                                             "jmp *front_targets+8*front_n(%rip)\n"                \
                                             ".size " #symbol ", . - " #symbol "\n"                \
                                             ".endif\n"                                            \
                                             ".endif\n"                                            \
                                             ".endif\n"                                            \
                                             ".set front_n, front_n + 1\n"
__asm__(".text\n"
        ".set front_n, 0\n"
#define FUNCTION(symbol, base, since, flags, cost_ns, mib_ns) JUMP(symbol, since)
#define UNSIMULATED(symbol, base, since, flags) JUMP(symbol, since)
#include "tests/sim/variants.def"
#define JUMP_ALWAYS(symbol) JUMP(symbol, 0)
        CONTROL(JUMP_ALWAYS));

static void *behind; /* the driver behind this one */
static __thread int depth;

static void enter(void)
{
    static const char words[] = "the driver calls itself\n";
    if (++depth > 1 && write(2, words, sizeof words - 1) > 0)
        _exit(9);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size_bytes);
EXPORT CUresult cuMemFree_v2(CUdeviceptr address);

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size_bytes)
{
    CUresult (*next)(CUdeviceptr *, size_t);
    void *symbol = dlsym(behind, "cuMemAlloc_v2");
    memcpy(&next, &symbol, sizeof next);
    enter();
    CUresult rc = next(address, size_bytes);
    depth--;
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult (*next)(CUdeviceptr);
    void *symbol = dlsym(behind, "cuMemFree_v2");
    memcpy(&next, &symbol, sizeof next);
    enter();
    CUresult rc = next(address);
    depth--;
    return rc;
}

__attribute__((constructor)) static void start(void)
{
    behind = dlopen(BEHIND, RTLD_NOW | RTLD_LOCAL);
    if (behind == NULL)
        return;
    for (int i = 0; i < FUNCTIONS; i++)
        front_targets[i] = dlsym(behind, names[i]);
    void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (self == NULL || dlsym(self, "cuInit") == NULL || dlsym(self, "cuMemAlloc_v2") == NULL ||
        dlsym(self, "cuMemAlloc_v2") == dlsym(behind, "cuMemAlloc_v2"))
        fprintf(stderr, "the driver does not find itself\n");
}
