/* Keeping peers connected: who is wanted is dialled, again and again. */
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

typedef struct bell {
    atomic_int rung;
} bell;

static void ring(void *arg)
{
    bell *const it = arg;
    (void)atomic_fetch_add(&it->rung, 1);
}

static void wait_rung(bell *it, int n)
{
    const uint64_t deadline = kit_deadline();
    while (atomic_load(&it->rung) < n) {
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
    ck_assert_int_eq(atomic_load(&it->rung), n);
}

static weft_peers *make_peers(const weft_hello *own, bell *it)
{
    const weft_peers_options options = {.own = own,
                                        .link = kit_options(),
                                        .peers_max = 3,
                                        .ready = ring,
                                        .arg = it};
    weft_peers *peers = NULL;
    OK(weft_peers_create(&options, &peers, &err));
    return peers;
}

static weft_peer peer_at(const char *id, const char *address,
                         uint64_t incarnation)
{
    weft_peer peer = {.incarnation = incarnation};
    (void)snprintf(peer.id, sizeof peer.id, "%s", id);
    (void)snprintf(peer.address, sizeof peer.address, "%s", address);
    return peer;
}

static weft_link *wait_peer(weft_peers *peers, weft_peer *peer)
{
    weft_link *link = NULL;
    const uint64_t deadline = kit_deadline();
    while (!weft_peers_take(peers, peer, &link)) {
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
    return link;
}

static void wait_reason(weft_peers *peers, const char *id, const char *word)
{
    char text[256] = "";
    const uint64_t deadline = kit_deadline();
    while (strstr(text, word) == NULL) {
        weft_peers_reason(peers, id, text, sizeof text);
        ck_assert_msg(weft_clock_now_ns() < deadline, "%s", text);
        (void)sched_yield();
    }
}

START_TEST(peers_are_dialled_again)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    bell it = {0};
    weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *server = kit_server(&options);
    char address[64];
    (void)snprintf(address, sizeof address, "%s",
                   weft_link_server_address(server));
    options.listen = address;
    weft_link_server_stop(server); /* nobody there at first */
    weft_peers *const peers = make_peers(&b, &it);
    weft_peer peer = peer_at("a", address, 5);
    OK(weft_peers_want(peers, &peer, 1, &err));
    wait_reason(peers, "a", "refused");
    weft_link *link = NULL;
    ck_assert(!weft_peers_take(peers, &peer, &link));
    server = kit_server(&options);
    link = wait_peer(peers, &peer);
    ck_assert_str_eq(peer.id, "a");
    ck_assert_uint_eq(peer.incarnation, 5);
    wait_rung(&it, 1);
    char text[64];
    weft_peers_reason(peers, "a", text, sizeof text);
    ck_assert_str_eq(text, "");
    /* A link ends: another one. One that was not told of is not made. */
    weft_link *none = NULL;
    weft_link_close(link);
    ck_assert(!weft_peers_take(peers, &peer, &none));
    weft_peers_lost(peers, "somebody else", 5);
    weft_peers_lost(peers, "a", 4);
    ck_assert(!weft_peers_take(peers, &peer, &none));
    weft_peers_lost(peers, "a", 5);
    link = wait_peer(peers, &peer);
    kit_wait_taken(&all, 2);
    weft_link_close(link);
    weft_peers_destroy(peers);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

/* A short life is not followed by a dial at once: the waits grow. */
START_TEST(waits_between_dials_grow)
{
    enum { LIVES = 4 };
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    bell it = {0};
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    weft_peers *const peers = make_peers(&b, &it);
    weft_peer peer = peer_at("a", weft_link_server_address(server), 0);
    OK(weft_peers_want(peers, &peer, 1, &err));
    uint64_t wait_ns = 50 * MS;
    weft_link_close(wait_peer(peers, &peer));
    for (int i = 0; i < LIVES; i++, wait_ns *= 2) {
        const uint64_t began = weft_clock_now_ns();
        weft_peers_lost(peers, "a", 5);
        weft_link_close(wait_peer(peers, &peer));
        ck_assert_uint_ge(weft_clock_now_ns() - began, wait_ns);
    }
    weft_peers_destroy(peers);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

/* Who answers must be who is wanted, of that incarnation. */
START_TEST(a_peer_is_an_id_and_an_incarnation)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    bell it = {0};
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    weft_peers *const peers = make_peers(&b, &it);
    const char *const address = weft_link_server_address(server);
    weft_peer peer = peer_at("c", address, 0);
    OK(weft_peers_want(peers, &peer, 1, &err));
    wait_reason(peers, "c", "c was expected, and a is there");
    peer = peer_at("a", address, 6);
    OK(weft_peers_want(peers, &peer, 1, &err));
    wait_reason(peers, "a", "incarnation 6 of a was expected, and 5 is there");
    weft_link *link = NULL;
    ck_assert(!weft_peers_take(peers, &peer, &link));
    a.incarnation = 6;
    weft_link_server_set_own(server, &a);
    link = wait_peer(peers, &peer);
    ck_assert_uint_eq(peer.incarnation, 6);
    /* Wanted with another one: that is another peer, beside the first link,
     * which is its owner's until it says that it is lost. */
    a.incarnation = 7;
    weft_link_server_set_own(server, &a);
    peer = peer_at("a", address, 7);
    OK(weft_peers_want(peers, &peer, 1, &err));
    weft_link *const later = wait_peer(peers, &peer);
    ck_assert_uint_eq(peer.incarnation, 7);
    weft_link_close(link);
    weft_peers_lost(peers, "a", 6);
    ck_assert(!weft_peers_take(peers, &peer, &link));
    weft_link_close(later);
    weft_peers_destroy(peers);
    weft_link_server_stop(server);
    while (all.n > 0) weft_link_close(all.links[--all.n]);
}
END_TEST

/* Unwanted and wanted again while the owner has the link: not dialled twice. */
START_TEST(a_taken_peer_stays_one)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    bell it = {0};
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    weft_peers *const peers = make_peers(&b, &it);
    weft_peer peer = peer_at("a", weft_link_server_address(server), 5);
    const weft_peer wanted = peer;
    OK(weft_peers_want(peers, &wanted, 1, &err));
    weft_link *link = wait_peer(peers, &peer);
    OK(weft_peers_want(peers, NULL, 0, &err));
    OK(weft_peers_want(peers, &wanted, 1, &err));
    wait_rung(&it, 1);
    weft_link_close(link);
    weft_peers_lost(peers, "a", 5);
    link = wait_peer(peers, &peer);
    wait_rung(&it, 2);
    weft_link_close(link);
    /* Not wanted when it is lost: gone. */
    OK(weft_peers_want(peers, NULL, 0, &err));
    weft_peers_lost(peers, "a", 5);
    OK(weft_peers_want(peers, &wanted, 1, &err));
    link = wait_peer(peers, &peer);
    weft_link_close(link);
    weft_peers_destroy(peers);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

START_TEST(too_many_peers_are_refused)
{
    const weft_hello b = kit_hello("b");
    bell it = {0};
    weft_peers *const peers = make_peers(&b, &it);
    weft_peer many[4];
    weft_err told = {0};
    for (int i = 0; i < 4; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "p%d", i);
        many[i] = peer_at(id, "127.0.0.1:1", 1);
    }
    OK(weft_peers_want(peers, many, 3, &err));
    ck_assert_int_eq(weft_peers_want(peers, many, 4, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(told.text, "4 peers, and the limit is 3") != NULL,
                  "%s", told.text);
    weft_peers_destroy(peers);
    weft_peers_destroy(NULL);
}
END_TEST

/* A dial that would take a minute ends with the set. */
START_TEST(destroy_while_dialling)
{
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *const any = (struct sockaddr *)(void *)&at;
    socklen_t bytes = sizeof at;
    ck_assert_int_eq(bind(listener, any, bytes), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(getsockname(listener, any, &bytes), 0);
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)ntohs(at.sin_port));
    const weft_hello b = kit_hello("b");
    const weft_peers_options options = {.own = &b,
                                        .link = kit_options(),
                                        .dial_ns = 3600000 * MS,
                                        .peers_max = 1};
    weft_peers *peers = NULL;
    OK(weft_peers_create(&options, &peers, &err));
    const weft_peer peer = peer_at("a", address, 0);
    OK(weft_peers_want(peers, &peer, 1, &err));
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    const uint64_t began = weft_clock_now_ns();
    weft_peers_destroy(peers);
    ck_assert_uint_lt(weft_clock_now_ns() - began, 30000 * MS);
    (void)close(fd);
    (void)close(listener);
}
END_TEST

/* Whoever takes is in the middle of a long step. */
START_TEST(a_link_that_waits_to_be_taken_is_alive)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    const weft_link_server_options listening = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&listening);
    weft_pulse *pulse = NULL;
    OK(weft_pulse_start(MS, &pulse, &err));
    const weft_peers_options options = {
        .own = &b, .link = kit_options(), .peers_max = 2, .pulse = pulse};
    weft_peers *peers = NULL;
    OK(weft_peers_create(&options, &peers, &err));
    weft_peer peer = peer_at("a", weft_link_server_address(server), 0);
    OK(weft_peers_want(peers, &peer, 1, &err));
    kit_wait_taken(&all, 1);
    weft_pulse_step(pulse);
    const uint64_t deadline = kit_deadline();
    weft_link_stats stats = {0};
    while (stats.pulse_step == 0) {
        weft_frame frame;
        bool got = false;
        OK(weft_link_recv(all.links[0], &frame, &got, &err));
        ck_assert(!got && weft_clock_now_ns() < deadline);
        weft_link_get_stats(all.links[0], &stats);
    }
    /* From there on they are the taker's. */
    weft_link_close(wait_peer(peers, &peer));
    weft_pulse_step(pulse);
    weft_peers_lost(peers, "a", peer.incarnation);
    kit_wait_taken(&all, 2);
    weft_peers_destroy(peers); /* with a link that nobody took */
    weft_pulse_stop(pulse);
    weft_link_server_stop(server);
    kit_close_taken(&all);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_link_that_waits_to_be_taken_is_alive,
                                  peers_are_dialled_again,
                                  waits_between_dials_grow,
                                  a_peer_is_an_id_and_an_incarnation,
                                  a_taken_peer_stays_one,
                                  too_many_peers_are_refused,
                                  destroy_while_dialling};
    return WEFT_SUITE_RUN("peers", tests);
}
