/* SPDX-License-Identifier: BSD-2-Clause */
/* A free of addresses that nothing ever allocated. */
#include "tests/misuse/misuse.h"

int main(void)
{
    static const uint64_t wild[] = {1, 4096, 0x12345600, 0x7fff00000000, 0xdeadbeef00000000};
    misuse_start();
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        misuse_expect("wild", gpu_free(wild[i]), CUDA_ERROR_INVALID_VALUE);
    return misuse_end();
}
