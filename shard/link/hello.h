/* hello.h - who is at the other end of a link, and whether we talk to it.
 *
 * The first frame of either side. Both check it; who does not agree sends
 * REFUSE with a reason that names both sides' values, and closes. Nothing else
 * is read from a peer before its hello has been accepted, and only a few
 * kilobytes are read for that.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_SHARD_LINK_HELLO_H
#define WEFT_SHARD_LINK_HELLO_H

#include "shard/link/frame.h"

enum {
    WEFT_ID_BYTES = 64,       /* of a member, with its NUL */
    WEFT_CLUSTER_BYTES = 64,  /* name of a cluster */
    WEFT_IDENTITY_BYTES = 64, /* numeric identity */
    WEFT_RELEASE_BYTES = 32,
    WEFT_ADDRESS_BYTES = 280, /* HOST:PORT */
    WEFT_HELLO_BYTES_MAX = 1024,
};

enum {
    WEFT_PROTOCOL_MIN = 1,
    WEFT_PROTOCOL_NEAR = 2, /* from here on: frames of type COMM (near.h) */
    WEFT_PROTOCOL_MAX = 2,
};

typedef enum weft_role {
    WEFT_ROLE_ROUTER = 1,
    WEFT_ROLE_LAYERS = 2,
    WEFT_ROLE_EXPERTS = 3,
} weft_role;

const char *weft_role_name(weft_role role); /* "router", "layers", "experts" */

typedef struct weft_hello {
    uint32_t protocol_min, protocol_max; /* versions of frames and bodies that
                                            are spoken; the highest common one
                                            is used */
    char release[WEFT_RELEASE_BYTES];    /* version and commit, for messages */
    char cluster[WEFT_CLUSTER_BYTES];
    char id[WEFT_ID_BYTES];
    weft_role role;
    uint64_t incarnation;           /* of that id; an older one is refused */
    int32_t group, stage, n_stages; /* of layers; else 0 */
    uint64_t config_hash;           /* of config.json as read */
    uint64_t weights_hash;          /* 0: not known (a router) */
    /* Backend and everything else that decides bits, such as "cpu"; of a layer
     * shard of more than one rank with ".tpN" behind, as sums over N ranks have
     * bits of their own. Equal between stages of a group; between others but
     * for that end, since experts compute the same for all. */
    char identity[WEFT_IDENTITY_BYTES];
    /* "exact" or "bf16": equal between stages of a group; "" for others, since
     * experts compute the same in both. */
    char profile[16];
} weft_hello;

/* Bytes written; bytes_out has WEFT_HELLO_BYTES_MAX. */
size_t weft_hello_encode(const weft_hello *hello, void *bytes_out);
/* INVALID_ARGUMENT: not a hello. */
WEFT_MUST_CHECK weft_status weft_hello_decode(const void *bytes, size_t n,
                                              weft_hello *hello_out,
                                              weft_err *err);

/* Whether experts of the one compute the same bits as those of the other: both
 * are equal but for a ".tpN" at the end. */
bool weft_identity_is_same_pool(const char *identity, const char *other);

/* Whether `own` and `peer` may talk: cluster, a common protocol version, config
 * hash, weights hash where both know one, identity where both have one, profile
 * where both have one. FAILED_PRECONDITION names field and both values. */
WEFT_MUST_CHECK weft_status weft_hello_check(const weft_hello *own,
                                             const weft_hello *peer,
                                             weft_err *err);

/* What two who may talk speak: the highest version that both know. */
uint32_t weft_hello_protocol(const weft_hello *own, const weft_hello *peer);

#endif
