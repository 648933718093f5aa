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

/* -- what rank 0 alone can know -------------------------------------------- */

static void follow_rank(weft_comm_rank *rank, const weft_memory *memory,
                        int32_t i, void *arg)
{
    static const weft_status turns[] = {WEFT_OK, WEFT_UNAVAILABLE, WEFT_OK,
                                        WEFT_INTERNAL};
    (void)memory;
    (void)arg;
    for (size_t t = 0; t < sizeof turns / sizeof *turns; t++) {
        weft_err told = {0};
        weft_status own = WEFT_OK;
        if (i == 0 && turns[t] != WEFT_OK)
            own = WEFT_FAIL(&told, turns[t], "turn %zu", t);
        ck_assert_int_eq(weft_comm_follow(rank, own, &told), turns[t]);
        ck_assert_int_eq(told.status, turns[t]);
        ck_assert_msg(turns[t] == WEFT_OK || strstr(told.text, "turn") != NULL,
                      "rank %d: \"%s\"", i, told.text);
        /* What is told ends a step, not the group, and is heard of by all
         * before the next one begins. */
        float x[1] = {1.0F};
        OK(weft_comm_sum_rows(rank, NULL, x, 1, 1, WEFT_ROUND_NONE, &err));
        ck_assert(x[0] == 3.0F);
    }
}

START_TEST(others_hear_what_rank_0_says)
{
    group_kit_run(group_kit_create(3, hosts, weft_ops_reference()), hosts, 3,
                  follow_rank, NULL);
}
END_TEST

/* Rank 0 says nothing; rank 1 waits for it, and rank 2 fails. */
static void fail_rank(weft_comm_rank *rank, const weft_memory *memory,
                      int32_t i, void *arg)
{
    weft_err own = {0}, told = {0};
    weft_status st = WEFT_OK;
    (void)memory;
    (void)arg;
    if (i == 0)
        while ((st = weft_comm_rank_check(rank, &told)) == WEFT_OK) {
        }
    if (i == 1) st = weft_comm_follow(rank, WEFT_OK, &told);
    if (i == 2) {
        (void)WEFT_FAIL(&own, WEFT_INTERNAL, "fell");
        st = weft_comm_rank_fail(rank, &own, &told);
    }
    ck_assert_int_eq(st, WEFT_INTERNAL);
    ck_assert_str_eq(told.text, "group kit: rank 2: fell");
}

START_TEST(who_follows_hears_of_a_rank_that_fails)
{
    for (int n = 0; n < 20; n++)
        group_kit_run(group_kit_create(3, hosts, weft_ops_reference()), hosts,
                      3, fail_rank, NULL);
}
END_TEST

static int64_t bytes_of(int32_t n_ranks, int32_t rows, int32_t width)
{
    return weft_comm_group_bytes(&(weft_comm_group_options){
        .n_ranks = n_ranks, .rows_max = rows, .width_max = width});
}

/* Shares have a place where there can be any: two ranks send whole rows. */
START_TEST(bytes_are_those_of_the_ways_in_use)
{
    ck_assert_int_eq(bytes_of(2, 5000, 7), INT64_C(4) * 2 * 5000 * 7);
    ck_assert_int_eq(bytes_of(3, 10, 7), INT64_C(4) * 3 * 10 * 7);
    ck_assert_int_eq(bytes_of(3, 6000, 7), INT64_C(4) * 3 * (2340 + 2000) * 7);
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
    tcase_add_test(tests, others_hear_what_rank_0_says);
    tcase_add_test(tests, who_follows_hears_of_a_rank_that_fails);
    tcase_add_test(tests, bytes_are_those_of_the_ways_in_use);
    tcase_add_test(tests, who_joins_alone_ends_by_the_deadline);
    tcase_add_test(tests, options_that_cannot_be_are_named);
}

int main(void)
{
    return weft_suite_run_added("comm_group", add);
}
