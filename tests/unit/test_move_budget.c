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
    move_budget_spend(&e, MS(19));
    EXPECT(move_budget_is_left(&e, MS(5)), "19 of 20 ms are gone");
    move_budget_spend(&e, MS(2));
    EXPECT(!move_budget_is_left(&e, MS(5)), "21 are");
}

static void a_part_of_the_time_is_added(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    move_budget_spend(&e, MS(21));
    EXPECT(!move_budget_is_left(&e, MS(5 + 127)), "less than 1 ms in 127");
    EXPECT(move_budget_is_left(&e, MS(5 + 130)), "more in 130");
}

static void small_steps_add_up(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, 1000);
    move_budget_spend(&e, MS(21));
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
    move_budget_spend(&e, MS(10));
    EXPECT(move_budget_is_left(&e, MS(1000000000)), "after many days");
    move_budget_spend(&e, MS(21));
    EXPECT(!move_budget_is_left(&e, MS(1000000000)), "no more than 20 ms were there");
    EXPECT(!move_budget_is_left(&e, MS(5)), "a clock that goes back adds nothing");
}

static void what_was_overdrawn_is_forgotten_at_last(void **state)
{
    (void)state;
    struct move_budget e = {0};
    move_budget_is_left(&e, MS(5));
    move_budget_spend(&e, UINT64_MAX);
    move_budget_spend(&e, MS(100000));
    EXPECT(!move_budget_is_left(&e, MS(5) + 127 * MOVE_BUDGET_DEBT_MAX_NS), "it takes its time");
    EXPECT(move_budget_is_left(&e, MS(5) + 129 * MOVE_BUDGET_DEBT_MAX_NS), "but so much at most");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_starts_with_all_of_it),
        cmocka_unit_test(a_part_of_the_time_is_added),
        cmocka_unit_test(small_steps_add_up),
        cmocka_unit_test(it_is_saved_up_to_a_limit),
        cmocka_unit_test(what_was_overdrawn_is_forgotten_at_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
