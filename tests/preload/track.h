/* SPDX-License-Identifier: BSD-2-Clause */
/* Tells the simulated driver's hazard checker which bytes the program owns from when to when. The
 * driver does not see it when a cache hands memory out again. Does nothing on a real driver, which
 * has no such function. No state but the function looked up. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* After an allocation that returned rc; hands rc on. */
int track_malloc(int rc, uint64_t address, size_t size_bytes);

/* Before the free of an address that track_malloc was told. */
void track_free(uint64_t address);
