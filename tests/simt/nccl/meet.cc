// meet.cc - how ranks find each other: see wire.h.
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "tests/simt/nccl/wire.h"

namespace wire
{

namespace
{

constexpr uint64_t MAGIC = 0x776566746d656574;
constexpr int RANKS_MAX = 64;

// To the root, and to a rank that one connects to (then `port` is none).
struct hello {
    uint64_t magic, nonce;
    int32_t n_ranks, rank, pid, device;
    uint16_t port;
};

int new_socket()
{
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

sockaddr_in address(uint16_t port)
{
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
}

// -1: none is to be had.
int listen_at(uint16_t *port_out)
{
    const int fd = new_socket();
    sockaddr_in at = address(0);
    socklen_t bytes = sizeof at;
    sockaddr *const any = reinterpret_cast<sockaddr *>(&at);
    if (fd >= 0 && bind(fd, any, bytes) == 0 && listen(fd, RANKS_MAX) == 0 &&
        getsockname(fd, any, &bytes) == 0) {
        *port_out = ntohs(at.sin_port);
        return fd;
    }
    if (fd >= 0) (void)close(fd);
    return -1;
}

int connect_to(uint16_t port)
{
    const int fd = new_socket(), yes = 1;
    sockaddr_in at = address(port);
    if (fd >= 0 &&
        connect(fd, reinterpret_cast<sockaddr *>(&at), sizeof at) == 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        return fd;
    }
    if (fd >= 0) (void)close(fd);
    return -1;
}

// Whether the descriptor has something to read, before the cancel.
bool wait_for(int fd, const cancel &stop)
{
    pollfd both[2] = {{fd, POLLIN, 0}, {stop.fd(), POLLIN, 0}};
    while (!stop.is()) {
        (void)poll(both, 2, -1);
        if (both[0].revents != 0) return !stop.is();
    }
    return false;
}

bool read_all(int fd, void *to, size_t bytes, const cancel &stop)
{
    unsigned char *at = static_cast<unsigned char *>(to);
    while (bytes > 0) {
        if (!wait_for(fd, stop)) return false;
        const ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            bytes -= static_cast<size_t>(n);
        }
    }
    return true;
}

// Small enough for any socket's buffer.
bool write_all(int fd, const void *from, size_t bytes)
{
    return send(fd, from, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

// The root. -------------------------------------------------------------------

struct root {
    int fd = -1;
    uint64_t nonce = 0;
    cancel stop;
};

struct roots {
    std::mutex lock;
    std::map<uint64_t, std::shared_ptr<root>> all;
};
roots &known()
{
    // Never ended: a root's thread may outlive main.
    static roots *const it = new roots;
    return *it;
}

struct guests {
    std::vector<hello> said;
    std::vector<int> fds; // [rank], -1: not yet
    size_t n = 0;

    ~guests()
    {
        for (const int fd : fds)
            if (fd >= 0) (void)close(fd);
    }
};

// False: nobody will ever be told.
bool admit(guests *g, int fd, const root &r)
{
    hello h = {};
    if (!read_all(fd, &h, sizeof h, r.stop) || h.magic != MAGIC ||
        h.nonce != r.nonce || h.n_ranks < 1 || h.n_ranks > RANKS_MAX ||
        h.rank < 0 || h.rank >= h.n_ranks) {
        (void)close(fd);
        return true;
    }
    const size_t n = static_cast<size_t>(h.n_ranks);
    const size_t rank = static_cast<size_t>(h.rank);
    if (g->fds.empty()) {
        g->fds.assign(n, -1);
        g->said.resize(n);
    }
    if (n != g->fds.size() || g->fds[rank] >= 0) {
        (void)close(fd);
        return false;
    }
    g->fds[rank] = fd;
    g->said[rank] = h;
    g->n++;
    return true;
}

void serve(const std::shared_ptr<root> &r)
{
    guests g;
    while (g.fds.empty() || g.n < g.fds.size()) {
        std::vector<pollfd> polled = {{r->fd, POLLIN, 0},
                                      {r->stop.fd(), POLLIN, 0}};
        for (const int fd : g.fds)
            if (fd >= 0) polled.push_back({fd, POLLIN, 0});
        (void)poll(polled.data(), polled.size(), -1);
        bool left = r->stop.is();
        for (size_t i = 2; i < polled.size(); i++)
            left |= polled[i].revents != 0;
        if (left) break;
        if (polled[0].revents == 0) continue;
        const int fd = accept4(r->fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0 && !admit(&g, fd, *r)) break;
    }
    if (!g.fds.empty() && g.n == g.fds.size())
        for (const int fd : g.fds)
            (void)write_all(fd, g.said.data(), sizeof(hello) * g.said.size());
    const std::lock_guard<std::mutex> hold(known().lock);
    (void)close(r->fd);
    known().all.erase(r->nonce);
}

} // namespace

bool make_root(identity *id_out)
{
    const std::shared_ptr<root> r = std::make_shared<root>();
    std::random_device random;
    *id_out = identity();
    r->fd = listen_at(&id_out->port);
    if (r->fd < 0) return false;
    r->nonce = static_cast<uint64_t>(random()) << 32 | random();
    id_out->magic = MAGIC;
    id_out->nonce = r->nonce;
    {
        const std::lock_guard<std::mutex> hold(known().lock);
        known().all[r->nonce] = r;
    }
    std::thread(serve, r).detach();
    return true;
}

void stop_root(uint64_t nonce)
{
    const std::lock_guard<std::mutex> hold(known().lock);
    const auto found = known().all.find(nonce);
    if (found != known().all.end()) found->second->stop.now();
}

namespace
{

result ask_root(const identity &id, const hello &mine,
                std::vector<hello> *all_out, const cancel &stop)
{
    if (id.magic != MAGIC) return REFUSED;
    const int fd = connect_to(id.port);
    if (fd < 0) return LOST;
    std::vector<hello> all(static_cast<size_t>(mine.n_ranks));
    const bool told =
        write_all(fd, &mine, sizeof mine) &&
        read_all(fd, all.data(), sizeof(hello) * all.size(), stop);
    (void)close(fd);
    if (stop.is()) return CANCELLED;
    if (!told) return LOST;
    for (size_t i = 0; i < all.size(); i++)
        for (size_t j = 0; j < i; j++)
            if (all[i].pid == all[j].pid && all[i].device == all[j].device)
                return REFUSED;
    *all_out = all;
    return DONE;
}

// All connect before any accepts: the kernel keeps them meanwhile.
result connect_all(int listener, const hello &mine,
                   const std::vector<hello> &all, const cancel &stop, mesh *out)
{
    out->out.assign(all.size(), -1);
    out->in.assign(all.size(), -1);
    for (size_t i = 0; i < all.size(); i++) {
        if (static_cast<int>(i) == mine.rank) continue;
        out->out[i] = connect_to(all[i].port);
        if (out->out[i] < 0 || !write_all(out->out[i], &mine, sizeof mine))
            return LOST;
    }
    for (size_t n = 1; n < all.size();) {
        if (!wait_for(listener, stop)) return CANCELLED;
        const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) continue;
        hello h = {};
        if (!read_all(fd, &h, sizeof h, stop) || h.nonce != mine.nonce ||
            h.rank < 0 || static_cast<size_t>(h.rank) >= all.size() ||
            out->in[static_cast<size_t>(h.rank)] >= 0) {
            (void)close(fd);
            if (stop.is()) return CANCELLED;
            continue;
        }
        out->in[static_cast<size_t>(h.rank)] = fd;
        n++;
    }
    return DONE;
}

} // namespace

result join(const identity &id, int n_ranks, int rank, int device,
            const cancel &stop, mesh *out)
{
    hello mine = {};
    mine.magic = MAGIC;
    mine.nonce = id.nonce;
    mine.n_ranks = n_ranks;
    mine.rank = rank;
    mine.pid = getpid();
    mine.device = device;
    const int listener = listen_at(&mine.port);
    if (listener < 0) return LOST;
    std::vector<hello> all;
    result r = ask_root(id, mine, &all, stop);
    if (r == DONE) r = connect_all(listener, mine, all, stop, out);
    (void)close(listener);
    return r;
}

} // namespace wire
