/* SPDX-License-Identifier: BSD-2-Clause */
/* Functions that call each other in all the ways that leave different frames, then a function of
 * the test. It is built with frame pointers and without. */
#include "tests/unit/chain.h"

#include <alloca.h>
#include <stdlib.h>
#include <string.h>

#define KEEP __attribute__((noinline))
#define AFTER_CALL __asm__ volatile("" ::: "memory") /* or the call would be a jump */

static __thread chain_do *last;

KEEP static void plain(int depth)
{
    last();
    AFTER_CALL;
}

/* A frame of variable size. */
KEEP static void variable(int depth)
{
    char *room = alloca((size_t)(depth * 40 + 24));
    memset(room, depth, 24);
    __asm__ volatile("" ::"r"(room) : "memory");
    plain(depth);
    AFTER_CALL;
}

/* All registers that a call must keep. */
KEEP static long registers(int depth, long a, long b, long c, long d)
{
    long e = a * b, f = c * d;
    variable(depth);
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f)::"memory");
    return a + b + c + d + e + f;
}

/* A frame of more than a page. */
KEEP static void large(int depth)
{
    char room[9000];
    room[depth] = 1;
    __asm__ volatile("" ::"r"(room) : "memory");
    registers(depth, depth, 2, 3, 4);
    AFTER_CALL;
}

/* It leaves no frame of its own. */
KEEP static void jump(int depth)
{
    large(depth + 1);
}

static int compare(const void *a, const void *b)
{
    jump(1);
    AFTER_CALL;
    return 0;
}

/* Frames of the C library. */
KEEP static void library(void)
{
    int two[2] = {1, 2};
    qsort(two, 2, sizeof two[0], compare);
    AFTER_CALL;
}

KEEP static void recurse(int depth)
{
    if (depth > 0)
        recurse(depth - 1);
    else
        library();
    AFTER_CALL;
}

void CHAIN(chain_do *f, int depth)
{
    last = f;
    recurse(depth);
    AFTER_CALL;
}
