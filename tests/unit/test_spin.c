/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/spin.c: a thread that waits for a few steps of another one leaves the processor to it. */
#include "pool/spin.h"
#include "shim/process/clock.h"
#include "tests/unit/expect.h"

/* Of many: a turn that does not sleep may take long where other threads have the processor. */
static uint64_t shortest_ns(unsigned turn)
{
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        uint64_t start_ns = clock_now_ns();
        spin_pause(turn);
        uint64_t took_ns = clock_now_ns() - start_ns;
        shortest = took_ns < shortest ? took_ns : shortest;
    }
    return shortest;
}

TEST(later_turns_sleep)
{
    EXPECT(shortest_ns(SPIN_YIELDS) >= SPIN_SLEEP_NS, "the first turn that sleeps");
    EXPECT(shortest_ns(100 * SPIN_YIELDS) >= SPIN_SLEEP_NS, "and all after it");
}

TEST(errno_is_kept)
{
    for (unsigned turn = 0; turn <= 2 * SPIN_YIELDS; turn++) {
        errno = EXDEV;
        spin_pause(turn);
        EXPECT_EQ(errno, EXDEV, "by both ways");
    }
}

PLAY_TESTS
