/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Series of times and medians. See bench_stat.h.
 */
#include "tests/gpu/bench_stat.h"
#include "tests/gpu/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>

static int compare_times(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

static int compare_values(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

struct series series_create(size_t room)
{
    struct series series = {.ns = malloc((room + !room) * sizeof(uint32_t)), .room = room};

    if (!series.ns) {
        fputs("bench: no memory\n", stderr);
        exit(2);
    }
    return series;
}

void series_destroy(struct series *series)
{
    free(series->ns);
    *series = (struct series){0};
}

void series_add(struct series *series, uint64_t ns)
{
    if (series->count < series->room)
        series->ns[series->count++] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

void series_append(struct series *series, const struct series *more)
{
    for (size_t i = 0; i < more->count; i++)
        series_add(series, more->ns[i]);
}

void series_sort(struct series *series)
{
    qsort(series->ns, series->count, sizeof *series->ns, compare_times);
}

uint32_t series_permille(const struct series *series, unsigned permille)
{
    size_t rank = (series->count * permille + 999) / 1000;

    return series->count ? series->ns[rank ? rank - 1 : 0] : 0;
}

double stat_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_values);
    return count ? values[count / 2] : 0;
}

uint64_t stat_clock_ns(void)
{
    enum { READINGS = 10000 };
    uint64_t start_ns = gpu_now_ns();

    for (int i = 1; i < READINGS; i++)
        gpu_now_ns();
    return (gpu_now_ns() - start_ns) / READINGS;
}
