// wire.cc - sockets that can be cancelled, and messages on them: see wire.h.
#include "tests/simt/nccl/wire.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace wire
{

cancel::cancel() : event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
{
}

cancel::~cancel()
{
    (void)close(event);
}

void cancel::now()
{
    const uint64_t one = 1;
    done = true;
    (void)!write(event, &one, sizeof one);
}

mesh::~mesh()
{
    for (const int fd : out)
        if (fd >= 0) (void)close(fd);
    for (const int fd : in)
        if (fd >= 0) (void)close(fd);
}

namespace
{

struct header {
    uint64_t magic, bytes;
};
constexpr uint64_t MAGIC = 0x776566746e63636c;
constexpr uint64_t ACK = 0x61636b;

// Some of [at, at + n); 0: not now. False: the other end is gone.
bool some(int fd, bool send_it, void *at, size_t n, size_t *moved)
{
    const ssize_t got = send_it ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(fd, at, n, MSG_DONTWAIT);
    *moved = got > 0 ? static_cast<size_t>(got) : 0;
    if (got > 0) return true;
    return got < 0 && (errno == EAGAIN || errno == EINTR);
}

// A message is [header][bytes][ack]; the last goes the other way.
struct part {
    unsigned char *at;
    size_t begin, bytes;
    bool out;
};

class transfer
{
  public:
    transfer(int fd_given, message *of) : fd(fd_given), m(of)
    {
        head = {MAGIC, m->bytes};
        ack = ACK;
    }

    bool is_done() const
    {
        return m->moved == total();
    }

    // What it waits for.
    pollfd wants() const
    {
        return {fd, static_cast<short>(now().out ? POLLOUT : POLLIN), 0};
    }

    // As far as it goes. False: the other end is gone.
    bool go()
    {
        while (!is_done()) {
            const part p = now();
            const size_t done = m->moved - p.begin;
            size_t moved = 0;
            if (!some(fd, p.out, p.at + done, p.bytes - done, &moved))
                return false;
            if (moved == 0) return true;
            m->moved += moved;
            if (!m->send && m->moved >= sizeof head && p.begin == 0) check();
        }
        return true;
    }

  private:
    size_t total() const
    {
        return sizeof head + m->bytes + sizeof ack;
    }

    part now() const
    {
        transfer *const self = const_cast<transfer *>(this);
        if (m->moved < sizeof head)
            return {reinterpret_cast<unsigned char *>(&self->head), 0,
                    sizeof head, m->send};
        if (m->moved < sizeof head + m->bytes)
            return {m->at, sizeof head, m->bytes, m->send};
        return {reinterpret_cast<unsigned char *>(&self->ack),
                sizeof head + m->bytes, sizeof ack, !m->send};
    }

    void check() const
    {
        if (head.magic == MAGIC && head.bytes == m->bytes) return;
        (void)fprintf(stderr,
                      "simt nccl: a receive of %zu bytes from rank %d met a "
                      "send of %llu\n",
                      m->bytes, m->peer,
                      static_cast<unsigned long long>(head.bytes));
        abort();
    }

    int fd;
    message *m;
    header head;
    uint64_t ack;
};

} // namespace

result exchange(const mesh &with, std::vector<message> *messages,
                const cancel &stop)
{
    std::vector<transfer> left;
    for (message &m : *messages) {
        const size_t peer = static_cast<size_t>(m.peer);
        left.emplace_back(m.send ? with.out[peer] : with.in[peer], &m);
    }
    for (;;) {
        // Of each connection the first that is not done.
        std::vector<pollfd> polled;
        for (transfer &t : left) {
            bool later = t.is_done();
            for (const pollfd &p : polled) later |= p.fd == t.wants().fd;
            if (later) continue;
            if (!t.go()) return LOST;
            if (!t.is_done()) polled.push_back(t.wants());
        }
        bool done = true;
        for (const transfer &t : left) done &= t.is_done();
        if (done) return DONE;
        if (polled.empty()) continue;
        polled.push_back({stop.fd(), POLLIN, 0});
        (void)poll(polled.data(), polled.size(), -1);
        if (stop.is()) return CANCELLED;
    }
}

} // namespace wire
