/* Which group takes a job: the rules of router/place.h, each by an example, and
 * by comparison with a plain reading of them over random groups. */
#include <stdlib.h>
#include <string.h>

#include "node/base/rng.h"
#include "router/place.h"
#include "tests/support/suite.h"

static weft_place_group group(uint32_t number)
{
    return (weft_place_group){
        .number = number, .usable = true, .seats = 4, .jobs_max = 8};
}

START_TEST(only_usable_groups_with_room)
{
    weft_place_group g[3] = {group(0), group(1), group(2)};
    g[0].usable = false;
    g[1].n_jobs = 8;
    g[2].n_jobs = 7;
    g[2].n_tokens = 1000000;
    ck_assert_int_eq(weft_place_choose(g, 3, false), 2);
    g[2].n_jobs = 8;
    ck_assert_int_eq(weft_place_choose(g, 3, false), WEFT_NO_GROUP);
    ck_assert_int_eq(weft_place_choose(g, 0, false), WEFT_NO_GROUP);
}
END_TEST

START_TEST(a_free_seat_first)
{
    weft_place_group g[2] = {group(0), group(1)};
    g[0].n_jobs = 4;
    g[0].n_tokens = 10;
    g[1].n_jobs = 3;
    g[1].n_tokens = 5000;
    ck_assert_int_eq(weft_place_choose(g, 2, false), 1);
    g[1].n_jobs = 4;
    ck_assert_int_eq(weft_place_choose(g, 2, false), 0);
}
END_TEST

START_TEST(fewest_tokens_then_jobs_then_number)
{
    weft_place_group g[3] = {group(7), group(5), group(6)};
    g[0].n_tokens = 10;
    g[1].n_tokens = 11;
    g[2].n_tokens = 12;
    ck_assert_int_eq(weft_place_choose(g, 3, false), 0);
    g[1].n_tokens = g[2].n_tokens = 10;
    g[0].n_jobs = 2;
    g[1].n_jobs = 1;
    g[2].n_jobs = 1;
    ck_assert_int_eq(weft_place_choose(g, 3, false), 1);
    g[0].n_jobs = 1;
    ck_assert_int_eq(weft_place_choose(g, 3, false), 1);
}
END_TEST

/* Whatever the order in which the groups are told. */
START_TEST(deterministic)
{
    for (uint64_t seed = 0; seed < 500; seed++) {
        weft_place_group g[6], turned[6];
        for (uint32_t i = 0; i < 6; i++) {
            const uint64_t r = weft_rng_u64(seed, i);
            g[i] = group(i);
            g[i].usable = (r & 7) != 0;
            g[i].n_jobs = (int32_t)(r >> 8 & 7);
            g[i].n_tokens = (int64_t)(r >> 16 & 3);
        }
        for (int32_t i = 0; i < 6; i++) turned[i] = g[(i + 2) % 6];
        const int32_t a = weft_place_choose(g, 6, false);
        const int32_t b = weft_place_choose(turned, 6, false);
        if (a == WEFT_NO_GROUP)
            ck_assert_int_eq(b, WEFT_NO_GROUP);
        else
            ck_assert_uint_eq(g[a].number, turned[b].number);
        for (int32_t i = 0; a != WEFT_NO_GROUP && i < 6; i++)
            ck_assert(!g[i].usable || g[i].n_jobs >= 4 || g[a].n_jobs < 4);
    }
}
END_TEST

START_TEST(suspects_go_one_at_a_time)
{
    weft_place_group g[2] = {group(0), group(1)};
    g[0].suspect = true;
    ck_assert_int_eq(weft_place_choose(g, 2, true), 1);
    ck_assert_int_eq(weft_place_choose(g, 2, false), 0);
    g[1].suspect = true;
    ck_assert_int_eq(weft_place_choose(g, 2, true), WEFT_NO_GROUP);
}
END_TEST

START_TEST(two_groups_without_a_token_are_the_end)
{
    weft_place_tries tries = {0};
    ck_assert(!weft_place_is_suspect(&tries));
    ck_assert(weft_place_broke(&tries, 2));
    ck_assert(weft_place_is_suspect(&tries));
    ck_assert(!weft_place_broke(&tries, 2));
}
END_TEST

START_TEST(a_token_between_starts_again_but_not_for_ever)
{
    weft_place_tries tries = {0};
    int32_t n = 0;
    while (weft_place_broke(&tries, 2)) {
        weft_place_progressed(&tries);
        ck_assert(!weft_place_is_suspect(&tries));
        n++;
    }
    ck_assert_int_eq(n, 31);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        only_usable_groups_with_room,
        a_free_seat_first,
        fewest_tokens_then_jobs_then_number,
        deterministic,
        suspects_go_one_at_a_time,
        two_groups_without_a_token_are_the_end,
        a_token_between_starts_again_but_not_for_ever,
    };
    return WEFT_SUITE_RUN("place", tests);
}
