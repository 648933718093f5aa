#include "shard/link/dial.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/clock.h"
#include "node/base/str.h"
#include "shard/link/dial_internal.h"

/* How long a refusal may take to leave; it fits any socket's buffer. */
#define REFUSE_NS UINT64_C(100000000)

weft_status weft_hello_send(weft_link *link, weft_frame_type type,
                            const weft_hello *own, weft_err *err)
{
    unsigned char body[WEFT_HELLO_BYTES_MAX];
    const weft_frame frame = {
        .type = type, .body = body, .body_bytes = weft_hello_encode(own, body)};
    return weft_link_send(link, &frame, NULL, err);
}

void weft_refuse_send(weft_link *link, const char *text)
{
    const weft_frame frame = {
        .type = WEFT_FRAME_REFUSE, .body = text, .body_bytes = strlen(text)};
    if (link->ops->send(link, &frame, NULL, NULL) == WEFT_OK)
        (void)link->ops->flush(link, weft_clock_now_ns() + REFUSE_NS, NULL);
    (void)shutdown(link->fd, SHUT_WR);
}

void weft_refuse_text(const weft_frame *frame, char *text_out, size_t bytes)
{
    char raw[WEFT_ERR_TEXT_BYTES];
    const size_t n =
        frame->body_bytes < sizeof raw - 1 ? frame->body_bytes : sizeof raw - 1;
    if (n > 0) memcpy(raw, frame->body, n);
    raw[n] = '\0';
    (void)weft_text_line(raw, text_out, bytes);
}

/* Until one of the events, which may be the end of the connection. */
static weft_status wait_for(const weft_dialling *dialling, int fd, short events,
                            weft_err *err)
{
    struct pollfd at[2] = {{.fd = fd, .events = events},
                           {.fd = dialling->abort_fd, .events = POLLIN}};
    for (;;) {
        const uint64_t now = weft_clock_now_ns();
        const uint64_t left =
            now < dialling->deadline_ns ? dialling->deadline_ns - now : 0;
        const struct timespec wait = {.tv_sec = (time_t)(left / 1000000000U),
                                      .tv_nsec = (long)(left % 1000000000U)};
        const int n = ppoll(at, 2, &wait, NULL);
        if (n > 0 && at[1].revents != 0)
            return WEFT_FAIL(err, WEFT_CANCELLED, "not wanted any more");
        if (n > 0) return WEFT_OK;
        if (left == 0)
            return WEFT_FAIL(err, WEFT_DEADLINE_EXCEEDED,
                             "no answer within the deadline");
        if (n < 0 && errno != EINTR)
            return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", strerror(errno));
    }
}

/* -- connecting ----------------------------------------------------------- */

static weft_status connect_to(const weft_dialling *dialling,
                              const struct addrinfo *to, int *fd_out,
                              weft_err *err)
{
    const int fd = socket(to->ai_family,
                          to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", strerror(errno));
    weft_status st = WEFT_OK;
    int why = 0;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) why = errno;
    if (why == EINPROGRESS) {
        socklen_t bytes = sizeof why;
        st = wait_for(dialling, fd, POLLOUT, err);
        if (st == WEFT_OK &&
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) != 0)
            why = errno;
    }
    if (st == WEFT_OK && why != 0)
        st = WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", strerror(why));
    if (st != WEFT_OK) {
        (void)close(fd);
        return st;
    }
    *fd_out = fd;
    return WEFT_OK;
}

/* Tries one address after another. Only a name makes the resolver ask others,
 * for as long as it is set to. */
