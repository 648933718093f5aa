/* How links come to be: listening and dialling. Turn 0 of a loop is plain, 1
 * through TLS. */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/clock.h"
#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static bool has_tls;

static weft_status dial(const weft_link_server *server, const weft_hello *own,
                        weft_tls *tls, weft_link **link_out, weft_err *told)
{
    const weft_link_options options = kit_options();
    weft_hello peer = {0};
    return weft_link_dial(weft_link_server_address(server), own, tls, &options,
                          kit_deadline(), link_out, &peer, told);
}

/* -- shaking hands -------------------------------------------------------- */

START_TEST(both_know_each_other)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    weft_tls *const tls = _i == 1 ? kit_tls("a", "ca") : NULL;
    weft_tls *const b_tls = _i == 1 ? kit_tls("b", "ca") : NULL;
    weft_link_server_options options = kit_server_options(&a, &all);
    options.tls = tls;
    weft_link_server *const server = kit_server(&options);
    const weft_link_options own = kit_options();
    weft_link *link = NULL;
    weft_hello peer;
    OK(weft_link_dial(weft_link_server_address(server), &b, b_tls, &own,
                      kit_deadline(), &link, &peer, &err));
    ck_assert_mem_eq(&peer, &a, sizeof peer);
    ck_assert_str_eq(weft_link_name(link), "a");
    kit_wait_taken(&all, 1);
    ck_assert_mem_eq(&all.peers[0], &b, sizeof b);
    ck_assert_str_eq(weft_link_name(all.links[0]), "b");
    /* Frames of any size that the options allow pass both ways. */
    static unsigned char body[1 << 20];
    memset(body, 9, sizeof body);
    const weft_frame frame = {
        .type = WEFT_FRAME_MAP, .body = body, .body_bytes = sizeof body};
    OK(weft_link_send(link, &frame, NULL, &err));
    const weft_frame there = kit_recv(all.links[0], link);
    ck_assert_mem_eq(there.body, body, sizeof body);
    OK(weft_link_send(all.links[0], &frame, NULL, &err));
    const weft_frame back = kit_recv(link, all.links[0]);
    ck_assert_mem_eq(back.body, body, sizeof body);
    weft_link_server_stop(server); /* links stay */
    OK(weft_link_send(link, &frame, NULL, &err));
    (void)kit_recv(all.links[0], link);
    weft_link_close(link);
    kit_close_taken(&all);
    weft_tls_destroy(tls);
    weft_tls_destroy(b_tls);
}
END_TEST

/* Refused by who listens, within a second, with both sides in the text. */
START_TEST(who_does_not_fit_is_refused)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    weft_hello bad[4] = {kit_hello("b"), kit_hello("b"), kit_hello("b"),
                         kit_hello("b")};
    bad[0].config_hash = 2;
    bad[1].protocol_min = 2;
    bad[1].protocol_max = 2;
    strcpy(bad[2].identity, "cuda");
    strcpy(bad[3].cluster, "green");
    static const char *const words[4][3] = {
        {"config.json", "a has 0000000000000001", "b has 0000000000000002"},
        {"protocol", "a speaks 1 to 1", "b speaks 2 to 2"},
        {"identity", "a has \"cpu\"", "b has \"cuda\""},
        {"cluster", "a has \"blue\"", "b has \"green\""}};
    for (int i = 0; i < 4; i++) {
        weft_link *link = NULL;
        weft_err told = {0};
        const uint64_t began = weft_clock_now_ns();
        ck_assert_int_eq(dial(server, &bad[i], NULL, &link, &told),
                         WEFT_FAILED_PRECONDITION);
        ck_assert_uint_lt(weft_clock_now_ns() - began, 1000 * MS);
        ck_assert_int_eq(told.status, WEFT_FAILED_PRECONDITION);
        ck_assert_ptr_nonnull(
            strstr(told.text, weft_link_server_address(server)));
        for (int j = 0; j < 3; j++)
            ck_assert_msg(strstr(told.text, words[i][j]) != NULL,
                          "%s, and not %s", told.text, words[i][j]);
    }
    weft_link_server_stop(server);
    ck_assert_int_eq(all.n, 0);
}
END_TEST

static weft_status admit_none(void *arg, const weft_hello *peer, weft_err *err)
{
    (void)arg;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no room for %s", peer->id);
}

