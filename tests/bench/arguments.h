/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Numbers among the arguments of the programs here. Each function returns false where the words are
 * no such number, with nothing behind it.
 */
#ifndef TESTS_BENCH_ARGUMENTS_H
#define TESTS_BENCH_ARGUMENTS_H

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* A whole number from 1 on. */
static inline bool argument_count(const char *words, uint64_t most, uint64_t *count)
{
    char *end;

    errno = 0;
    *count = strtoull(words, &end, 10);
    return *words >= '0' && *words <= '9' && !*end && !errno && *count && *count <= most;
}

/* A number above 0. */
static inline bool argument_real(const char *words, double most, double *number)
{
    char *end;

    *number = strtod(words, &end);
    return end != words && !*end && isfinite(*number) && *number > 0 && *number <= most;
}

#endif
