/* SPDX-License-Identifier: BSD-2-Clause */
/* Loops over many words of a device's memory, which whoever calls has looked up as a whole. No
 * sanitizer sees them, and they are optimized in every build: else most of the time goes there. The
 * driver lock orders them, and the hazard check finds unordered work. */
#ifndef SIM_WORDS_H
#define SIM_WORDS_H

#include <stddef.h>
#include <stdint.h>

void words_fill(uint32_t *words, size_t count, uint32_t value);

/* How many are another. */
uint32_t words_differing(const uint32_t *words, size_t count, uint32_t value);
size_t bytes_differing(const unsigned char *bytes, size_t count, unsigned char value);

#endif
