#include "node/rpc/tls_front.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"

enum {
    BUFFER_BYTES = 16384, /* the most that a TLS record holds */
    HANDSHAKES_MAX = 256,
    ROUNDS_MAX = 32, /* of one connection before the others' turn */
    EVENTS = 64,
    TICK_MS = 500, /* how often late handshakes are looked for */
};

static const uint64_t HANDSHAKE_MAX_NS = 10000000000U;
/* For a client to take the last bytes of a server that has closed. */
static const uint64_t LAST_BYTES_NS = 10000000000U;
static const uint64_t TELL_NS = 1000000000U;

/* Bytes on their way; filled only when empty, so that what TLS has been given
 * to write stays where it is until all of it is written. */
typedef struct buffer {
    size_t from, to;
    unsigned char bytes[BUFFER_BYTES];
} buffer;

typedef struct connection {
    struct connection *before, *after;
    weft_tls_session *session;
    int client, near;                  /* near -1: the handshake is not done */
    bool client_watched, near_watched; /* are in the epoll */
    uint64_t came_ns, near_ended_ns;
    bool wants_out;                /* the handshake */
    bool client_ended, near_ended; /* nothing more comes from there */
    bool busy;                     /* its turn has ended before its work */
    buffer in, out;                /* from the client, to the client */
} connection;

struct weft_tls_front {
    weft_tls *tls;
    weft_tls_front_fn give;
    void *arg;
    int epoll, wake;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    connection *inbox;    /* by `after` */
    bool stopping;
    /* The thread's. */
    connection *first; /* oldest last */
    int32_t n_shaking;
    bool busy; /* so may be a connection */
    uint64_t told_ns, n_untold;
};

/* -- one connection ------------------------------------------------------- */

static void tell(weft_tls_front *f, const char *why)
{
    const uint64_t now_ns = weft_clock_now_ns();
    f->n_untold++;
    if (f->told_ns != 0 && now_ns - f->told_ns < TELL_NS) return;
    f->told_ns = now_ns;
    weft_log(WEFT_LOG_WARN, "rpc", "tls_refused", "reason \"%s\" left_out %llu",
             why, (unsigned long long)(f->n_untold - 1));
    f->n_untold = 0;
}

static void discard(connection *c)
{
    weft_tls_close(c->session);
    if (c->client >= 0) (void)close(c->client);
    if (c->near >= 0) (void)close(c->near);
    weft_mem_free(c);
}

static void end(weft_tls_front *f, connection *c)
{
    if (c->near < 0) f->n_shaking--;
    if (c->before != NULL)
        c->before->after = c->after;
    else
        f->first = c->after;
    if (c->after != NULL) c->after->before = c->before;
    discard(c); /* closing takes descriptors out of the epoll */
}

static bool has(const buffer *b)
{
    return b->from < b->to;
}

/* A socket that is watched for nothing is taken out: the epoll would tell that
 * its other end is gone again and again. */
static bool watch_socket(weft_tls_front *f, connection *c, int fd,
                         bool *watched, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = c}};
    const int how = !*watched     ? EPOLL_CTL_ADD
                    : events == 0 ? EPOLL_CTL_DEL
                                  : EPOLL_CTL_MOD;
    if (!*watched && events == 0) return true;
    *watched = events != 0;
    return epoll_ctl(f->epoll, how, fd, &event) == 0;
}

/* What the connection waits for, on both of its sockets. */
static bool watch(weft_tls_front *f, connection *c)
{
    uint32_t client = 0, near = 0;
    if (c->near < 0)
        return watch_socket(f, c, c->client, &c->client_watched,
                            c->wants_out ? EPOLLOUT : EPOLLIN);
    if (!has(&c->in) && !c->client_ended) client |= EPOLLIN;
    if (has(&c->out)) client |= EPOLLOUT;
    if (!has(&c->out) && !c->near_ended) near |= EPOLLIN;
    if (has(&c->in)) near |= EPOLLOUT;
    return watch_socket(f, c, c->client, &c->client_watched, client) &&
           watch_socket(f, c, c->near, &c->near_watched, near);
}

/* false: the connection is over. */
static bool shake(weft_tls_front *f, connection *c)
{
    int pair[2];
    const int done = weft_tls_shake(c->session, &c->wants_out);
    if (done == 0) return watch(f, c);
    if (done < 0) {
        tell(f, weft_tls_why(c->session));
        return false;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                   pair) != 0) {
        tell(f, strerror(errno));
        return false;
    }
    f->n_shaking--;
    c->near = pair[0];
    if (!watch(f, c)) {
        (void)close(pair[1]);
        return false;
    }
    f->give(f->arg, pair[1]);
    return true;
}

