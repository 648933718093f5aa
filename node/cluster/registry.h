/* registry.h - the small shared store in which members find each other: keys,
 * revisions, leases, watches. What etcd is, as far as we need it.
 *
 * Values are small and untrusted. Keys here are below one prefix
 * (/weft/CLUSTER/), which the implementation adds. Implementations: `etcd`
 * (etcd.h), `static` (a members file: nothing ever changes), `memory`
 * (tests/support: virtual time, faults).
 *
 * The store is watched as a whole: the owner first sees a listing of all that
 * is there (RELIST_BEGIN, PUT ..., RELIST_END: whatever was not told again is
 * gone), then changes in order. Listings are repeated whenever changes may have
 * been lost (compaction, a broken stream), and from time to time all the same,
 * since some releases of etcd lose events; so whoever applies them must not
 * mind seeing the same again.
 *
 * A lease says that the process lives. It is never proof of anything: what must
 * not happen twice is guarded by comparing revisions in a transaction.
 *
 * Threads: one owner, who polls; wake by any.
 */
#ifndef WEFT_NODE_CLUSTER_REGISTRY_H
#define WEFT_NODE_CLUSTER_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"
#include "node/base/span.h"

enum {
    WEFT_KEY_BYTES = 192,        /* below the prefix, with NUL */
    WEFT_VALUE_BYTES_MAX = 8192, /* of all but placements */
    WEFT_PLACEMENT_BYTES_MAX = 1 << 20,
    WEFT_TXN_COMPARES_MAX = 4,
    WEFT_TXN_WRITES_MAX = 8,
};

/* The key's mod revision must be this; 0: it must not exist. */
typedef struct weft_txn_compare {
    char key[WEFT_KEY_BYTES];
    int64_t mod_revision;
} weft_txn_compare;

typedef struct weft_txn_write {
    char key[WEFT_KEY_BYTES]; /* with `prefix`: all keys that begin so */
    bool remove, prefix;
    bool leased;     /* ends with our lease */
    weft_span value; /* borrowed until submit returns */
} weft_txn_write;

/* If all compares hold, all writes happen, else none. */
typedef struct weft_txn {
    uint64_t tag; /* comes back with the result */
    int32_t n_compares, n_writes;
    weft_txn_compare compares[WEFT_TXN_COMPARES_MAX];
    weft_txn_write writes[WEFT_TXN_WRITES_MAX];
} weft_txn;

typedef enum weft_registry_event_kind {
    WEFT_REGISTRY_RELIST_BEGIN,
    WEFT_REGISTRY_RELIST_END, /* revision: of the listing; all changes told
                                 after it have higher ones */
    WEFT_REGISTRY_PUT,        /* key, value, mod_revision */
    WEFT_REGISTRY_DELETE,     /* key, mod_revision of the deletion */
    WEFT_REGISTRY_TXN,   /* tag; status OK (revision), FAILED_PRECONDITION (a
                            compare did not hold) or UNAVAILABLE (not known
                            whether it happened) */
    WEFT_REGISTRY_LEASE, /* status OK: a lease is held, leased keys of before
                            are gone; UNAVAILABLE: it is lost or has run out
                            by our own clock */
    WEFT_REGISTRY_LINK,  /* status OK: the store answers; UNAVAILABLE: it has
                            not for a while; text */
} weft_registry_event_kind;

typedef struct weft_registry_event {
    weft_registry_event_kind kind;
    const char *key; /* below the prefix; borrowed for the call */
    weft_span value; /* borrowed for the call */
    int64_t revision;
    uint64_t tag;
    weft_status status;
    const char *text;
} weft_registry_event;

typedef void (*weft_registry_fn)(void *arg, const weft_registry_event *event);

typedef struct weft_registry weft_registry;

typedef struct weft_registry_ops {
    /* RESOURCE_EXHAUSTED: too many under way; try after a poll. Its result
     * comes as an event, exactly once. A leased write without a lease is
     * answered FAILED_PRECONDITION. */
    weft_status (*submit)(weft_registry *registry, const weft_txn *txn,
                          weft_err *err);
    /* Tells `take` what has come; returns at deadline_ns, after wake, or when
     * something was told. */
    void (*poll)(weft_registry *registry, uint64_t deadline_ns,
                 weft_registry_fn take, void *arg);
    void (*wake)(weft_registry *registry);
    /* Gives the lease back (its keys go at once), waiting at most until
     * deadline_ns, and ends. */
    void (*destroy)(weft_registry *registry, uint64_t deadline_ns);
} weft_registry_ops;

/* Implementations begin with this. */
struct weft_registry {
    const weft_registry_ops *ops;
};

/* For implementations. Whether these bytes are a key: 1 to WEFT_KEY_BYTES - 1
 * printable ASCII characters, no space. */
bool weft_registry_is_key(const void *key, size_t n);
/* The most bytes that the value of this key may have:
 * longer ones are not told (a key that had a readable value is told as deleted)
 * and not written. */
size_t weft_registry_value_max(const char *key);
/* INVALID_ARGUMENT: counts, a key that is empty or not terminated, a value
 * above the limit of its key; the text names the key. */
WEFT_MUST_CHECK weft_status weft_txn_check(const weft_txn *txn, weft_err *err);

typedef struct weft_etcd_options {
    const char *endpoints; /* HOST:PORT,HOST:PORT..., at most 16 */
    const char *cluster;
    uint64_t lease_ns;  /* 0: 5 s */
    uint64_t relist_ns; /* 0: 30 s */
    uint64_t call_ns;   /* deadline of one call; 0: 700 ms */
    /* PEM files; TLS if any is given. ca_file NULL: the system's. */
    const char *ca_file, *cert_file, *key_file;
    /* "NAME:PASSWORD" in one line of a file; NULL: etcd without users. */
    const char *user_file;
} weft_etcd_options;

/* Needs etcd 3.4 or later. Returns at once; LINK tells whether anybody answers.
 * INVALID_ARGUMENT: the endpoints, a cluster name that is no
 * [A-Za-z0-9._-]{1,63}, a file that is not as it should be; NOT_FOUND,
 * UNAVAILABLE: a file. */
WEFT_MUST_CHECK weft_status
weft_registry_create_etcd(const weft_etcd_options *options,
                          weft_registry **registry_out, weft_err *err);

/* The members of FILE, as told once in a listing: members that serve, each in
 * its first incarnation. One a line, `ROLE ID HOST:PORT`, and for layers behind
 * it GROUP STAGE; `replicas N` says how many expert shards hold each expert
 * (1); '#' begins a comment. Writes are answered FAILED_PRECONDITION; there is
 * no lease. INVALID_ARGUMENT: names file and line. NOT_FOUND, UNAVAILABLE,
 * DATA_LOSS: as weft_file_read_all. */
WEFT_MUST_CHECK weft_status weft_registry_create_static(
    const char *members_file, weft_registry **registry_out, weft_err *err);
/* Of one that was made by create_static. */
int32_t weft_registry_static_replicas(const weft_registry *registry);

#endif
