#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/etcd_server.h"
#include "tests/support/expect.h"
#include "tests/support/registry_suite.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static etcd_server etcd;

static void begin(void)
{
    etcd_prepare(&etcd, 1);
    etcd_start(&etcd, 0);
    etcd_wait_healthy(&etcd, 0);
}

static void end(void)
{
    etcd_end(&etcd);
}

/* call_ns, lease_ns, relist_ns; 0: the default. */
static weft_registry *open_for(uint64_t call_ns, uint64_t lease_ns,
                               uint64_t relist_ns)
{
    weft_registry *registry = NULL;
    const weft_etcd_options options = {.endpoints = etcd.endpoints,
                                       .cluster = "test",
                                       .call_ns = call_ns,
                                       .lease_ns = lease_ns,
                                       .relist_ns = relist_ns};
    OK(weft_registry_create_etcd(&options, &registry, &err));
    return registry;
}

/* Calls may take long where the machine is busy. */
static weft_registry *open_handle(uint64_t lease_ns, uint64_t relist_ns)
{
    return open_for(3000 * MS, lease_ns, relist_ns);
}

/* What depends on no time: a lease that does not lapse meanwhile. */
static weft_registry *open_patient(void)
{
    return open_handle(60000 * MS, 0);
}

/* As it is by default, for what is about its deadlines. */
static weft_registry *open_prompt(uint64_t lease_ns)
{
    return open_for(0, lease_ns, 0);
}

static uint64_t moment(void)
{
    return weft_clock_now_ns() + 10 * MS;
}

static void away(void)
{
    etcd_kill(&etcd, 0);
}

static void back(void)
{
    etcd_start(&etcd, 0);
}

static void back_empty(void)
{
    etcd_empty(&etcd, 0);
    back();
}

static void compact(void)
{
    char out[256];
    etcd_shell(&etcd,
               "r=$(etcdctl --endpoints=$E get x -w fields | "
               "sed -n 's/.*\"Revision\" : //p') && "
               "etcdctl --endpoints=$E compact $r",
               out, sizeof out);
}

static const registry_world world = {begin, end,  open_handle, moment,
                                     away,  back, back_empty,  compact};

static void add(TCase *tests)
{
    registry_suite_add(tests, &world);
}

/* --- what etcd alone does ------------------------------------------------ */

static seen s[2];

#define UNTIL(condition) SEEN_UNTIL(&world, s, 2, condition)

static void prepare(void)
{
    memset(s, 0, sizeof s);
    memset(&etcd, 0, sizeof etcd);
}

static void finish(void)
{
    for (int i = 0; i < 2; i++)
        if (s[i].registry != NULL) seen_end(&s[i]);
    etcd_end(&etcd);
}

START_TEST(nobody_at_the_start)
{
    etcd_prepare(&etcd, 1);
    seen_begin(&s[0], open_patient());
    UNTIL(s[0].link == WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(s[0].link_text, etcd.endpoints));
    ck_assert_int_eq(s[0].n_listings, 0);
    etcd_start(&etcd, 0);
    UNTIL(s[0].link == WEFT_OK && s[0].n_listings == 1 &&
          s[0].lease == WEFT_OK);
}
END_TEST

START_TEST(end_is_bounded_without_etcd)
{
    begin();
    seen_begin(&s[0], open_prompt(0));
    UNTIL(s[0].lease == WEFT_OK);
    seen_put(&s[0], "members/a", "x", true, -1);
    etcd_signal(&etcd, 0, SIGSTOP);
    const uint64_t begun = weft_clock_now_ns();
    seen_end(&s[0]); /* 2 s at most */
    ck_assert_uint_lt(weft_clock_now_ns() - begun, 4000 * MS);
}
END_TEST

/* Frozen, it keeps its connections; nobody says anything. */
START_TEST(frozen_etcd)
{
    begin();
    for (int i = 0; i < 2; i++) seen_begin(&s[i], open_prompt(2000 * MS));
    UNTIL(s[0].lease == WEFT_OK && s[1].lease == WEFT_OK);
    seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(seen_find(&s[1], "members/a") != NULL);
    etcd_signal(&etcd, 0, SIGSTOP);
    const uint64_t begun = weft_clock_now_ns();
    UNTIL(s[0].lease == WEFT_UNAVAILABLE && s[0].link == WEFT_UNAVAILABLE);
    ck_assert_uint_lt(weft_clock_now_ns() - begun, 5000 * MS);
    ck_assert_int_eq(s[1].n_keys, 1);
    etcd_signal(&etcd, 0, SIGCONT);
    UNTIL(s[0].lease == WEFT_OK && s[1].lease == WEFT_OK);
    UNTIL(seen_find(&s[1], "members/a") == NULL);
    seen_put(&s[0], "members/a", "y", true, 0);
    UNTIL(seen_has(&s[1], "members/a", "y"));
}
END_TEST

/* As many at once as one may have under way, a few hundred times over. */
static void write_much(void)
{
    enum { ROUNDS = 60, AT_ONCE = 6 };
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            s[i].n_submitted = 0;
            memset(s[i].done, 0, sizeof s[i].done);
            for (int k = 0; k < AT_ONCE; k++)
                seen_put(&s[i], i == 0 ? "a" : "b", "x", false, -1);
        }
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < AT_ONCE; k++) UNTIL(s[i].done[k]);
    }
}

