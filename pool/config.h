/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's tunables as a struct, generated from pool/config.def. The caller of pool_create fills
 * it; pool_config_init gives the defaults. Sizes are bytes, times nanoseconds.
 */
#ifndef POOL_CONFIG_H
#define POOL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum pool_backing { BACKING_AUTO, BACKING_ARENA, BACKING_SEGMENT, BACKING_DRIVER };
enum pool_reuse { REUSE_AUTO, REUSE_ORDER, REUSE_READY, REUSE_WAIT };

#define POOL_TYPE_BYTES uint64_t
#define POOL_TYPE_LIMIT uint64_t
#define POOL_TYPE_SECONDS uint64_t
#define POOL_TYPE_BACKING enum pool_backing
#define POOL_TYPE_REUSE enum pool_reuse
#define POOL_TYPE_SWITCH bool

struct pool_config {
#define POOL_OPTION(field, name, type, value, live, help) POOL_TYPE_##type field;
#include "pool/config.def"
#undef POOL_OPTION
};

static inline void pool_config_init(struct pool_config *c)
{
#define POOL_OPTION(field, name, type, value, live, help) c->field = (value);
#include "pool/config.def"
#undef POOL_OPTION
}

#endif