START_TEST(admit_may_refuse)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    weft_link_server_options options = kit_server_options(&a, &all);
    options.admit = admit_none;
    weft_link_server *const server = kit_server(&options);
    weft_link *link = NULL;
    weft_err told = {0};
    ck_assert_int_eq(dial(server, &b, NULL, &link, &told),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_msg(strstr(told.text, "refused: no room for b") != NULL, "%s",
                  told.text);
    weft_link_server_stop(server);
    ck_assert_int_eq(all.n, 0);
}
END_TEST

static bool is_five(void *arg, const weft_hello *peer)
{
    return arg == NULL && peer->incarnation == 5;
}

/* Unless it is known to be the one that there is. */
START_TEST(an_older_incarnation_is_refused)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    weft_hello b = kit_hello("b");
    weft_link_server_options options = kit_server_options(&a, &all);
    options.vouch = is_five;
    weft_link_server *const server = kit_server(&options);
    weft_link *links[4] = {NULL};
    weft_err told = {0};
    OK(dial(server, &b, NULL, &links[0], &err));
    OK(dial(server, &b, NULL, &links[1], &err)); /* the same again may */
    b.incarnation = 4;
    ck_assert_int_eq(dial(server, &b, NULL, &links[2], &told),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_msg(strstr(told.text, "b is of incarnation 4, and a has talked "
                                    "to incarnation 5 of it") != NULL,
                  "%s", told.text);
    b.incarnation = 6;
    OK(dial(server, &b, NULL, &links[2], &err));
    b.incarnation = 5;
    OK(dial(server, &b, NULL, &links[3], &err));
    kit_wait_taken(&all, 4);
    weft_link_server_stop(server);
    for (int i = 0; i < 4; i++) weft_link_close(links[i]);
    kit_close_taken(&all);
}
END_TEST

/* -- raw clients ---------------------------------------------------------- */

