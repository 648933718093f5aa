/* server.h - an expert shard at work: rows in, one row a (row, slot) pair out.
 *
 * Stateless: it keeps nothing of a request. It takes what has come from all
 * links, batches rows of the same layer (of whatever group) by expert, computes
 * gate, up, silu and down exactly as a layer shard would (model-spec 2.6), and
 * answers in pieces. The same question may come any number of times.
 *
 * A question is REJECTed, naming the reason, if its epoch is not open here or
 * an expert is not held; it is answered or rejected, never dropped, unless its
 * link breaks.
 *
 * Fairness: oldest question first; others of its layer go with it. A link that
 * does not read its answers holds up nobody else: its own questions wait, and
 * after stall_ns it is broken.
 *
 * On a device a round is one upload of rows and of the table of its experts,
 * the products of all of them, and one download, which is waited for: a round
 * that is over has nothing under way there. Rows that came near
 * (shard/link/near.h) stay on the device, and so do their answers: a question
 * is answered the way it came. When the device fails all links end (so askers
 * go to other owners), and none is taken any more.
 *
 * Threads: one of its own, plus workers. add_link and open by any.
 */
#ifndef WEFT_SHARD_EXPERT_SERVER_H
#define WEFT_SHARD_EXPERT_SERVER_H

#include "kernels/memory.h"
#include "shard/expert/store.h"
#include "shard/link/pulse.h"

typedef struct weft_expert_server weft_expert_server;

typedef struct weft_expert_server_options {
    const weft_model_config *config; /* borrowed */
    weft_expert_store *store;        /* borrowed */
    const weft_ops *ops;
    const weft_memory *memory; /* of the ops and of the store's experts,
                                  borrowed; NULL: the host's */
    weft_profile profile;      /* with ops whose products take bfloat16: results
                                  are rounded as a layer shard rounds them */
    int32_t threads;
    int32_t max_rows; /* of one question; larger ones break their link */
    int32_t links_max;
    weft_pulse *pulse; /* borrowed; NULL: none. Stepped with each round and busy
                          in between, so that it can be watched */
    uint64_t stall_ns; /* answers that do not move for so long break their
                          link; 0: 120 s */
    /* The device is of no use any more: said once, links have been closed. The
     * serving thread; may be NULL. */
    void (*failed)(void *arg, const weft_err *why);
    void *failed_arg;
    bool echo; /* for benches of the exchange: answers are the rows asked, and
                  `store` may be NULL */
} weft_expert_server_options;

/* Bytes of a device that a server takes beside its store. */
int64_t weft_expert_server_device_bytes(const weft_model_config *config);

/* Starts its thread. */
WEFT_MUST_CHECK weft_status
weft_expert_server_start(const weft_expert_server_options *options,
                         weft_expert_server **server_out, weft_err *err);
void weft_expert_server_stop(weft_expert_server *server); /* NULL is fine */

/* A link of a layer shard, made with weft_dispatch_limits (body.h); taken.
 * RESOURCE_EXHAUSTED: links_max; closed. */
WEFT_MUST_CHECK weft_status weft_expert_server_add_link(
    weft_expert_server *server, weft_link *link, weft_err *err);

/* Epochs [first, last] are answered; others are rejected. 0, 0: none. */
void weft_expert_server_set_epochs(weft_expert_server *server, uint64_t first,
                                   uint64_t last);

typedef struct weft_expert_server_stats {
    uint64_t rows, questions, rejected; /* rows: (row, slot) pairs served */
    uint64_t busy_ns, idle_ns;          /* of the serving thread */
    double busy_share;                  /* of recent time (recent.h) */
    uint64_t wait_ns, n_waits;          /* of questions before they began */
    int32_t n_links;
    uint64_t last_epoch; /* highest epoch that a question had */
} weft_expert_server_stats;

void weft_expert_server_get_stats(weft_expert_server *server,
                                  weft_expert_server_stats *stats_out);

#endif
