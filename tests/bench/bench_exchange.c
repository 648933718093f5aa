/* bench_exchange - what one layer's exchange with the expert shards costs,
 * beside a raw round trip of the same bytes.
 *
 *   bench_exchange [ROUNDS]
 *
 * Two expert shards in processes of their own, over TCP on loopback, which
 * answer with the rows that they were asked (nothing is computed), against two
 * processes that read as many bytes from a blocking socket and write as many
 * back, which are kept apart as the answers are. Both are measured in turns in
 * one run. One JSON line a case: model width, tokens, bytes each way, medians
 * and deciles, and the ratio of medians.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "node/base/str.h"
#include "shard/expert/body.h"
#include "shard/expert/exchange.h"
#include "shard/expert/server.h"
#include "shard/link/dial.h"

enum {
    SHARDS = 2,
    EXPERTS = 256,
    TOP_K = 8,
    TOKENS_MAX = 32,
    ROUNDS = 400,
    ROUNDS_MAX = 100000,
    WARM = 20,
    HALF_BYTES = 8 << 20, /* what one peer's answers take at most */
};

static const int32_t WIDTHS[] = {5120, 7168};
static const int32_t TOKENS[] = {1, 2, 4, 8, 16, 32};

_Noreturn static void die(const char *what)
{
    (void)fprintf(stderr, "bench_exchange: %s\n", what);
    exit(1);
}

static void check(weft_status st, const weft_err *err)
{
    if (st != WEFT_OK) die(err->text);
}

static weft_model_config config_of(int32_t width)
{
    weft_model_config c = {
        .hidden_size = width,
        .n_layer = 1,
        .end_layer = 1,
        .n_expert = EXPERTS,
        .top_k = TOP_K,
        .moe_intermediate_size = 16,
    };
    c.moe[0] = true;
    return c;
}

static weft_hello hello_of(weft_role role, const char *id)
{
    weft_hello h = {.protocol_min = 1,
                    .protocol_max = 1,
                    .role = role,
                    .incarnation = 1,
                    .n_stages = role == WEFT_ROLE_LAYERS ? 1 : 0};
    (void)snprintf(h.release, sizeof h.release, "bench");
    (void)snprintf(h.cluster, sizeof h.cluster, "bench");
    (void)snprintf(h.id, sizeof h.id, "%s", id);
    (void)snprintf(h.identity, sizeof h.identity, "cpu");
    return h;
}

/* -- the processes at the other end --------------------------------------- */

typedef struct other {
    pid_t pid;
    char address[WEFT_ADDRESS_BYTES];
    int fd; /* of the raw ones, connected */
} other;

static void take(void *arg, weft_link *link, const weft_hello *peer)
{
    weft_expert_server *const server = arg;
    weft_err err = {0};
    (void)peer;
    check(weft_expert_server_add_link(server, link, &err), &err);
}

/* An expert shard; tells its address through `fd`, then serves. */
_Noreturn static void be_shard(int fd, int32_t width, int32_t number)
{
    const weft_model_config config = config_of(width);
    weft_err err = {0};
    weft_expert_server *server = NULL;
    const weft_expert_server_options options = {.config = &config,
                                                .threads = 1,
                                                .max_rows = TOKENS_MAX,
                                                .links_max = 4,
                                                .echo = true};
    check(weft_expert_server_start(&options, &server, &err), &err);
    weft_expert_server_set_epochs(server, 1, 1);
    char id[16];
    (void)snprintf(id, sizeof id, "e%d", number);
    const weft_hello own = hello_of(WEFT_ROLE_EXPERTS, id);
    const weft_link_server_options listening = {
        .listen = "127.0.0.1:0",
        .own = &own,
        .link = {.limits = weft_dispatch_limits(&config)},
        .take = take,
        .arg = server,
    };
    weft_link_server *listener = NULL;
    check(weft_link_server_start(&listening, &listener, &err), &err);
    char address[WEFT_ADDRESS_BYTES] = {0};
    (void)snprintf(address, sizeof address, "%s",
                   weft_link_server_address(listener));
    if (write(fd, address, sizeof address) != sizeof address) die("pipe");
    for (;;) (void)pause();
}

static bool read_all(int fd, void *bytes, size_t n)
{
    for (size_t got = 0; got < n;) {
        const ssize_t some = recv(fd, (char *)bytes + got, n - got, 0);
        if (some <= 0) return false;
        got += (size_t)some;
    }
    return true;
}

static bool write_all(int fd, const void *bytes, size_t n)
{
    for (size_t put = 0; put < n;) {
        const ssize_t some =
            send(fd, (const char *)bytes + put, n - put, MSG_NOSIGNAL);
        if (some <= 0) return false;
        put += (size_t)some;
    }
    return true;
}

/* The first 16 bytes of what it reads say how many come in all, and how many go
 * back. */
