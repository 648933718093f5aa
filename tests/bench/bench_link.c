/* What a link costs: round trips of frames of 1 to 32 rows against round trips
 * of the same bytes over a plain blocking TCP connection, in the same run, and
 * throughput one way. One JSON line a case.
 *
 *   bench_link [SECONDS]     of each case, about; 0.5 otherwise
 *
 * Both ends are threads of this process, on loopback. The two ways take turns
 * in small portions, so that what else the machine does strikes both. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "shard/link/dial.h"

enum {
    ROWS_MAX = 32,
    ROW_BYTES = 20480, /* 5120 floats: a row of the first model */
    BODY_BYTES = 256,
    PORTION = 20,
    SAMPLES_MAX = 200000,
};
#define SPIN_NS     UINT64_C(50000)
#define DEADLINE_NS UINT64_C(60000000000)

#define TRY(call)                                                              \
    do {                                                                       \
        weft_err err = {0};                                                    \
        if ((call) != WEFT_OK) die(err.text);                                  \
    } while (0)

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "bench_link: %s\n", what);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct samples {
    double *us;
    size_t n;
} samples;

static double percentile(samples *of, double share)
{
    if (of->n == 0) die("no samples");
    qsort(of->us, of->n, sizeof *of->us, compare);
    return of->us[(size_t)((double)(of->n - 1) * share)];
}

static void add(samples *to, uint64_t began)
{
    if (to->n < SAMPLES_MAX)
        to->us[to->n++] = (double)(weft_clock_now_ns() - began) / 1000;
}

/* -- a plain connection --------------------------------------------------- */

static void raw_send(int fd, const unsigned char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) die(strerror(errno));
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* false: the end. */
static bool raw_recv(int fd, unsigned char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t got = recv(fd, bytes, n, 0);
        if (got <= 0) return false;
        bytes += got;
        n -= (size_t)got;
    }
    return true;
}

typedef struct raw {
    int client, server;
    size_t bytes; /* of a message, either way */
    unsigned char *there, *back;
    pthread_t thread;
} raw;

static void *raw_echo(void *arg)
{
    raw *const own = arg;
    while (raw_recv(own->server, own->back, own->bytes))
        raw_send(own->server, own->back, own->bytes);
    return NULL;
}

