/* dial.h - how links over TCP come to be: listening, dialling, and keeping a
 * set of peers connected.
 *
 * Connecting and shaking hands takes network time, so it has threads of its
 * own; whoever owns the data path is handed links that are ready.
 *
 * TLS: with `tls` set, both ends show certificates signed by ca_file and check
 * the other's (mutual TLS 1.3); a peer without one never gets to its hello.
 * Without it links are plain, and listeners should be on loopback or in a
 * network of their own.
 *
 * Threads: as said at each part. Guarantees: a connection that has not shaken
 * hands within `handshake_ns` is closed; at most `pending_max` are in that
 * state at once, the oldest is closed first; refusals are logged at most once a
 * second for each reason, with the number left out.
 */
#ifndef WEFT_SHARD_LINK_DIAL_H
#define WEFT_SHARD_LINK_DIAL_H

#include "shard/link/hello.h"
#include "shard/link/link.h"
#include "shard/link/pulse.h"
#include "shard/link/tls.h"

/* -- listening ------------------------------------------------------------ */

typedef struct weft_link_server weft_link_server;

typedef struct weft_link_server_options {
    const char *listen;     /* HOST:PORT; port 0 takes a free one */
    const weft_hello *own;  /* copied */
    bool own_later;         /* who says hello waits for set_own */
    weft_tls *tls;          /* NULL: plain */
    weft_link_options link; /* of links that are taken */
    uint64_t handshake_ns;  /* 0: 2 s */
    int32_t pending_max;    /* 0: 64 */
    /* After weft_hello_check: anything else against the peer? May refuse with a
     * text. Server's thread. NULL: nothing. */
    weft_status (*admit)(void *arg, const weft_hello *peer, weft_err *err);
    /* A link that is ready; the callee's from here on, to end with
     * weft_link_close. Server's thread. */
    void (*take)(void *arg, weft_link *link, const weft_hello *peer);
    void *arg;
    /* Whether the peer is known to be who it says, of that incarnation. Asked
     * of one that seems to be of the past: anybody can have said a higher
     * number before, and must not keep it out for ever. Server's thread. NULL:
     * not known of anybody. */
    bool (*vouch)(void *arg, const weft_hello *peer);
    void *vouch_arg;
} weft_link_server_options;

/* RESOURCE_EXHAUSTED or UNAVAILABLE: the address; names it. Starts a thread. */
WEFT_MUST_CHECK weft_status
weft_link_server_start(const weft_link_server_options *options,
                       weft_link_server **server_out, weft_err *err);
/* The bound address, HOST:PORT. */
const char *weft_link_server_address(const weft_link_server *server);
/* Of what it says from here on. A process learns its incarnation by
 * registering, and others may dial it before it has: what it said of itself
 * until then would be wrong, so it begins with own_later. Any thread. */
void weft_link_server_set_own(weft_link_server *server, const weft_hello *own);
void weft_link_server_stop(weft_link_server *server); /* joins; NULL is fine */

/* -- dialling ------------------------------------------------------------- */

/* Connect and shake hands; blocks until deadline_ns at most, but for a name
 * that is to be resolved: that takes as long as the system's resolver is set to
 * (often 10 s where nobody answers it), and the deadline holds before and after
 * it. An address in digits asks no resolver. The same goes for the dials of
 * weft_peers, whose stop waits for one that is resolving.
 * UNAVAILABLE: nobody there, or lost. FAILED_PRECONDITION: refused, by either
 * side, with the reason. DEADLINE_EXCEEDED. */
WEFT_MUST_CHECK weft_status weft_link_dial(const char *address,
                                           const weft_hello *own, weft_tls *tls,
                                           const weft_link_options *options,
                                           uint64_t deadline_ns,
                                           weft_link **link_out,
                                           weft_hello *peer_out, weft_err *err);

/* -- keeping peers connected ---------------------------------------------- */

/* Dials whoever is wanted and not connected, again after 50 ms, then twice as
 * long each time up to 1 s, on threads of its own (one dial does not hold up
 * another). A peer is (id, incarnation): another incarnation is another peer.
 */
typedef struct weft_peers weft_peers;

typedef struct weft_peer {
    char id[WEFT_ID_BYTES];
    char address[WEFT_ADDRESS_BYTES];
    uint64_t incarnation; /* 0: any */
} weft_peer;

typedef struct weft_peers_options {
    const weft_hello *own; /* copied */
    bool own_later;        /* nobody is dialled before set_own */
    weft_tls *tls;
    weft_link_options link;
    uint64_t dial_ns; /* of one try; 0: 1 s */
    int32_t peers_max;
    /* Of links that are ready and not yet taken, so that whoever takes late
     * (after a long step) finds them alive; borrowed, NULL: none. */
    weft_pulse *pulse;
    /* Called on a dialling thread when weft_peers_take has something. */
    void (*ready)(void *arg);
    void *arg;
} weft_peers_options;

WEFT_MUST_CHECK weft_status weft_peers_create(const weft_peers_options *options,
                                              weft_peers **peers_out,
                                              weft_err *err);
/* Joins its threads; untaken links close. Nothing is dialled and `ready` not
 * called any more; all other functions stay harmless. NULL is fine. */
void weft_peers_stop(weft_peers *peers);
void weft_peers_destroy(weft_peers *peers); /* stops; NULL is fine */
/* Of what it says from here on. Any thread. */
void weft_peers_set_own(weft_peers *peers, const weft_hello *own);
/* Between two askings after RESOURCE_EXHAUSTED. */
#define WEFT_PEERS_AGAIN_NS UINT64_C(1000000000)

/* The whole set that is wanted. Any thread. INVALID_ARGUMENT: more than
 * peers_max, and nothing is different. RESOURCE_EXHAUSTED: somebody cannot be
 * dialled for want of memory, a descriptor or a thread, everybody else is; to
 * be asked again in a while, since nobody else comes back to it. */
WEFT_MUST_CHECK weft_status weft_peers_want(weft_peers *peers,
                                            const weft_peer *wanted, int32_t n,
                                            weft_err *err);
/* The next link that is ready: the caller's from here on, to end with
 * weft_link_close and then weft_peers_lost. false: none. Owner's thread. */
bool weft_peers_take(weft_peers *peers, weft_peer *peer_out,
                     weft_link **link_out);
/* The link of that peer has ended: dial again if it is still wanted. */
void weft_peers_lost(weft_peers *peers, const char *id, uint64_t incarnation);
/* Why the last dial of that peer failed; "" if it did not. Any thread. */
void weft_peers_reason(weft_peers *peers, const char *id, char *text_out,
                       size_t text_bytes);

#endif
