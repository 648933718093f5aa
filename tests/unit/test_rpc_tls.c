/* TLS and API keys of the public gRPC port. */
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/clock.h"
#include "node/rpc/tls_front.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

/* -- files ---------------------------------------------------------------- */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char paths[8][128];
    static int next;
    char *const path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* In the folder, with a and b as $1 and $2. */
static void run(const char *script, const char *a, const char *b)
{
    char line[1024];
    const int n = snprintf(line, sizeof line, "cd %s && set -- %s %s && %s",
                           folder, a, b, script);
    ck_assert_int_lt(n, (int)sizeof line);
    ck_assert_msg(system(line) == 0, "%s", line);
}

/* NAME.pem and NAME.key for 127.0.0.1, signed by CA.pem, which is made too. */
static void make_certificate(const char *name, const char *ca)
{
    run("{ test -e $2.pem || openssl req -x509 -newkey ec -pkeyopt "
        "ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=$2 -keyout $2.key "
        "-out $2.pem 2>/dev/null; }",
        name, ca);
    run("printf 'subjectAltName=IP:127.0.0.1' >ext && openssl req -newkey ec "
        "-pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$1 -keyout $1.key "
        "-out $1.csr 2>/dev/null && openssl x509 -req -in $1.csr -CA $2.pem "
        "-CAkey $2.key -CAcreateserial -days 2 -extfile ext -out $1.pem "
        "2>/dev/null",
        name, ca);
}

static void write_text(const char *name, const char *text)
{
    FILE *const file = fopen(in_folder(name), "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void make_folder(void)
{
    (void)snprintf(folder, sizeof folder, "%s/weft-rpc-XXXXXX", P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    make_certificate("server", "ca");
}

static void remove_folder(void)
{
    run("rm -rf $PWD", "a", "b");
}

/* -- servers and clients -------------------------------------------------- */

static weft_tls *tls_of(const char *cert, const char *client_ca)
{
    char pem[64], key[64];
    weft_tls *tls = NULL;
    weft_err err = {0};
    (void)snprintf(pem, sizeof pem, "%s.pem", cert);
    (void)snprintf(key, sizeof key, "%s.key", cert);
    const weft_tls_files files = {
        .cert_file = in_folder(pem),
        .key_file = in_folder(key),
        .ca_file = client_ca == NULL ? NULL : in_folder(client_ca),
        .faces_clients = true};
    ck_assert_msg(weft_tls_create(&files, &tls, &err) == WEFT_OK, "%s",
                  err.text);
    return tls;
}

static served serve_tls(weft_tls *tls, weft_keys *keys)
{
    weft_rpc_options options = weft_rpc_options_default();
    options.tls = tls;
    options.keys = keys;
    return serve(options);
}

static weft_status connect_to(const served *node, const char *ca,
                              const char *key, weft_client **client_out)
{
    const weft_client_options options = {
        .address = weft_rpc_server_address(node->server),
        .timeout_ns = SECONDS(20),
        .ca_file = ca == NULL ? NULL : in_folder(ca),
        .key = key};
    *client_out = NULL;
    return weft_client_create(&options, client_out, NULL);
}

static weft_status ask(weft_client *client)
{
    weft_arena *arena = NULL;
    weft_model_info model;
    ck_assert_int_eq(weft_arena_create(1 << 20, &arena, NULL), WEFT_OK);
    const weft_status st =
        weft_client_get_model(client, SECONDS(20), arena, &model, NULL);
    weft_arena_destroy(arena);
    return st;
}

/* A connection that says nothing of its own. */
static int connect_raw(const served *node)
{
    weft_address address;
    int fd = -1;
    ck_assert_int_eq(weft_address_parse(weft_rpc_server_address(node->server),
                                        &address, NULL),
                     WEFT_OK);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)address.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)(void *)&at, sizeof at), 0);
    return fd;
}

/* -- TLS ------------------------------------------------------------------ */

START_TEST(streams_go_through_tls)
{
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &client), WEFT_OK);
    ck_assert_int_eq(ask(client), WEFT_OK);
    struct seen seen = {.n_top = -1};
    const weft_generate_request request = request_of("hello", 5000);
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(60),
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_int_eq(seen.tokens, 5000);
    ck_assert_int_eq(seen.completes, 1);
    weft_client_destroy(client);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

