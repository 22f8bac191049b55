/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/spin.c: a thread that waits for a few steps of another one leaves the processor to it. */
#include "pool/spin.h"
#include "shim/process/clock.h"
#include "tests/unit/expect.h"

/* Of many: a turn that does not sleep may take long where other threads have the processor. */
static uint64_t shortest_ns(void (*pause)(unsigned turn), unsigned turn)
{
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        uint64_t start_ns = clock_now_ns();
        pause(turn);
        uint64_t took_ns = clock_now_ns() - start_ns;
        shortest = took_ns < shortest ? took_ns : shortest;
    }
    return shortest;
}

TEST(later_turns_sleep)
{
    EXPECT(shortest_ns(spin_pause, SPIN_YIELDS) >= SPIN_SLEEP_NS, "the first turn that sleeps");
    EXPECT(shortest_ns(spin_pause, 100 * SPIN_YIELDS) >= SPIN_SLEEP_NS, "and all after it");
}

TEST(sleeps_of_a_long_wait_grow)
{
    const uint64_t longest_ns = (uint64_t)SPIN_SLEEP_NS << SPIN_LONG_SHIFT;
    EXPECT(shortest_ns(spin_pause_longer, SPIN_YIELDS) >= SPIN_SLEEP_NS, "the first one");
    EXPECT(shortest_ns(spin_pause_longer, SPIN_YIELDS) < longest_ns, "is not the longest");
    EXPECT(shortest_ns(spin_pause_longer, SPIN_YIELDS + 2) >= 4 * SPIN_SLEEP_NS, "twice as long");
    EXPECT(shortest_ns(spin_pause_longer, 100 * SPIN_YIELDS) >= longest_ns, "up to the longest");
}

TEST(errno_is_kept)
{
    for (unsigned turn = 0; turn <= 2 * SPIN_YIELDS; turn++) {
        errno = EXDEV;
        spin_pause(turn);
        spin_pause_longer(turn);
        EXPECT_EQ(errno, EXDEV, "by both ways");
    }
}

PLAY_TESTS
