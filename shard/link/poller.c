#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/near_internal.h"

enum { EVENTS = 16 };

struct weft_poller {
    int epoll_fd, wake_fd;
    /* Whether a wake is on its way, so that many cost one write. */
    atomic_bool woken;
    weft_link **links;
    int32_t n, capacity;
};

static bool control(const weft_poller *poller, int what, int fd,
                    uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(poller->epoll_fd, what, fd, &event) == 0;
}

weft_status weft_poller_create(weft_poller **poller_out, weft_err *err)
{
    weft_poller *const poller = weft_mem_new(1, sizeof *poller);
    if (poller == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a poller");
    atomic_init(&poller->woken, false);
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    poller->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poller->epoll_fd < 0 || poller->wake_fd < 0 ||
        !control(poller, EPOLL_CTL_ADD, poller->wake_fd, EPOLLIN)) {
        const int why = errno;
        weft_poller_destroy(poller);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no descriptor for a poller: %s", strerror(why));
    }
    *poller_out = poller;
    return WEFT_OK;
}

void weft_poller_destroy(weft_poller *poller)
{
    if (poller == NULL) return;
    if (poller->epoll_fd >= 0) (void)close(poller->epoll_fd);
    if (poller->wake_fd >= 0) (void)close(poller->wake_fd);
    weft_mem_free(poller->links);
    weft_mem_free(poller);
}

weft_status weft_poller_add(weft_poller *poller, weft_link *link, weft_err *err)
{
    if (poller->n == poller->capacity) {
        const int32_t capacity = poller->capacity == 0 ? 8 : 2 * poller->n;
        weft_link **const links = weft_mem_resize(
            poller->links, (size_t)capacity, sizeof(weft_link *));
        if (links == NULL)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for %d links", (int)capacity);
        poller->links = links;
        poller->capacity = capacity;
    }
    if (!control(poller, EPOLL_CTL_ADD, link->fd, EPOLLIN))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot wait for the link to %s: %s", link->name,
                         strerror(errno));
    link->polls_out = false;
    poller->links[poller->n++] = link;
    return WEFT_OK;
}

void weft_poller_remove(weft_poller *poller, weft_link *link)
{
    for (int32_t i = 0; i < poller->n; i++) {
        if (poller->links[i] != link) continue;
        (void)control(poller, EPOLL_CTL_DEL, link->fd, 0);
        poller->links[i] = poller->links[--poller->n];
        return;
    }
}

/* Whether a link needs no waiting. Asks for room to send where frames wait.
 * *tick_ns_out: how soon to look again, since no descriptor tells of near rows.
 */
static bool look(weft_poller *poller, uint64_t *tick_ns_out)
{
    bool ready = false;
    *tick_ns_out = UINT64_MAX;
    for (int32_t i = 0; i < poller->n; i++) {
        weft_link *const link = poller->links[i];
        const bool out = !link->ops->is_idle(link);
        if (out != link->polls_out &&
            control(poller, EPOLL_CTL_MOD, link->fd,
                    out ? EPOLLIN | EPOLLOUT : EPOLLIN))
            link->polls_out = out;
        ready = ready || link->broken || weft_link_is_ready(link);
        const uint64_t tick_ns = weft_near_tick_ns(link);
        if (tick_ns < *tick_ns_out) *tick_ns_out = tick_ns;
    }
    return ready;
}

/* Waits for events; false: there were none. */
static bool ask(weft_poller *poller, uint64_t timeout_ns)
{
    struct epoll_event events[EVENTS];
    const struct timespec wait = {.tv_sec = (time_t)(timeout_ns / 1000000000U),
                                  .tv_nsec = (long)(timeout_ns % 1000000000U)};
    int n = timeout_ns == 0
                ? epoll_wait(poller->epoll_fd, events, EVENTS, 0)
                : epoll_pwait2(poller->epoll_fd, events, EVENTS, &wait, NULL);
    /* Before Linux 5.11, or forbidden by a sandbox that does not know it: up to
     * a millisecond late. */
    if (n < 0 && errno != EINTR)
        n = epoll_wait(poller->epoll_fd, events, EVENTS,
                       (int)(timeout_ns / 1000000U < 1000000000U
                                 ? timeout_ns / 1000000U + 1
                                 : 1000000000U));
    for (int i = 0; i < n; i++) {
        uint64_t count = 0;
        if (events[i].data.fd != poller->wake_fd) continue;
        /* The counter first: a wake between the two writes nothing, and is one
         * of those that end this wait. The other way round its write would be
         * taken here with its flag left standing, and nobody would write any
         * more. The exchange shows what was done before that wake. */
        const ssize_t got = read(poller->wake_fd, &count, sizeof count);
        (void)got;
        (void)atomic_exchange(&poller->woken, false);
    }
    return n != 0;
}

/* Whoever is waited for may need this very core. */
static void relax(void)
{
    (void)sched_yield();
}

void weft_poller_wait(weft_poller *poller, uint64_t deadline_ns,
                      uint64_t spin_ns)
{
    uint64_t tick_ns = UINT64_MAX;
    if (look(poller, &tick_ns)) {
        (void)ask(poller, 0); /* so that a wake does not stay behind */
        return;
    }
    uint64_t now = weft_clock_now_ns();
    if (now < deadline_ns && tick_ns < deadline_ns - now)
        deadline_ns = now + tick_ns;
    const uint64_t spin_end = spin_ns < deadline_ns - now && now < deadline_ns
                                  ? now + spin_ns
                                  : deadline_ns;
    while (now < spin_end) {
        if (ask(poller, 0)) return;
        if (tick_ns != UINT64_MAX && look(poller, &tick_ns)) return;
        relax();
        now = weft_clock_now_ns();
    }
    (void)ask(poller, now < deadline_ns ? deadline_ns - now : 0);
}

void weft_poller_wake(weft_poller *poller)
{
    const uint64_t one = 1;
    if (atomic_exchange(&poller->woken, true)) return;
    const ssize_t n = write(poller->wake_fd, &one, sizeof one);
    (void)n; /* a counter cannot be full of ones */
}
