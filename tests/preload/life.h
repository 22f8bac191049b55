/* SPDX-License-Identifier: BSD-2-Clause */
/* What the parts of the scene `life` share. life.c draws what comes next. life_memory.c does what
 * is done with memory, streams and threads, and life_world.c the rest: signals, processes, captures
 * and contexts. */
#pragma once

#include "tests/preload/scene.h"

enum {
    BLOCKS = 24,
    STREAMS = 4,
    BUSY_MAX = 3,
    STEPS = 40,
    CHILD_S = 60,
    TINY_CODE = 7,
    LEFT_CODE = 21
};

struct block {
    uint64_t at, words;
    uint32_t value;
    CUstream stream; /* its last work */
};

struct birth {
    uint32_t how;
    char *self;
};

struct life {
    uint64_t random_state;
    struct block blocks[BLOCKS];
    CUstream streams[STREAMS]; /* NULL: none, and the default one */
    int num_busy, num_devices;
    bool listens; /* has a handler of its own for SIGUSR1 */
};
extern struct life life;

uint32_t life_draw(uint32_t below);
uint64_t life_draw_words(void);

/* Memory: each prints how many words were wrong, if it looks. */
void life_give_or_take(void);
uint32_t life_wrong_in(const struct block *b);
void life_check_all(void);
void life_change_streams(void);
int life_work_a_while(int index, void *rounds);
void life_add_busy(void);
void life_end_busy(void);

/* The world. */
void life_listen_to_signals(void);
void life_be_signalled(void);
void life_ask_by_environment(void);
int life_give_birth(int index, void *birth);
int life_start(char *self, const char *what);
void life_capture(void);
void life_live_in_a_context(void);
void life_reset(void);
void life_visit_a_peer(void);
void life_commit_sins(void);