/* Far more than any buffer on the way. */
START_TEST(large_messages_go_through_tls)
{
    enum { BYTES = 8 << 20 };
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    char *const text = malloc(BYTES + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', BYTES);
    text[BYTES] = '\0';
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &client), WEFT_OK);
    struct seen seen = {.n_top = -1};
    const weft_generate_request request = request_of(text, 3);
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(60),
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_int_eq(seen.tokens, 3);
    weft_client_destroy(client);
    free(text);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

START_TEST(who_is_not_meant_is_refused)
{
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    make_certificate("other", "ca2");
    ck_assert_int_eq(connect_to(&node, "ca2.pem", NULL, &client),
                     WEFT_UNAVAILABLE);
    ck_assert_int_eq(connect_to(&node, NULL, NULL, &client), WEFT_UNAVAILABLE);
    ck_assert_int_ne(connect_to(&node, "nothing.pem", NULL, &client), WEFT_OK);
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &client), WEFT_OK);
    weft_client_destroy(client);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

START_TEST(a_client_certificate_can_be_wanted)
{
    weft_tls *const tls = tls_of("server", "ca.pem");
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    /* TLS 1.3 tells a client of it only after its own handshake is done. */
    if (connect_to(&node, "ca.pem", NULL, &client) == WEFT_OK)
        ck_assert_int_eq(ask(client), WEFT_UNAVAILABLE);
    weft_client_destroy(client);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

START_TEST(garbage_is_closed)
{
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    char got[64];
    const int fd = connect_raw(&node);
    ck_assert_int_eq(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    /* An alert, perhaps, and then the end. */
    for (;;) {
        const ssize_t n = recv(fd, got, sizeof got, 0);
        if (n <= 0) break;
    }
    (void)close(fd);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

/* More than may shake hands at once, who say nothing: others get through. */
START_TEST(the_silent_keep_nobody_out)
{
    enum { SILENT = 300 };
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    int fds[SILENT];
    for (int i = 0; i < SILENT; i++) fds[i] = connect_raw(&node);
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &client), WEFT_OK);
    ck_assert_int_eq(ask(client), WEFT_OK);
    weft_client_destroy(client);
    for (int i = 0; i < SILENT; i++) (void)close(fds[i]);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

/* Until the server's files are looked at again. */
static weft_client *connect_in_time(const served *node, const char *ca,
                                    const char *key)
{
    const uint64_t end_ns = weft_clock_now_ns() + SECONDS(20);
    for (;;) {
        weft_client *client = NULL;
        if (connect_to(node, ca, key, &client) == WEFT_OK &&
            ask(client) == WEFT_OK)
            return client;
        weft_client_destroy(client);
        ck_assert_uint_lt(weft_clock_now_ns(), end_ns);
    }
}

/* The same, and on for so long that they are certainly looked at. */
static void stay_welcome(const served *node, const char *ca, const char *key)
{
    const uint64_t end_ns = weft_clock_now_ns() + SECONDS(6) / 5;
    while (weft_clock_now_ns() < end_ns) {
        weft_client *client = NULL;
        ck_assert_int_eq(connect_to(node, ca, key, &client), WEFT_OK);
        ck_assert_int_eq(ask(client), WEFT_OK);
        weft_client_destroy(client);
    }
}

START_TEST(a_renewed_certificate_is_taken_up)
{
    make_certificate("live", "ca");
    weft_tls *const tls = tls_of("live", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *before = NULL;
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &before), WEFT_OK);
    make_certificate("live", "ca3");
    weft_client *const after = connect_in_time(&node, "ca3.pem", NULL);
    /* Who is connected stays connected. */
    ck_assert_int_eq(ask(before), WEFT_OK);
    /* A file that is broken changes nothing. */
    write_text("live.pem", "no certificate\n");
    stay_welcome(&node, "ca3.pem", NULL);
    weft_client_destroy(before);
    weft_client_destroy(after);
    serve_end(&node);
    weft_tls_destroy(tls);
}
END_TEST

static served *stopping;
static void start_stop(void)
{
    weft_rpc_server_set_serving(stopping->server, false);
}

/* A stream that runs goes on to its end while the server stops. */
START_TEST(a_stop_lets_streams_end)
{
    weft_tls *const tls = tls_of("server", NULL);
    served node = serve_tls(tls, NULL);
    weft_client *client = NULL;
    stopping = &node;
    ck_assert_int_eq(connect_to(&node, "ca.pem", NULL, &client), WEFT_OK);
    struct seen seen = {.n_top = -1, .on_first = start_stop};
    const weft_generate_request request = request_of("hello", 1000);
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(60),
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_int_eq(seen.tokens, 1000);
    serve_end(&node);
    ck_assert_int_eq(ask(client), WEFT_UNAVAILABLE);
    weft_client_destroy(client);
    weft_tls_destroy(tls);
}
END_TEST

/* -- the front alone ------------------------------------------------------ */

static void take_plain(void *arg, int fd)
{
    atomic_store((atomic_int *)arg, fd);
}

/* A client's session, whose handshake is done. */
static weft_tls_session *shake_hands(weft_tls *tls, int fd)
{
    const uint64_t end_ns = weft_clock_now_ns() + SECONDS(20);
    weft_tls_session *session = NULL;
    bool wants_out = false;
    ck_assert_int_eq(weft_tls_open(tls, fd, false, &session, NULL), WEFT_OK);
    for (;;) {
        const int done = weft_tls_shake(session, &wants_out);
        ck_assert_msg(done >= 0, "%s", weft_tls_why(session));
        if (done == 1) return session;
        ck_assert_uint_lt(weft_clock_now_ns(), end_ns);
    }
}

static size_t read_to_end(weft_tls_session *session)
{
    const uint64_t end_ns = weft_clock_now_ns() + SECONDS(20);
    char got[4096];
    size_t all = 0;
    for (;;) {
        const ptrdiff_t n = weft_tls_read(session, got, sizeof got);
        if (n == 0) return all;
        if (n > 0) all += (size_t)n;
        ck_assert_msg(n > 0 || errno == EAGAIN, "after %zu: %s", all,
                      weft_tls_why(session));
        ck_assert_uint_lt(weft_clock_now_ns(), end_ns);
    }
}

/* A client that still has something to say does not lose the last bytes of a
 * server that has closed. */
START_TEST(last_bytes_come_though_the_client_talks)
{
    enum { BYTES = 65536, SOCKET_BYTES = 4096 };
    static const char last[BYTES];
    const int little = SOCKET_BYTES;
    const weft_tls_files files = {.cert_file = in_folder("server.pem"),
                                  .key_file = in_folder("server.key"),
                                  .ca_file = in_folder("ca.pem")};
    weft_tls *const tls = tls_of("server", NULL);
    weft_tls *asker = NULL;
    weft_tls_front *front = NULL;
    atomic_int plain = -1;
    int pair[2];
    ck_assert_int_eq(weft_tls_create(&files, &asker, NULL), WEFT_OK);
    ck_assert_int_eq(
        weft_tls_front_start(tls, take_plain, &plain, &front, NULL), WEFT_OK);
    ck_assert_int_eq(socketpair(AF_UNIX,
                                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                                pair),
                     0);
    /* Most of what the server says cannot have left when it closes. */
    ck_assert_int_eq(
        setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
    weft_tls_front_take(front, pair[0]);
    weft_tls_session *const session = shake_hands(asker, pair[1]);
    const uint64_t end_ns = weft_clock_now_ns() + SECONDS(20);
    while (atomic_load(&plain) < 0)
        ck_assert_uint_lt(weft_clock_now_ns(), end_ns);
    ck_assert_int_eq(send(plain, last, BYTES, MSG_NOSIGNAL), BYTES);
    (void)close(plain);
    ck_assert_int_eq(weft_tls_write(session, "more", 4), 4);
    ck_assert_uint_eq(read_to_end(session), BYTES);
    weft_tls_close(session);
    (void)close(pair[1]);
    weft_tls_front_stop(front);
    weft_tls_destroy(asker);
    weft_tls_destroy(tls);
}
END_TEST

/* -- keys ----------------------------------------------------------------- */

#define KEY   "0123456789abcdef"
#define OTHER "fedcba9876543210-long"

START_TEST(keys_are_wanted)
{
    weft_keys *keys = NULL;
    write_text("keys", "# of the fleet\n\n" KEY "\r\n" OTHER);
    ck_assert_int_eq(weft_keys_create(in_folder("keys"), &keys, NULL), WEFT_OK);
    served node = serve_tls(NULL, keys);
    static const struct {
        const char *key;
        weft_status wanted;
    } cases[] = {
        {NULL, WEFT_UNAUTHENTICATED},
        {KEY "x", WEFT_UNAUTHENTICATED},
        {"0123456789abcde", WEFT_UNAUTHENTICATED},
        {"0123456789abcdeX", WEFT_UNAUTHENTICATED},
        {"# of the fleet__", WEFT_UNAUTHENTICATED},
        {KEY, WEFT_OK},
        {OTHER, WEFT_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_client *client = NULL;
        bool serving = false;
        ck_assert_int_eq(connect_to(&node, NULL, cases[i].key, &client),
                         WEFT_OK);
        ck_assert_msg(ask(client) == cases[i].wanted, "case %zu", i);
        struct seen seen = {.n_top = -1};
        const weft_generate_request request = request_of("hello", 2);
        ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(20),
                                              on_response, &seen, NULL),
                         cases[i].wanted);
        ck_assert_int_eq(seen.tokens, cases[i].wanted == WEFT_OK ? 2 : 0);
        /* Probes have no key. */
        ck_assert_int_eq(
            weft_client_health(client, SECONDS(20), &serving, NULL), WEFT_OK);
        ck_assert(serving);
        weft_client_destroy(client);
    }
    serve_end(&node);
    weft_keys_destroy(keys);
}
END_TEST

START_TEST(keys_change_without_a_restart)
{
    weft_keys *keys = NULL;
    write_text("live", KEY "\n");
    ck_assert_int_eq(weft_keys_create(in_folder("live"), &keys, NULL), WEFT_OK);
    served node = serve_tls(NULL, keys);
    write_text("live", OTHER "\n");
    weft_client *const client = connect_in_time(&node, NULL, OTHER);
    weft_client *old = NULL;
    ck_assert_int_eq(connect_to(&node, NULL, KEY, &old), WEFT_OK);
    ck_assert_int_eq(ask(old), WEFT_UNAUTHENTICATED);
    /* A file without any would shut everybody out; it changes nothing. */
    write_text("live", "short\n");
    stay_welcome(&node, NULL, OTHER);
    weft_client_destroy(client);
    weft_client_destroy(old);
    serve_end(&node);
    weft_keys_destroy(keys);
}
END_TEST

START_TEST(wrong_keys_are_named_by_their_line)
{
    static const struct {
        const char *text, *names;
    } cases[] = {
        {"", "no key in it"},
        {"# none\n\n", "no key in it"},
        {KEY "\nshort\n", "line 2"},
        {"with a space 123456\n", "line 1"},
        {KEY "\n\n\x80" KEY "\n", "line 3"},
    };
    weft_keys *keys = NULL;
    weft_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text("keys", cases[i].text);
        ck_assert_int_eq(weft_keys_create(in_folder("keys"), &keys, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, cases[i].names) != NULL, "%s", err.text);
        ck_assert_ptr_null(strstr(err.text, KEY));
    }
    ck_assert_int_eq(weft_keys_create(in_folder("nothing"), &keys, &err),
                     WEFT_NOT_FOUND);
    char longest[WEFT_KEY_BYTES_MAX + 2], first[WEFT_KEY_BYTES_MAX + 1];
    memset(longest, 'k', sizeof longest);
    longest[WEFT_KEY_BYTES_MAX + 1] = '\0';
    write_text("keys", longest);
    ck_assert_int_eq(weft_keys_create(in_folder("keys"), &keys, &err),
                     WEFT_INVALID_ARGUMENT);
    longest[WEFT_KEY_BYTES_MAX] = '\0';
    write_text("keys", longest);
    ck_assert_int_eq(weft_keys_read_first(in_folder("keys"), first, &err),
                     WEFT_OK);
    ck_assert_str_eq(first, longest);
}
END_TEST

static void add(TCase *tests)
{
    const TTest *const all[] = {
        streams_go_through_tls,
        large_messages_go_through_tls,
        who_is_not_meant_is_refused,
        a_client_certificate_can_be_wanted,
        garbage_is_closed,
        the_silent_keep_nobody_out,
        a_renewed_certificate_is_taken_up,
        a_stop_lets_streams_end,
        last_bytes_come_though_the_client_talks,
        keys_are_wanted,
        keys_change_without_a_restart,
        wrong_keys_are_named_by_their_line,
    };
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    tcase_set_timeout(tests, 60);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        tcase_add_test(tests, all[i]);
}

int main(void)
{
    return weft_suite_run_added("rpc_tls", add);
}
