/* SPDX-License-Identifier: BSD-2-Clause */
/* The means of the scene idle_oom: ways to take half of what is free of a device, or a little. */
#pragma once

#include "tests/preload/scene.h"

/* take returns the call's code, 0 if there was memory, and gives it back. symbol: the function that
 * it calls, NULL if it calls several. */
struct means {
    const char *name;
    int (*take)(void);
    const char *symbol;
};
enum { NUM_MEANS = 16 };
extern const struct means means[NUM_MEANS];

extern CUcontext primary;
extern int wrong;

/* The program that takes the means defines these two and the variables. */
size_t free_bytes(void);
/* Fills the device and frees it again: afterwards all memory is free, as the program sees it. late:
 * freed while work uses one of the blocks. */
void fill_and_free(bool late);
CUmemAllocationProp physical_prop(void);
int take_physical(void);
int take_pieces(void);
int take_launch(void);
