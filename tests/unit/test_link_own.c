/* What a process says of itself before and after it knows its incarnation. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

START_TEST(own_hello_may_change)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    a.incarnation = 99;
    weft_link_server_set_own(server, &a);
    const weft_link_options own = kit_options();
    weft_link *link = NULL;
    weft_hello peer;
    OK(weft_link_dial(weft_link_server_address(server), &b, NULL, &own,
                      kit_deadline(), &link, &peer, &err));
    ck_assert_uint_eq(peer.incarnation, 99);
    kit_wait_taken(&all, 1);
    weft_link_server_stop(server);
    weft_link_close(link);
    kit_close_taken(&all);
}
END_TEST

static void *dial_b(void *arg)
{
    const weft_link_server *const server = arg;
    static weft_hello answer;
    const weft_hello b = kit_hello("b");
    weft_link *link = NULL;
    const weft_link_options own = kit_options();
    OK(weft_link_dial(weft_link_server_address(server), &b, NULL, &own,
                      kit_deadline(), &link, &answer, &err));
    weft_link_close(link);
    return &answer;
}

/* A dial of 100 ms that is not answered. */
static void hears_nothing(weft_link_server *server)
{
    const weft_hello b = kit_hello("b");
    const weft_link_options own = kit_options();
    weft_hello peer;
    weft_link *link = NULL;
    weft_err told = {0};
    ck_assert_int_eq(weft_link_dial(weft_link_server_address(server), &b, NULL,
                                    &own, weft_clock_now_ns() + 100000000,
                                    &link, &peer, &told),
                     WEFT_DEADLINE_EXCEEDED);
}

/* Whoever dials before a process knows its incarnation hears nothing until it
 * does, and then what is right. */
START_TEST(a_hello_waits_until_own_is_known)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    weft_hello a = kit_hello("a");
    a.incarnation = 0;
    weft_link_server_options options = kit_server_options(&a, &all);
    options.own_later = true;
    weft_link_server *const server = kit_server(&options);
    hears_nothing(server);
    ck_assert_int_eq(kit_count_taken(&all), 0);
    pthread_t thread;
    void *answer = NULL;
    ck_assert_int_eq(pthread_create(&thread, NULL, dial_b, server), 0);
    a.incarnation = 99;
    weft_link_server_set_own(server, &a);
    ck_assert_int_eq(pthread_join(thread, &answer), 0);
    ck_assert_uint_eq(((const weft_hello *)answer)->incarnation, 99);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

/* Nobody is dialled by a process that does not know its incarnation yet. */
START_TEST(who_is_nobody_yet_dials_nobody)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    weft_hello b = kit_hello("b");
    weft_link_server_options server_options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&server_options);
    server_options.own_later = true;
    weft_link_server *const silent = kit_server(&server_options);
    const weft_peers_options options = {
        .own = &b, .own_later = true, .link = kit_options(), .peers_max = 1};
    weft_peers *peers = NULL;
    weft_peer peer = {.id = "a", .incarnation = 5};
    (void)snprintf(peer.address, sizeof peer.address, "%s",
                   weft_link_server_address(server));
    b.incarnation = 0;
    OK(weft_peers_create(&options, &peers, &err));
    OK(weft_peers_want(peers, &peer, 1, &err));
    hears_nothing(silent); /* time enough to dial */
    ck_assert_int_eq(kit_count_taken(&all), 0);
    b.incarnation = 8;
    weft_peers_set_own(peers, &b);
    weft_link *link = NULL;
    const uint64_t deadline_ns = kit_deadline();
    while (!weft_peers_take(peers, &peer, &link)) {
        ck_assert(weft_clock_now_ns() < deadline_ns);
        (void)sched_yield();
    }
    kit_wait_taken(&all, 1);
    ck_assert_uint_eq(all.peers[0].incarnation, 8);
    weft_link_close(link);
    weft_peers_destroy(peers);
    weft_link_server_stop(silent);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

/* A link that is shaking hands takes no pulse, of which there could be any
 * number. */
START_TEST(a_pulse_before_the_handshake_breaks)
{
    const weft_link_options options = kit_options();
    const weft_frame pulse = {.type = WEFT_FRAME_PULSE};
    unsigned char bytes[WEFT_FRAME_HEADER_BYTES];
    weft_link *link = NULL;
    int ours = -1, theirs = -1;
    kit_sockets(&ours, &theirs);
    OK(weft_link_create_tcp(theirs, NULL, true, &options, &link, &err));
    const kit_raw raw = {.fd = ours};
    kit_raw_write(&raw, bytes, kit_print(&pulse, NULL, bytes));
    const char *const why = kit_recv_broken(link);
    ck_assert_msg(strstr(why, "sent \"pulse\" before the handshake") != NULL,
                  "%s", why);
    weft_link_close(link);
    (void)close(ours);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        own_hello_may_change, a_hello_waits_until_own_is_known,
        who_is_nobody_yet_dials_nobody, a_pulse_before_the_handshake_breaks};
    return weft_suite_run("own", tests, sizeof tests / sizeof tests[0]);
}
