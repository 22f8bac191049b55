/* SPDX-License-Identifier: BSD-2-Clause */
/* The virtual devices, and how much of their memory this process and those that share it take.
 * Driver lock. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "tests/sim/driver.h"

#define DEVICES_MAX 16

struct device {
    CUcontext primary; /* NULL until it is first retained */
    unsigned primary_retained;
    CUmemoryPool standard_pool; /* NULL until first asked for */
    CUmemoryPool current_pool;  /* NULL: the standard one */
    uint64_t graph_bytes;       /* that graphs keep and do not use */
    uint64_t used_bytes;        /* by this process */
};

/* Reads the configuration. Called once. */
CUresult device_init(void);

bool device_valid(CUdevice ordinal);
/* ordinal is valid. */
struct device *device_at(CUdevice ordinal);

/* Takes bytes of the device's capacity. Returns false if less is left. */
bool device_take(CUdevice ordinal, uint64_t bytes);
void device_give(CUdevice ordinal, uint64_t bytes);
uint64_t device_available(CUdevice ordinal);

#endif
