/* SPDX-License-Identifier: BSD-2-Clause */
/* A second process that looks at the device from outside, as any other user of the GPU would. It is
 * forked before the first CUDA call, opens the driver itself, and answers with free memory. It runs
 * without the cache, so that what it sees is the driver's own account. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

struct observer {
    pid_t pid;
    int ask;    /* one byte asks, end of file ends it */
    int answer; /* a size_t each */
};

/* Before any CUDA call of the process. It starts the program again: its main has to begin with
 * scene_play. */
void observer_start(struct observer *observer);
size_t observer_free_bytes(struct observer *observer);
void observer_stop(struct observer *observer);

/* In the process that observer_start started: observes, and does not return. Else does nothing. */
void observer_serve(void);
