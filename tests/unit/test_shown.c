#include <stdio.h>
#include <string.h>

#include "node/cluster/shown.h"
#include "node/cluster/values.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static const bool moe[] = {true};
static const weft_placement_shape shape = {
    .n_layer = 1, .n_expert = 1, .moe = moe};
static weft_roster *roster;
static weft_shown shown;
static int64_t revision;
static char told[512];
static uint64_t now, next;

#define HOLD UINT64_C(1000)

static void note(void *arg, const weft_member *m, weft_shown_change change)
{
    static const char marks[] = {[WEFT_SHOWN_JOINED] = '+',
                                 [WEFT_SHOWN_LEFT] = '-',
                                 [WEFT_SHOWN_LOST] = '?',
                                 [WEFT_SHOWN_BACK] = '!',
                                 [WEFT_SHOWN_STATE] = '='};
    const size_t at = strlen(told);
    (void)arg;
    (void)snprintf(told + at, sizeof told - at, "%c%s%llu ", marks[change],
                   m->id, (unsigned long long)m->incarnation);
}

static void begin(void)
{
    OK(weft_roster_create(&shape, &roster, &err));
    shown = (weft_shown){.hold_ns = HOLD, .tell = note};
    revision = 10;
    now = 100;
}

static void end(void)
{
    weft_shown_deinit(&shown);
    weft_roster_destroy(roster);
}

static void mark(weft_registry_event_kind kind)
{
    (void)weft_roster_apply(
        roster, &(weft_registry_event){.kind = kind, .revision = revision});
}

static void put_state(const char *id, uint64_t incarnation,
                      weft_member_state state)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    weft_member m = {
        .role = WEFT_ROLE_EXPERTS, .state = state, .incarnation = incarnation};
    (void)snprintf(m.id, sizeof m.id, "%s", id);
    OK(weft_member_encode(&m, &value, &err));
    (void)weft_roster_apply(
        roster,
        &(weft_registry_event){.kind = WEFT_REGISTRY_PUT,
                               .key = weft_key_of_member(m.role, id, key),
                               .value = {value.data, value.n},
                               .revision = ++revision});
    weft_buf_deinit(&value);
}

static void put(const char *id, uint64_t incarnation)
{
    put_state(id, incarnation, WEFT_MEMBER_SERVING);
}

static void drop(const char *id)
{
    char key[WEFT_KEY_BYTES];
    (void)weft_roster_apply(
        roster, &(weft_registry_event){
                    .kind = WEFT_REGISTRY_DELETE,
                    .key = weft_key_of_member(WEFT_ROLE_EXPERTS, id, key),
                    .revision = ++revision});
}

/* An empty listing: the store has nothing any more. */
static void lose_all(void)
{
    revision = 1;
    mark(WEFT_REGISTRY_RELIST_BEGIN);
    mark(WEFT_REGISTRY_RELIST_END);
}

static void update(bool is_well, const char *changes, const char *ids)
{
    char seen[128] = "";
    bool changed;
    told[0] = '\0';
    OK(weft_shown_update(&shown, roster, is_well, now, &changed, &next, &err));
    ck_assert_str_eq(told, changes);
    ck_assert_int_eq(changed, changes[0] != '\0');
    for (int32_t i = 0; i < shown.n; i++)
        (void)snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s ",
                       shown.members[i].id);
    ck_assert_str_eq(seen, ids);
}

START_TEST(comes_and_goes)
{
    put("b", 1);
    put("a", 1);
    update(true, "+a1 +b1 ", "a b ");
    update(true, "", "a b ");
    ck_assert_uint_eq(next, UINT64_MAX);
    put_state("a", 1, WEFT_MEMBER_DRAINING);
    update(true, "=a1 ", "a b ");
    put("b", 2);
    update(true, "-b1 +b2 ", "a b ");
    drop("a");
    put("c", 1);
    update(true, "-a1 +c1 ", "b c ");
}
END_TEST

START_TEST(a_store_that_lost_its_keys_is_no_departure)
{
    put("a", 1);
    put("b", 1);
    put("self", 1);
    update(true, "+a1 +b1 +self1 ", "a b self ");
    lose_all();
    update(false, "", "a b self ");
    now += 100 * HOLD;
    update(false, "", "a b self ");
    put("self", 1);
    update(true, "", "a b self ");
    ck_assert_uint_eq(next, now + HOLD);
    now += HOLD / 2;
    put("a", 1);
    update(true, "", "a b self ");
    now += HOLD / 2;
    update(true, "-b1 ", "a self ");
    ck_assert_uint_eq(next, UINT64_MAX);
    drop("a");
    update(true, "-a1 ", "self ");
}
END_TEST

START_TEST(who_comes_again_as_another_is_told)
{
    put("a", 1);
    put("self", 1);
    update(true, "+a1 +self1 ", "a self ");
    lose_all();
    update(false, "", "a self ");
    put("a", 2);
    update(false, "-a1 +a2 ", "a self ");
}
END_TEST

START_TEST(before_ever_having_been_well)
{
    put("a", 1);
    update(false, "+a1 ", "a ");
    drop("a");
    update(false, "-a1 ", "");
}
END_TEST

START_TEST(suspects_are_shown_as_lost)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    weft_suspicion s = {.incarnation = 1};
    (void)snprintf(s.id, sizeof s.id, "a");
    (void)snprintf(s.reporter, sizeof s.reporter, "b");
    put("a", 1);
    put("b", 1);
    update(true, "+a1 +b1 ", "a b ");
    OK(weft_suspicion_encode(&s, &value, &err));
    weft_registry_event event = {.kind = WEFT_REGISTRY_PUT,
                                 .key = weft_key_of_suspect("a", "b", key),
                                 .value = {value.data, value.n},
                                 .revision = ++revision};
    (void)weft_roster_apply(roster, &event);
    update(true, "?a1 ", "a b ");
    ck_assert_int_eq(shown.members[0].state, WEFT_MEMBER_LOST);
    event.kind = WEFT_REGISTRY_DELETE;
    event.revision = ++revision;
    (void)weft_roster_apply(roster, &event);
    update(true, "!a1 ", "a b ");
    weft_buf_deinit(&value);
}
END_TEST

static void add(TCase *tests)
{
    const TTest *const all[] = {
        comes_and_goes,
        a_store_that_lost_its_keys_is_no_departure,
        who_comes_again_as_another_is_told,
        before_ever_having_been_well,
        suspects_are_shown_as_lost,
    };
    tcase_add_checked_fixture(tests, begin, end);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tcase_add_test(tests, all[i]);
}

int main(void)
{
    return weft_suite_run_added("members as shown", add);
}
