#include "tests/support/link_kit.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "shard/link/outbox.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

#define MINUTE_NS UINT64_C(60000000000)

static char folder[128];

uint64_t kit_deadline(void)
{
    return weft_clock_now_ns() + MINUTE_NS;
}

/* -- certificates --------------------------------------------------------- */

static bool run(const char *line)
{
    char command[1024];
    (void)snprintf(command, sizeof command, "cd %s && (%s) >log.txt 2>&1",
                   folder, line);
    return system(command) == 0;
}

static bool make_ca(const char *name)
{
    char line[512];
    (void)snprintf(line, sizeof line,
                   "openssl req -x509 -newkey ec -pkeyopt "
                   "ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.pem "
                   "-days 2 -subj /CN=%s",
                   name, name, name);
    return run(line);
}

static bool make_signed(const char *name, const char *ca)
{
    char line[512];
    (void)snprintf(line, sizeof line,
                   "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
                   "-nodes -keyout %s.key -out %s.csr -subj /CN=%s && openssl "
                   "x509 -req -in %s.csr -CA %s.pem -CAkey %s.key "
                   "-CAcreateserial -out %s.pem -days 2",
                   name, name, name, name, ca, ca, name);
    return run(line);
}

bool kit_certificates_make(void)
{
    const char *const under = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/weft-link-XXXXXX",
                   under != NULL ? under : P_tmpdir);
    if (mkdtemp(folder) == NULL) {
        folder[0] = '\0';
        return false;
    }
    if (!run("command -v openssl")) {
        kit_certificates_remove();
        return false;
    }
    if (!make_ca("ca") || !make_ca("ca2") || !make_signed("a", "ca") ||
        !make_signed("b", "ca") || !make_signed("c", "ca2")) {
        (void)fprintf(stderr, "openssl makes no certificates in %s\n", folder);
        abort();
    }
    return true;
}

void kit_certificates_remove(void)
{
    char command[256];
    if (folder[0] == '\0') return;
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        (void)fprintf(stderr, "%s could not be removed\n", folder);
    folder[0] = '\0';
}

const char *kit_certificate(const char *file)
{
    static char paths[8][256];
    static int next;
    char *const path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, file);
    return path;
}

weft_tls *kit_tls(const char *who, const char *ca)
{
    char names[3][32];
    weft_tls *tls = NULL;
    (void)snprintf(names[0], sizeof names[0], "%s.pem", who);
    (void)snprintf(names[1], sizeof names[1], "%s.key", who);
    (void)snprintf(names[2], sizeof names[2], "%s.pem", ca);
    const weft_tls_files files = {.cert_file = kit_certificate(names[0]),
                                  .key_file = kit_certificate(names[1]),
                                  .ca_file = kit_certificate(names[2])};
    OK(weft_tls_create(&files, &tls, &err));
    ck_assert_ptr_nonnull(tls);
    return tls;
}

/* -- pairs ---------------------------------------------------------------- */

weft_link_options kit_options(void)
{
    return (weft_link_options){.limits = {.body_bytes_max = 1 << 20,
                                          .rows_max = 4096,
                                          .row_bytes_max = 1 << 18}};
}

void kit_sockets(int *a_out, int *b_out)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *const any = (struct sockaddr *)(void *)&at;
    socklen_t bytes = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(listener, 0);
    ck_assert_int_eq(bind(listener, any, bytes), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, any, &bytes), 0);
    *a_out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(*a_out, any, bytes), 0);
    *b_out = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ck_assert_int_ge(*b_out, 0);
    ck_assert_int_eq(fcntl(*a_out, F_SETFL, O_NONBLOCK), 0);
    (void)close(listener);
}

/* Sessions over both, shaken. */
static void open_sessions(int a, int b, weft_tls_session **a_out,
                          weft_tls_session **b_out)
{
    weft_tls *const a_tls = kit_tls("a", "ca");
    weft_tls *const b_tls = kit_tls("b", "ca");
    OK(weft_tls_open(a_tls, a, false, a_out, &err));
    OK(weft_tls_open(b_tls, b, true, b_out, &err));
    int a_done = 0;
    int b_done = 0;
    const uint64_t deadline = kit_deadline();
    while (a_done != 1 || b_done != 1) {
        bool out = false;
        a_done = weft_tls_shake(*a_out, &out);
        b_done = weft_tls_shake(*b_out, &out);
        ck_assert_msg(a_done >= 0, "%s", weft_tls_why(*a_out));
        ck_assert_msg(b_done >= 0, "%s", weft_tls_why(*b_out));
        ck_assert(weft_clock_now_ns() < deadline);
    }
    weft_tls_destroy(a_tls); /* sessions hold what they need of it */
    weft_tls_destroy(b_tls);
}

void kit_open(kit_transport transport, const weft_link_options *a,
              const weft_link_options *b, weft_link **a_out, weft_link **b_out)
{
    int fds[2];
    weft_tls_session *sessions[2] = {NULL, NULL};
    if (transport == KIT_LOCAL) {
        OK(weft_link_create_local(a, b, a_out, b_out, &err));
        return;
    }
    kit_sockets(&fds[0], &fds[1]);
    if (transport == KIT_TLS)
        open_sessions(fds[0], fds[1], &sessions[0], &sessions[1]);
    OK(weft_link_create_tcp(fds[0], sessions[0], false, a, a_out, &err));
    OK(weft_link_create_tcp(fds[1], sessions[1], false, b, b_out, &err));
}

