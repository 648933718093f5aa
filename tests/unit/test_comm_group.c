/* Ranks of a stage that are threads of this process (shard/comm/group.h). */
#include <string.h>

#include "tests/support/expect.h"
#include "tests/support/group_kit.h"
#include "tests/support/suite.h"

static const weft_memory hosts[WEFT_COMM_GROUP_RANKS_MAX];

START_TEST(sums_are_in_the_order_of_ranks)
{
    group_kit_check_sums(_i, hosts, weft_ops_reference());
}
END_TEST

START_TEST(the_paths_of_a_cpu_sum_alike)
{
    const weft_ops *ops;
    for (int32_t i = 0; (ops = weft_ops_cpu_nth(i)) != NULL; i++)
        group_kit_check_sums(3, hosts, ops);
}
END_TEST

START_TEST(one_rank_s_failure_is_all_s)
{
    /* Meetings end in many ways. */
    for (int i = 0; i < 20; i++)
        group_kit_check_abort(_i, hosts, weft_ops_reference());
}
END_TEST

/* 1 + 2^-8 is no bfloat16, and 1 + 2^-7 is. */
static void round_rank(weft_comm_rank *rank, const weft_memory *memory,
                       int32_t i, void *arg)
{
    float x[2] = {i == 0 ? 1.0F : 0.00390625F, i == 0 ? 1.0F : 0.001953125F};
    (void)memory;
    (void)arg;
    OK(weft_comm_sum_rows(rank, NULL, x, 1, 2, WEFT_ROUND_BF16, &err));
    ck_assert(x[0] == 1.0078125F);
    ck_assert(x[1] == 1.0F);
}

START_TEST(the_sum_is_rounded_and_not_its_parts)
{
    group_kit_run(group_kit_create(3, hosts, weft_ops_reference()), hosts, 3,
                  round_rank, NULL);
}
END_TEST

START_TEST(who_joins_alone_ends_by_the_deadline)
{
    const weft_comm_group_options options = {.n_ranks = 2,
                                             .memories = hosts,
                                             .ops = weft_ops_reference(),
                                             .rows_max = 1,
                                             .width_max = 1,
                                             .join_ns = 1000000,
                                             .name = "kit"};
    weft_comm_group *group = NULL;
    weft_err told = {0};
    OK(weft_comm_group_create(&options, &group, &err));
    ck_assert_int_eq(weft_comm_rank_join(weft_comm_group_rank(group, 1), &told),
                     WEFT_DEADLINE_EXCEEDED);
    ck_assert_str_eq(told.text, "group kit: rank 1: 1 of 2 ranks have joined");
    /* The other is told the same. */
    ck_assert_int_eq(weft_comm_rank_join(weft_comm_group_rank(group, 0), &told),
                     WEFT_DEADLINE_EXCEEDED);
    ck_assert(strstr(told.text, "rank 1: 1 of 2") != NULL);
    weft_comm_group_destroy(group);
    weft_comm_group_destroy(NULL);
}
END_TEST

START_TEST(options_that_cannot_be_are_named)
{
    const weft_device_api other = {0};
    const weft_memory mixed[2] = {{NULL, NULL}, {&other, NULL}};
    const weft_ops *const ops = weft_ops_reference();
    const struct {
        weft_comm_group_options options;
        const char *text;
    } cases[] = {
        {{1, hosts, ops, 1, 1, 0, "kit"}, "n_ranks 1: 2 to 8"},
        {{9, hosts, ops, 1, 1, 0, "kit"}, "n_ranks 9: 2 to 8"},
        {{2, hosts, ops, 0, 1, 0, "kit"}, "sums of 0 rows of 1"},
        {{2, hosts, ops, 1, 0, 0, "kit"}, "sums of 1 rows of 0"},
        {{2, mixed, ops, 1, 1, 0, "kit"}, "rank 0 and 1 are not of one kind"},
        {{2, hosts, NULL, 1, 1, 0, "kit"}, "ops: not given"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_comm_group *group = NULL;
        weft_err told = {0};
        ck_assert_int_eq(
            weft_comm_group_create(&cases[i].options, &group, &told),
            WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(told.text, cases[i].text) != NULL, "%s",
                      told.text);
        ck_assert_ptr_null(group);
    }
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, sums_are_in_the_order_of_ranks, 2, 6);
    tcase_add_test(tests, the_paths_of_a_cpu_sum_alike);
    tcase_add_loop_test(tests, one_rank_s_failure_is_all_s, 2, 5);
    tcase_add_test(tests, the_sum_is_rounded_and_not_its_parts);
    tcase_add_test(tests, who_joins_alone_ends_by_the_deadline);
    tcase_add_test(tests, options_that_cannot_be_are_named);
}

int main(void)
{
    return weft_suite_run_added("comm_group", add);
}