_Noreturn static void be_raw(int fd)
{
    const size_t bytes = HALF_BYTES;
    char *const buffer = weft_mem_new(bytes, 1);
    if (buffer == NULL) die("out of memory");
    uint64_t sizes[2];
    while (read_all(fd, sizes, sizeof sizes) && sizes[0] >= sizeof sizes &&
           sizes[0] <= bytes && sizes[1] <= bytes)
        if (!read_all(fd, buffer, sizes[0] - sizeof sizes) ||
            !write_all(fd, buffer, sizes[1]))
            break;
    _exit(0);
}

static pid_t fork_child(void)
{
    const pid_t pid = fork();
    if (pid < 0) die("cannot fork");
    if (pid == 0) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static other start_shard(int32_t width, int32_t number)
{
    other o = {.fd = -1};
    int ends[2];
    if (pipe(ends) != 0) die("pipe");
    o.pid = fork_child();
    if (o.pid == 0) be_shard(ends[1], width, number);
    (void)close(ends[1]);
    if (read(ends[0], o.address, sizeof o.address) != sizeof o.address)
        die("a shard did not start");
    (void)close(ends[0]);
    return o;
}

static other start_raw(void)
{
    other o = {.fd = -1};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, n) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &n) != 0)
        die("no socket");
    o.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (o.fd < 0 || connect(o.fd, (struct sockaddr *)&at, n) != 0)
        die("no connection");
    const int there = accept(listener, NULL, NULL);
    const int on = 1;
    (void)setsockopt(o.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    o.pid = fork_child();
    if (o.pid == 0) be_raw(there);
    (void)close(there);
    (void)close(listener);
    return o;
}

static void stop(other *o)
{
    if (o->fd >= 0) (void)close(o->fd);
    (void)kill(o->pid, SIGKILL);
    (void)waitpid(o->pid, NULL, 0);
}

/* -- one case -------------------------------------------------------------- */

typedef struct bench {
    int32_t width;
    weft_model_config config;
    other shards[SHARDS], raw[SHARDS];
    weft_exchange *exchange;
    weft_experts experts;
    float *x, *out;
    char *buffer;
    int32_t chosen[TOKENS_MAX * TOP_K];
    uint64_t bytes_out[SHARDS], bytes_in[SHARDS];
} bench;

/* Distinct experts for each token; the shard of an expert is its parity. */
static void choose(bench *b, int32_t n)
{
    for (int32_t t = 0; t < n; t++)
        for (int32_t k = 0; k < TOP_K; k++)
            b->chosen[t * TOP_K + k] =
                (int32_t)((weft_rng_u64(7, (uint64_t)t * TOP_K + (uint64_t)k) %
                           32) +
                          (uint64_t)k * 32);
    for (int32_t s = 0; s < SHARDS; s++) {
        uint64_t rows = 0, pairs = 0;
        for (int32_t t = 0; t < n; t++) {
            uint64_t here = 0;
            for (int32_t k = 0; k < TOP_K; k++)
                here += b->chosen[t * TOP_K + k] % SHARDS == s;
            pairs += here;
            rows += here > 0;
        }
        const uint64_t row = (uint64_t)b->width * sizeof(float);
        const uint64_t frames =
            (pairs + WEFT_ANSWER_ROWS_MAX - 1) / WEFT_ANSWER_ROWS_MAX;
        b->bytes_out[s] = WEFT_FRAME_HEADER_BYTES + WEFT_DISPATCH_HEAD_BYTES +
                          pairs * WEFT_DISPATCH_PAIR_BYTES + rows * row;
        b->bytes_in[s] =
            frames * (WEFT_FRAME_HEADER_BYTES + 4) + pairs * (4 + row);
    }
}

static uint64_t exchange_once(bench *b, int32_t n)
{
    const weft_experts_call call = {
        .n_rows = n,
        .top_k = TOP_K,
        .x = b->x,
        .experts = b->chosen,
        .out = b->out,
    };
    weft_err err = {0};
    const uint64_t began = weft_clock_now_ns();
    b->experts.dispatch(b->experts.arg, &call);
    check(b->experts.collect(b->experts.arg, &call, &err), &err);
    return weft_clock_now_ns() - began;
}

