/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A second process on the GPU. It says "ready". For every line on stdin it prints the bytes that
 * the driver calls free on device 0. For "until BYTES" it looks until that many are free, two
 * seconds at most. Then it prints the moment of the monotonic clock as well. It never runs under
 * the shim.
 */
#include "tests/gpu/driver.h"

#include <stdio.h>

int main(void)
{
    char line[64];

    driver_start(0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t free_bytes, total_bytes, wanted_bytes = 0;
        uint64_t start_ns = driver_now_ns(), now_ns;
        int timed = sscanf(line, "until %zu", &wanted_bytes) == 1;

        do {
            DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
            now_ns = driver_now_ns();
        } while (free_bytes < wanted_bytes && now_ns - start_ns < 2000000000u);
        if (timed)
            printf("%zu %lu\n", free_bytes, now_ns);
        else
            printf("%zu\n", free_bytes);
        fflush(stdout);
    }
    return 0;
}
