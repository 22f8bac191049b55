/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A second process on the GPU: for every line on stdin it prints the bytes that the driver calls
 * free on device 0. It never runs under the shim.
 */
#include "tests/gpu/driver.h"

#include <stdio.h>

int main(void)
{
    char line[64];

    driver_start(0);
    while (fgets(line, sizeof line, stdin)) {
        size_t free_bytes, total_bytes;

        DRIVER_CHECK(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));
        printf("%zu\n", free_bytes);
        fflush(stdout);
    }
    return 0;
}
