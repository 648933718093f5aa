#include "tests/support/registry_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"

#define MS UINT64_C(1000000)
/* A lease that does not lapse while a test waits for anything, however slow the
 * machine, and one for the tests that need it to. */
#define LONG_NS  (60000 * MS)
#define SHORT_NS (3000 * MS)

static const registry_world *w;
static seen s[3];

/* Spelt out, so that a condition names its handles. */
#define UNTIL(n, condition) SEEN_UNTIL(w, s, n, condition)

uint64_t seen_stop(void)
{
    return weft_clock_now_ns() + 20000 * MS;
}

bool seen_is_over(uint64_t stop_ns)
{
    return weft_clock_now_ns() > stop_ns;
}

void seen_poll_all(const registry_world *world, seen *handles, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (handles[i].registry != NULL)
            seen_poll(&handles[i], world->moment());
}

static void open_handle(int32_t i, uint64_t relist_ns)
{
    seen_begin(&s[i], w->open(LONG_NS, relist_ns));
}

/* n handles that have seen an empty store and have such a lease. */
static void open_handles_for(int32_t n, uint64_t lease_ns)
{
    for (int32_t i = 0; i < n; i++)
        seen_begin(&s[i], w->open(lease_ns, 3600000 * MS));
    for (int32_t i = 0; i < n; i++)
        UNTIL(n, s[i].n_listings > 0 && s[i].lease == WEFT_OK);
}

static void open_handles(int32_t n)
{
    open_handles_for(n, LONG_NS);
}

static void begin_world(void)
{
    w->begin();
    memset(s, 0, sizeof s);
}

static void end_world(void)
{
    for (int i = 0; i < 3; i++)
        if (s[i].registry != NULL) seen_end(&s[i]);
    w->end();
}

START_TEST(begins_with_an_empty_listing)
{
    open_handle(0, 0);
    UNTIL(1, s[0].n_listings > 0 && s[0].lease == WEFT_OK);
    ck_assert_int_eq(s[0].link, WEFT_OK);
    ck_assert_int_eq(s[0].n_keys, 0);
}
END_TEST

START_TEST(all_see_what_one_writes)
{
    open_handles(3);
    const int32_t a = seen_put(&s[0], "members/x", "one", false, -1);
    UNTIL(3, s[0].done[a]);
    ck_assert_int_eq(s[0].results[a], WEFT_OK);
    for (int i = 0; i < 3; i++) UNTIL(3, seen_has(&s[i], "members/x", "one"));
    seen_put(&s[1], "members/x", "two", false, -1);
    for (int i = 0; i < 3; i++) UNTIL(3, seen_has(&s[i], "members/x", "two"));
    seen_remove(&s[2], "members/x", false);
    for (int i = 0; i < 3; i++) UNTIL(3, s[i].n_keys == 0);
}
END_TEST

START_TEST(values_are_bytes)
{
    static const char value[] = {'a', '\0', '\xff', '\n', '\0'};
    weft_txn txn = {.n_writes = 2};
    open_handles(2);
    strcpy(txn.writes[0].key, "bytes");
    txn.writes[0].value = (weft_span){value, sizeof value};
    strcpy(txn.writes[1].key, "empty");
    seen_submit(&s[0], &txn);
    UNTIL(2, s[1].n_keys == 2);
    const seen_key *k = seen_find(&s[1], "bytes");
    ck_assert_uint_eq(k->n, sizeof value);
    ck_assert_int_eq(memcmp(k->value, value, sizeof value), 0);
    ck_assert_uint_eq(seen_find(&s[1], "empty")->n, 0);
    /* Both are of one transaction. */
    ck_assert_int_eq(k->revision, seen_find(&s[1], "empty")->revision);
}
END_TEST

