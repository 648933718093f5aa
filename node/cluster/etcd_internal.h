/* etcd_internal.h - the parts of the etcd registry, for each other.
 *
 *   etcd.c        the registry: poll, transactions, whether anybody answers
 *   etcd_call.c   channels, calls with a deadline, which endpoint is asked
 *   etcd_lease.c  grant, keep alive, give back
 *   etcd_watch.c  listing, then changes from the listing's revision on
 *   etcd_secret.c files for TLS, and logging in
 *
 * All of it runs on the thread that polls. Nothing blocks: calls are started,
 * and their ends come through the completion queue of poll. Time that passes is
 * seen in the turns, which say when they want to be called next.
 */
#ifndef WEFT_NODE_CLUSTER_ETCD_INTERNAL_H
#define WEFT_NODE_CLUSTER_ETCD_INTERNAL_H

#include <grpc/grpc.h>
#include <stdatomic.h>

#include "node/base/arena.h"
#include "node/cluster/etcd_message.h"
#include "node/cluster/registry.h"

enum {
    WEFT_ETCD_ENDPOINTS_MAX = 16,
    WEFT_ETCD_TXNS_MAX = 8,
    WEFT_ETCD_TEXT_BYTES = 200,
};

#define WEFT_ETCD_MS UINT64_C(1000000)

struct etcd;

/* What a completion queue gives back: whom to tell. */
struct etcd_tag {
    void (*fn)(struct etcd *e, struct etcd_tag *tag, bool ok);
};

/* One call with one answer. Reused when it has ended. */
struct etcd_call {
    struct etcd_tag tag; /* first */
    grpc_call *call;     /* NULL: none under way */
    bool busy;           /* not to be started again yet */
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *request, *answer;
    grpc_status_code code;
    grpc_slice details;
    int32_t endpoint;
    uint64_t started_ns;
    /* Told once it has ended; answer is NULL unless code is OK. */
    void (*done)(struct etcd *e, struct etcd_call *call);
};

enum etcd_lease_state {
    ETCD_LEASE_GRANT,  /* there is none */
    ETCD_LEASE_HELD,   /* until good_until_ns at least */
    ETCD_LEASE_REVOKE, /* one of before may still be there, with its keys */
};

struct etcd_lease {
    struct etcd_call call;
    enum etcd_lease_state state, asked; /* asked: what the call is about */
    int64_t id;
    uint64_t good_until_ns, next_ns;
    int64_t ttl_s; /* as asked for */
};

struct etcd_txn {
    struct etcd_call call; /* first */
    uint64_t tag;
    int64_t asked_revision; /* etcd's as known when the call began */
};

/* A page of a listing, as it came. */
struct etcd_page {
    const Etcdserverpb__RangeResponse *response;
    struct etcd_page *next;
};

struct etcd_watch {
    /* Listing. */
    bool listing;
    struct etcd_call list;
    weft_arena *arena; /* of the pages */
    struct etcd_page *first, **last;
    int64_t page_keys;      /* most keys of a page */
    int64_t revision;       /* of the listing, then the last told */
    uint64_t next_ns;       /* when to list again after a failure */
    uint64_t relist_due_ns; /* the next one that has no reason */
    /* Stream; NULL: none. Not opened again before outstanding is 0. */
    grpc_call *call;
    struct etcd_tag sent, message, status;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *request, *answer;
    grpc_status_code code;
    grpc_slice details;
    int32_t endpoint, outstanding;
    bool cancelled, failed; /* failed: not to be tried again at once */
    uint64_t asked_ns;      /* 0: an answer is not waited for */
    uint64_t ping_ns;       /* when to ask for a sign of life */
};

/* Of users and TLS. */
struct etcd_secret {
    char *ca, *cert, *key; /* PEM */
    bool tls;
    char *name, *password; /* NULL: none */
    char *token;           /* NULL: not logged in */
    uint64_t next_ns;
    struct etcd_call call;
};

struct etcd_result {
    uint64_t tag;
    weft_status status;
    const char *text; /* static */
};

