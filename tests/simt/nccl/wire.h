// wire.h - how ranks of the stand-in of NCCL meet, and what goes between them:
// sockets of 127.0.0.1. Nobody waits longer than until somebody cancels.
//
// Who makes an id listens, until that many ranks have come as the first of them
// said, and tells each where all of them listen. Then each rank connects to
// each other: one connection for what it sends.
//
// A message is acknowledged by a receive for it, and a send is done then and no
// earlier, whatever its size: NCCL may finish small ones before.
#ifndef WEFT_TESTS_SIMT_NCCL_WIRE_H
#define WEFT_TESTS_SIMT_NCCL_WIRE_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace wire
{

// Something that ends all waits on it, from any thread, for good.
class cancel
{
  public:
    cancel();
    ~cancel();
    cancel(const cancel &) = delete;
    cancel &operator=(const cancel &) = delete;
    void now();
    bool is() const
    {
        return done;
    }
    int fd() const
    {
        return event;
    }

  private:
    int event;
    std::atomic<bool> done{false};
};

enum result { DONE, CANCELLED, LOST /* a peer */, REFUSED /* by the root */ };

// What 128 bytes of an id say.
struct identity {
    uint64_t magic, nonce;
    uint16_t port;
};

// Listens, with a thread of its own that ends when all ranks were told, or one
// of them left, or by `stop`. False: no socket.
bool make_root(identity *id_out);
void stop_root(uint64_t nonce); // of this process; of others: nothing

struct mesh {
    // [rank], -1 for the own: this rank sends on `out`, others on `in`.
    std::vector<int> out, in;
    ~mesh();
};

// Several ranks on one device of one process are REFUSED, as by NCCL.
result join(const identity &id, int n_ranks, int rank, int device,
            const cancel &stop, mesh *out);

struct message {
    unsigned char *at;
    size_t bytes;
    int peer;
    bool send;
    size_t moved = 0; // of header, bytes and acknowledgement together
};

// All of them at once; of one direction with one peer in their order. Another
// count of bytes than the other end has ends the process: it is a defect.
result exchange(const mesh &with, std::vector<message> *messages,
                const cancel &stop);

} // namespace wire

#endif