/* What was written, and what others have, may be told of before the answer
 * comes, and answers in another order: nobody takes that for a store that went
 * back, and lists it again. */
START_TEST(answers_that_are_overtaken)
{
    begin();
    for (int i = 0; i < 2; i++)
        seen_begin(&s[i], open_handle(60000 * MS, 3600000 * MS));
    UNTIL(s[0].n_listings > 0 && s[1].n_listings > 0);
    write_much();
    for (int i = 0; i < 2; i++) ck_assert_int_eq(s[i].n_listings, 1);
}
END_TEST

/* Put as often as it takes, until the other handle sees it. */
static void put_until_seen(const char *key, const char *value)
{
    for (int32_t put = -1; !seen_has(&s[1], key, value);) {
        if (put < 0 || (s[0].done[put] && s[0].results[put] != WEFT_OK))
            put = seen_put(&s[0], key, value, false, -1);
        UNTIL(s[0].done[put]);
        if (s[0].results[put] == WEFT_OK) UNTIL(seen_has(&s[1], key, value));
    }
}

/* One of three: the others answer, writes go on within a second or two. */
static void lose_one_of_three(void (*lose)(etcd_server *e, int i))
{
    etcd_prepare(&etcd, 3);
    for (int i = 0; i < 3; i++) etcd_start(&etcd, i);
    for (int i = 0; i < 3; i++) etcd_wait_healthy(&etcd, i);
    for (int i = 0; i < 2; i++) seen_begin(&s[i], open_prompt(0));
    UNTIL(s[0].lease == WEFT_OK && s[1].n_listings > 0);
    seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(seen_has(&s[1], "members/a", "x"));
    for (int lost = 0; lost < 3; lost++) {
        char value[16];
        const uint64_t begun = weft_clock_now_ns();
        lose(&etcd, lost);
        (void)snprintf(value, sizeof value, "%d", lost);
        put_until_seen("k", value);
        ck_assert_uint_lt(weft_clock_now_ns() - begun, 8000 * MS);
        if (etcd.pids[lost] == 0)
            etcd_start(&etcd, lost);
        else
            etcd_signal(&etcd, lost, SIGCONT);
        /* Leases are kept meanwhile. */
        UNTIL(etcd_is_healthy(&etcd, lost));
    }
    ck_assert_int_eq(s[0].n_lease_lost, 0);
    ck_assert(seen_has(&s[1], "members/a", "x"));
}

static void freeze(etcd_server *e, int i)
{
    etcd_signal(e, i, SIGSTOP);
}

START_TEST(one_of_three_killed)
{
    lose_one_of_three(etcd_kill);
}
END_TEST

START_TEST(one_of_three_frozen)
{
    lose_one_of_three(freeze);
}
END_TEST

/* Written by others, who keep no limits. */
START_TEST(values_and_keys_above_the_limits)
{
    char out[256];
    begin();
    for (int i = 0; i < 2; i++) seen_begin(&s[i], open_patient());
    UNTIL(s[0].n_listings > 0 && s[1].n_listings > 0);
    etcd_shell(&etcd,
               "export ETCDCTL_API=3; "
               "long=$(head -c 300 /dev/zero | tr '\\0' k); "
               "big=$(head -c 9000 /dev/zero | tr '\\0' v); "
               "p=/weft/test/; set -e; c=\"etcdctl --endpoints=$E put\"; "
               "$c ${p}members/a small; $c ${p}members/b small; "
               "$c ${p}members/a $big; $c $p$long x; $c \"${p}a key\" x; "
               "$c /weft/test2/other x; $c ${p}last x",
               out, sizeof out);
    UNTIL(seen_find(&s[0], "last") != NULL);
    ck_assert_int_eq(s[0].n_keys, 2);
    ck_assert(seen_has(&s[0], "members/b", "small"));
    seen_end(&s[1]);
    seen_begin(&s[1], open_patient());
    UNTIL(s[1].n_listings > 0);
    ck_assert_int_eq(s[1].n_keys, 2);
}
END_TEST

/* A key that no member would write, at the end of a page. */
START_TEST(page_that_ends_in_a_long_key)
{
    enum { PAGE = 512, EACH = WEFT_TXN_WRITES_MAX };
    char out[256];
    weft_txn txn = {.n_writes = EACH};
    begin();
    seen_begin(&s[0], open_patient());
    UNTIL(s[0].lease == WEFT_OK);
    for (int i = 0; i < PAGE + EACH; i += EACH) {
        for (int k = 0; k < EACH; k++)
            (void)snprintf(txn.writes[k].key, WEFT_KEY_BYTES, "k/%03d", i + k);
        s[0].n_submitted = 0;
        memset(s[0].done, 0, sizeof s[0].done);
        seen_submit(&s[0], &txn);
        UNTIL(s[0].done[0]);
    }
    etcd_shell(&etcd,
               "export ETCDCTL_API=3; etcdctl --endpoints=$E put "
               "/weft/test/k/510$(head -c 1000 /dev/zero | tr '\\0' k) x",
               out, sizeof out);
    seen_begin(&s[1], open_patient());
    UNTIL(s[1].n_listings > 0);
    ck_assert_int_eq(s[1].n_keys, PAGE + EACH);
}
END_TEST