static int connect_raw(const weft_link_server *server)
{
    weft_address address;
    OK(weft_address_parse(weft_link_server_address(server), &address, &err));
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(address.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    const struct timeval wait = {.tv_sec = 60};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ck_assert_int_eq(
        connect(fd, (const struct sockaddr *)(const void *)&to, sizeof to), 0);
    return fd;
}

/* Waits until the server has closed; what it said, at most n bytes. */
static size_t read_to_end(int fd, unsigned char *bytes, size_t n)
{
    size_t got = 0;
    for (;;) {
        unsigned char rest[256];
        const ssize_t came = got < n ? recv(fd, bytes + got, n - got, 0)
                                     : recv(fd, rest, sizeof rest, 0);
        ck_assert_msg(came >= 0 || errno == ECONNRESET || errno == EPIPE,
                      "it stays open: %s", strerror(errno));
        if (came <= 0) return got;
        got += got < n ? (size_t)came : 0;
    }
}

static int lines_with(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

typedef struct input {
    const void *bytes;
    size_t n;
} input;

enum { INPUTS = 7, LARGE = 20000 };

/* What scanners and clients of something else send. */
static void make_garbage(input inputs[INPUTS])
{
    static unsigned char zeros[2000], noise[LARGE], tls[165], settings[LARGE];
    static char header[LARGE];
    static const unsigned char record[] = {0x16, 3, 1,    0, 0xa5, 1,
                                           0,    0, 0xa1, 3, 3};
    static const char get[] = "GET /";
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char http[] = "POST /metrics HTTP/1.1\r\nHost: x\r\n"
                               "Content-Length: -1\r\n\r\n and some more bytes";
    uint32_t random = 5;
    for (size_t i = 0; i < LARGE; i++) {
        random = random * 1664525U + 1013904223U;
        noise[i] = (unsigned char)(random >> 24);
    }
    memset(tls, 0x11, sizeof tls);
    memcpy(tls, record, sizeof record);
    memset(header, 'a', sizeof header);
    memcpy(header, get, sizeof get - 1);
    memcpy(settings, preface, sizeof preface - 1);
    const input all[INPUTS] = {
        {zeros, sizeof zeros},       {zeros, 64},
        {noise, sizeof noise},       {tls, sizeof tls},
        {settings, sizeof settings}, {header, sizeof header},
        {http, sizeof http - 1}};
    memcpy(inputs, all, sizeof all);
}

static void send_garbage(const weft_link_server *server, int times)
{
    input inputs[INPUTS];
    make_garbage(inputs);
    for (int i = 0; i < times * INPUTS; i++) {
        const int fd = connect_raw(server);
        unsigned char said[64];
        (void)send(fd, inputs[i % INPUTS].bytes, inputs[i % INPUTS].n,
                   MSG_NOSIGNAL);
        (void)read_to_end(fd, said, sizeof said);
        (void)close(fd);
    }
}

/* Closed, without effect on others, and told once a second. */
START_TEST(garbage_has_no_effect)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    weft_tls *const own_tls = _i == 1 ? kit_tls("a", "ca") : NULL;
    weft_tls *const b_tls = _i == 1 ? kit_tls("b", "ca") : NULL;
    FILE *caught = NULL;
    int before = -1;
    char text[16384];
    kit_catch_stderr(&caught, &before);
    weft_link_server_options options = kit_server_options(&a, &all);
    options.tls = own_tls;
    options.handshake_ns = 200 * MS;
    weft_link_server *const server = kit_server(&options);
    weft_link *link = NULL;
    OK(dial(server, &b, b_tls, &link, &err));
    kit_wait_taken(&all, 1);
    const uint64_t began = weft_clock_now_ns();
    send_garbage(server, 12);
    const uint64_t seconds = (weft_clock_now_ns() - began) / (1000 * MS) + 1;
    const weft_frame frame = {.type = WEFT_FRAME_PLAN};
    OK(weft_link_send(link, &frame, NULL, &err));
    (void)kit_recv(all.links[0], link);
    weft_link *second = NULL;
    OK(dial(server, &b, b_tls, &second, &err));
    kit_wait_taken(&all, 2);
    weft_link_server_stop(server);
    (void)kit_release_stderr(caught, before, text, sizeof text);
    const int lines = lines_with(text, "warn link refused kind");
    ck_assert_msg(lines >= 1 && lines <= 3 * (int)seconds, "in %d s: %s",
                  (int)seconds, text);
    if (_i == 0)
        ck_assert_msg(strstr(text, "kind garbage from 127.0.0.1:") != NULL,
                      "%s", text);
    weft_link_close(link);
    weft_link_close(second);
    kit_close_taken(&all);
    weft_tls_destroy(own_tls);
    weft_tls_destroy(b_tls);
}
END_TEST

/* What was left out in one second is told in the next. */
START_TEST(left_out_lines_are_counted)
{
    enum { TIMES = 30 };
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    FILE *caught = NULL;
    int before = -1;
    char text[16384];
    kit_catch_stderr(&caught, &before);
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    for (int i = 0; i < TIMES; i++) {
        unsigned char said[64];
        const int fd = connect_raw(server);
        (void)send(fd,
                   "GET / HTTP/1.1\r\nHost: x\r\nAccept: everything that "
                   "there is, please\r\n\r\n",
                   70, MSG_NOSIGNAL);
        ck_assert_uint_eq(read_to_end(fd, said, sizeof said), 0);
        (void)close(fd);
    }
    const uint64_t deadline = kit_deadline();
    unsigned told = 0;
    while (told < TIMES) {
        const ssize_t n = pread(fileno(caught), text, sizeof text - 1, 0);
        ck_assert_int_ge(n, 0);
        text[n] = '\0';
        told = 0;
        for (const char *at = text; (at = strstr(at, "left_out ")) != NULL;
             at++)
            told += (unsigned)strtoul(at + 9, NULL, 10);
        told += (unsigned)lines_with(text, " from ");
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
    weft_link_server_stop(server);
    (void)kit_release_stderr(caught, before, text, sizeof text);
    ck_assert_msg(told == TIMES, "%u told: %s", told, text);
}
END_TEST

START_TEST(another_version_is_told_so)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    unsigned char bytes[WEFT_FRAME_HEADER_BYTES];
    const weft_frame frame = {.type = WEFT_FRAME_HELLO};
    weft_frame_encode(&frame, 0, bytes);
    bytes[4] = 2;
    const uint32_t crc = weft_crc32c(0, bytes, 60);
    for (int i = 0; i < 4; i++) bytes[60 + i] = (unsigned char)(crc >> (8 * i));
    const int fd = connect_raw(server);
    ck_assert_int_eq(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    (void)shutdown(fd, SHUT_WR);
    unsigned char said[WEFT_FRAME_HEADER_BYTES + 512];
    const size_t n = read_to_end(fd, said, sizeof said - 1);
    said[n] = '\0';
    ck_assert_uint_gt(n, WEFT_FRAME_HEADER_BYTES);
    ck_assert_ptr_nonnull(
        strstr((const char *)said + WEFT_FRAME_HEADER_BYTES,
               "a frame of version 2, and version 1 is spoken here"));
    (void)close(fd);
    weft_link_server_stop(server);
}
END_TEST

/* Who says nothing is closed in time; and of too many, the oldest first. */
START_TEST(silent_connections_end)
{
    enum { MOST = 4 };
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    weft_link_server_options options = kit_server_options(&a, &all);
    weft_tls *const tls = _i == 1 ? kit_tls("a", "ca") : NULL;
    weft_tls *const b_tls = _i == 1 ? kit_tls("b", "ca") : NULL;
    unsigned char said[8];
    options.tls = tls;
    options.handshake_ns = 300 * MS;
    weft_link_server *server = kit_server(&options);
    const uint64_t began = weft_clock_now_ns();
    int fd = connect_raw(server);
    ck_assert_int_eq(send(fd, "WEFT", 4, 0), 4);
    (void)read_to_end(fd, said, sizeof said);
    if (_i == 0) /* TLS sees at once that it is no record */
        ck_assert_uint_ge(weft_clock_now_ns() - began, 299 * MS);
    (void)close(fd);
    weft_link_server_stop(server);

    options.handshake_ns = 3600000 * MS;
    options.pending_max = MOST;
    server = kit_server(&options);
    int fds[MOST + 2];
    for (int i = 0; i < MOST + 2; i++) fds[i] = connect_raw(server);
    for (int i = 0; i < 2; i++) (void)read_to_end(fds[i], said, sizeof said);
    weft_link *link = NULL;
    OK(dial(server, &b, b_tls, &link, &err)); /* instead of the third */
    (void)read_to_end(fds[2], said, sizeof said);
    kit_wait_taken(&all, 1);
    for (int i = 3; i < MOST + 2; i++) /* the others are still there */
        ck_assert(recv(fds[i], said, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    weft_link_server_stop(server);
    for (int i = 0; i < MOST + 2; i++) (void)close(fds[i]);
    weft_link_close(link);
    kit_close_taken(&all);
    weft_tls_destroy(tls);
    weft_tls_destroy(b_tls);
}
END_TEST

/* -- dialling that fails -------------------------------------------------- */

START_TEST(dials_that_fail_say_why)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *server = kit_server(&options);
    weft_link *link = NULL;
    weft_hello peer;
    const weft_link_options own = kit_options();
    char address[64];
    (void)snprintf(address, sizeof address, "%s",
                   weft_link_server_address(server));
    weft_link_server_stop(server);
    weft_err told = {0};
    ck_assert_int_eq(weft_link_dial(address, &a, NULL, &own, kit_deadline(),
                                    &link, &peer, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, address) != NULL &&
                      strstr(told.text, "refused") != NULL,
                  "%s", told.text);
    ck_assert_int_eq(weft_link_dial("nonsense", &a, NULL, &own, kit_deadline(),
                                    &link, &peer, &told),
                     WEFT_INVALID_ARGUMENT);
    /* Somebody who accepts and says nothing. */
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *const any = (struct sockaddr *)(void *)&at;
    socklen_t bytes = sizeof at;
    ck_assert_int_eq(bind(listener, any, bytes), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(getsockname(listener, any, &bytes), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)ntohs(at.sin_port));
    ck_assert_int_eq(weft_link_dial(address, &a, NULL, &own,
                                    weft_clock_now_ns() + 50 * MS, &link, &peer,
                                    &told),
                     WEFT_DEADLINE_EXCEEDED);
    (void)close(listener);
}
END_TEST

START_TEST(an_address_in_use_is_told)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    weft_link_server_options options = kit_server_options(&a, &all);
    weft_link_server *const server = kit_server(&options);
    weft_link_server *second = NULL;
    weft_err told = {0};
    options.listen = weft_link_server_address(server);
    ck_assert_int_eq(weft_link_server_start(&options, &second, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, options.listen) != NULL &&
                      strstr(told.text, "in use") != NULL,
                  "%s", told.text);
    options.listen = "no address";
    ck_assert_int_ne(weft_link_server_start(&options, &second, &told), WEFT_OK);
    weft_link_server_stop(server);
    weft_link_server_stop(NULL);
}
END_TEST

/* -- TLS ------------------------------------------------------------------ */

START_TEST(tls_refuses_strangers)
{
    kit_taken all = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const weft_hello a = kit_hello("a");
    const weft_hello b = kit_hello("b");
    weft_tls *const tls = kit_tls("a", "ca");
    weft_tls *const stranger = kit_tls("c", "ca"); /* signed by another CA */
    weft_tls *const doubter = kit_tls("b", "ca2"); /* trusts another CA */
    weft_link_server_options options = kit_server_options(&a, &all);
    options.tls = tls;
    options.handshake_ns = 500 * MS;
    weft_link_server *const server = kit_server(&options);
    weft_link *link = NULL;
    weft_err told = {0};
    ck_assert_int_eq(dial(server, &b, stranger, &link, &told),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_msg(strstr(told.text, "TLS: ") != NULL, "%s", told.text);
    ck_assert_int_eq(dial(server, &b, doubter, &link, &told),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_msg(strstr(told.text, "its certificate: ") != NULL, "%s",
                  told.text);
    ck_assert_int_eq(dial(server, &b, NULL, &link, &told), WEFT_UNAVAILABLE);
    weft_link_server_stop(server);

    options.tls = NULL; /* and TLS on a plain port */
    weft_link_server *const plain = kit_server(&options);
    ck_assert_int_ne(dial(plain, &b, tls, &link, &told), WEFT_OK);
    weft_link_server_stop(plain);
    ck_assert_int_eq(all.n, 0);
    weft_tls_destroy(tls);
    weft_tls_destroy(stranger);
    weft_tls_destroy(doubter);
}
END_TEST

/* Of links (0), and of a server for clients (1). */
START_TEST(tls_files_are_checked)
{
    weft_tls *tls = NULL;
    weft_err told = {0};
    weft_tls_files files = {.faces_clients = _i == 1};
    OK(weft_tls_create(&files, &tls, &err));
    ck_assert_ptr_null(tls);
    weft_tls_destroy(NULL);
    files.cert_file = kit_certificate("a.pem");
    ck_assert_int_eq(weft_tls_create(&files, &tls, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(told.text, "the key is missing") != NULL, "%s",
                  told.text);
    files.key_file = kit_certificate("none.key");
    files.ca_file = kit_certificate("ca.pem");
    ck_assert_int_eq(weft_tls_create(&files, &tls, &told), WEFT_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(told.text, "none.key"));
    files.key_file = kit_certificate("b.key");
    ck_assert_int_eq(weft_tls_create(&files, &tls, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(told.text, "b.key"));
    files.key_file = kit_certificate("a.key");
    files.ca_file = kit_certificate("a.key");
    ck_assert_int_eq(weft_tls_create(&files, &tls, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(told.text, "a.key"));
    ck_assert_ptr_null(tls);
}
END_TEST

static void add(TCase *tests)
{
    const TTest *const twice[] = {both_know_each_other, garbage_has_no_effect,
                                  silent_connections_end};
    const TTest *const once[] = {
        who_does_not_fit_is_refused,     admit_may_refuse,
        an_older_incarnation_is_refused, left_out_lines_are_counted,
        another_version_is_told_so,      dials_that_fail_say_why,
        an_address_in_use_is_told};
    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++)
        tcase_add_loop_test(tests, twice[i], 0, has_tls ? 2 : 1);
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        tcase_add_test(tests, once[i]);
    if (has_tls) tcase_add_test(tests, tls_refuses_strangers);
    if (has_tls) tcase_add_loop_test(tests, tls_files_are_checked, 0, 2);
    tcase_set_timeout(tests, 240);
}

int main(void)
{
    has_tls = kit_certificates_make();
    if (!has_tls)
        (void)fprintf(stderr, "without TLS: there is no openssl command\n");
    const int result = weft_suite_run_added("dial", add);
    kit_certificates_remove();
    return result;
}
