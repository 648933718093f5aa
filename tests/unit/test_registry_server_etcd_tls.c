#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/etcd_server.h"
#include "tests/support/expect.h"
#include "tests/support/registry_suite.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static etcd_server etcd;
static seen s[2];
static char ca[96], other_ca[96], cert[96], key[96], user[96];

static uint64_t moment(void)
{
    return weft_clock_now_ns() + 10 * MS;
}

static const registry_world world = {.moment = moment};

#define UNTIL(condition) SEEN_UNTIL(&world, s, 2, condition)

static const char *in_folder(char out[96], const char *name)
{
    (void)snprintf(out, 96, "%s/%s", etcd.folder, name);
    return out;
}

static void prepare(void)
{
    memset(s, 0, sizeof s);
    etcd_prepare(&etcd, 1);
    (void)in_folder(ca, "ca.pem");
    (void)in_folder(other_ca, "other.pem");
    (void)in_folder(cert, "a.pem");
    (void)in_folder(key, "a.key");
    (void)in_folder(user, "user");
}

static void finish(void)
{
    for (int i = 0; i < 2; i++)
        if (s[i].registry != NULL) seen_end(&s[i]);
    etcd_end(&etcd);
}

/* "ca", "other" and "a", which the first has signed for 127.0.0.1. */
static void make_certificates(void)
{
    char line[2048], out[64];
    (void)snprintf(
        line, sizeof line,
        "cd %s && exec 2>log && "
        "new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes' && "
        "openssl req -x509 $new -keyout ca.key -out ca.pem -days 2 -subj "
        "/CN=ca && "
        "openssl req -x509 $new -keyout other.key -out other.pem -days 2 "
        "-subj /CN=other && "
        "openssl req $new -keyout a.key -out a.csr -subj /CN=a && "
        "echo subjectAltName=IP:127.0.0.1 >ext && "
        "openssl x509 -req -in a.csr -CA ca.pem -CAkey ca.key "
        "-CAcreateserial -out a.pem -days 2 -extfile ext",
        etcd.folder);
    etcd_shell(&etcd, line, out, sizeof out);
}

static void open_tls(int i, const weft_etcd_options *files)
{
    weft_etcd_options options = *files;
    weft_registry *registry = NULL;
    options.endpoints = etcd.endpoints;
    options.cluster = "test";
    OK(weft_registry_create_etcd(&options, &registry, &err));
    seen_begin(&s[i], registry);
}

static void start_tls(void)
{
    make_certificates();
    etcd.tls = true;
    etcd.extra[0] = "--cert-file";
    etcd.extra[1] = cert;
    etcd.extra[2] = "--key-file";
    etcd.extra[3] = key;
    etcd.extra[4] = "--client-cert-auth";
    etcd.extra[5] = "--trusted-ca-file";
    etcd.extra[6] = ca;
    etcd_start(&etcd, 0);
    etcd_wait_healthy(&etcd, 0);
}

START_TEST(certificates_of_both_ends)
{
    start_tls();
    open_tls(0, &(weft_etcd_options){
                    .ca_file = ca, .cert_file = cert, .key_file = key});
    UNTIL(s[0].lease == WEFT_OK && s[0].n_listings == 1);
    seen_put(&s[0], "members/a", "x", true, 0);
    UNTIL(seen_has(&s[0], "members/a", "x"));
}
END_TEST

START_TEST(who_has_the_wrong_certificates_is_not_served)
{
    start_tls();
    open_tls(0, &(weft_etcd_options){.ca_file = ca});
    UNTIL(s[0].link == WEFT_UNAVAILABLE);
    seen_end(&s[0]);
    open_tls(0, &(weft_etcd_options){
                    .ca_file = other_ca, .cert_file = cert, .key_file = key});
    UNTIL(s[0].link == WEFT_UNAVAILABLE);
    seen_end(&s[0]);
    open_tls(0, &(weft_etcd_options){.ca_file = NULL}); /* no TLS */
    UNTIL(s[0].link == WEFT_UNAVAILABLE);
    ck_assert_int_eq(s[0].n_listings, 0);
}
END_TEST

