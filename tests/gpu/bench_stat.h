/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Series of times of single calls, and their statistics. No lock: one thread owns a series.
 */
#ifndef TESTS_GPU_BENCH_STAT_H
#define TESTS_GPU_BENCH_STAT_H

#include <stddef.h>
#include <stdint.h>

struct series {
    uint32_t *ns;
    size_t count, room;
};

/* Room for that many; ends the program with status 2 without memory. */
struct series series_create(size_t room);
void series_destroy(struct series *series);
/* Adds a time, if there is room. A time of more than UINT32_MAX ns (4.3 s) counts as that. */
void series_add(struct series *series, uint64_t ns);
void series_append(struct series *series, const struct series *more);
/* Must come after the last time is added and before the first percentile. */
void series_sort(struct series *series);
/* The smallest that at least permille of the sorted ones do not exceed; 1000 is the largest, 0 if
 * there is none. */
uint32_t series_permille(const struct series *series, unsigned permille);

/* The median; sorts the values. */
double stat_median(double *values, size_t count);

/* Nanoseconds that one call of gpu_now_ns() takes. */
uint64_t stat_clock_ns(void);

#endif
