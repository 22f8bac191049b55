/* SPDX-License-Identifier: BSD-2-Clause */
/* What the acts of park.c and park_life.c begin with. */
#pragma once

#include "tests/preload/park.h"

enum { WORDS = 512 * 1024, BYTES = 4 * WORDS, VALUE = 0x1234567 };

static uint64_t a, b;  /* blocks of WORDS; a has VALUE */
static uint32_t *here; /* on the host */
static CUstream stream;
static CUcontext context;

/* The blocks, filled. */
static void begin(int devices)
{
    scene_start(devices, 300);
    REQUIRE(cuCtxGetCurrent(&context));
    stream = NEW_STREAM(false);
    a = NEW_BLOCK(BYTES);
    b = NEW_BLOCK(BYTES);
    here = calloc(WORDS, 4);
    REQUIRE(gpu_fill(a, WORDS, VALUE, NULL));
    REQUIRE(gpu_fill(b, WORDS, 7, NULL));
    REQUIRE(gpu_sync());
}

static uint32_t wrong_a(void)
{
    return scene_wrong_words(a, WORDS, VALUE, stream);
}
