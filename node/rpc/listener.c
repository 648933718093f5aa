#include "node/rpc/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/log.h"
#include "node/base/mem.h"

enum {
    SOCKETS_MAX = 8, /* addresses of one host */
    /* Descriptors that connections leave to others, or a quarter of all where
     * there are few. */
    SPARE_FDS = 32,
    /* How long a listener that cannot accept waits before it tries again. */
    PAUSE_MS = 100,
};

struct weft_listener {
    struct pollfd fds[SOCKETS_MAX + 1]; /* the sockets; the last wakes */
    nfds_t n;
    weft_listener_fn take;
    void *arg;
    bool short_told; /* of descriptors; the thread's */
    bool started;
    pthread_t thread;
};

/* -- the thread ----------------------------------------------------------- */

/* A new descriptor has the lowest free number, so that its number bounds how
 * many are in use. */
static bool is_short(int fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    const rlim_t spare =
        limit.rlim_cur / 4 < SPARE_FDS ? limit.rlim_cur / 4 : SPARE_FDS;
    return (rlim_t)fd >= limit.rlim_cur - spare;
}

static void tell_short(weft_listener *l, const char *why)
{
    if (l->short_told) return;
    l->short_told = true;
    weft_log(WEFT_LOG_WARN, "rpc", "connections_refused", "reason \"%s\"", why);
}

/* false: nothing can be accepted until something is closed. */
static bool accept_one(weft_listener *l, int socket)
{
    const int fd = accept4(socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        /* What else accept tells is of one connection, which is gone. */
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
            errno != ENOMEM)
            return true;
        tell_short(l, strerror(errno));
        return false;
    }
    if (is_short(fd)) {
        (void)close(fd);
        tell_short(l, "file descriptors are short");
        return true;
    }
    l->short_told = false;
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    l->take(l->arg, fd);
    return true;
}

static void *run(void *arg)
{
    weft_listener *const l = arg;
    struct pollfd *const wake = &l->fds[l->n];
    for (;;) {
        bool can_accept = true;
        (void)poll(l->fds, l->n + 1, -1);
        if (wake->revents != 0) return NULL;
        for (nfds_t i = 0; i < l->n; i++)
            if (l->fds[i].revents != 0)
                can_accept &= accept_one(l, l->fds[i].fd);
        if (!can_accept) (void)poll(wake, 1, PAUSE_MS);
    }
}

/* -- life ----------------------------------------------------------------- */

/* One of a host's addresses, on the port that an earlier one has got. */
static weft_status open_socket(weft_listener *l, const struct addrinfo *at,
                               weft_address *address, weft_err *err)
{
    weft_address one = {.port = address->port};
    int fd = -1;
    if (getnameinfo(at->ai_addr, at->ai_addrlen, one.host, sizeof one.host,
                    NULL, 0, NI_NUMERICHOST) != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "cannot listen on %s: no numeric address",
                         address->host);
    WEFT_TRY(weft_address_listen(&one, &fd, &address->port, err));
    /* A client may leave between poll and accept. */
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    l->fds[l->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return WEFT_OK;
}

static weft_status open_all(weft_listener *l, weft_address *address,
                            weft_err *err)
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE};
    const int resolved = getaddrinfo(address->host, NULL, &hints, &found);
    if (resolved != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "cannot listen on %s: %s",
                         address->host, gai_strerror(resolved));
    weft_status st = WEFT_OK;
    for (const struct addrinfo *at = found; at != NULL && l->n < SOCKETS_MAX;
         at = at->ai_next) {
        const weft_status one = open_socket(l, at, address, err);
        if (one != WEFT_OK) st = one;
    }
    freeaddrinfo(found);
    return l->n > 0 ? WEFT_OK : st;
}

weft_status weft_listener_open(weft_address *address,
                               weft_listener **listener_out, weft_err *err)
{
    weft_listener *const l = weft_mem_new(1, sizeof *l);
    if (l == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a listener");
    weft_status st = open_all(l, address, err);
    const int wake = st == WEFT_OK ? eventfd(0, EFD_CLOEXEC) : -1;
    if (st == WEFT_OK && wake < 0)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no descriptor for a listener: %s", strerror(errno));
    l->fds[l->n] = (struct pollfd){.fd = wake, .events = POLLIN};
    if (st != WEFT_OK) {
        weft_listener_close(l);
        return st;
    }
    *listener_out = l;
    return WEFT_OK;
}

weft_status weft_listener_start(weft_listener *l, weft_listener_fn take,
                                void *arg, weft_err *err)
{
    l->take = take;
    l->arg = arg;
    const int code = pthread_create(&l->thread, NULL, run, l);
    if (code != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no thread for a listener: %s", strerror(code));
    l->started = true;
    return WEFT_OK;
}

void weft_listener_close(weft_listener *l)
{
    if (l == NULL) return;
    if (l->started) {
        const uint64_t one = 1;
        const ssize_t told = write(l->fds[l->n].fd, &one, sizeof one);
        (void)told; /* an event counter below its limit takes it */
        (void)pthread_join(l->thread, NULL);
    }
    for (nfds_t i = 0; i <= l->n; i++)
        if (l->fds[i].fd >= 0) (void)close(l->fds[i].fd);
    weft_mem_free(l);
}
