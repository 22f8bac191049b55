/* SPDX-License-Identifier: BSD-2-Clause */
/* A free of NULL is no sin. */
#include "tests/misuse/misuse.h"

int main(void)
{
    misuse_start();
    misuse_expect("free of NULL", gpu_free(0), 0);
    misuse_report("stream-ordered free of NULL", gpu_free_async(0, NULL));
    return misuse_end();
}