weft_link *kit_open_raw(kit_transport transport,
                        const weft_link_options *options, kit_raw *raw_out)
{
    int fd = -1;
    weft_tls_session *session = NULL;
    weft_link *link = NULL;
    *raw_out = (kit_raw){.fd = -1};
    kit_sockets(&raw_out->fd, &fd);
    if (transport == KIT_TLS)
        open_sessions(raw_out->fd, fd, &raw_out->session, &session);
    OK(weft_link_create_tcp(fd, session, false, options, &link, &err));
    return link;
}

void kit_raw_write(const kit_raw *raw, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    const uint64_t deadline = kit_deadline();
    while (n > 0) {
        const ptrdiff_t sent = raw->session != NULL
                                   ? weft_tls_write(raw->session, at, n)
                                   : send(raw->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0) {
            /* The link may have closed on what came before. */
            if (errno == EPIPE || errno == ECONNRESET || errno == EPROTO)
                return;
            ck_assert_int_eq(errno, EAGAIN);
            ck_assert(weft_clock_now_ns() < deadline);
            (void)sched_yield();
            continue;
        }
        at += sent;
        n -= (size_t)sent;
    }
}

void kit_raw_close(kit_raw *raw, bool reset)
{
    const struct linger at_once = {.l_onoff = 1};
    if (reset)
        (void)setsockopt(raw->fd, SOL_SOCKET, SO_LINGER, &at_once,
                         sizeof at_once);
    if (!reset) weft_tls_close(raw->session);
    (void)close(raw->fd);
    if (reset) weft_tls_close(raw->session);
    *raw = (kit_raw){.fd = -1};
}

/* -- frames --------------------------------------------------------------- */

size_t kit_print(const weft_frame *frame, const void *const *rows,
                 unsigned char *out)
{
    size_t n = WEFT_FRAME_HEADER_BYTES;
    weft_frame_encode(frame, weft_frame_payload_crc(frame, rows), out);
    if (frame->body_bytes > 0) memcpy(out + n, frame->body, frame->body_bytes);
    n += frame->body_bytes;
    for (int32_t i = 0; i < frame->n_rows; i++, n += frame->row_bytes)
        memcpy(out + n, rows[i], frame->row_bytes);
    return n;
}

weft_frame kit_recv(weft_link *link, weft_link *other)
{
    const uint64_t deadline = kit_deadline();
    weft_frame frame = {.n_rows = 0};
    weft_frame unwanted;
    bool got = false;
    for (;;) {
        OK(weft_link_recv(link, &frame, &got, &err));
        if (got) return frame;
        if (other != NULL) OK(weft_link_recv(other, &unwanted, &got, &err));
        ck_assert_msg(!got, "a frame \"%s\" that nobody sent",
                      weft_frame_type_name(unwanted.type));
        ck_assert_msg(weft_clock_now_ns() < deadline, "no frame came");
        (void)sched_yield();
    }
}

const char *kit_recv_broken(weft_link *link)
{
    static weft_err err;
    const uint64_t deadline = kit_deadline();
    weft_frame frame;
    bool got = false;
    weft_status st = WEFT_OK;
    for (;;) {
        st = weft_link_recv(link, &frame, &got, &err);
        if (st != WEFT_OK) break;
        ck_assert_msg(!got, "a frame \"%s\" of %zu body bytes came out",
                      weft_frame_type_name(frame.type), frame.body_bytes);
        ck_assert_msg(weft_clock_now_ns() < deadline, "it does not break");
        (void)sched_yield();
    }
    ck_assert_int_eq(st, WEFT_UNAVAILABLE);
    ck_assert(!got);
    return err.text;
}

void kit_open_pair(kit_transport transport, weft_link **a_out,
                   weft_link **b_out)
{
    const weft_link_options options = kit_options();
    kit_open(transport, &options, &options, a_out, b_out);
}

void kit_close_pair(weft_link *a, weft_link *b)
{
    weft_link_close(a);
    weft_link_close(b);
}

static const kit_tests *suite;
static int n_transports = KIT_TRANSPORTS;

static void add(TCase *tests)
{
    for (size_t i = 0; i < suite->n_all; i++)
        tcase_add_loop_test(tests, suite->all[i], KIT_LOCAL, n_transports);
    for (size_t i = 0; i < suite->n_raw; i++)
        tcase_add_loop_test(tests, suite->raw[i], KIT_TCP, n_transports);
    tcase_set_timeout(tests, 240);
}

int kit_run(const char *name, const kit_tests *tests)
{
    suite = tests;
    if (!kit_certificates_make()) {
        (void)fprintf(stderr, "without TLS: there is no openssl command\n");
        n_transports = KIT_TLS;
    }
    const int result = weft_suite_run_added(name, add);
    kit_certificates_remove();
    return result;
}