static uint64_t raw_once(bench *b)
{
    const uint64_t began = weft_clock_now_ns();
    for (int32_t s = 0; s < SHARDS; s++) {
        const uint64_t sizes[] = {b->bytes_out[s], b->bytes_in[s]};
        memcpy(b->buffer, sizes, sizeof sizes);
        if (!write_all(b->raw[s].fd, b->buffer, b->bytes_out[s]))
            die("a raw peer is gone");
    }
    for (int64_t s = 0; s < SHARDS; s++)
        if (!read_all(b->raw[s].fd, b->buffer + s * HALF_BYTES, b->bytes_in[s]))
            die("a raw peer is gone");
    return weft_clock_now_ns() - began;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double us(const uint64_t *sorted, int32_t n, int32_t percent)
{
    const int64_t at = (int64_t)n * percent / 100;
    return (double)sorted[at] / 1e3;
}

static void measure(bench *b, int32_t n_tokens, int32_t rounds)
{
    static uint64_t ours[ROUNDS_MAX], raws[ROUNDS_MAX];
    choose(b, n_tokens);
    for (int32_t i = -WARM; i < rounds; i++) {
        const uint64_t a = exchange_once(b, n_tokens), r = raw_once(b);
        if (i >= 0) {
            ours[i] = a;
            raws[i] = r;
        }
    }
    const int64_t row = b->width;
    for (int32_t p = 0; p < n_tokens * TOP_K; p++)
        if (memcmp(b->out + p * row, b->x + p / TOP_K * row,
                   (size_t)row * sizeof(float)) != 0)
            die("a row is not the one that was asked");
    qsort(ours, (size_t)rounds, sizeof *ours, by_size);
    qsort(raws, (size_t)rounds, sizeof *raws, by_size);
    (void)printf(
        "{\"bench\": \"exchange\", \"hidden\": %d, \"tokens\": %d, "
        "\"top_k\": %d, \"shards\": %d, \"transport\": \"tcp\", "
        "\"bytes_out\": %llu, \"bytes_in\": %llu, \"rounds\": %d, "
        "\"us\": %.1f, \"us_p10\": %.1f, \"us_p90\": %.1f, \"raw_us\": %.1f, "
        "\"raw_us_p10\": %.1f, \"raw_us_p90\": %.1f, \"over_raw\": %.3f}\n",
        b->width, n_tokens, TOP_K, SHARDS,
        (unsigned long long)b->bytes_out[0] + b->bytes_out[1],
        (unsigned long long)b->bytes_in[0] + b->bytes_in[1], rounds,
        us(ours, rounds, 50), us(ours, rounds, 10), us(ours, rounds, 90),
        us(raws, rounds, 50), us(raws, rounds, 10), us(raws, rounds, 90),
        us(ours, rounds, 50) / us(raws, rounds, 50));
    (void)fflush(stdout);
}

/* -- making ---------------------------------------------------------------- */

static void connect_shards(bench *b)
{
    weft_err err = {0};
    weft_expert_map *map = NULL;
    const weft_exchange_options options = {
        .config = &b->config, .max_rows = TOKENS_MAX, .group = 0};
    check(weft_exchange_create(&options, &b->exchange, &err), &err);
    check(weft_expert_map_create(1, 1, EXPERTS, 1, SHARDS, &map, &err), &err);
    const weft_hello own = hello_of(WEFT_ROLE_LAYERS, "l0");
    const weft_link_options link = {.limits = weft_answer_limits(&b->config)};
    for (int32_t s = 0; s < SHARDS; s++) {
        weft_link *made = NULL;
        weft_hello peer;
        check(weft_link_dial(b->shards[s].address, &own, NULL, &link,
                             weft_clock_now_ns() + UINT64_C(5000000000), &made,
                             &peer, &err),
              &err);
        (void)snprintf(map->peers[s].id, WEFT_ID_BYTES, "%s", peer.id);
        map->peers[s].incarnation = peer.incarnation;
        check(weft_exchange_add_link(b->exchange, &map->peers[s], made, &err),
              &err);
    }
    for (int32_t e = 0; e < EXPERTS; e++)
        weft_expert_map_owners(map, 0, e)[0] = (uint16_t)(e % SHARDS);
    weft_exchange_set_map(b->exchange, map);
    weft_expert_map_release(map);
    b->experts = weft_exchange_experts(b->exchange);
    uint64_t epoch = 0;
    check(b->experts.begin(b->experts.arg, 1, 0, 0, &epoch, &err), &err);
}

static void run_width(int32_t width, int32_t rounds)
{
    bench b = {.width = width, .config = config_of(width)};
    const size_t row = (size_t)width * sizeof(float);
    for (int32_t s = 0; s < SHARDS; s++) b.shards[s] = start_shard(width, s);
    for (int32_t s = 0; s < SHARDS; s++) b.raw[s] = start_raw();
    b.x = weft_mem_new_aligned(64, TOKENS_MAX * row);
    b.out = weft_mem_new_aligned(64, (size_t)TOKENS_MAX * TOP_K * row);
    b.buffer = weft_mem_new(SHARDS, HALF_BYTES);
    if (b.x == NULL || b.out == NULL || b.buffer == NULL) die("out of memory");
    for (int64_t i = 0; i < (int64_t)TOKENS_MAX * width; i++)
        b.x[i] = (float)weft_rng_unit(3, (uint64_t)i);
    connect_shards(&b);
    for (size_t i = 0; i < sizeof TOKENS / sizeof TOKENS[0]; i++)
        measure(&b, TOKENS[i], rounds);
    weft_exchange_destroy(b.exchange);
    for (int32_t s = 0; s < SHARDS; s++) {
        stop(&b.shards[s]);
        stop(&b.raw[s]);
    }
    weft_mem_free(b.x);
    weft_mem_free(b.out);
    weft_mem_free(b.buffer);
}

int main(int argc, char **argv)
{
    int64_t rounds = ROUNDS;
    if (argc > 1 && !weft_parse_i64(argv[1], 1, ROUNDS_MAX, &rounds))
        die("ROUNDS is 1 to 100000");
    for (size_t i = 0; i < sizeof WIDTHS / sizeof WIDTHS[0]; i++)
        run_width(WIDTHS[i], (int32_t)rounds);
    return 0;
}
