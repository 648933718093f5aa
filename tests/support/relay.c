#include "tests/support/relay.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/mem.h"

enum { WIRES_MAX = 16, BYTES = 1 << 16 };

/* What one side has said and the other has not yet taken. */
typedef struct way {
    unsigned char bytes[BYTES];
    size_t n;
} way;

typedef struct wire {
    int fd[2]; /* who came; the target. -1: no wire */
    way to[2]; /* bytes for fd[i] */
} wire;

struct relay {
    char address[64];
    struct sockaddr_in target;
    int listener, wake;
    pthread_t thread;
    atomic_bool stop, cut;
    atomic_long left; /* bytes until the next cut; negative: no end */
    wire wires[WIRES_MAX];
};

static void end_wire(wire *w)
{
    for (int i = 0; i < 2; i++) {
        if (w->fd[i] >= 0) (void)close(w->fd[i]);
        w->fd[i] = -1;
        w->to[i].n = 0;
    }
}

static void set_up(int fd)
{
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void take_one(relay *r)
{
    const int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    wire *w = NULL;
    for (int i = 0; i < WIRES_MAX; i++)
        if (r->wires[i].fd[0] < 0) w = &r->wires[i];
    if (w == NULL || connect(out, (const struct sockaddr *)&r->target,
                             sizeof r->target) != 0) {
        (void)close(fd);
        (void)close(out);
        return;
    }
    set_up(fd);
    set_up(out);
    w->fd[0] = fd;
    w->fd[1] = out;
}

/* False: the wire is at its end. */
static bool pass(relay *r, wire *w, int from, short events)
{
    way *const to = &w->to[1 - from];
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && to->n < BYTES) {
        const ssize_t n =
            recv(w->fd[from], to->bytes + to->n, BYTES - to->n, MSG_DONTWAIT);
        if (n == 0) return false;
        if (n > 0) to->n += (size_t)n;
    }
    if (to->n == 0) return true;
    size_t most = to->n;
    const long left = atomic_load(&r->left);
    if (left >= 0 && (size_t)left < most) most = (size_t)left;
    const ssize_t n =
        send(w->fd[1 - from], to->bytes, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
        memmove(to->bytes, to->bytes + n, to->n - (size_t)n);
        to->n -= (size_t)n;
        if (left >= 0 && atomic_fetch_sub(&r->left, n) <= n) {
            atomic_store(&r->left, -1);
            atomic_store(&r->cut, true);
        }
    }
    return true;
}

static void *run(void *arg)
{
    relay *const r = arg;
    while (!atomic_load(&r->stop)) {
        struct pollfd fds[2 + 2 * WIRES_MAX] = {
            {.fd = r->listener, .events = POLLIN},
            {.fd = r->wake, .events = POLLIN},
        };
        for (int i = 0; i < 2 * WIRES_MAX; i++) {
            const wire *const w = &r->wires[i / 2];
            short events = w->to[1 - i % 2].n < BYTES ? POLLIN : 0;
            if (w->to[i % 2].n > 0) events |= POLLOUT;
            fds[2 + i] = (struct pollfd){.fd = w->fd[i % 2], .events = events};
        }
        (void)poll(fds, 2 + 2 * WIRES_MAX, -1);
        uint64_t count = 0;
        if (fds[1].revents != 0)
            if (read(r->wake, &count, sizeof count) < 0) continue;
        if (atomic_exchange(&r->cut, false))
            for (int i = 0; i < WIRES_MAX; i++) end_wire(&r->wires[i]);
        for (int i = 0; i < 2 * WIRES_MAX; i++) {
            wire *const w = &r->wires[i / 2];
            if (w->fd[0] < 0 || fds[2 + i].fd != w->fd[i % 2]) continue;
            if (!pass(r, w, i % 2, fds[2 + i].revents)) end_wire(w);
        }
        if (fds[0].revents != 0) take_one(r);
    }
    for (int i = 0; i < WIRES_MAX; i++) end_wire(&r->wires[i]);
    return NULL;
}

relay *relay_open(const char *target)
{
    relay *const r = weft_mem_new(1, sizeof *r);
    const char *const colon = strrchr(target, ':');
    ck_assert_ptr_nonnull(colon);
    r->target = (struct sockaddr_in){
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtol(colon + 1, NULL, 10)),
        .sin_addr = {htonl(INADDR_LOOPBACK)},
    };
    struct sockaddr_in own = {.sin_family = AF_INET,
                              .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof own;
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert(r->listener >= 0 && r->wake >= 0);
    ck_assert(bind(r->listener, (struct sockaddr *)&own, sizeof own) == 0 &&
              listen(r->listener, 16) == 0 &&
              getsockname(r->listener, (struct sockaddr *)&own, &bytes) == 0);
    (void)snprintf(r->address, sizeof r->address, "127.0.0.1:%d",
                   (int)ntohs(own.sin_port));
    for (int i = 0; i < WIRES_MAX; i++) r->wires[i].fd[0] = -1;
    for (int i = 0; i < WIRES_MAX; i++) r->wires[i].fd[1] = -1;
    atomic_store(&r->left, -1);
    ck_assert(pthread_create(&r->thread, NULL, run, r) == 0);
    return r;
}

static void wake(relay *r)
{
    const uint64_t one = 1;
    ck_assert(write(r->wake, &one, sizeof one) == sizeof one);
}

void relay_close(relay *r)
{
    if (r == NULL) return;
    atomic_store(&r->stop, true);
    wake(r);
    (void)pthread_join(r->thread, NULL);
    (void)close(r->listener);
    (void)close(r->wake);
    weft_mem_free(r);
}

const char *relay_address(const relay *r)
{
    return r->address;
}

void relay_cut(relay *r)
{
    atomic_store(&r->cut, true);
    wake(r);
}

void relay_cut_after(relay *r, int64_t n_bytes)
{
    atomic_store(&r->left, (long)n_bytes);
}
