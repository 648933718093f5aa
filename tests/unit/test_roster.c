/* The roster: events in any repetition and listing, and values of anybody. */
#include <stdio.h>
#include <string.h>

#include "node/base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/roster_kit.h"
#include "tests/support/suite.h"

static bool apply(kit *k, weft_registry_event_kind kind, const char *key,
                  const weft_buf *value, int64_t revision)
{
    const weft_registry_event event = {
        .kind = kind,
        .key = key,
        .value = {.data = value != NULL ? value->data : NULL,
                  .n = value != NULL ? value->n : 0},
        .revision = revision};
    return weft_roster_apply(k->roster, &event);
}

static weft_buf member_value(const char *id, uint64_t incarnation)
{
    weft_buf value = {0};
    const weft_member m =
        kit_member(WEFT_ROLE_EXPERTS, id, incarnation, WEFT_MEMBER_SERVING);
    OK(weft_member_encode(&m, &value, &err));
    return value;
}

START_TEST(tells_what_the_keys_say)
{
    kit *k = kit_create();
    const weft_member *members;
    const weft_ack *acks;
    const weft_switched *switched;
    const weft_suspicion *suspicions;
    int64_t revision;
    kit_put_experts(k, "e1", 3, WEFT_MEMBER_SERVING);
    kit_put_experts(k, "e0", 2, WEFT_MEMBER_JOINING);
    kit_put_lead(k, "l0", 4);
    weft_placement *p = kit_placement(k, 9, 2);
    kit_put_placement(k, p);
    kit_put_number(k, "epoch/current", 9);
    kit_put_number(k, "epoch/retired", 8);
    kit_put_ack(k, 9, "e1", 3, 77, "no memory");
    kit_put_switched(k, 9, 4, 1);
    kit_put_suspicion(k, "e0", 2, "l0");
    ck_assert_int_eq(weft_roster_members(k->roster, &members), 3);
    ck_assert_str_eq(members[0].id, "l0"); /* in order of role, id */
    ck_assert_str_eq(members[1].id, "e0");
    ck_assert_str_eq(members[2].id, "e1");
    ck_assert_int_eq(members[2].state, WEFT_MEMBER_SERVING);
    ck_assert_str_eq(members[2].address, "127.0.0.1:11");
    ck_assert_uint_eq(members[2].incarnation, 3);
    ck_assert_int_eq(members[2].mod_revision, 1);
    ck_assert_uint_eq(weft_roster_epoch(k->roster, &revision), 9);
    ck_assert_int_eq(revision, 5);
    ck_assert_uint_eq(weft_roster_retired(k->roster), 8);
    ck_assert(weft_placement_equal(weft_roster_placement(k->roster, 9), p));
    ck_assert_ptr_null(weft_roster_placement(k->roster, 8));
    ck_assert_int_eq(weft_roster_acks(k->roster, &acks), 1);
    ck_assert_str_eq(acks[0].text, "no memory");
    ck_assert(acks[0].failed && acks[0].placement_hash == 77);
    ck_assert_int_eq(weft_roster_switched(k->roster, &switched), 1);
    ck_assert_uint_eq(switched[0].group, 4);
    ck_assert_int_eq(weft_roster_suspicions(k->roster, &suspicions), 1);
    ck_assert_str_eq(suspicions[0].reporter, "l0");
    ck_assert(weft_roster_is_suspect(k->roster, &members[1]));
    ck_assert(!weft_roster_is_suspect(k->roster, &members[2]));
    weft_member later = members[1];
    later.incarnation = 3;
    ck_assert(!weft_roster_is_suspect(k->roster, &later));
    weft_placement_destroy(p);
    kit_destroy(k);
}
END_TEST

START_TEST(the_same_again_changes_nothing)
{
    kit *k = kit_create();
    weft_buf a = member_value("e0", 1), b = member_value("e0", 2);
    const char *key = "members/experts/e0";
    ck_assert(apply(k, WEFT_REGISTRY_PUT, key, &a, 5));
    ck_assert(!apply(k, WEFT_REGISTRY_PUT, key, &a, 5));
    ck_assert(apply(k, WEFT_REGISTRY_PUT, key, &b, 6));
    ck_assert(!apply(k, WEFT_REGISTRY_PUT, key, &a, 5));
    ck_assert(!apply(k, WEFT_REGISTRY_DELETE, key, NULL, 4));
    ck_assert_uint_eq(
        weft_roster_find(k->roster, WEFT_ROLE_EXPERTS, "e0")->incarnation, 2);
    ck_assert(apply(k, WEFT_REGISTRY_DELETE, key, NULL, 7));
    ck_assert(!apply(k, WEFT_REGISTRY_DELETE, key, NULL, 7));
    ck_assert(!apply(k, WEFT_REGISTRY_PUT, key, &b, 6)); /* not back again */
    ck_assert_ptr_null(weft_roster_find(k->roster, WEFT_ROLE_EXPERTS, "e0"));
    ck_assert_int_eq(weft_roster_seen(k->roster), 7);
    weft_buf_deinit(&a);
    weft_buf_deinit(&b);
    kit_destroy(k);
}
END_TEST