struct etcd {
    weft_registry base; /* first */
    uint64_t lease_ns, relist_ns, call_ns;
    char *endpoint_text; /* as given */
    weft_etcd_prefix prefix;
    /* Calls. */
    grpc_completion_queue *queue;
    grpc_channel *channels[WEFT_ETCD_ENDPOINTS_MAX];
    int32_t n_endpoints, endpoint; /* endpoint: the one that is asked */
    grpc_call *waker;              /* never started: carries wakes */
    struct etcd_tag woken;
    atomic_bool wake_pending;
    bool awake; /* poll is to return */
    int32_t n_calls;
    bool ending; /* nothing is started any more but what ends */
    /* Whether anybody answers. */
    uint64_t unanswered_ns; /* since when there is a call without any answer
                               since; 0: none */
    enum { ETCD_UNKNOWN, ETCD_REACHED, ETCD_UNREACHED } reached;
    char last_error[WEFT_ETCD_TEXT_BYTES];
    /* Highest revision that etcd has told us. */
    int64_t revision;
    uint64_t log_ns; /* when the next line about bad values may be written */
    /* Parts. */
    struct etcd_secret secret;
    struct etcd_lease lease;
    struct etcd_watch watch;
    struct etcd_txn txns[WEFT_ETCD_TXNS_MAX];
    struct etcd_result results[WEFT_ETCD_TXNS_MAX];
    int32_t n_results;
    /* Of the poll under way. */
    weft_registry_fn take;
    void *take_arg;
    int64_t n_told;
};

/* etcd.c */
void weft_etcd_tell(struct etcd *e, const weft_registry_event *event);
/* Whether a line may be written about what others write: one now and then. */
bool weft_etcd_may_log(struct etcd *e);
/* An answer of any kind came; its header's revision, 0 if it has none. */
void weft_etcd_answered(struct etcd *e);

/* etcd_call.c */
weft_status weft_etcd_open(struct etcd *e, const weft_etcd_options *options,
                           weft_err *err);
void weft_etcd_close(struct etcd *e);
void weft_etcd_start(struct etcd *e, struct etcd_call *call, const char *path,
                     grpc_byte_buffer *request, uint64_t now_ns,
                     void (*done)(struct etcd *, struct etcd_call *));
void weft_etcd_cancel(struct etcd_call *call);
/* The text that the call ended with, as one line. */
const char *weft_etcd_reason(const struct etcd_call *call,
                             char out[WEFT_ETCD_TEXT_BYTES]);
/* Take note of a failed call; the next one asks another endpoint. */
void weft_etcd_failed(struct etcd *e, int32_t endpoint, grpc_status_code code,
                      const grpc_slice *details);
/* Metadata of a call; the count. They borrow from e. */
size_t weft_etcd_metadata(struct etcd *e, grpc_metadata out[2]);
/* Wait for the queue and tell whom it concerns; false: the time has come. */
bool weft_etcd_next(struct etcd *e, uint64_t until_ns);

/* Turns: do what is due; when to be called next. */
uint64_t weft_etcd_lease_turn(struct etcd *e, uint64_t now_ns);
uint64_t weft_etcd_watch_turn(struct etcd *e, uint64_t now_ns);

/* etcd_lease.c: etcd has said that there is no such lease. */
void weft_etcd_lease_gone(struct etcd *e, const char *why);

/* etcd_watch.c */
void weft_etcd_watch_init(struct etcd *e);
void weft_etcd_watch_end(struct etcd *e); /* cancels */
void weft_etcd_watch_deinit(struct etcd *e);
/* List again, since changes may have been missed. */
void weft_etcd_relist(struct etcd *e);

/* etcd_secret.c */
weft_status weft_etcd_secret_init(struct etcd *e,
                                  const weft_etcd_options *options,
                                  weft_err *err);
void weft_etcd_secret_deinit(struct etcd *e);
/* false: log in first. */
bool weft_etcd_is_logged_in(const struct etcd *e);
/* Logs in where that is wanted. */
uint64_t weft_etcd_secret_turn(struct etcd *e, uint64_t now_ns);
/* Whether a failed call says that the token is not taken (it is forgotten). */
bool weft_etcd_token_refused(struct etcd *e, const struct etcd_call *call);
#endif