/* Client to server. 1: bytes have moved. 0: none. -1: over. */
static int move_in(connection *c)
{
    int moved = 0;
    if (!has(&c->in) && !c->client_ended) {
        const ptrdiff_t n =
            weft_tls_read(c->session, c->in.bytes, sizeof c->in.bytes);
        if (n > 0) {
            c->in.from = 0;
            c->in.to = (size_t)n;
            moved = 1;
        } else if (n == 0 || errno != EAGAIN) {
            /* The server hears that nothing more comes, and closes. */
            c->client_ended = true;
            (void)shutdown(c->near, SHUT_WR);
        }
    }
    if (has(&c->in)) {
        const ssize_t n =
            send(c->near, c->in.bytes + c->in.from, c->in.to - c->in.from,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            c->in.from += (size_t)n;
            moved = 1;
        } else if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            /* The server has closed: what still comes is for nobody, but its
             * last bytes are for the client. */
            c->in.from = c->in.to;
            moved = 1;
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return -1;
        }
    }
    return moved;
}

/* Server to client, likewise. */
static int move_out(connection *c)
{
    int moved = 0;
    if (!has(&c->out) && !c->near_ended) {
        const ssize_t n =
            recv(c->near, c->out.bytes, sizeof c->out.bytes, MSG_DONTWAIT);
        if (n > 0) {
            c->out.from = 0;
            c->out.to = (size_t)n;
            moved = 1;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            c->near_ended = true;
            c->near_ended_ns = weft_clock_now_ns();
        }
    }
    if (has(&c->out)) {
        const ptrdiff_t n = weft_tls_write(
            c->session, c->out.bytes + c->out.from, c->out.to - c->out.from);
        if (n < 0 && errno != EAGAIN) return -1;
        if (n > 0) {
            c->out.from += (size_t)n;
            moved = 1;
        }
    }
    /* The server has closed and its last bytes are gone. */
    return c->near_ended && !has(&c->out) ? -1 : moved;
}

static bool pump(weft_tls_front *f, connection *c)
{
    c->busy = false;
    if (c->near < 0) {
        if (!shake(f, c)) return false;
        if (c->near < 0) return true;
    }
    for (int round = 0; round < ROUNDS_MAX; round++) {
        const int in = move_in(c);
        const int out = in < 0 ? -1 : move_out(c);
        if (in < 0 || out < 0) return false;
        if (in == 0 && out == 0) return watch(f, c);
    }
    /* What TLS has taken off the socket, epoll does not show. */
    c->busy = f->busy = true;
    return true;
}

/* -- the thread ----------------------------------------------------------- */

static void admit(weft_tls_front *f, connection *c)
{
    c->before = NULL;
    c->after = f->first;
    if (f->first != NULL) f->first->before = c;
    f->first = c;
    f->n_shaking++;
    if (!watch(f, c)) end(f, c);
}

/* Late ones, the oldest of too many, and who does not take its last bytes. */
static void end_late(weft_tls_front *f)
{
    const uint64_t now_ns = weft_clock_now_ns();
    connection *last = f->first;
    while (last != NULL && last->after != NULL) last = last->after;
    for (connection *c = last; c != NULL;) {
        connection *const before = c->before;
        if (c->near < 0 && now_ns - c->came_ns > HANDSHAKE_MAX_NS) {
            tell(f, "no TLS handshake in time");
            end(f, c);
        } else if (c->near < 0 && f->n_shaking > HANDSHAKES_MAX) {
            tell(f, "too many TLS handshakes at once");
            end(f, c);
        } else if (c->near_ended && now_ns - c->near_ended_ns > LAST_BYTES_NS) {
            end(f, c);
        }
        c = before;
    }
}

/* true: it is to end. */
static bool take_inbox(weft_tls_front *f)
{
    uint64_t count = 0;
    const ssize_t got = read(f->wake, &count, sizeof count);
    (void)got; /* it may have been read before */
    (void)pthread_mutex_lock(&f->lock);
    connection *c = f->inbox;
    const bool stopping = f->stopping;
    f->inbox = NULL;
    (void)pthread_mutex_unlock(&f->lock);
    while (c != NULL) {
        connection *const after = c->after;
        admit(f, c);
        c = after;
    }
    if (f->n_shaking > HANDSHAKES_MAX) end_late(f);
    return stopping;
}

