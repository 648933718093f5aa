/* Which member is a stage of a group, where several say so. */
#include <check.h>
#include <stdio.h>

#include "node/app/layers.h"
#include "tests/support/suite.h"

static weft_member stage_member(const char *id, int32_t stage,
                                weft_member_state state, uint64_t incarnation)
{
    weft_member m = {.role = WEFT_ROLE_LAYERS,
                     .state = state,
                     .incarnation = incarnation,
                     .group = 1,
                     .stage = stage,
                     .n_stages = 3};
    (void)snprintf(m.id, sizeof m.id, "%s", id);
    return m;
}

static const char *found(const weft_member *members, int32_t n)
{
    const weft_stage_of which = {.group = 1, .stage = 2, .n_stages = 3};
    const weft_member *const m = weft_layers_find_stage(members, n, &which);
    return m == NULL ? "nobody" : m->id;
}

START_TEST(only_who_says_so_in_every_field)
{
    weft_member m = stage_member("a", 2, WEFT_MEMBER_SERVING, 5);
    ck_assert_str_eq(found(&m, 1), "a");
    ck_assert_str_eq(found(&m, 0), "nobody");
    m.group = 0;
    ck_assert_str_eq(found(&m, 1), "nobody");
    m = stage_member("a", 1, WEFT_MEMBER_SERVING, 5);
    ck_assert_str_eq(found(&m, 1), "nobody");
    m = stage_member("a", 2, WEFT_MEMBER_SERVING, 5);
    m.n_stages = 4;
    ck_assert_str_eq(found(&m, 1), "nobody");
    m = stage_member("a", 2, WEFT_MEMBER_SERVING, 5);
    m.role = WEFT_ROLE_EXPERTS;
    ck_assert_str_eq(found(&m, 1), "nobody");
}
END_TEST

START_TEST(the_one_that_came_last_whatever_the_order)
{
    weft_member m[3] = {
        stage_member("old", 2, WEFT_MEMBER_SERVING, 5),
        stage_member("new", 2, WEFT_MEMBER_SERVING, 7),
        stage_member("older", 2, WEFT_MEMBER_SERVING, 3),
    };
    ck_assert_str_eq(found(m, 3), "new");
    m[0].incarnation = 9;
    ck_assert_str_eq(found(m, 3), "old");
}
END_TEST

START_TEST(who_drains_only_if_there_is_nobody_else)
{
    weft_member m[2] = {
        stage_member("goes", 2, WEFT_MEMBER_DRAINING, 9),
        stage_member("stays", 2, WEFT_MEMBER_SERVING, 5),
    };
    m[0].mod_revision = 99; /* saying so was its last word */
    ck_assert_str_eq(found(m, 2), "stays");
    ck_assert_str_eq(found(m, 1), "goes");
    m[1].state = WEFT_MEMBER_JOINING;
    ck_assert_str_eq(found(m, 2), "stays");
}
END_TEST

START_TEST(who_came_before_yields_to_who_came_last)
{
    const weft_stage_of own = {.group = 1, .stage = 2, .n_stages = 3};
    weft_member m[3] = {
        stage_member("old", 2, WEFT_MEMBER_SERVING, 5),
        stage_member("new", 2, WEFT_MEMBER_JOINING, 7),
        stage_member("other", 1, WEFT_MEMBER_SERVING, 9),
    };
    ck_assert(weft_layers_is_displaced(m, 3, &own, "old"));
    ck_assert(!weft_layers_is_displaced(m, 3, &own, "new"));
    ck_assert(!weft_layers_is_displaced(m, 1, &own, "old"));
    /* Not before it is a member: who has its place may be its past. */
    ck_assert(!weft_layers_is_displaced(m, 1, &own, "new"));
    ck_assert(!weft_layers_is_displaced(m, 0, &own, "old"));
    m[1].state = WEFT_MEMBER_DRAINING;
    ck_assert(!weft_layers_is_displaced(m, 3, &own, "old"));
    ck_assert(weft_layers_is_displaced(m, 3, &own, "new"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {only_who_says_so_in_every_field,
                                  the_one_that_came_last_whatever_the_order,
                                  who_drains_only_if_there_is_nobody_else,
                                  who_came_before_yields_to_who_came_last};
    return WEFT_SUITE_RUN("layers_peers", tests);
}