/* A megabyte may take longer than a call's deadline. */
static void submit_large(weft_txn *txn)
{
    int32_t put;
    do {
        put = seen_submit(&s[0], txn);
        UNTIL(s[0].done[put]);
    } while (s[0].results[put] == WEFT_UNAVAILABLE);
    ck_assert_int_eq(s[0].results[put], WEFT_OK);
}

/* A page of such values is more than one answer may have. */
START_TEST(listing_of_large_values)
{
    weft_txn txn = {.n_writes = 1};
    char *const big = calloc(1, WEFT_PLACEMENT_BYTES_MAX);
    ck_assert_ptr_nonnull(big);
    begin();
    seen_begin(&s[0], open_patient());
    UNTIL(s[0].lease == WEFT_OK);
    txn.writes[0].value = (weft_span){big, WEFT_PLACEMENT_BYTES_MAX};
    for (int i = 0; i < 24; i++) {
        (void)snprintf(txn.writes[0].key, WEFT_KEY_BYTES, "epoch/%d/placement",
                       i);
        submit_large(&txn);
    }
    seen_begin(&s[1], open_patient());
    UNTIL(s[1].n_listings > 0);
    ck_assert_int_eq(s[1].n_keys, 24);
    free(big);
}
END_TEST

START_TEST(poll_returns_after_wake_and_at_its_deadline)
{
    begin();
    seen_begin(&s[0], open_patient());
    UNTIL(s[0].lease == WEFT_OK && s[0].n_listings > 0);
    const uint64_t begun = weft_clock_now_ns();
    s[0].registry->ops->wake(s[0].registry);
    s[0].registry->ops->wake(s[0].registry);
    seen_poll(&s[0], begun + 10000 * MS);
    ck_assert_uint_lt(weft_clock_now_ns() - begun, 5000 * MS);
    seen_poll(&s[0], weft_clock_now_ns() + 30 * MS);
    ck_assert_uint_ge(weft_clock_now_ns() - begun, 30 * MS);
}
END_TEST

START_TEST(options_that_cannot_be)
{
    static const struct {
        weft_etcd_options options;
        const char *text;
    } cases[] = {
        {{.endpoints = "", .cluster = "c"}, "endpoints"},
        {{.endpoints = "127.0.0.1:1,", .cluster = "c"}, "endpoints"},
        {{.endpoints = "host", .cluster = "c"}, "host"},
        {{.endpoints = "a:1", .cluster = ""}, "cluster"},
        {{.endpoints = "a:1", .cluster = "a/b"}, "a/b"},
        {{.endpoints = "a:1", .cluster = "c", .cert_file = "x"}, "key"},
        {{.endpoints = "a:1", .cluster = "c", .ca_file = "no/such"}, "no/such"},
        {{.endpoints = "a:1", .cluster = "c", .user_file = "no/such"},
         "no/such"},
    };
    etcd_prepare(&etcd, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_registry *registry = NULL;
        weft_err err = {0};
        const weft_status st =
            weft_registry_create_etcd(&cases[i].options, &registry, &err);
        ck_assert_int_ne(st, WEFT_OK);
        ck_assert_msg(strstr(err.text, cases[i].text) != NULL, "%zu: %s", i,
                      err.text);
        ck_assert_ptr_null(registry);
    }
}
END_TEST

START_TEST(create_without_memory)
{
    const weft_etcd_options options = {.endpoints = "127.0.0.1:1,127.0.0.1:2",
                                       .cluster = "c"};
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    long n = 0;
    etcd_prepare(&etcd, 1);
    for (; st != WEFT_OK; n++) {
        weft_registry *registry = NULL;
        weft_mem_fail_after(n);
        st = weft_registry_create_etcd(&options, &registry, NULL);
        weft_mem_fail_after(-1);
        ck_assert(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED);
        if (st == WEFT_OK) registry->ops->destroy(registry, 0);
    }
    ck_assert_int_ge(n, 3);
}
END_TEST

static void add_own(TCase *tests)
{
    const TTest *const own[] = {
        nobody_at_the_start,
        end_is_bounded_without_etcd,
        frozen_etcd,
        answers_that_are_overtaken,
        one_of_three_killed,
        one_of_three_frozen,
        values_and_keys_above_the_limits,
        listing_of_large_values,
        page_that_ends_in_a_long_key,
        poll_returns_after_wake_and_at_its_deadline,
        options_that_cannot_be,
        create_without_memory,
    };
    tcase_add_checked_fixture(tests, prepare, finish);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        tcase_add_test(tests, own[i]);
}

int main(void)
{
    if (!etcd_is_here()) return 77;
    const int kept = weft_suite_run_added("registry in etcd", add);
    const int own = weft_suite_run_added("etcd", add_own);
    return kept != 0 ? kept : own;
}