START_TEST(changes_come_in_order)
{
    char value[16];
    open_handles(2);
    for (int i = 0; i < 24; i++) {
        (void)snprintf(value, sizeof value, "%d", i);
        const int32_t put = seen_put(&s[0], "counter", value, false, -1);
        UNTIL(1, s[0].done[put]);
    }
    UNTIL(2, seen_has(&s[1], "counter", "23"));
    ck_assert_int_eq(s[1].n_puts, 24); /* seen.c holds the order */
}
END_TEST

START_TEST(one_of_two_creates_a_key)
{
    open_handles(2);
    const int32_t a = seen_put(&s[0], "controller", "a", false, 0);
    const int32_t b = seen_put(&s[1], "controller", "b", false, 0);
    UNTIL(2, s[0].done[a] && s[1].done[b]);
    const int won = (s[0].results[a] == WEFT_OK) + (s[1].results[b] == WEFT_OK);
    ck_assert_int_eq(won, 1);
    ck_assert_int_eq(s[0].results[a] == WEFT_OK ? s[1].results[b]
                                                : s[0].results[a],
                     WEFT_FAILED_PRECONDITION);
    const char *value = s[0].results[a] == WEFT_OK ? "a" : "b";
    UNTIL(2, seen_has(&s[0], "controller", value));
    UNTIL(2, seen_has(&s[1], "controller", value));
}
END_TEST

START_TEST(compare_holds_for_all_writes_or_none)
{
    open_handles(2);
    seen_put(&s[0], "epoch/current", "1", false, 0);
    UNTIL(2, seen_has(&s[0], "epoch/current", "1"));
    const int64_t revision = seen_find(&s[0], "epoch/current")->revision;

    weft_txn txn = {.n_compares = 2, .n_writes = 2};
    strcpy(txn.compares[0].key, "epoch/current");
    txn.compares[0].mod_revision = revision;
    strcpy(txn.compares[1].key, "controller");
    txn.compares[1].mod_revision = 0;
    strcpy(txn.writes[0].key, "epoch/current");
    txn.writes[0].value = (weft_span){"2", 1};
    strcpy(txn.writes[1].key, "epoch/retired");
    txn.writes[1].value = (weft_span){"1", 1};
    const int32_t first = seen_submit(&s[0], &txn);
    UNTIL(2, s[0].done[first]);
    ck_assert_int_eq(s[0].results[first], WEFT_OK);
    UNTIL(2, seen_has(&s[1], "epoch/retired", "1"));

    txn.writes[0].value = (weft_span){"3", 1};
    strcpy(txn.writes[1].key, "epoch/other");
    const int32_t second = seen_submit(&s[0], &txn);
    UNTIL(2, s[0].done[second]);
    ck_assert_int_eq(s[0].results[second], WEFT_FAILED_PRECONDITION);
    /* What comes after it is seen without it. */
    seen_put(&s[0], "mark", "", false, -1);
    UNTIL(2, seen_find(&s[1], "mark") != NULL);
    ck_assert(seen_has(&s[1], "epoch/current", "2"));
    ck_assert_ptr_null(seen_find(&s[1], "epoch/other"));
}
END_TEST

START_TEST(a_key_twice_in_one_transaction_is_refused)
{
    weft_txn txn = {.n_writes = 2};
    open_handles(1);
    strcpy(txn.writes[0].key, "epoch/1/");
    txn.writes[0].remove = txn.writes[0].prefix = true;
    strcpy(txn.writes[1].key, "epoch/1/placement");
    const int32_t i = seen_submit(&s[0], &txn);
    UNTIL(1, s[0].done[i]);
    ck_assert_int_eq(s[0].results[i], WEFT_FAILED_PRECONDITION);
}
END_TEST

START_TEST(prefix_is_removed_and_nothing_beside_it)
{
    static const char *const keys[] = {"epoch/1/ack/a", "epoch/1/ack/b",
                                       "epoch/1/placement", "epoch/10/ack/a",
                                       "epoch/2/ack/a"};
    open_handles(2);
    for (int i = 0; i < 5; i++) seen_put(&s[0], keys[i], "x", false, -1);
    UNTIL(2, s[1].n_keys == 5);
    seen_remove(&s[0], "epoch/1/", true);
    UNTIL(2, s[1].n_keys == 2);
    ck_assert_ptr_nonnull(seen_find(&s[1], "epoch/10/ack/a"));
    ck_assert_ptr_nonnull(seen_find(&s[1], "epoch/2/ack/a"));
}
END_TEST

