/* exchange.h - the layer shard's side of the expert pool: sends the rows of a
 * layer to the shards that serve their experts and gathers one row for each
 * (row, slot) pair. A filling of weft_experts.
 *
 * A DISPATCH frame holds each row that the peer needs once, and in its body the
 * (row, expert, pair) triples; ANSWER frames bring rows for pairs, in pieces.
 * A pair is asked of the first owner in the map that is connected. When a peer
 * breaks while it owes answers, or is silent, it is fenced (its link is closed,
 * so nothing of it can arrive any more), `suspect` is told, and what it owed is
 * sent to the next owner with a higher attempt. Where there is no other owner,
 * collect fails, and the step is computed again once begin finds an epoch (or a
 * link) with which it can be.
 *
 * Answers are believed only if epoch, group, step, layer, attempt and lane are
 * those that are waited for; anything else is dropped and counted. An exchange
 * counts attempts by itself: each dispatch and each sending again takes the
 * next number, so that no two questions of its life have one name. An answer
 * with the right name and anything wrong inside breaks its link.
 *
 * A REJECT makes its peer unusable for that epoch for a moment (the peer may
 * hear of an epoch later than its asker), without any suspicion.
 *
 * The epoch changes between steps alone, so a step is of one epoch: `begin`
 * takes the newest map for which every expert has a connected owner, and never
 * one before the last it took; so does `idle` where the config begins with
 * layer 0 (a lead's; stages are told an epoch by begin). `switched` is told
 * when a later epoch than before is in use.
 *
 * A peer that is needed (the newest map has experts that nobody else who is
 * connected owns) is suspected too when its link breaks while it owes nothing,
 * or when it cannot be reached for a second.
 *
 * On a device (`memory`) rows need not pass through the host: what is asked of
 * a peer with near rows (shard/link/near.h) goes there and comes back from
 * device to device, what is asked of others through the host. Where all who
 * could be asked in the epoch have near rows, begin settles that the host's
 * copy of a step's rows is not needed at all: nobody else can be asked before
 * the next begin.
 *
 * Threads: create and destroy by one; set_map by any; all of weft_experts by
 * the thread that computes.
 */
#ifndef WEFT_SHARD_EXPERT_EXCHANGE_H
#define WEFT_SHARD_EXPERT_EXCHANGE_H

#include "kernels/memory.h"
#include "shard/expert/map.h"
#include "shard/link/pulse.h"
#include "shard/model/config.h"
#include "shard/model/experts.h"

typedef struct weft_exchange weft_exchange;

/* Watching; any entry may be NULL. Called on the computing thread. */
typedef struct weft_exchange_watch {
    /* The peer broke or was silent while it was needed. */
    void (*suspect)(void *arg, const char *id, uint64_t incarnation,
                    const char *why);
    /* A peer that was suspected is connected again, the same incarnation. */
    void (*cleared)(void *arg, const char *id, uint64_t incarnation);
    void (*switched)(void *arg, uint64_t epoch);
    /* One layer's exchange: from dispatch to the last answer, and its bytes
     * both ways. */
    void (*exchanged)(void *arg, const char *id, uint64_t ns, uint64_t bytes);
    /* Pairs that each expert was asked for in this call, for load figures. */
    void (*routed)(void *arg, int32_t layer, const int32_t *experts,
                   int32_t n_pairs);
    void *arg;
} weft_exchange_watch;

typedef struct weft_exchange_options {
    const weft_model_config *config; /* borrowed */
    int32_t max_rows;                /* of one call */
    uint32_t group;
    weft_peers *peers; /* borrowed; the exchange takes its links and says whom
                          it wants; its `ready` should end in
                          weft_exchange_wake. Links have
                          weft_answer_limits (body.h).
                          NULL: links come by add_link alone */
    weft_pulse *pulse; /* borrowed; NULL: none */
    /* Of a peer; 0: WEFT_SILENCE_NS, or never where there is no pulse. */
    uint64_t silence_ns;
    /* An answer that does not come though the peer lives: fenced as well.
     * 0: 120 s. */
    uint64_t answer_ns;
    /* Of the ops that compute the steps; borrowed. NULL, or the host's: rows
     * are never near, and results are the host's. Links that can have near rows
     * have `near` in their options, made for weft_answer_limits in and
     * weft_dispatch_limits out. The thread that computes is bound to the
     * device. */
    const weft_memory *memory;
    weft_exchange_watch watch;
} weft_exchange_options;

/* RESOURCE_EXHAUSTED: no memory for max_rows rows, of the host or the device.
 */
WEFT_MUST_CHECK weft_status
weft_exchange_create(const weft_exchange_options *options,
                     weft_exchange **exchange_out, weft_err *err);
/* NULL is fine. Does not touch `peers`: they may be, and where their `ready`
 * wakes the exchange have to be, destroyed before it. */
void weft_exchange_destroy(weft_exchange *exchange);

weft_experts weft_exchange_experts(weft_exchange *exchange);

/* A newer map; older ones than the newest are ignored. Takes a reference of its
 * own. Wakes whoever idles. Any thread. */
void weft_exchange_set_map(weft_exchange *exchange, weft_expert_map *map);
/* A link that needs no dialling (in one process); taken on success. Before the
 * first step, or by the thread that computes, between steps.
 * FAILED_PRECONDITION: that peer has one. */
WEFT_MUST_CHECK weft_status weft_exchange_add_link(weft_exchange *exchange,
                                                   const weft_peer *peer,
                                                   weft_link *link,
                                                   weft_err *err);
/* The map of the epoch that the last begin settled, with a reference of the
 * caller; NULL: none yet. The thread that computes. */
weft_expert_map *weft_exchange_current_map(weft_exchange *exchange);
void weft_exchange_wake(weft_exchange *exchange); /* any thread */
/* Everything under way and after fails with CANCELLED: the end. Any thread. */
void weft_exchange_stop(weft_exchange *exchange);

typedef struct weft_exchange_state {
    uint64_t epoch;      /* of the last step, or the next; 0: none yet */
    uint64_t map_epoch;  /* the newest map */
    bool whole;          /* begin would succeed now */
    char missing[160];   /* if not: what is missing */
    uint64_t n_stale;    /* answers dropped as not current */
    uint64_t n_resent;   /* dispatches sent again to another owner */
    uint64_t n_fenced;   /* peers fenced while they owed answers */
    uint64_t n_garbage;  /* frames that made no sense: their link was broken */
    uint64_t n_rejected; /* REJECTs that were waited for */
    int32_t n_links;
    int32_t n_near; /* links with near rows */
} weft_exchange_state;

/* A snapshot, at most one step or idle turn old. Any thread. */
void weft_exchange_get_state(weft_exchange *exchange,
                             weft_exchange_state *state_out);

#endif
