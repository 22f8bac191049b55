/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A program with faults that a report has to name (part_report.py): a function that never frees
 * what it takes, one that takes and frees the same again and again, and one that makes the peak.
 * Compiled so that each stays a function of its own.
 */
#include "tests/gpu/lib_common.h"

enum {
    ROUNDS = 96,
    CHURNS = 10, /* in each round */
    WEIGHTS = 64 << 20,
    LEAK = 1 << 20,
    CHURN = 2 << 20,
    PEAK = 256 << 20,
    USED = 4096, /* bytes of each block: rounds take equal time */
};

static void work(void *block)
{
    MUST(cudaMemset(block, 1, USED));
}

static void wait_a_little(void)
{
    struct timespec t = {0, 12000000};

    MUST(cudaDeviceSynchronize());
    nanosleep(&t, NULL);
}

void hold_the_weights(void)
{
    void *block;

    MUST(cudaMalloc(&block, WEIGHTS));
    work(block);
}

void leak_a_block(void)
{
    void *block;

    MUST(cudaMalloc(&block, LEAK));
    work(block);
}

void churn_a_block(void)
{
    void *block;

    MUST(cudaMalloc(&block, CHURN));
    work(block);
    MUST(cudaFree(block));
}

void make_the_peak(void)
{
    void *block;

    MUST(cudaMalloc(&block, PEAK));
    work(block);
    MUST(cudaFree(block));
}

int main(void)
{
    hold_the_weights();
    for (int round = 0; round < ROUNDS; round++) {
        leak_a_block();
        for (int i = 0; i < CHURNS; i++)
            churn_a_block();
        if (round == ROUNDS / 2)
            make_the_peak();
        wait_a_little();
    }
    puts("done");
    return 0;
}