START_TEST(a_listing_replaces_what_is_known)
{
    kit *k = kit_create();
    weft_buf a = member_value("e0", 1), b = member_value("e1", 1);
    const weft_member *members;
    ck_assert(apply(k, WEFT_REGISTRY_PUT, "members/experts/e0", &a, 50));
    ck_assert(!apply(k, WEFT_REGISTRY_RELIST_BEGIN, NULL, NULL, 0));
    ck_assert(!apply(k, WEFT_REGISTRY_PUT, "members/experts/e1", &b, 3));
    /* Until its end, what was known. */
    ck_assert_int_eq(weft_roster_members(k->roster, &members), 1);
    ck_assert_str_eq(members[0].id, "e0");
    /* A listing that breaks off is forgotten. */
    ck_assert(!apply(k, WEFT_REGISTRY_RELIST_BEGIN, NULL, NULL, 0));
    ck_assert(!apply(k, WEFT_REGISTRY_PUT, "members/experts/e1", &b, 3));
    ck_assert(apply(k, WEFT_REGISTRY_RELIST_END, NULL, NULL, 4));
    ck_assert_int_eq(weft_roster_members(k->roster, &members), 1);
    ck_assert_str_eq(members[0].id, "e1");
    /* A store that began anew has low revisions; they are as good. */
    ck_assert(apply(k, WEFT_REGISTRY_PUT, "members/experts/e0", &a, 5));
    ck_assert_int_eq(weft_roster_members(k->roster, &members), 2);
    weft_buf_deinit(&a);
    weft_buf_deinit(&b);
    kit_destroy(k);
}
END_TEST

/* _i: seed of the order. */
START_TEST(any_listing_of_the_same_is_no_change)
{
    kit *k = kit_create();
    weft_placement *p = kit_placement(k, 3, 3);
    kit_put_placement(k, p);
    for (int32_t i = 0; i < 8; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "e%d", i);
        kit_put_experts(k, id, 1, WEFT_MEMBER_SERVING);
    }
    kit_list(k, 1);
    const weft_registry_event events[] = {
        {.kind = WEFT_REGISTRY_RELIST_BEGIN},
        {.kind = WEFT_REGISTRY_RELIST_END, .revision = k->revision}};
    ck_assert(!weft_roster_apply(k->roster, &events[0]));
    for (int32_t i = 0; i < k->n; i++) {
        const int32_t at = (i * 5 + _i) % k->n; /* 9 keys: 5 visits each */
        ck_assert(!apply(k, WEFT_REGISTRY_PUT, k->keys[at].key,
                         &k->keys[at].value, k->keys[at].revision));
    }
    ck_assert(!weft_roster_apply(k->roster, &events[1]));
    weft_placement_destroy(p);
    kit_destroy(k);
}
END_TEST

START_TEST(numbers_are_found_wherever_they_are)
{
    kit *k = kit_create();
    uint64_t epochs[8];
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 0);
    kit_put_number(k, "epoch/current", 3);
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 3);
    weft_member m = kit_member(WEFT_ROLE_LAYERS, "l0", 1, WEFT_MEMBER_SERVING);
    m.epoch = 5;
    kit_put_member(k, &m);
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 5);
    kit_put_ack(k, 7, "e0", 1, 1, NULL);
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 7);
    kit_put(k, "epoch/9/placement", "?", 1); /* unreadable, and yet a number */
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 9);
    kit_put_switched(k, 7, 0, 1);
    ck_assert_int_eq(weft_roster_epochs(k->roster, epochs, 8), 2);
    ck_assert_int_eq(weft_roster_epochs(k->roster, epochs, 1), 1);
    kit_destroy(k);
}
END_TEST

