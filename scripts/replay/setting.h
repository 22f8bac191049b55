/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Options of a pool, from words as in a program's environment: "MAX_IDLE=1G BACKING=segment".
 */
#ifndef REPLAY_SETTING_H
#define REPLAY_SETTING_H

#include "pool/config.h"

#include <stdbool.h>
#include <stdint.h>

struct setting {
    struct pool_config config;
    bool wants_least; /* MAX_RESERVED=least: the least that serves all requests is to be found */
};

/* Defaults, then the words. gpu_bytes: what shares are of. NULL, or what is wrong with a word. */
const char *setting_read(struct setting *s, const char *words, uint64_t gpu_bytes);

#endif