START_TEST(leased_keys_go_with_their_owner)
{
    open_handles(2);
    seen_put(&s[0], "members/a", "leased", true, -1);
    seen_put(&s[0], "kept", "plain", false, -1);
    UNTIL(2, s[1].n_keys == 2);
    seen_end(&s[0]);
    UNTIL(2, s[1].n_keys == 1); /* given back: it would run out much later */
    ck_assert_ptr_nonnull(seen_find(&s[1], "kept"));
}
END_TEST

START_TEST(leased_write_without_a_lease_is_refused)
{
    open_handle(0, 0);
    const int32_t i = seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(1, s[0].done[i]);
    ck_assert_int_eq(s[0].results[i], WEFT_FAILED_PRECONDITION);
}
END_TEST

START_TEST(late_handle_sees_everything)
{
    weft_txn txn = {.n_writes = WEFT_TXN_WRITES_MAX};
    enum { KEYS = 1200, EACH = WEFT_TXN_WRITES_MAX };
    open_handles(1);
    for (int i = 0; i < KEYS / EACH; i++) {
        for (int k = 0; k < EACH; k++) {
            (void)snprintf(txn.writes[k].key, WEFT_KEY_BYTES, "k/%d",
                           i * EACH + k);
            txn.writes[k].value = (weft_span){txn.writes[k].key, 3};
        }
        s[0].n_submitted = 0;
        memset(s[0].done, 0, sizeof s[0].done);
        seen_submit(&s[0], &txn);
        UNTIL(1, s[0].done[0]);
        ck_assert_int_eq(s[0].results[0], WEFT_OK);
    }
    open_handle(1, 0);
    UNTIL(2, s[1].n_listings > 0);
    ck_assert_int_eq(s[1].n_keys, KEYS);
    ck_assert_int_eq(s[1].n_puts, KEYS);
}
END_TEST

START_TEST(limits_of_keys_and_values)
{
    char *const big = calloc(1, WEFT_PLACEMENT_BYTES_MAX + 1);
    weft_txn txn = {.n_writes = 1};
    weft_err err;
    ck_assert_ptr_nonnull(big);
    open_handles(2);
    strcpy(txn.writes[0].key, "members/x");
    txn.writes[0].value = (weft_span){big, WEFT_VALUE_BYTES_MAX + 1};
    ck_assert_int_eq(s[0].registry->ops->submit(s[0].registry, &txn, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "members/x"));
    txn.writes[0].value.n--;
    seen_submit(&s[0], &txn);
    strcpy(txn.writes[0].key, "epoch/7/placement");
    txn.writes[0].value.n = WEFT_PLACEMENT_BYTES_MAX;
    seen_submit(&s[0], &txn);
    UNTIL(2, s[1].n_keys == 2);
    ck_assert_uint_eq(seen_find(&s[1], "epoch/7/placement")->n,
                      WEFT_PLACEMENT_BYTES_MAX);
    strcpy(txn.writes[0].key, "a key");
    ck_assert_int_eq(s[0].registry->ops->submit(s[0].registry, &txn, &err),
                     WEFT_INVALID_ARGUMENT);
    free(big);
}
END_TEST

START_TEST(too_many_at_once_are_refused_and_none_is_lost)
{
    enum { TRIED = 12 };
    weft_txn txn = {.n_writes = 1};
    int32_t taken = 0;
    open_handles(1);
    for (int i = 0; i < TRIED; i++) {
        weft_err err;
        (void)snprintf(txn.writes[0].key, WEFT_KEY_BYTES, "k%d", i);
        txn.tag = s[0].tags[taken] = 500 + (uint64_t)i;
        const weft_status st =
            s[0].registry->ops->submit(s[0].registry, &txn, &err);
        if (st == WEFT_OK)
            s[0].n_submitted = ++taken;
        else
            ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    }
    ck_assert_int_ge(taken, 4);
    ck_assert_int_lt(taken, TRIED);
    UNTIL(1, s[0].n_keys == taken);
    for (int32_t i = 0; i < taken; i++) UNTIL(1, s[0].done[i]);
}
END_TEST