static void expect_unreadable(kit *k, const char *key, const void *value,
                              size_t n, const char *reason)
{
    const char *text;
    const uint64_t had = weft_roster_n_unreadable(k->roster, &text);
    kit_put(k, key, value, n);
    ck_assert_uint_eq(weft_roster_n_unreadable(k->roster, &text), had + 1);
    ck_assert_msg(strstr(text, reason) != NULL, "%s: %s", key, text);
}

START_TEST(hostile_keys_are_left_out)
{
    static const char *const keys[] = {
        "",
        "members",
        "members/experts",
        "members/experts/",
        "members/experts/a/b",
        "members/cooks/e0",
        "members/experts/e 0",
        ("members/experts/0123456789012345678901234567890123456789012345678901"
         "234567890123"),
        "epoch/0/placement",
        "epoch/01/placement",
        "epoch/-1/placement",
        "epoch/99999999999999999999/placement",
        "epoch/4611686018427387904/placement",
        "epoch/1/ack",
        "epoch/1/ack/",
        "epoch/1/switched/x/1",
        "epoch/1/switched/1048576/1",
        "epoch/1/switched/1",
        "epoch/1/switched/1/",
        "epoch/1/switched/1/01",
        "epoch/1/other",
        "suspects/e0",
        "suspects/e0/l0/x",
        "controller/x",
    };
    kit *k = kit_create();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        expect_unreadable(k, keys[i], "", 0, "no such key is known");
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 0);
    expect_unreadable(k, "a\nb", "", 0, "no such key is known: a?b");
    kit_destroy(k);
}
END_TEST

START_TEST(values_must_be_those_of_their_key)
{
    kit *k = kit_create();
    const weft_member *members;
    const weft_ack *acks;
    weft_buf a = member_value("e0", 1);
    expect_unreadable(k, "members/experts/e1", a.data, a.n, "id is not that");
    expect_unreadable(k, "members/layers/e0", a.data, a.n, "role is not that");
    expect_unreadable(k, "members/experts/e0", a.data, a.n - 1, "");
    expect_unreadable(k, "members/experts/e0", "", 0, "version is 0");
    ck_assert_int_eq(weft_roster_members(k->roster, &members), 0);
    ck_assert_int_gt(weft_roster_revision(k->roster, "members/experts/e0"), 0);
    const weft_ack ack = {.epoch = 4, .id = "e0", .incarnation = 1};
    OK(weft_ack_encode(&ack, &a, &err));
    expect_unreadable(k, "epoch/5/ack/e0", a.data, a.n, "epoch is not that");
    expect_unreadable(k, "epoch/4/ack/e1", a.data, a.n, "id is not that");
    ck_assert_int_eq(weft_roster_acks(k->roster, &acks), 0);
    const weft_switched switched = {.epoch = 4, .group = 1, .incarnation = 7};
    OK(weft_switched_encode(&switched, &a, &err));
    expect_unreadable(k, "epoch/4/switched/2/7", a.data, a.n, "group is not");
    expect_unreadable(k, "epoch/4/switched/1/8", a.data, a.n,
                      "incarnation is not");
    weft_placement *p = kit_placement(k, 4, 2);
    OK(weft_placement_encode(p, &a, &err));
    expect_unreadable(k, "epoch/5/placement", a.data, a.n, "epoch is not that");
    kit_put(k, "epoch/4/placement", a.data, a.n);
    ck_assert_ptr_nonnull(weft_roster_placement(k->roster, 4));
    /* What can be read no more is not there any more. */
    expect_unreadable(k, "epoch/4/placement", "\xff", 1, "epoch/4/placement");
    ck_assert_ptr_null(weft_roster_placement(k->roster, 4));
    weft_placement_destroy(p);
    weft_buf_deinit(&a);
    kit_destroy(k);
}
END_TEST

static void expect_placement_refused(kit *k, const weft_placement *p,
                                     const char *reason)
{
    weft_buf value = {0};
    OK(weft_placement_encode(p, &value, &err));
    expect_unreadable(k, "epoch/4/placement", value.data, value.n, reason);
    weft_buf_deinit(&value);
}

