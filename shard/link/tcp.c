/* Links over TCP, plain or through TLS.
 *
 * The owner reads and writes the socket itself. The lock is there for the
 * pulse thread alone, which sends on the same stream; a plain socket is read
 * without it, a TLS session is not. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/inbox.h"
#include "shard/link/link_internal.h"
#include "shard/link/near_internal.h"
#include "shard/link/outbox.h"

enum {
    PIECES = 128,            /* of one sendmsg */
    PIECE_BYTES = 1 << 24,   /* so that one call does not take too long */
    SHAKING_BYTES = 2048,    /* buffer of a peer that nobody knows yet */
    BUFFER_BYTES = 64 << 10, /* and of one that is known */
    RECORD_BYTES = 16 << 10, /* a TLS record's most */
    SKIPS_MAX = 64,          /* frames of the link's own in one receive */
    /* What the kernel waits for an acknowledgement where no stall is set. */
    USER_TIMEOUT_MS = 30000,
};

typedef struct tcp_link {
    weft_link base;
    weft_tls_session *session; /* NULL: plain */
    weft_inbox inbox;
    bool ended; /* nothing more can be read */
    char ended_why[128];
    int n_unread; /* bytes that the socket had when pump looked */

    pthread_mutex_t lock; /* of what follows, and of TLS */
    weft_outbox outbox;
    unsigned char *record; /* copied for TLS and not yet written */
    size_t record_bytes;
    /* Mirrors for a look without the lock. */
    _Atomic int32_t n_waiting;
    atomic_int send_error; /* errno; 0: none */
} tcp_link;

static tcp_link *of(weft_link *link)
{
    return (tcp_link *)(void *)link;
}

static const tcp_link *of_const(const weft_link *link)
{
    return (const tcp_link *)(const void *)link;
}

/* -- sending; with the lock ----------------------------------------------- */

static void sent(tcp_link *tcp, size_t n)
{
    weft_outbox_sent(&tcp->outbox, n);
    atomic_fetch_add(&tcp->base.bytes_sent, n);
    atomic_store(&tcp->base.last_progress_ns, weft_clock_now_ns());
    atomic_store_explicit(&tcp->n_waiting, tcp->outbox.n, memory_order_release);
}

