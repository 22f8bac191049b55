/* SPDX-License-Identifier: BSD-2-Clause */
/* How much memory the process has. */
#ifndef TESTS_UNIT_RESIDENT_H
#define TESTS_UNIT_RESIDENT_H

#include <stdint.h>
#include <stdio.h>

/* Of the host, in bytes. */
static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_true(file && fscanf(file, "%*u %llu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

#endif