START_TEST(placements_are_taken_only_whole)
{
    kit *k = kit_create();
    weft_placement *p = kit_placement(k, 4, 2);
    uint16_t *moe = p->owners + KIT_EXPERTS; /* of layer 1 */
    const uint16_t had = moe[3];
    moe[3] = WEFT_NO_OWNER;
    expect_placement_refused(k, p, "layer 1, expert 3");
    moe[3] = 2;
    expect_placement_refused(k, p, "owners is 3");
    moe[3] = had;
    p->owners[0] = 0;
    expect_placement_refused(k, p, "layer 0, expert 0");
    p->owners[0] = WEFT_NO_OWNER;
    p->members[0].incarnation = 0;
    expect_placement_refused(k, p, "members.incarnation is 0");
    p->members[0].incarnation = 1;
    p->n_members = 1;
    expect_placement_refused(k, p, "owners is 2");
    p->n_members = 2;
    p->n_expert--;
    expect_placement_refused(k, p, "n_expert is 7 (allowed: 8 to 8)");
    p->n_expert++;
    memcpy(p->members[1].id, p->members[0].id, sizeof p->members[0].id);
    expect_placement_refused(k, p, "members are not in order");
    weft_placement_destroy(p);
    kit_destroy(k);
}
END_TEST

START_TEST(values_above_their_limits_are_refused)
{
    kit *k = kit_create();
    static char large[WEFT_VALUE_BYTES_MAX + 1];
    weft_buf a = {0};
    expect_unreadable(k, "controller", large, sizeof large, "8193 bytes");
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e0", 1, WEFT_MEMBER_SERVING);
    m.epoch = WEFT_EPOCH_MAX;
    OK(weft_member_encode(&m, &a, &err));
    expect_unreadable(k, "members/experts/e0", a.data, a.n, "epoch is 46");
    m.epoch = 0;
    m.state = WEFT_MEMBER_LOST;
    OK(weft_member_encode(&m, &a, &err));
    expect_unreadable(k, "members/experts/e0", a.data, a.n, "state is 4");
    m.state = WEFT_MEMBER_SERVING;
    m.address[3] = '\n';
    OK(weft_member_encode(&m, &a, &err));
    expect_unreadable(k, "members/experts/e0", a.data, a.n,
                      "address has a control character");
    m.address[3] = '.';
    m.expert_bytes = INT64_C(1) << 39;
    OK(weft_member_encode(&m, &a, &err));
    expect_unreadable(k, "members/experts/e0", a.data, a.n,
                      "expert_bytes is 549755813888");
    m.expert_bytes = 0;
    m.stage = 1;
    OK(weft_member_encode(&m, &a, &err));
    expect_unreadable(k, "members/experts/e0", a.data, a.n, "stage is 1");
    weft_buf_deinit(&a);
    kit_destroy(k);
}
END_TEST

/* Bits flipped and bytes cut anywhere: read as something valid or left out. */
START_TEST(broken_values_do_no_harm)
{
    kit *k = kit_create();
    weft_placement *p = kit_placement(k, 4, 3);
    kit_put_placement(k, p);
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    kit_put_ack(k, 4, "e0", 1, 5, "why");
    kit_put_switched(k, 4, 1, 1);
    kit_put_suspicion(k, "e0", 1, "l0");
    kit_put_number(k, "epoch/current", 4);
    const int32_t n = k->n;
    for (uint64_t i = 0; i < 300; i++) {
        const uint64_t r = weft_rng_u64((uint64_t)_i, i);
        kit_key *at = &k->keys[r % (uint64_t)n];
        char bytes[2048];
        size_t size = at->value.n;
        ck_assert_uint_lt(size, sizeof bytes);
        memcpy(bytes, at->value.data, size);
        char *const flipped = &bytes[(r >> 8) % size];
        *flipped = (char)(*flipped ^ 1 << (r >> 40) % 8);
        if ((r >> 50) % 4 == 0) size = (r >> 16) % size;
        const weft_registry_event event = {.kind = WEFT_REGISTRY_PUT,
                                           .key = at->key,
                                           .value = {bytes, size},
                                           .revision = ++k->revision};
        (void)weft_roster_apply(k->roster, &event);
    }
    weft_placement_destroy(p);
    kit_destroy(k);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, tells_what_the_keys_say);
    tcase_add_test(tests, the_same_again_changes_nothing);
    tcase_add_test(tests, a_listing_replaces_what_is_known);
    tcase_add_loop_test(tests, any_listing_of_the_same_is_no_change, 0, 9);
    tcase_add_test(tests, numbers_are_found_wherever_they_are);
    tcase_add_test(tests, hostile_keys_are_left_out);
    tcase_add_test(tests, values_must_be_those_of_their_key);
    tcase_add_test(tests, placements_are_taken_only_whole);
    tcase_add_test(tests, values_above_their_limits_are_refused);
    tcase_add_loop_test(tests, broken_values_do_no_harm, 0, 20);
}

int main(void)
{
    return weft_suite_run_added("roster", add);
}
