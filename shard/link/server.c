/* The listening side of dial.h: one thread that accepts, shakes hands with many
 * at once, and hands over what is ready. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/dial_internal.h"
#include "shard/link/server_internal.h"

#define HANDSHAKE_NS UINT64_C(2000000000)
/* How long a refused peer may take to read why, before it is cut off. */
#define LINGER_NS UINT64_C(500000000)
/* Without descriptors, accepting is tried again after that. */
#define ACCEPT_PAUSE_NS UINT64_C(100000000)

enum {
    PENDING_MAX = 64,
    LINGER_BYTES = 64 << 10, /* read and dropped from a refused peer at most */
    FIXED_FDS = 2,           /* before those of pending ones */
};

typedef enum stage { IN_TLS, IN_HELLO, IN_LINGER } stage;

/* A connection that has not shaken hands. */
typedef struct pending {
    stage stage;
    int fd;
    weft_tls_session *session; /* the link's, once there is one */
    weft_link *link;           /* NULL in IN_TLS */
    bool wants_out;
    bool holds; /* its hello waits for what is to be answered */
    uint64_t deadline_ns;
    size_t dropped;
    char from[64];
} pending;

struct weft_link_server {
    weft_link_server_options options;
    char address[WEFT_ADDRESS_TEXT_BYTES];
    int listen_fd, wake_fd;
    pthread_t thread;
    pthread_mutex_t lock; /* of the three that follow */
    weft_hello own;
    bool own_known;
    bool stopping;

    /* The thread's. In the order of their coming. */
    pending *pending;
    int32_t n_pending;
    struct pollfd *polled;
    uint64_t accept_from_ns; /* not before */
    weft_refusals refusals;
    weft_incarnations incarnations;
};

static void close_pending(pending *one)
{
    if (one->link != NULL) {
        weft_link_close(one->link);
    } else {
        weft_tls_close(one->session);
        (void)close(one->fd);
    }
}

/* false: not known yet. */
static bool get_own(weft_link_server *server, weft_hello *own_out)
{
    (void)pthread_mutex_lock(&server->lock);
    const bool known = server->own_known;
    *own_out = server->own;
    (void)pthread_mutex_unlock(&server->lock);
    return known;
}

/* -- shaking hands; each tells whether the connection stays pending ------- */

static bool refuse(weft_link_server *server, pending *one, const char *text)
{
    weft_refusals_say(&server->refusals, WEFT_REFUSAL_HELLO, one->from, text);
    weft_refuse_send(one->link, text);
    one->stage = IN_LINGER;
    one->wants_out = false;
    one->deadline_ns = weft_clock_now_ns() + LINGER_NS;
    return true;
}

/* A refused one reads its reason more surely if nothing that it sent is left
 * unread at the close. */
