/* SPDX-License-Identifier: BSD-2-Clause */
/* What other processes take of the devices' memory, if SIM_SHARED names a common capacity. */
#ifndef SIM_SHARED_H
#define SIM_SHARED_H

#include <stdint.h>

/* Joins the shared capacity, if one is configured. */
void shared_open(void);
/* Publishes what this process takes of the device. */
void shared_publish(int device, uint64_t bytes);
/* Returns what all other living processes take. */
uint64_t shared_others(int device);

#endif