static void write_user(const char *text)
{
    FILE *const file = fopen(user, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(users)
{
    char out[512];
    etcd_start(&etcd, 0);
    etcd_wait_healthy(&etcd, 0);
    etcd_shell(&etcd,
               "set -e; export ETCDCTL_API=3; c=\"etcdctl --endpoints=$E\"; "
               "r=--user=root:top; "
               "$c user add root:top; $c user add weft:secret:word; "
               "$c role add weft; "
               "$c role grant-permission --prefix=true weft readwrite "
               "/weft/test/; "
               "$c user grant-role weft weft; $c auth enable",
               out, sizeof out);
    write_user("weft:wrong\n");
    open_tls(0, &(weft_etcd_options){.user_file = user});
    UNTIL(s[0].link != WEFT_CANCELLED);
    const int32_t put = seen_put(&s[0], "k", "x", false, 0);
    UNTIL(s[0].done[put]);
    ck_assert_int_eq(s[0].results[put], WEFT_UNAVAILABLE);
    ck_assert_int_eq(s[0].n_listings, 0);
    seen_end(&s[0]);

    write_user("weft:secret:word\n");
    open_tls(0, &(weft_etcd_options){.user_file = user});
    UNTIL(s[0].lease == WEFT_OK && s[0].n_listings == 1);
    seen_put(&s[0], "members/a", "x", true, 0);
    UNTIL(seen_has(&s[0], "members/a", "x"));

    /* A password that is set, be it the same, ends what was let in by it. */
    etcd_shell(&etcd,
               "export ETCDCTL_API=3; echo secret:word | etcdctl "
               "--endpoints=$E --user=root:top user passwd weft "
               "--interactive=false",
               out, sizeof out);
    const int32_t refused = seen_put(&s[0], "members/a", "y", true, -1);
    UNTIL(s[0].done[refused]);
    ck_assert_int_eq(s[0].results[refused], WEFT_UNAVAILABLE);
    UNTIL(s[0].lease == WEFT_OK);
    do {
        s[0].n_submitted = 0;
        memset(s[0].done, 0, sizeof s[0].done);
        (void)seen_put(&s[0], "members/a", "y", true, -1);
        UNTIL(s[0].done[0]);
    } while (s[0].results[0] != WEFT_OK);
    UNTIL(seen_has(&s[0], "members/a", "y"));

    etcd_kill(&etcd, 0);
    etcd_start(&etcd, 0);
    const int32_t before = s[0].n_listings;
    UNTIL(s[0].n_listings > before && s[0].lease == WEFT_OK);
    seen_put(&s[0], "members/a", "z", true, -1);
    UNTIL(seen_has(&s[0], "members/a", "z"));
}
END_TEST

START_TEST(files_that_are_not_what_they_should_be)
{
    weft_registry *registry = NULL;
    weft_err err = {0};
    write_user("no colon\n");
    weft_etcd_options options = {
        .endpoints = "127.0.0.1:1", .cluster = "c", .user_file = user};
    ck_assert_int_eq(weft_registry_create_etcd(&options, &registry, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, user));
    options.user_file = NULL;
    options.ca_file = options.cert_file = options.key_file = user;
    ck_assert_int_eq(weft_registry_create_etcd(&options, &registry, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(registry);
}
END_TEST

static void add(TCase *tests)
{
    const TTest *const all[] = {
        certificates_of_both_ends,
        who_has_the_wrong_certificates_is_not_served,
        users,
        files_that_are_not_what_they_should_be,
    };
    tcase_add_checked_fixture(tests, prepare, finish);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tcase_add_test(tests, all[i]);
}

int main(void)
{
    if (!etcd_is_here()) return 77;
    if (system("command -v openssl >/dev/null 2>&1") != 0) {
        puts("SKIP: there is no openssl on the path");
        return 77;
    }
    return weft_suite_run_added("etcd with certificates and users", add);
}