static bool linger(pending *one)
{
    char bytes[4096];
    ssize_t n = 1;
    while (n > 0 && one->dropped < LINGER_BYTES) {
        n = recv(one->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) one->dropped += (size_t)n;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static weft_status judge_incarnation(weft_link_server *server,
                                     const weft_hello *own,
                                     const weft_hello *peer, weft_err *err)
{
    const weft_link_server_options *const options = &server->options;
    const weft_status st =
        weft_incarnations_check(&server->incarnations, own->id, peer, err);
    if (st == WEFT_OK || options->vouch == NULL ||
        !options->vouch(options->vouch_arg, peer))
        return st;
    *err = (weft_err){0};
    return WEFT_OK;
}

static weft_status judge(weft_link_server *server, const weft_hello *own,
                         const weft_hello *peer, weft_err *err)
{
    const weft_link_server_options *const options = &server->options;
    WEFT_TRY(weft_hello_check(own, peer, err));
    WEFT_TRY(judge_incarnation(server, own, peer, err));
    return options->admit == NULL ? WEFT_OK
                                  : options->admit(options->arg, peer, err);
}

static bool meet_hello(weft_link_server *server, pending *one,
                       const weft_hello *own, const weft_frame *frame)
{
    const weft_link_server_options *const options = &server->options;
    weft_hello peer;
    weft_err err = {0};
    if (frame->type != WEFT_FRAME_HELLO)
        return refuse(server, one, "the first frame is no hello");
    if (weft_hello_decode(frame->body, frame->body_bytes, &peer, &err) !=
            WEFT_OK ||
        judge(server, own, &peer, &err) != WEFT_OK)
        return refuse(server, one, err.text);
    if (weft_hello_send(one->link, WEFT_FRAME_WELCOME, own, &err) != WEFT_OK) {
        weft_refusals_say(&server->refusals, WEFT_REFUSAL_HELLO, one->from,
                          err.text);
        close_pending(one);
        return false;
    }
    weft_incarnations_note(&server->incarnations, &peer);
    weft_link_settle_tcp(one->link, &options->link,
                         weft_hello_protocol(own, &peer), false);
    weft_link_set_name(one->link, peer.id);
    options->take(options->arg, one->link, &peer);
    return false;
}

/* Why its link broke, without the name of the link, which a line has. */
static const char *why_broken(const pending *one)
{
    const char *const text = one->link->why.text;
    const char *const name = strstr(text, one->from);
    return name == NULL ? text : name + strlen(one->from) + strlen(": ");
}

/* What comes before own is known stays unread, and is looked for again in every
 * turn. */
static bool shake_hello(weft_link_server *server, pending *one)
{
    weft_hello own;
    weft_frame frame;
    bool got = false;
    one->holds = !get_own(server, &own);
    if (one->holds) return true;
    do {
        if (weft_link_recv(one->link, &frame, &got, NULL) != WEFT_OK) {
            /* Another version is a peer's, who is told so. */
            if (one->link->cause == WEFT_FAILED_PRECONDITION)
                return refuse(server, one, why_broken(one));
            /* A port that is looked at and left is nobody's fault. */
            if (one->link->bytes_received > 0)
                weft_refusals_say(&server->refusals, WEFT_REFUSAL_GARBAGE,
                                  one->from, why_broken(one));
            close_pending(one);
            return false;
        }
        if (got) return meet_hello(server, one, &own, &frame);
    } while (one->link->ops->is_ready(one->link));
    one->wants_out = !weft_link_is_idle(one->link);
    return true;
}

static bool make_link(weft_link_server *server, pending *one)
{
    weft_err err = {0};
    weft_link_options options = server->options.link;
    options.name = one->from;
    if (weft_link_create_tcp(one->fd, one->session, true, &options, &one->link,
                             &err) != WEFT_OK) {
        weft_refusals_say(&server->refusals, WEFT_REFUSAL_RESOURCES, one->from,
                          err.text);
        close_pending(one);
        return false;
    }
    one->stage = IN_HELLO;
    one->wants_out = false;
    return true;
}

static bool shake_tls(weft_link_server *server, pending *one)
{
    const int done = weft_tls_shake(one->session, &one->wants_out);
    if (done == 0) return true;
    if (done < 0) {
        weft_refusals_say(&server->refusals, WEFT_REFUSAL_TLS, one->from,
                          weft_tls_why(one->session));
        close_pending(one);
        return false;
    }
    return make_link(server, one) && shake_hello(server, one);
}

static bool advance(weft_link_server *server, pending *one)
{
    switch (one->stage) {
    case IN_TLS: return shake_tls(server, one);
    case IN_HELLO: return shake_hello(server, one);
    case IN_LINGER: break;
    }
    if (linger(one)) return true;
    close_pending(one);
    return false;
}

/* -- the thread ----------------------------------------------------------- */

static void forget(weft_link_server *server, int32_t i)
{
    server->n_pending--;
    memmove(&server->pending[i], &server->pending[i + 1],
            (size_t)(server->n_pending - i) * sizeof *server->pending);
}

static void print_from(const struct sockaddr *at, socklen_t bytes, char *out,
                       size_t out_bytes)
{
    char host[48], port[8];
    if (getnameinfo(at, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        (void)snprintf(out, out_bytes, "%s:%s", host, port);
    else
        (void)snprintf(out, out_bytes, "unknown");
}

/* A connection that was accepted: pending, in the place of the oldest if there
 * are too many. */
static void add_pending(weft_link_server *server, const pending *one)
{
    if (server->n_pending == server->options.pending_max) {
        weft_refusals_say(&server->refusals, WEFT_REFUSAL_PENDING,
                          server->pending[0].from,
                          "too many connections that have not shaken hands");
        close_pending(&server->pending[0]);
        forget(server, 0);
    }
    pending *const at = &server->pending[server->n_pending];
    *at = *one;
    at->deadline_ns = weft_clock_now_ns() + server->options.handshake_ns;
    weft_err err = {0};
    if (server->options.tls == NULL) {
        if (!make_link(server, at)) return;
    } else if (weft_tls_open(server->options.tls, at->fd, true, &at->session,
                             &err) != WEFT_OK) {
        weft_refusals_say(&server->refusals, WEFT_REFUSAL_RESOURCES, at->from,
                          err.text);
        (void)close(at->fd);
        return;
    }
    server->n_pending++;
}

static void accept_some(weft_link_server *server)
{
    /* As many as can be pending, then those get their turn. */
    for (int32_t i = 0; i < server->options.pending_max; i++) {
        struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
        socklen_t bytes = sizeof from;
        struct sockaddr *const at = (struct sockaddr *)(void *)&from;
        pending one = {.stage = IN_TLS};
        one.fd = accept4(server->listen_fd, at, &bytes,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (one.fd < 0 && (errno == EMFILE || errno == ENFILE ||
                           errno == ENOBUFS || errno == ENOMEM)) {
            weft_refusals_say(&server->refusals, WEFT_REFUSAL_RESOURCES,
                              server->address, strerror(errno));
            server->accept_from_ns = weft_clock_now_ns() + ACCEPT_PAUSE_NS;
        }
        if (one.fd < 0) return;
        print_from(at, bytes, one.from, sizeof one.from);
        add_pending(server, &one);
    }
}

static void end_late(weft_link_server *server, uint64_t now)
{
    for (int32_t i = server->n_pending - 1; i >= 0; i--) {
        pending *const one = &server->pending[i];
        if (one->deadline_ns > now) continue;
        if (one->stage != IN_LINGER)
            weft_refusals_say(&server->refusals, WEFT_REFUSAL_LATE, one->from,
                              "no handshake in time");
        close_pending(one);
        forget(server, i);
    }
}

/* How long the thread may sleep, at most. */
static uint64_t next_ns(const weft_link_server *server, uint64_t now)
{
    uint64_t next = weft_refusals_next(&server->refusals);
    for (int32_t i = 0; i < server->n_pending; i++)
        if (server->pending[i].deadline_ns < next)
            next = server->pending[i].deadline_ns;
    if (server->accept_from_ns > now && server->accept_from_ns < next)
        next = server->accept_from_ns;
    return next;
}

static int fill_polled(weft_link_server *server, uint64_t now)
{
    struct pollfd *const polled = server->polled;
    polled[0] = (struct pollfd){.fd = server->wake_fd, .events = POLLIN};
    polled[1] = (struct pollfd){
        .fd = server->accept_from_ns > now ? -1 : server->listen_fd,
        .events = POLLIN};
    for (int32_t i = 0; i < server->n_pending; i++) {
        const pending *const one = &server->pending[i];
        polled[FIXED_FDS + i] = (struct pollfd){
            .fd = one->holds ? -1 : one->fd,
            .events = one->wants_out ? POLLIN | POLLOUT : POLLIN};
    }
    return FIXED_FDS + server->n_pending;
}

static void wake(weft_link_server *server)
{
    const uint64_t one = 1;
    const ssize_t n = write(server->wake_fd, &one, sizeof one);
    (void)n; /* full: it is awake */
}

static void quiet(weft_link_server *server)
{
    uint64_t count;
    const ssize_t n = read(server->wake_fd, &count, sizeof count);
    (void)n;
}

static void turn(weft_link_server *server)
{
    uint64_t now = weft_clock_now_ns();
    const int n = fill_polled(server, now);
    const uint64_t next = next_ns(server, now);
    const uint64_t left = next > now ? next - now : 0;
    const struct timespec wait = {.tv_sec = (time_t)(left / 1000000000U),
                                  .tv_nsec = (long)(left % 1000000000U)};
    const bool forever = next == UINT64_MAX;
    if (ppoll(server->polled, (nfds_t)n, forever ? NULL : &wait, NULL) < 0)
        return; /* interrupted, or no memory: what is due comes next turn */
    if (server->polled[0].revents != 0) quiet(server);
    for (int32_t i = n - FIXED_FDS - 1; i >= 0; i--)
        if ((server->polled[FIXED_FDS + i].revents != 0 ||
             server->pending[i].holds) &&
            !advance(server, &server->pending[i]))
            forget(server, i);
    if (server->polled[1].revents != 0) accept_some(server);
    now = weft_clock_now_ns();
    end_late(server, now);
    weft_refusals_tell_rest(&server->refusals, now);
}

static bool is_stopping(weft_link_server *server)
{
    (void)pthread_mutex_lock(&server->lock);
    const bool stopping = server->stopping;
    (void)pthread_mutex_unlock(&server->lock);
    return stopping;
}

static void *run(void *arg)
{
    weft_link_server *const server = arg;
    while (!is_stopping(server)) turn(server);
    return NULL;
}

/* -- outside -------------------------------------------------------------- */

static void free_server(weft_link_server *server)
{
    for (int32_t i = 0; i < server->n_pending; i++)
        close_pending(&server->pending[i]);
    if (server->listen_fd >= 0) (void)close(server->listen_fd);
    if (server->wake_fd >= 0) (void)close(server->wake_fd);
    weft_mem_free(server->pending);
    weft_mem_free(server->polled);
    (void)pthread_mutex_destroy(&server->lock);
    weft_mem_free(server);
}

static weft_status listen_at(weft_link_server *server, const char *listen_text,
                             weft_err *err)
{
    weft_address address;
    uint16_t port = 0;
    WEFT_TRY(weft_address_parse(listen_text, &address, err));
    WEFT_TRY(weft_address_listen(&address, &server->listen_fd, &port, err));
    address.port = port;
    weft_address_print(&address, server->address);
    if (fcntl(server->listen_fd, F_SETFL, O_NONBLOCK) != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "listen on %s: %s",
                         server->address, strerror(errno));
    return WEFT_OK;
}

static weft_status start(weft_link_server *server, weft_err *err)
{
    const size_t n = (size_t)server->options.pending_max;
    server->pending = weft_mem_new(n, sizeof *server->pending);
    server->polled = weft_mem_new(n + FIXED_FDS, sizeof *server->polled);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->pending == NULL || server->polled == NULL ||
        server->wake_fd < 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory or descriptor to listen on %s",
                         server->options.listen);
    WEFT_TRY(listen_at(server, server->options.listen, err));
    const int why = pthread_create(&server->thread, NULL, run, server);
    if (why != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no thread to listen on %s: %s", server->address,
                         strerror(why));
    return WEFT_OK;
}

weft_status weft_link_server_start(const weft_link_server_options *options,
                                   weft_link_server **server_out, weft_err *err)
{
    weft_link_server *const server = weft_mem_new(1, sizeof *server);
    if (server == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory to listen on %s", options->listen);
    server->options = *options;
    server->own = *options->own;
    server->own_known = !options->own_later;
    server->listen_fd = -1;
    if (options->handshake_ns == 0) server->options.handshake_ns = HANDSHAKE_NS;
    if (options->pending_max <= 0) server->options.pending_max = PENDING_MAX;
    (void)pthread_mutex_init(&server->lock, NULL);
    const weft_status st = start(server, err);
    if (st != WEFT_OK) {
        free_server(server);
        return st;
    }
    *server_out = server;
    return WEFT_OK;
}

const char *weft_link_server_address(const weft_link_server *server)
{
    return server->address;
}

void weft_link_server_set_own(weft_link_server *server, const weft_hello *own)
{
    (void)pthread_mutex_lock(&server->lock);
    server->own = *own;
    server->own_known = true;
    (void)pthread_mutex_unlock(&server->lock);
    wake(server);
}

void weft_link_server_stop(weft_link_server *server)
{
    if (server == NULL) return;
    (void)pthread_mutex_lock(&server->lock);
    server->stopping = true;
    (void)pthread_mutex_unlock(&server->lock);
    wake(server);
    (void)pthread_join(server->thread, NULL);
    free_server(server);
}
