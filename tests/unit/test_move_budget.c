/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/move_budget.c: how much time may go into saving memory.
 */
#include "pool/move_budget.h"
#include "pool/tuning.h"

#include "tests/unit/expect.h"

static void a_program_starts_with_all_of_it(void **state)
{
    (void)state;
    struct move_budget e = {0};
    EXPECT(move_budget_is_left(&e, MS(5)), "there is some");
    move_budget_spend(&e, MS(19), false);
    EXPECT(move_budget_is_left(&e, MS(5)), "19 of 20 ms are gone");
    move_budget_spend(&e, MS(2), false);
    EXPECT(!move_budget_is_left(&e, MS(5)), "21 are");
}

static void a_part_of_the_time_is_added(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    move_budget_spend(&e, MS(21), false);
    EXPECT(!move_budget_is_left(&e, MS(5 + 127)), "less than 1 ms in 127");
    EXPECT(move_budget_is_left(&e, MS(5 + 130)), "more in 130");
}

static void small_steps_add_up(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, 1000);
    move_budget_spend(&e, MS(21), false);
    bool left = false;
    for (uint64_t ns = 1000; ns < MS(129); ns += 100)
        left = move_budget_is_left(&e, ns);
    EXPECT(left, "asked every 100 ns");
}

static void it_is_saved_up_to_a_limit(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    move_budget_spend(&e, MS(10), false);
    EXPECT(move_budget_is_left(&e, MS(1000000000)), "after many days");
    move_budget_spend(&e, MS(21), false);
    EXPECT(!move_budget_is_left(&e, MS(1000000000)), "no more than 20 ms were there");
    EXPECT(!move_budget_is_left(&e, MS(5)), "a clock that goes back adds nothing");
}

static void what_was_overdrawn_is_forgotten_at_last(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    move_budget_spend(&e, UINT64_MAX, false);
    move_budget_spend(&e, MS(100000), false);
    EXPECT(!move_budget_is_left(&e, MS(5) + 127 * MOVE_BUDGET_DEBT_MAX_NS), "it takes its time");
    EXPECT(move_budget_is_left(&e, MS(5) + 129 * MOVE_BUDGET_DEBT_MAX_NS), "but so much at most");
}

static void growth_that_is_needed_is_no_charge(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    for (int i = 0; i < 40; i++)
        move_budget_note_growth(&e, MS(2));
    EXPECT(move_budget_is_left(&e, MS(5)), "growth by one chunk costs nothing");
    for (int i = 0; i < 19; i++)
        move_budget_spend(&e, MS(3), true);
    EXPECT(move_budget_is_left(&e, MS(5)), "1 ms of each was beyond a growth");
    move_budget_spend(&e, MS(1), true);
    EXPECT(move_budget_is_left(&e, MS(5)), "less than a growth is no charge, and earns nothing");
    move_budget_spend(&e, MS(4), true);
    EXPECT(!move_budget_is_left(&e, MS(5)), "21 of 20 ms are gone");
}

static void moves_below_the_peak_are_charged_whole(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    for (int i = 0; i < 40; i++)
        move_budget_note_growth(&e, MS(2));
    for (int i = 0; i < 7; i++)
        move_budget_spend(&e, MS(3), false);
    EXPECT(!move_budget_is_left(&e, MS(5)), "seven times 3 ms");
}

static void one_slow_growth_excuses_little(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    for (int i = 0; i < 40; i++)
        move_budget_note_growth(&e, MS(2));
    move_budget_note_growth(&e, MS(18));
    for (int i = 0; i < 6; i++)
        move_budget_spend(&e, MS(10), true);
    EXPECT(!move_budget_is_left(&e, MS(5)), "6 ms of each are growth, 4 are charged");
    e = (struct move_budget){0};
    move_budget_is_left(&e, MS(5));
    move_budget_note_growth(&e, UINT64_MAX);
    move_budget_spend(&e, MS(26), true);
    EXPECT(!move_budget_is_left(&e, MS(5)), "as if it had taken 20 ms");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_starts_with_all_of_it),
        cmocka_unit_test(a_part_of_the_time_is_added),
        cmocka_unit_test(small_steps_add_up),
        cmocka_unit_test(it_is_saved_up_to_a_limit),
        cmocka_unit_test(what_was_overdrawn_is_forgotten_at_last),
        cmocka_unit_test(growth_that_is_needed_is_no_charge),
        cmocka_unit_test(moves_below_the_peak_are_charged_whole),
        cmocka_unit_test(one_slow_growth_excuses_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
