/* The HTTP side over real sockets: paths, methods, and bytes that are no HTTP.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "node/base/str.h"
#include "node/rpc/http/http.h"
#include "tests/support/suite.h"

static weft_http_server *server;
static atomic_int ready_status = 200;

static int healthz(void *arg, weft_buf *body)
{
    (void)arg;
    ck_assert_int_eq(weft_buf_add(body, "ok\n", 3, NULL), WEFT_OK);
    return 200;
}

static int readyz(void *arg, weft_buf *body)
{
    (void)arg;
    ck_assert_int_eq(weft_buf_add(body, "draining\n", 9, NULL), WEFT_OK);
    return atomic_load(&ready_status);
}

static int metrics(void *arg, weft_buf *body)
{
    return weft_buf_printf(body, NULL, "weft_x %s\n", (const char *)arg) ==
                   WEFT_OK
               ? 200
               : 500;
}

static void open_server(void)
{
    union {
        const char *from;
        void *to;
    } arg = {.from = "7"};
    const weft_http_ops ops = {.healthz = healthz,
                               .readyz = readyz,
                               .metrics = metrics,
                               .arg = arg.to};
    weft_err err = {0};
    const weft_status st =
        weft_http_server_start("127.0.0.1:0", &ops, &server, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
}

/* The loopback address that a client dials from. */
static uint32_t own_address = INADDR_LOOPBACK;

static int dial(void)
{
    const char *colon = strrchr(weft_http_server_address(server), ':');
    int64_t port = 0;
    ck_assert(weft_parse_i64(colon + 1, 1, UINT16_MAX, &port));
    const struct sockaddr_in at = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in own = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(own_address),
    };
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        bind(fd, (const struct sockaddr *)(const void *)&own, sizeof own), 0);
    ck_assert_int_eq(
        connect(fd, (const struct sockaddr *)(const void *)&at, sizeof at), 0);
    return fd;
}

/* How long to wait for an answer; 0: until the server closes. */
static time_t patience_s;

/* What comes back until the server closes; *n_out bytes, NUL-terminated. */
static char answer[65536];

static void ask_bytes(const char *bytes, size_t n)
{
    const int fd = dial();
    const struct timeval patience = {.tv_sec = patience_s};
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    (void)send(fd, bytes, n, MSG_NOSIGNAL); /* it may close before the end */
    (void)shutdown(fd, SHUT_WR);
    size_t at = 0;
    ssize_t got;
    while (at < sizeof answer - 1 &&
           (got = recv(fd, answer + at, sizeof answer - 1 - at, 0)) > 0)
        at += (size_t)got;
    answer[at] = '\0';
    (void)close(fd);
}

static int ask(const char *verb, const char *path)
{
    char request[6000];
    const int n = snprintf(
        request, sizeof request,
        "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", verb, path);
    ask_bytes(request, (size_t)n);
    static const char version[] = "HTTP/1.1 ";
    ck_assert_msg(strncmp(answer, version, sizeof version - 1) == 0, "%s",
                  answer);
    const char *const number = answer + sizeof version - 1;
    char *end = NULL;
    const long status = strtol(number, &end, 10);
    ck_assert_msg(end != number, "%s", answer);
    return (int)status;
}

static const char *body(void)
{
    const char *blank = strstr(answer, "\r\n\r\n");
    ck_assert_ptr_nonnull(blank);
    return blank + 4;
}

START_TEST(paths_and_methods)
{
    open_server();
    ck_assert_int_eq(ask("GET", "/healthz"), 200);
    ck_assert_str_eq(body(), "ok\n");
    ck_assert_int_eq(ask("GET", "/metrics"), 200);
    ck_assert_str_eq(body(), "weft_x 7\n");
    ck_assert_ptr_nonnull(strstr(answer, "version=0.0.4"));
    ck_assert_int_eq(ask("GET", "/metrics?x=1"), 200);
    ck_assert_int_eq(ask("HEAD", "/metrics"), 200);
    ck_assert_str_eq(body(), "");
    ck_assert_int_eq(ask("GET", "/readyz"), 200);
    atomic_store(&ready_status, 503);
    ck_assert_int_eq(ask("GET", "/readyz"), 503);
    ck_assert_str_eq(body(), "draining\n");
    static const char *const missing[] = {"/", "/no/such", "/healthz/",
                                          "/../../etc/passwd", "/METRICS"};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        ck_assert_int_eq(ask("GET", missing[i]), 404);
    static const char *const verbs[] = {"POST", "PUT", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        ck_assert_int_eq(ask(verbs[i], "/metrics"), 405);
        ck_assert_ptr_nonnull(strstr(answer, "Allow: GET, HEAD"));
    }
    weft_http_server_destroy(server);
}
END_TEST

START_TEST(garbage_does_no_harm)
{
    static const char get[] = "GET /";
    static char large[200000];
    static const char *const lines[] = {
        "\x16\x03\x01\x00\xa5\x01",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x01\x02",
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
         "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"),
        "GET\r\n\r\n",
        "\r\n\r\n\r\n"};
    open_server();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        ask_bytes(lines[i], strlen(lines[i]));
        ck_assert_int_eq(ask("GET", "/healthz"), 200);
    }
    memset(large, 'a', sizeof large);
    memcpy(large, get, sizeof get - 1);
    ask_bytes(large, sizeof large);
    ck_assert_int_eq(ask("GET", "/healthz"), 200);
    memset(large, 0, sizeof large);
    ask_bytes(large, sizeof large);
    ck_assert_int_eq(ask("GET", "/healthz"), 200);
    weft_http_server_destroy(server);
}
END_TEST

START_TEST(silent_connections_leave_room)
{
    enum { N = 50 };
    int fds[N];
    open_server();
    for (int i = 0; i < N; i++) fds[i] = dial();
    ck_assert_int_eq(ask("GET", "/healthz"), 200);
    for (int i = 0; i < N; i++) (void)close(fds[i]);
    weft_http_server_destroy(server);
}
END_TEST

/* One client that opens all it can does not keep a probe from elsewhere out. */
START_TEST(one_client_leaves_room_for_others)
{
    enum { N = 200 };
    int fds[N];
    open_server();
    for (int i = 0; i < N; i++) fds[i] = dial();
    own_address = INADDR_LOOPBACK + 1;
    patience_s = 5; /* before the silent ones are closed for being idle */
    ck_assert_int_eq(ask("GET", "/healthz"), 200);
    for (int i = 0; i < N; i++) (void)close(fds[i]);
    weft_http_server_destroy(server);
}
END_TEST

START_TEST(a_port_in_use_is_named)
{
    weft_http_server *other = NULL;
    weft_err err = {0};
    const weft_http_ops ops = {
        .healthz = healthz, .readyz = readyz, .metrics = metrics};
    open_server();
    const char *address = weft_http_server_address(server);
    ck_assert_int_eq(weft_http_server_start(address, &ops, &other, &err),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, address));
    ck_assert_ptr_nonnull(strstr(err.text, "in use"));
    ck_assert_int_eq(weft_http_server_start("127.0.0.1", &ops, &other, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(other);
    weft_http_server_destroy(server);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        paths_and_methods,
        garbage_does_no_harm,
        silent_connections_leave_room,
        one_client_leaves_room_for_others,
        a_port_in_use_is_named,
    };
    return WEFT_SUITE_RUN("http", tests);
}
