/* SPDX-License-Identifier: BSD-2-Clause */
/* What other processes take of the devices' memory, when SIM_SHARED names a capacity in common. */
#ifndef SIM_SHARED_H
#define SIM_SHARED_H

#include <stdint.h>

/* Joins the shared capacity, if one is configured. */
void shared_open(void);
/* What this process takes of the device. */
void shared_publish(int device, uint64_t bytes);
/* What all other living processes take. */
uint64_t shared_others(int device);

#endif