START_TEST(listing_is_repeated_from_time_to_time)
{
    open_handle(0, 300 * MS);
    open_handle(1, 3600000 * MS);
    UNTIL(2, s[0].lease == WEFT_OK && s[1].lease == WEFT_OK);
    seen_put(&s[1], "members/a", "x", true, -1);
    UNTIL(2, s[0].n_listings >= 4);
    ck_assert(seen_has(&s[0], "members/a", "x"));
    ck_assert_int_eq(s[0].n_deletes, 0);
    ck_assert_int_eq(s[1].n_listings, 1);
    /* And changes are seen between listings. */
    seen_put(&s[1], "members/b", "y", true, -1);
    UNTIL(2, seen_has(&s[0], "members/b", "y"));
}
END_TEST

/* Away for longer than a lease: it is lost by our own clock, and back with the
 * store, whose keys of it are gone. */
START_TEST(away_and_back)
{
    open_handles_for(2, SHORT_NS);
    seen_put(&s[0], "members/a", "x", true, -1);
    seen_put(&s[0], "kept", "x", false, -1);
    UNTIL(2, s[1].n_keys == 2);
    w->away();
    const int32_t lost = seen_put(&s[0], "other", "x", false, -1);
    UNTIL(2, s[0].done[lost]);
    ck_assert_int_eq(s[0].results[lost], WEFT_UNAVAILABLE);
    UNTIL(2, s[0].link == WEFT_UNAVAILABLE && s[1].link == WEFT_UNAVAILABLE);
    ck_assert_str_ne(s[0].link_text, "");
    UNTIL(2, s[0].lease == WEFT_UNAVAILABLE && s[1].lease == WEFT_UNAVAILABLE);
    const int32_t unleased = seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(2, s[0].done[unleased]);
    ck_assert_int_eq(s[0].results[unleased], WEFT_FAILED_PRECONDITION);
    ck_assert_int_eq(s[1].n_keys, 2); /* nothing is told while it is away */
    w->back();
    UNTIL(2, s[0].lease == WEFT_OK && s[1].lease == WEFT_OK);
    ck_assert_int_eq(s[0].link, WEFT_OK);
    /* With the new lease the keys of the lost one are gone already. */
    const int32_t again = seen_put(&s[0], "members/a", "again", true, 0);
    UNTIL(2, s[0].done[again]);
    ck_assert_int_eq(s[0].results[again], WEFT_OK);
    UNTIL(2, seen_has(&s[1], "members/a", "again"));
    UNTIL(2, seen_find(&s[0], "kept") && seen_find(&s[1], "kept"));
}
END_TEST

START_TEST(restart_in_an_empty_folder)
{
    open_handles_for(2, SHORT_NS);
    for (int i = 0; i < 20; i++) {
        const int32_t put = seen_put(&s[0], "members/a", "x", true, -1);
        UNTIL(2, s[0].done[put]);
    }
    seen_put(&s[0], "epoch/current", "7", false, -1);
    UNTIL(2, s[1].n_keys == 2);
    w->away();
    w->back_empty();
    UNTIL(2, s[0].n_keys == 0 && s[1].n_keys == 0);
    UNTIL(2, s[0].n_lease_ok == 2 && s[1].n_lease_ok == 2);
    ck_assert_int_eq(s[0].n_lease_lost, 1);
    const int32_t again = seen_put(&s[0], "members/a", "again", true, 0);
    UNTIL(2, s[0].done[again]);
    ck_assert_int_eq(s[0].results[again], WEFT_OK);
    UNTIL(2, seen_has(&s[1], "members/a", "again"));
    ck_assert_int_lt(seen_find(&s[1], "members/a")->revision, 20);
}
END_TEST

