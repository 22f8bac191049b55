/* SPDX-License-Identifier: BSD-2-Clause */
/* A piece of submitted work: its command, its predecessors, its end. References are counted; the
 * submission holds one until completion. Driver lock. */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include "tests/sim/command.h"

enum work_state {
    WORK_WAITING, /* for predecessors */
    WORK_RUNNING, /* ends at end_ns */
    WORK_POLLING, /* ends when its condition holds */
    WORK_CALLING, /* a host function is on its way */
    WORK_DONE,
};

struct work {
    struct command command;
    struct CUctx_st *context;
    enum work_state state;
    unsigned references;
    unsigned blockers; /* unfinished predecessors, plus one until work_submit */
    uint64_t number;   /* order of submission */
    uint64_t earliest_ns, end_ns;
    struct work **successors;
    unsigned successor_count, successor_capacity;
    struct work *next; /* in the clock's list of polling or calling work */
};

/* Makes a piece of work with one reference for the caller. Copies the command. */
struct work *work_create(struct CUctx_st *context, const struct command *command);

/* `work` does not start before `before` is done. NULL and finished work have no effect. */
void work_after(struct work *work, struct work *before);

/* All predecessors are known: the work may start. */
void work_submit(struct work *work);

/* Runs the command and lets the successors start. */
void work_complete(struct work *work, uint64_t end_ns);

struct work *work_retain(struct work *work);
void work_release(struct work *work);

static inline bool work_done(const struct work *work)
{
    return work == NULL || work->state == WORK_DONE;
}

/* *slot = work, with references. */
void work_assign(struct work **slot, struct work *work);

#endif
