#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "tests/support/cluster_party.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static char path[128];
static const char *text;

static void begin(void)
{
}

static void end(void)
{
}

static weft_registry *open_file(void)
{
    const char *temporary = getenv("TMPDIR");
    weft_registry *registry = NULL;
    (void)snprintf(path, sizeof path, "%.80s/members-XXXXXX",
                   temporary != NULL ? temporary : P_tmpdir);
    const int fd = mkstemp(path);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    OK(weft_registry_create_static(path, &registry, &err));
    (void)unlink(path);
    return registry;
}

static const party_world world = {
    .begin = begin, .end = end, .open = open_file, .is_static = true};

enum { ROUTER, LEAD, A, B };

static void prepare(void)
{
    party_begin(&world);
    text = "replicas 2\n"
           "layers lead 127.0.0.1:7001 0 0\n"
           "experts a 127.0.0.1:7002\n"
           "experts b 127.0.0.1:7003\n";
}

START_TEST(everybody_computes_the_same_epoch)
{
    party[B].loads = false;
    party_start(ROUTER, WEFT_ROLE_ROUTER, "r", 0);
    party_start(LEAD, WEFT_ROLE_LAYERS, "lead", 0);
    party_start(A, WEFT_ROLE_EXPERTS, "a", 0);
    party_start(B, WEFT_ROLE_EXPERTS, "b", 0);
    for (int i = ROUTER; i <= B; i++) {
        party_register(i);
        PARTY_UNTIL(party[i].epoch == 1 && party[i].n_members == 3);
        ck_assert_uint_eq(party[i].incarnation, 1);
        ck_assert(party_is_complete(i, 2));
        ck_assert_uint_eq(weft_placement_hash(party[i].placement),
                          weft_placement_hash(party[ROUTER].placement));
        ck_assert(party_shows(i, "a", WEFT_MEMBER_SERVING));
    }
    PARTY_UNTIL(party[A].prepared == 1 && party[B].prepared == 1);
    PARTY_UNTIL(party[A].first == 1 && party[A].last == 1);
    ck_assert_uint_eq(party[B].last, 0);
    weft_cluster_loaded(party[B].cluster, 1, 1, NULL);
    PARTY_UNTIL(party[B].last == 1);
    ck_assert_uint_eq(party[LEAD].prepared, 0);

    weft_cluster_view view;
    OK(weft_cluster_get_view(party[LEAD].cluster, &view, &err));
    ck_assert_int_eq(view.n_members, 3);
    ck_assert_uint_eq(view.epoch, 1);
    ck_assert(view.reachable);
    weft_cluster_view_deinit(&view);
}
END_TEST

START_TEST(who_drains_may_go)
{
    party[A].wants = WEFT_MEMBER_DRAINING;
    party_start(A, WEFT_ROLE_EXPERTS, "a", 0);
    PARTY_UNTIL(weft_cluster_is_emptied(party[A].cluster));
}
END_TEST

static void refused(int i, const char *first, const char *second)
{
    uint64_t incarnation = 0;
    weft_err err = {0};
    ck_assert_int_eq(weft_cluster_wait_registered(party[i].cluster,
                                                  party_stop_time(),
                                                  &incarnation, &err),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_msg(strstr(err.text, first) != NULL &&
                      strstr(err.text, second) != NULL,
                  "%s", err.text);
    PARTY_UNTIL(party[i].fenced);
    ck_assert_uint_eq(party[i].epoch, 0);
}

START_TEST(who_is_not_in_the_file_is_refused)
{
    party_start(A, WEFT_ROLE_EXPERTS, "x", 0);
    refused(A, "experts", "x");
    party_start(LEAD, WEFT_ROLE_LAYERS, "lead", 3);
    refused(LEAD, "group 3", "group 0");
}
END_TEST

START_TEST(no_expert_shards_no_epoch)
{
    text = "layers lead 127.0.0.1:7001 0 0\n";
    party_start(ROUTER, WEFT_ROLE_ROUTER, "r", 0);
    party_register(ROUTER);
    PARTY_UNTIL(party[ROUTER].n_members == 1);
    ck_assert_uint_eq(party[ROUTER].epoch, 0);
}
END_TEST

static void add(TCase *tests)
{
    const TTest *const all[] = {
        everybody_computes_the_same_epoch,
        who_drains_may_go,
        who_is_not_in_the_file_is_refused,
        no_expert_shards_no_epoch,
    };
    tcase_add_checked_fixture(tests, prepare, party_end);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tcase_add_test(tests, all[i]);
}

int main(void)
{
    return weft_suite_run_added("a cluster of a members file", add);
}
