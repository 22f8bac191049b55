/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/words.h"

void words_fill(uint32_t *words, size_t count, uint32_t value)
{
    for (size_t i = 0; i < count; i++)
        words[i] = value;
}

uint32_t words_differing(const uint32_t *words, size_t count, uint32_t value)
{
    uint32_t differing = 0;
    for (size_t i = 0; i < count; i++)
        differing += words[i] != value;
    return differing;
}

size_t bytes_differing(const unsigned char *bytes, size_t count, unsigned char value)
{
    size_t differing = 0;
    for (size_t i = 0; i < count; i++)
        differing += bytes[i] != value;
    return differing;
}