static weft_status connect_any(const weft_dialling *dialling, int *fd_out,
                               weft_err *err)
{
    weft_address address;
    char port[8];
    WEFT_TRY(weft_address_parse(dialling->address, &address, err));
    (void)snprintf(port, sizeof port, "%u", (unsigned)address.port);
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    int resolved = getaddrinfo(address.host, port, &hints, &found);
    if (resolved == EAI_NONAME) {
        hints.ai_flags = AI_NUMERICSERV;
        resolved = getaddrinfo(address.host, port, &hints, &found);
    }
    if (resolved != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", gai_strerror(resolved));
    weft_status st = WEFT_UNAVAILABLE;
    for (const struct addrinfo *to = found; to != NULL; to = to->ai_next) {
        st = connect_to(dialling, to, fd_out, err);
        if (st != WEFT_UNAVAILABLE) break;
    }
    freeaddrinfo(found);
    return st;
}

static weft_status shake_tls(const weft_dialling *dialling, int fd,
                             weft_tls_session *session, weft_err *err)
{
    for (;;) {
        bool out = false;
        const int done = weft_tls_shake(session, &out);
        if (done == 1) return WEFT_OK;
        if (done < 0)
            return WEFT_FAIL(err,
                             weft_tls_is_refused(session)
                                 ? WEFT_FAILED_PRECONDITION
                                 : WEFT_UNAVAILABLE,
                             "%s", weft_tls_why(session));
        WEFT_TRY(wait_for(dialling, fd, out ? POLLOUT : POLLIN, err));
    }
}

/* A link over a connection, whose hello is still to be said. *session_out is
 * the link's. */
static weft_status connect_link(const weft_dialling *dialling,
                                weft_link **link_out,
                                weft_tls_session **session_out, weft_err *err)
{
    int fd = -1;
    weft_tls_session *session = NULL;
    WEFT_TRY(connect_any(dialling, &fd, err));
    weft_status st = WEFT_OK;
    if (dialling->tls != NULL)
        st = weft_tls_open(dialling->tls, fd, false, &session, err);
    if (st == WEFT_OK && session != NULL)
        st = shake_tls(dialling, fd, session, err);
    if (st == WEFT_OK)
        st = weft_link_create_tcp(fd, session, true, dialling->link, link_out,
                                  err);
    if (st != WEFT_OK) {
        weft_tls_close(session);
        (void)close(fd);
        return st;
    }
    *session_out = session;
    return WEFT_OK;
}

/* -- shaking hands -------------------------------------------------------- */

/* The first frame that comes. */
static weft_status wait_frame(const weft_dialling *dialling, weft_link *link,
                              weft_frame *frame_out, weft_err *err)
{
    bool got = false;
    for (;;) {
        WEFT_TRY(weft_link_recv(link, frame_out, &got, err));
        if (got) return WEFT_OK;
        if (link->ops->is_ready(link)) continue;
        const short events =
            weft_link_is_idle(link) ? POLLIN : POLLIN | POLLOUT;
        WEFT_TRY(wait_for(dialling, link->fd, events, err));
    }
}

static weft_status check_peer(const weft_dialling *dialling,
                              const weft_hello *peer, weft_err *err)
{
    WEFT_TRY(weft_hello_check(dialling->own, peer, err));
    return dialling->check == NULL ? WEFT_OK
                                   : dialling->check(dialling->arg, peer, err);
}

static weft_status shake(const weft_dialling *dialling, weft_link *link,
                         weft_hello *peer_out, weft_err *err)
{
    weft_frame frame;
    char text[WEFT_ERR_TEXT_BYTES];
    WEFT_TRY(weft_hello_send(link, WEFT_FRAME_HELLO, dialling->own, err));
    WEFT_TRY(wait_frame(dialling, link, &frame, err));
    if (frame.type == WEFT_FRAME_REFUSE) {
        weft_refuse_text(&frame, text, sizeof text);
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION, "refused: %.300s",
                         text);
    }
    if (frame.type != WEFT_FRAME_WELCOME)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "answered a hello with \"%s\"",
                         weft_frame_type_name(frame.type));
    weft_err why = {0};
    weft_status st =
        weft_hello_decode(frame.body, frame.body_bytes, peer_out, &why);
    if (st == WEFT_OK) st = check_peer(dialling, peer_out, &why);
    if (st == WEFT_OK) return WEFT_OK;
    weft_refuse_send(link, why.text);
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION, "%s", why.text);
}

weft_status weft_dial_run(const weft_dialling *dialling, weft_link **link_out,
                          weft_hello *peer_out, weft_err *err)
{
    weft_link *link = NULL;
    weft_tls_session *session = NULL;
    weft_hello peer;
    weft_status st = connect_link(dialling, &link, &session, err);
    if (st != WEFT_OK)
        return WEFT_WRAP(err, st, "dial %.200s", dialling->address);
    st = shake(dialling, link, &peer, err);
    if (st != WEFT_OK) {
        /* A certificate that the other end does not take shows only after its
         * own has been checked here. */
        const bool refused = st == WEFT_UNAVAILABLE && session != NULL &&
                             weft_tls_is_refused(session);
        const bool version =
            st == WEFT_UNAVAILABLE && link->cause == WEFT_FAILED_PRECONDITION;
        weft_link_close(link);
        st = WEFT_WRAP(err, st, "dial %.200s", dialling->address);
        if (!refused && !version) return st;
        if (err != NULL) err->status = WEFT_FAILED_PRECONDITION;
        return WEFT_FAILED_PRECONDITION;
    }
    weft_link_settle_tcp(link, dialling->link,
                         weft_hello_protocol(dialling->own, &peer), true);
    weft_link_set_name(link, dialling->link->name != NULL ? dialling->link->name
                                                          : peer.id);
    *link_out = link;
    *peer_out = peer;
    return WEFT_OK;
}

weft_status weft_link_dial(const char *address, const weft_hello *own,
                           weft_tls *tls, const weft_link_options *options,
                           uint64_t deadline_ns, weft_link **link_out,
                           weft_hello *peer_out, weft_err *err)
{
    const weft_dialling dialling = {.address = address,
                                    .own = own,
                                    .tls = tls,
                                    .link = options,
                                    .deadline_ns = deadline_ns,
                                    .abort_fd = -1};
    return weft_dial_run(&dialling, link_out, peer_out, err);
}
