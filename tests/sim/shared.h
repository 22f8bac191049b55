/* SPDX-License-Identifier: BSD-2-Clause */
/* What other processes take of the devices' memory, if SIM_SHARED names a common capacity; and
 * whether a process may go on, or is locked for a checkpoint. */
#ifndef SIM_SHARED_H
#define SIM_SHARED_H

#include <stdbool.h>
#include <stdint.h>

/* Joins the shared capacity, if one is configured. */
void shared_open(void);
/* The same for one that only looks: it takes no row, and all rows are others'. */
void shared_look(void);
/* Publishes what this process takes of the device. */
void shared_publish(int device, uint64_t bytes);
/* Returns what all other living processes take. */
uint64_t shared_others(int device);
/* The first of the rows from `row` on whose process takes memory of the device, and how much. -1:
 * there is none. */
int shared_next(int row, int device, int *process, uint64_t *bytes);

/* Around a call of the driver. The beginning waits while the process is locked. */
void shared_call_begins(void);
void shared_call_ends(void);

/* The row of a living process; -1: it has none. */
int shared_find(int process);
/* The state of a row, as CUprocessState has them. False: it is not in state `from`. */
int shared_state(int row);
bool shared_change(int row, int from, int to);
/* The state of this process's own row. */
int shared_own_state(void);
/* No call of the process is under way. */
bool shared_is_quiet(int row);
/* Takes the process's memory off the devices, and puts it back. False: there is too little. */
void shared_save(int row);
bool shared_restore(int row, uint64_t capacity_bytes);

#endif