/* As a process that was stopped: it knows that its time is over before it knows
 * anything else. */
START_TEST(owner_that_sleeps_longer_than_its_lease)
{
    open_handles_for(2, SHORT_NS);
    seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(2, s[1].n_keys == 1);
    SEEN_UNTIL(w, &s[1], 1, s[1].n_keys == 0);
    ck_assert_int_eq(s[0].lease, WEFT_OK);
    seen_poll(&s[0], w->moment());
    ck_assert_int_eq(s[0].n_lease_lost, 1);
    UNTIL(2, s[0].lease == WEFT_OK && s[0].n_keys == 0);
    seen_put(&s[0], "members/a", "y", true, 0);
    UNTIL(2, seen_has(&s[1], "members/a", "y"));
}
END_TEST

/* Keeps writing keys of its own, each once, as fast as it may. */
static int32_t write_more(int32_t n_written)
{
    weft_txn txn = {.n_writes = 1};
    (void)snprintf(txn.writes[0].key, sizeof txn.writes[0].key, "k/%d",
                   n_written);
    txn.tag = s[0].tags[0] = 1;
    s[0].n_submitted = 1;
    s[0].done[0] = false;
    OK(s[0].registry->ops->submit(s[0].registry, &txn, &err));
    UNTIL(2, s[0].done[0]);
    ck_assert_int_eq(s[0].results[0], WEFT_OK);
    return n_written + 1;
}

/* Between a listing and the changes after it nothing is lost. */
START_TEST(writes_while_another_begins)
{
    enum { ROUNDS = 12, MORE = 12 };
    int32_t n = 0;
    open_handles(1);
    for (int round = 0; round < ROUNDS; round++) {
        open_handle(1, 3600000 * MS);
        while (s[1].n_listings == 0) n = write_more(n);
        for (int i = 0; i < MORE; i++) n = write_more(n);
        UNTIL(2, s[1].n_keys == n);
        ck_assert_int_eq(s[1].n_listings, 1);
        seen_end(&s[1]);
    }
}
END_TEST

/* What happens while one is not looking is seen after, be it that the store has
 * forgotten how it came about. */
START_TEST(compaction_loses_nothing)
{
    open_handles(2);
    seen_put(&s[0], "a", "1", false, -1);
    seen_put(&s[0], "b", "1", false, -1);
    UNTIL(2, s[1].n_keys == 2);
    const int32_t removed = seen_remove(&s[0], "a", false);
    const int32_t put = seen_put(&s[0], "b", "2", false, -1);
    UNTIL(1, s[0].done[removed] && s[0].done[put]);
    w->compact();
    UNTIL(2, s[1].n_keys == 1 && seen_has(&s[1], "b", "2"));
}
END_TEST

void registry_suite_add(TCase *tests, const registry_world *world)
{
    const TTest *const all[] = {
        begins_with_an_empty_listing,
        all_see_what_one_writes,
        values_are_bytes,
        changes_come_in_order,
        one_of_two_creates_a_key,
        compare_holds_for_all_writes_or_none,
        a_key_twice_in_one_transaction_is_refused,
        prefix_is_removed_and_nothing_beside_it,
        leased_keys_go_with_their_owner,
        leased_write_without_a_lease_is_refused,
        late_handle_sees_everything,
        limits_of_keys_and_values,
        too_many_at_once_are_refused_and_none_is_lost,
        listing_is_repeated_from_time_to_time,
        away_and_back,
        restart_in_an_empty_folder,
        owner_that_sleeps_longer_than_its_lease,
        compaction_loses_nothing,
        writes_while_another_begins,
    };
    w = world;
    tcase_add_checked_fixture(tests, begin_world, end_world);
    tcase_set_timeout(tests, 60);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tcase_add_test(tests, all[i]);
}