static void push_plain(tcp_link *tcp)
{
    struct iovec pieces[PIECES];
    while (tcp->outbox.n > 0) {
        const struct msghdr message = {
            .msg_iov = pieces,
            .msg_iovlen = (size_t)weft_outbox_gather(&tcp->outbox, pieces,
                                                     PIECES, PIECE_BYTES)};
        const ssize_t n =
            sendmsg(tcp->base.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            sent(tcp, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            atomic_store(&tcp->send_error, errno);
            return;
        }
    }
}

/* A record's worth from the queue into tcp->record. It counts as sent when the
 * session has taken it, since a write that could not be done must be tried
 * again with the same bytes. */
static void fill_record(tcp_link *tcp)
{
    struct iovec pieces[PIECES];
    const int n =
        weft_outbox_gather(&tcp->outbox, pieces, PIECES, RECORD_BYTES);
    tcp->record_bytes = 0;
    for (int i = 0; i < n; i++) {
        memcpy(tcp->record + tcp->record_bytes, pieces[i].iov_base,
               pieces[i].iov_len);
        tcp->record_bytes += pieces[i].iov_len;
    }
}

static void push_session(tcp_link *tcp)
{
    while (tcp->outbox.n > 0) {
        if (tcp->record_bytes == 0) fill_record(tcp);
        const ptrdiff_t n =
            weft_tls_write(tcp->session, tcp->record, tcp->record_bytes);
        if (n < 0) {
            if (errno != EAGAIN) atomic_store(&tcp->send_error, errno);
            return;
        }
        tcp->record_bytes = 0;
        sent(tcp, (size_t)n);
    }
}

static void push(tcp_link *tcp)
{
    if (atomic_load(&tcp->send_error) != 0) return;
    if (tcp->session != NULL)
        push_session(tcp);
    else
        push_plain(tcp);
}

/* false: no room. */
static bool put(tcp_link *tcp, const weft_frame *frame, const void *const *rows)
{
    if (tcp->outbox.n == 0)
        atomic_store(&tcp->base.last_progress_ns, weft_clock_now_ns());
    if (!weft_outbox_put(&tcp->outbox, frame, rows)) return false;
    atomic_store(&tcp->n_waiting, tcp->outbox.n);
    return true;
}

/* -- sending -------------------------------------------------------------- */

static weft_status fail_send(tcp_link *tcp, weft_err *err)
{
    const int why = atomic_load(&tcp->send_error);
    return weft_link_break(&tcp->base, err, "%s",
                           why == EPROTO ? weft_tls_why(tcp->session)
                                         : strerror(why));
}

static weft_status tcp_send(weft_link *link, const weft_frame *frame,
                            const void *const *rows, weft_err *err)
{
    tcp_link *const tcp = of(link);
    /* The link stays whole for receiving: what came before the end counts. */
    if (atomic_load(&tcp->send_error) != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "link to %s: cannot send: %s",
                         link->name, strerror(atomic_load(&tcp->send_error)));
    (void)pthread_mutex_lock(&tcp->lock);
    const bool room = put(tcp, frame, rows);
    push(tcp);
    (void)pthread_mutex_unlock(&tcp->lock);
    return room ? WEFT_OK : WEFT_RESOURCE_EXHAUSTED;
}

static bool tcp_is_idle(const weft_link *link)
{
    return atomic_load_explicit(&of_const(link)->n_waiting,
                                memory_order_acquire) == 0;
}

static void push_if_waiting(tcp_link *tcp)
{
    if (tcp_is_idle(&tcp->base)) return;
    (void)pthread_mutex_lock(&tcp->lock);
    push(tcp);
    (void)pthread_mutex_unlock(&tcp->lock);
}

static void tcp_pulse(weft_link *link, uint64_t step)
{
    tcp_link *const tcp = of(link);
    const weft_frame frame = {.type = WEFT_FRAME_PULSE, .step = step};
    (void)pthread_mutex_lock(&tcp->lock);
    if (tcp->outbox.n == 0) (void)put(tcp, &frame, NULL);
    push(tcp);
    (void)pthread_mutex_unlock(&tcp->lock);
}

/* -- receiving ------------------------------------------------------------ */

static ptrdiff_t read_some(tcp_link *tcp, void *bytes, size_t n)
{
    if (tcp->session == NULL) {
        ssize_t got = 0;
        do got = recv(tcp->base.fd, bytes, n, MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        return got;
    }
    (void)pthread_mutex_lock(&tcp->lock);
    const ptrdiff_t got = weft_tls_read(tcp->session, bytes, n);
    const int why = errno;
    (void)pthread_mutex_unlock(&tcp->lock);
    errno = why;
    return got;
}

/* Reads what is there, once. *more_out: something came; more may be there. */
static weft_status fill(tcp_link *tcp, bool *more_out, weft_err *err)
{
    unsigned char *at = NULL;
    size_t room = 0;
    weft_err why = {0};
    *more_out = false;
    if (weft_inbox_room(&tcp->inbox, &tcp->base.options.limits, &at, &room,
                        &why) != WEFT_OK)
        return weft_link_break(&tcp->base, err, "%s", why.text);
    const ptrdiff_t n = read_some(tcp, at, room);
    if (n > 0) {
        weft_inbox_filled(&tcp->inbox, (size_t)n);
        tcp->base.bytes_received += (size_t)n;
        atomic_store(&tcp->base.last_heard_ns, weft_clock_now_ns());
        *more_out = true;
        return WEFT_OK;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return WEFT_OK;
    tcp->ended = true;
    (void)snprintf(tcp->ended_why, sizeof tcp->ended_why, "%s",
                   n == 0              ? "closed by the other end"
                   : (errno == EPROTO) ? weft_tls_why(tcp->session)
                                       : strerror(errno));
    return WEFT_OK;
}

static weft_status fail_ended(tcp_link *tcp, weft_err *err)
{
    const size_t rest = weft_inbox_rest(&tcp->inbox);
    if (rest > 0)
        return weft_link_break(&tcp->base, err,
                               "%s in the middle of a frame, after %zu bytes",
                               tcp->ended_why, rest);
    return weft_link_break(&tcp->base, err, "%s", tcp->ended_why);
}

static weft_status tcp_recv(weft_link *link, weft_frame *frame_out,
                            bool *got_out, weft_err *err)
{
    tcp_link *const tcp = of(link);
    weft_err why = {0};
    bool more = true;
    weft_inbox_give_back(&tcp->inbox);
    push_if_waiting(tcp);
    for (int skips = 0; more && skips < SKIPS_MAX;) {
        bool got = false;
        if (weft_inbox_next(&tcp->inbox, &link->options.limits, frame_out, &got,
                            &why) != WEFT_OK) {
            link->cause = why.status;
            return weft_link_break(link, err, "%s", why.text);
        }
        if (got) {
            const weft_meeting met = weft_link_meet(link, frame_out);
            *got_out = met == WEFT_MEET_GIVE;
            if (met == WEFT_MEET_GIVE) return WEFT_OK;
            if (met == WEFT_MEET_END) {
                if (err != NULL) *err = link->why;
                return WEFT_UNAVAILABLE;
            }
            weft_inbox_give_back(&tcp->inbox);
            skips++;
            continue;
        }
        if (tcp->ended) return fail_ended(tcp, err);
        WEFT_TRY(fill(tcp, &more, err));
        if (tcp->ended) more = true; /* to say so */
    }
    if (!more && atomic_load(&tcp->send_error) != 0) return fail_send(tcp, err);
    return WEFT_OK;
}

static bool tcp_is_ready(const weft_link *link)
{
    const tcp_link *const tcp = of_const(link);
    return tcp->ended || atomic_load(&tcp->send_error) != 0 ||
           weft_inbox_is_ready(&tcp->inbox, &link->options.limits) ||
           (tcp->session != NULL && weft_tls_has_more(tcp->session));
}

/* What has come stays in the socket: there is room for minutes of pulses. */
static bool tcp_pump(weft_link *link)
{
    tcp_link *const tcp = of(link);
    struct pollfd at = {.fd = link->fd, .events = POLLRDHUP};
    int n = 0;
    push_if_waiting(tcp);
    if (ioctl(link->fd, FIONREAD, &n) == 0 && n != tcp->n_unread) {
        tcp->n_unread = n;
        atomic_store(&link->last_heard_ns, weft_clock_now_ns());
    }
    return !tcp->ended && atomic_load(&tcp->send_error) == 0 &&
           poll(&at, 1, 0) == 0;
}

/* -- the rest ------------------------------------------------------------- */

/* Reads while it writes, up to a whole frame: where both ends flush, one of
 * them has to take what the other cannot get rid of. */
static weft_status tcp_flush(weft_link *link, uint64_t deadline_ns,
                             weft_err *err)
{
    tcp_link *const tcp = of(link);
    for (;;) {
        push_if_waiting(tcp);
        if (tcp_is_idle(link)) return WEFT_OK;
        if (atomic_load(&tcp->send_error) != 0) return fail_send(tcp, err);
        bool reads = !tcp->ended &&
                     !weft_inbox_is_ready(&tcp->inbox, &link->options.limits);
        bool more = false;
        if (reads) WEFT_TRY(fill(tcp, &more, err));
        if (more) continue;
        reads = reads && !tcp->ended;

        const uint64_t now = weft_clock_now_ns();
        if (now >= deadline_ns)
            return WEFT_FAIL(err, WEFT_DEADLINE_EXCEEDED,
                             "link to %s: what was sent did not leave in time",
                             link->name);
        const uint64_t left = deadline_ns - now;
        const struct timespec wait = {.tv_sec = (time_t)(left / 1000000000U),
                                      .tv_nsec = (long)(left % 1000000000U)};
        struct pollfd at = {.fd = link->fd, .events = POLLOUT};
        if (reads) at.events |= POLLIN;
        (void)ppoll(&at, 1, &wait, NULL);
    }
}

static void tcp_close(weft_link *link)
{
    tcp_link *const tcp = of(link);
    if (tcp->session != NULL) weft_tls_close(tcp->session);
    (void)close(link->fd);
    (void)pthread_mutex_destroy(&tcp->lock);
    weft_inbox_deinit(&tcp->inbox);
    weft_outbox_deinit(&tcp->outbox);
    weft_mem_free(tcp->record);
    weft_mem_free(tcp);
}

static const weft_transport_ops tcp_ops = {
    .name = "tcp",
    .close = tcp_close,
    .send = tcp_send,
    .is_idle = tcp_is_idle,
    .flush = tcp_flush,
    .recv = tcp_recv,
    .is_ready = tcp_is_ready,
    .pulse = tcp_pulse,
    .pump = tcp_pump,
};

static void tune(int fd, const weft_link_options *options)
{
    const int one = 1;
    const unsigned timeout_ms = options->stall_ns > 0
                                    ? (unsigned)(options->stall_ns / 1000000U)
                                    : USER_TIMEOUT_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
                     sizeof timeout_ms);
}

weft_status weft_link_create_tcp(int fd, weft_tls_session *session,
                                 bool shaking, const weft_link_options *options,
                                 weft_link **link_out, weft_err *err)
{
    tcp_link *const tcp = weft_mem_new(1, sizeof *tcp);
    if (tcp == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a link");
    weft_link_init(&tcp->base, &tcp_ops, fd, options);
    if (shaking) {
        tcp->base.shaking = true;
        tcp->base.options.limits =
            (weft_frame_limits){.body_bytes_max = WEFT_HELLO_BYTES_MAX};
    }
    weft_inbox_init(&tcp->inbox, shaking ? SHAKING_BYTES : BUFFER_BYTES);
    const weft_status st =
        weft_outbox_init(&tcp->outbox, tcp->base.options.queue_frames, err);
    if (st != WEFT_OK) goto free_tcp;
    if (session != NULL) {
        tcp->record = weft_mem_new(RECORD_BYTES, 1);
        if (tcp->record == NULL) goto free_outbox;
    }
    if (pthread_mutex_init(&tcp->lock, NULL) != 0) goto free_record;
    tcp->session = session;
    tune(fd, options);
    *link_out = &tcp->base;
    return WEFT_OK;

free_record:
    weft_mem_free(tcp->record);
free_outbox:
    weft_outbox_deinit(&tcp->outbox);
free_tcp:
    weft_mem_free(tcp);
    return st != WEFT_OK ? st
                         : WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                                     "no memory for a link");
}

void weft_link_settle_tcp(weft_link *link, const weft_link_options *options,
                          uint32_t protocol, bool dials)
{
    tcp_link *const tcp = of(link);
    const int32_t queue_frames = link->options.queue_frames;
    link->options = *options;
    link->options.name = NULL;
    link->options.queue_frames = queue_frames;
    link->shaking = false;
    tcp->inbox.least_bytes = BUFFER_BYTES;
    if (protocol >= WEFT_PROTOCOL_NEAR) weft_near_attach(link, dials);
}