/* Those whose turn has ended before their work. */
static void pump_busy(weft_tls_front *f)
{
    if (!f->busy) return;
    f->busy = false;
    for (connection *c = f->first; c != NULL;) {
        connection *const after = c->after;
        if (c->busy && !pump(f, c)) end(f, c);
        c = after;
    }
}

/* Two events of one connection may come together, and the first may end it. */
static void forget(struct epoll_event *events, int n, const connection *c)
{
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr == c) events[i].data.ptr = NULL;
}

static void *run(void *arg)
{
    weft_tls_front *const f = arg;
    struct epoll_event events[EVENTS];
    uint64_t looked_ns = weft_clock_now_ns();
    bool stopping = false;
    while (!stopping) {
        const int n =
            epoll_wait(f->epoll, events, EVENTS, f->busy ? 0 : TICK_MS);
        bool woken = false;
        for (int i = 0; i < n; i++) {
            connection *const c = events[i].data.ptr;
            if (c == NULL) continue;
            if ((void *)c == f) {
                woken = true;
            } else if (!pump(f, c)) {
                forget(events + i + 1, n - i - 1, c);
                end(f, c);
            }
        }
        pump_busy(f);
        /* Last: what ends here may be named by events above. */
        if (woken) stopping = take_inbox(f);
        const uint64_t now_ns = weft_clock_now_ns();
        if (now_ns - looked_ns < TICK_MS * UINT64_C(1000000)) continue;
        looked_ns = now_ns;
        end_late(f);
    }
    while (f->first != NULL) end(f, f->first);
    return NULL;
}

/* -- life ----------------------------------------------------------------- */

static weft_status open_all(weft_tls_front *f, weft_err *err)
{
    struct epoll_event wake = {.events = EPOLLIN, .data = {.ptr = f}};
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->epoll < 0 || f->wake < 0 ||
        epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->wake, &wake) != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no descriptor: %s",
                         strerror(errno));
    const int code = pthread_create(&f->thread, NULL, run, f);
    if (code != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no thread for TLS: %s",
                         strerror(code));
    f->started = true;
    return WEFT_OK;
}

weft_status weft_tls_front_start(weft_tls *tls, weft_tls_front_fn give,
                                 void *arg, weft_tls_front **front_out,
                                 weft_err *err)
{
    weft_tls_front *const f = weft_mem_new(1, sizeof *f);
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for TLS");
    f->tls = tls;
    f->give = give;
    f->arg = arg;
    f->epoll = f->wake = -1;
    (void)pthread_mutex_init(&f->lock, NULL);
    const weft_status st = open_all(f, err);
    if (st != WEFT_OK) {
        weft_tls_front_stop(f);
        return st;
    }
    *front_out = f;
    return WEFT_OK;
}

static void wake(weft_tls_front *f)
{
    const uint64_t one = 1;
    const ssize_t told = write(f->wake, &one, sizeof one);
    (void)told; /* an event counter below its limit takes it */
}

void weft_tls_front_take(weft_tls_front *f, int fd)
{
    weft_err err = {0};
    connection *const c = weft_mem_new(1, sizeof *c);
    if (c == NULL ||
        weft_tls_open(f->tls, fd, true, &c->session, &err) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "rpc", "tls_refused", "reason \"%s\"",
                 c == NULL ? "no memory" : err.text);
        weft_mem_free(c);
        (void)close(fd);
        return;
    }
    c->client = fd;
    c->near = -1;
    c->came_ns = weft_clock_now_ns();
    (void)pthread_mutex_lock(&f->lock);
    c->after = f->inbox;
    f->inbox = c;
    (void)pthread_mutex_unlock(&f->lock);
    wake(f);
}

void weft_tls_front_stop(weft_tls_front *f)
{
    if (f == NULL) return;
    (void)pthread_mutex_lock(&f->lock);
    f->stopping = true;
    (void)pthread_mutex_unlock(&f->lock);
    if (f->started) {
        wake(f);
        (void)pthread_join(f->thread, NULL);
    }
    while (f->inbox != NULL) {
        connection *const c = f->inbox;
        f->inbox = c->after;
        discard(c);
    }
    if (f->epoll >= 0) (void)close(f->epoll);
    if (f->wake >= 0) (void)close(f->wake);
    (void)pthread_mutex_destroy(&f->lock);
    weft_mem_free(f);
}