static void raw_open(raw *own, size_t bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *const any = (struct sockaddr *)(void *)&at;
    socklen_t at_bytes = sizeof at;
    const int one = 1;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    own->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || own->client < 0 || bind(listener, any, at_bytes) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, any, &at_bytes) != 0 ||
        connect(own->client, any, at_bytes) != 0)
        die(strerror(errno));
    own->server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    (void)close(listener);
    (void)setsockopt(own->client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(own->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    own->bytes = bytes;
    own->there = calloc(bytes, 1);
    own->back = calloc(bytes, 1);
    if (own->there == NULL || own->back == NULL) die("no memory");
    if (pthread_create(&own->thread, NULL, raw_echo, own) != 0)
        die("no thread");
}

static void raw_close(raw *own)
{
    (void)shutdown(own->client, SHUT_RDWR);
    (void)pthread_join(own->thread, NULL);
    (void)close(own->client);
    (void)close(own->server);
    free(own->there);
    free(own->back);
}

static void raw_round(raw *own)
{
    raw_send(own->client, own->there, own->bytes);
    if (!raw_recv(own->client, own->there, own->bytes)) die("cut");
}

/* -- links ---------------------------------------------------------------- */

typedef struct end {
    weft_link *link;
    weft_poller *poller;
} end;

static void end_open(end *own, weft_link *link)
{
    own->link = link;
    TRY(weft_poller_create(&own->poller, &err));
    TRY(weft_poller_add(own->poller, link, &err));
}

static void end_close(end *own)
{
    weft_poller_remove(own->poller, own->link);
    weft_poller_destroy(own->poller);
    weft_link_close(own->link);
}

static void end_send(end *own, const weft_frame *frame, const void *const *rows)
{
    TRY(weft_link_send(own->link, frame, rows, &err));
}

/* The next frame; false: the link is closed. */
static bool end_recv(end *own, weft_frame *frame_out)
{
    for (;;) {
        bool got = false;
        if (weft_link_recv(own->link, frame_out, &got, NULL) != WEFT_OK)
            return false;
        if (got) return true;
        weft_poller_wait(own->poller, weft_clock_now_ns() + DEADLINE_NS,
                         SPIN_NS);
    }
}

/* Answers each frame with as many rows from memory of its own. */
static void *link_echo(void *arg)
{
    end *const own = arg;
    static unsigned char own_memory[ROWS_MAX][ROW_BYTES];
    static unsigned char own_body[BODY_BYTES];
    const void *rows[ROWS_MAX];
    weft_frame frame;
    for (int i = 0; i < ROWS_MAX; i++) rows[i] = own_memory[i];
    while (end_recv(own, &frame)) {
        frame.type = WEFT_FRAME_ANSWER;
        frame.body = own_body;
        end_send(own, &frame, rows);
    }
    return NULL;
}

static void *link_swallow(void *arg)
{
    weft_frame frame;
    while (end_recv(arg, &frame)) continue;
    return NULL;
}

static void link_round(end *own, const weft_frame *frame,
                       const void *const *rows)
{
    weft_frame answer;
    end_send(own, frame, rows);
    if (!end_recv(own, &answer) || answer.n_rows != frame->n_rows) die("cut");
}

/* -- a pair over a listener ----------------------------------------------- */

typedef struct meeting {
    _Atomic(weft_link *) taken;
} meeting;

static void take(void *arg, weft_link *link, const weft_hello *peer)
{
    (void)peer;
    atomic_store(&((meeting *)arg)->taken, link);
}

static void pair_open(end *client, end *server)
{
    const weft_hello own = {.protocol_min = 1,
                            .protocol_max = 1,
                            .id = "bench",
                            .role = WEFT_ROLE_EXPERTS};
    meeting at = {NULL};
    const weft_link_options options = {.limits = {.body_bytes_max = 1 << 20,
                                                  .rows_max = ROWS_MAX,
                                                  .row_bytes_max = ROW_BYTES}};
    const weft_link_server_options listen = {.listen = "127.0.0.1:0",
                                             .own = &own,
                                             .link = options,
                                             .take = take,
                                             .arg = &at};
    weft_link_server *listener = NULL;
    weft_link *link = NULL;
    weft_hello peer;
    TRY(weft_link_server_start(&listen, &listener, &err));
    TRY(weft_link_dial(weft_link_server_address(listener), &own, NULL, &options,
                       weft_clock_now_ns() + DEADLINE_NS, &link, &peer, &err));
    while (atomic_load(&at.taken) == NULL) continue;
    weft_link_server_stop(listener);
    end_open(client, link);
    end_open(server, atomic_load(&at.taken));
}

/* -- cases ---------------------------------------------------------------- */

static unsigned char memory[ROWS_MAX][ROW_BYTES];
static unsigned char body[BODY_BYTES];

static void bench_rounds(int32_t n_rows, uint64_t for_ns)
{
    end client, server;
    raw plain;
    pthread_t thread;
    const void *rows[ROWS_MAX];
    samples link_us = {malloc(SAMPLES_MAX * sizeof(double)), 0};
    samples raw_us = {malloc(SAMPLES_MAX * sizeof(double)), 0};
    const weft_frame frame = {.type = WEFT_FRAME_DISPATCH,
                              .body = body,
                              .body_bytes = BODY_BYTES,
                              .n_rows = n_rows,
                              .row_bytes = ROW_BYTES};
    const size_t bytes =
        WEFT_FRAME_HEADER_BYTES + BODY_BYTES + (size_t)n_rows * ROW_BYTES;
    if (link_us.us == NULL || raw_us.us == NULL) die("no memory");
    for (int i = 0; i < ROWS_MAX; i++) rows[i] = memory[i];
    pair_open(&client, &server);
    raw_open(&plain, bytes);
    if (pthread_create(&thread, NULL, link_echo, &server) != 0)
        die("no thread");
    const uint64_t until = weft_clock_now_ns() + for_ns;
    for (bool warm = false; weft_clock_now_ns() < until; warm = true) {
        for (int i = 0; i < PORTION; i++) {
            const uint64_t began = weft_clock_now_ns();
            raw_round(&plain);
            if (warm) add(&raw_us, began);
        }
        for (int i = 0; i < PORTION; i++) {
            const uint64_t began = weft_clock_now_ns();
            link_round(&client, &frame, rows);
            if (warm) add(&link_us, began);
        }
    }
    const double link_50 = percentile(&link_us, 0.5);
    const double raw_50 = percentile(&raw_us, 0.5);
    (void)printf("{\"bench\": \"link_round\", \"rows\": %d, \"row_bytes\": %d, "
                 "\"bytes\": %zu, \"link_us\": %.1f, \"raw_us\": %.1f, "
                 "\"ratio\": %.3f, \"link_p99_us\": %.1f, \"raw_p99_us\": "
                 "%.1f, \"rounds\": %zu}\n",
                 (int)n_rows, ROW_BYTES, bytes, link_50, raw_50,
                 link_50 / raw_50, percentile(&link_us, 0.99),
                 percentile(&raw_us, 0.99), link_us.n);
    end_close(&client);
    (void)pthread_join(thread, NULL);
    end_close(&server);
    raw_close(&plain);
    free(link_us.us);
    free(raw_us.us);
}

static void bench_one_way(int32_t n_rows, uint64_t for_ns)
{
    end client, server;
    pthread_t thread;
    const void *rows[ROWS_MAX];
    weft_link_stats stats;
    const weft_frame frame = {
        .type = WEFT_FRAME_HIDDEN, .n_rows = n_rows, .row_bytes = ROW_BYTES};
    for (int i = 0; i < ROWS_MAX; i++) rows[i] = memory[i];
    pair_open(&client, &server);
    if (pthread_create(&thread, NULL, link_swallow, &server) != 0)
        die("no thread");
    const uint64_t began = weft_clock_now_ns();
    while (weft_clock_now_ns() < began + for_ns) {
        const weft_status st = weft_link_send(client.link, &frame, rows, NULL);
        if (st != WEFT_OK && st != WEFT_RESOURCE_EXHAUSTED) die("cut");
        if (st == WEFT_OK) continue;
        weft_frame unused;
        bool got = false;
        weft_poller_wait(client.poller, weft_clock_now_ns() + DEADLINE_NS,
                         SPIN_NS);
        TRY(weft_link_recv(client.link, &unused, &got, &err));
    }
    TRY(weft_link_flush(client.link, weft_clock_now_ns() + DEADLINE_NS, &err));
    const double seconds = (double)(weft_clock_now_ns() - began) / 1e9;
    weft_link_get_stats(client.link, &stats);
    (void)printf("{\"bench\": \"link_one_way\", \"rows\": %d, \"row_bytes\": "
                 "%d, \"mb_per_s\": %.0f, \"frames_per_s\": %.0f}\n",
                 (int)n_rows, ROW_BYTES,
                 (double)stats.bytes_sent / 1e6 / seconds,
                 (double)stats.frames_sent / seconds);
    end_close(&client);
    (void)pthread_join(thread, NULL);
    end_close(&server);
}

static void bench_crc(void)
{
    enum { TIMES = 2000 };
    const uint64_t began = weft_clock_now_ns();
    uint32_t crc = 0;
    for (int i = 0; i < TIMES; i++)
        crc = weft_crc32c(crc, memory, sizeof memory);
    const double seconds = (double)(weft_clock_now_ns() - began) / 1e9;
    (void)printf("{\"bench\": \"crc32c\", \"bytes\": %zu, \"mb_per_s\": %.0f, "
                 "\"crc\": %u}\n",
                 sizeof memory, TIMES * (double)sizeof memory / 1e6 / seconds,
                 (unsigned)crc);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 0.5;
    if (argc > 2 || !(seconds > 0 && seconds <= 60)) {
        (void)fprintf(stderr, "usage: bench_link [SECONDS, up to 60]\n");
        return 2;
    }
    const uint64_t for_ns = (uint64_t)(seconds * 1e9);
    memset(memory, 1, sizeof memory);
    for (int32_t n_rows = 1; n_rows <= ROWS_MAX; n_rows *= 2)
        bench_rounds(n_rows, for_ns);
    for (int32_t n_rows = 1; n_rows <= ROWS_MAX; n_rows *= 8)
        bench_one_way(n_rows, for_ns);
    bench_crc();
    return 0;
}
