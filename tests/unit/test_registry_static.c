#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/cluster/values.h"
#include "tests/support/expect.h"
#include "tests/support/registry_seen.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static char path[128];

static weft_status open_text(const char *text, size_t n,
                             weft_registry **registry_out, weft_err *err)
{
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%.80s/members-XXXXXX",
                   temporary != NULL ? temporary : P_tmpdir);
    const int fd = mkstemp(path);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    ck_assert_int_eq(write(fd, text, n), (ssize_t)n);
    (void)close(fd);
    const weft_status st = weft_registry_create_static(path, registry_out, err);
    (void)unlink(path);
    return st;
}

static void begin(seen *s, const char *text)
{
    weft_registry *registry = NULL;
    OK(open_text(text, strlen(text), &registry, &err));
    seen_begin(s, registry);
    seen_poll(s, 0);
}

static weft_member member(const seen *s, const char *key)
{
    weft_member m;
    const seen_key *k = seen_find(s, key);
    ck_assert_msg(k != NULL, "no %s", key);
    OK(weft_member_decode((weft_span){k->value, k->n}, &m, &err));
    return m;
}

START_TEST(members_of_a_file)
{
    seen s;
    begin(&s, "# a cluster of one machine\n"
              "replicas 2\n"
              "\n"
              "router r 127.0.0.1:9000\r\n"
              "layers a-0 127.0.0.1:9001 0 0   # the lead\n"
              "\tlayers a-1 [::1]:9002 0 1\n"
              "layers b-0 127.0.0.1:9003 7 0\n"
              "experts x.0 host.local:9004\n"
              "experts x.1 127.0.0.1:9005");
    ck_assert_int_eq(s.link, WEFT_OK);
    ck_assert_int_eq(s.n_listings, 1);
    ck_assert_int_eq(s.n_keys, 6);
    ck_assert_int_eq(weft_registry_static_replicas(s.registry), 2);
    const weft_member m = member(&s, "members/layers/a-1");
    ck_assert_str_eq(m.address, "[::1]:9002");
    ck_assert_int_eq(m.state, WEFT_MEMBER_SERVING);
    ck_assert_uint_eq(m.incarnation, 1);
    ck_assert_int_eq(m.stage, 1);
    ck_assert_int_eq(m.n_stages, 2);
    ck_assert_int_eq(member(&s, "members/layers/b-0").group, 7);
    ck_assert_int_eq(member(&s, "members/layers/b-0").n_stages, 1);
    ck_assert_int_eq(member(&s, "members/experts/x.0").role, WEFT_ROLE_EXPERTS);
    ck_assert_int_eq(member(&s, "members/router/r").role, WEFT_ROLE_ROUTER);
    seen_end(&s);
}
END_TEST

START_TEST(what_is_wrong_is_named_with_its_line)
{
    static const struct {
        const char *text, *first, *second;
    } cases[] = {
        {"", "empty", ""},
        {"shard a 127.0.0.1:1\n", "line 1", "shard"},
        {"router r 127.0.0.1:1\n\nexperts a\n", "line 3", "HOST:PORT"},
        {"experts a 127.0.0.1:1 0 0\n", "line 1", "HOST:PORT"},
        {"layers a 127.0.0.1:1\n", "line 1", "GROUP STAGE"},
        {"layers a 127.0.0.1:1 0 0 0\n", "line 1", "GROUP STAGE"},
        {"layers a 127.0.0.1:1 0 0 0 0 0 0 0\n", "line 1", "GROUP STAGE"},
        {"layers a 127.0.0.1:1 0 x\n", "line 1", "x"},
        {"layers a 127.0.0.1:1 -1 0\n", "line 1", "-1"},
        {"layers a 127.0.0.1:1 0 1\n", "group 0", "stages"},
        {"experts a 127.0.0.1\n", "line 1", "127.0.0.1"},
        {"experts a 127.0.0.1:0\n", "line 1", "port 0"},
        {"experts a/b 127.0.0.1:1\n", "line 1", "a/b"},
        {"experts a 127.0.0.1:1\nrouter a 127.0.0.1:2\n", "line 2", "twice"},
        {"layers a h:1 0 0\nlayers b h:2 0 0\n", "line 2", "group 0 stage 0"},
        {"replicas\n", "line 1", "replicas N"},
        {"replicas 0\n", "line 1", "replicas N"},
        {"replicas 5\n", "line 1", "replicas N"},
        {"replicas 1 2\n", "line 1", "replicas N"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_registry *registry = NULL;
        weft_err err = {0};
        const char *text = cases[i].text;
        ck_assert_int_eq(open_text(text, strlen(text), &registry, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, path) != NULL &&
                          strstr(err.text, cases[i].first) != NULL &&
                          strstr(err.text, cases[i].second) != NULL,
                      "%zu: %s", i, err.text);
    }
}
END_TEST

START_TEST(no_text_and_no_file)
{
    weft_registry *registry = NULL;
    weft_err err = {0};
    ck_assert_int_eq(open_text("router\0r", 8, &registry, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_registry_create_static(path, &registry, &err),
                     WEFT_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, path));
}
END_TEST

START_TEST(writes_are_refused)
{
    seen s;
    begin(&s, "router r 127.0.0.1:9000\n");
    const int32_t put = seen_put(&s, "epoch/current", "1", false, 0);
    seen_poll(&s, 0);
    ck_assert(s.done[put]);
    ck_assert_int_eq(s.results[put], WEFT_FAILED_PRECONDITION);
    ck_assert_int_eq(s.n_keys, 1);
    seen_end(&s);
}
END_TEST

static void *wake_it(void *arg)
{
    weft_registry *registry = arg;
    registry->ops->wake(registry);
    return NULL;
}

START_TEST(poll_waits_for_wake_or_its_deadline)
{
    seen s;
    pthread_t thread;
    begin(&s, "router r 127.0.0.1:9000\n");
    const uint64_t begun = weft_clock_now_ns();
    seen_poll(&s, begun + 30 * MS);
    ck_assert_uint_ge(weft_clock_now_ns(), begun + 30 * MS);
    ck_assert_int_eq(pthread_create(&thread, NULL, wake_it, s.registry), 0);
    seen_poll(&s, begun + 100000 * MS);
    ck_assert_uint_lt(weft_clock_now_ns(), begun + 50000 * MS);
    (void)pthread_join(thread, NULL);
    ck_assert_int_eq(s.n_listings, 1);
    seen_end(&s);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        members_of_a_file,
        what_is_wrong_is_named_with_its_line,
        no_text_and_no_file,
        writes_are_refused,
        poll_waits_for_wake_or_its_deadline,
    };
    return WEFT_SUITE_RUN("static registry", tests);
}
