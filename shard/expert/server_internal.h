/* server_internal.h - what the files of the expert server share.
 *
 *   server.c         making, the serving thread, its links
 *   server_round.c   what is computed at once, and its answers
 *   server_device.c  computing it on a device
 *
 * Each link has at most one question in hand, which stays where the link
 * received it; nothing else is received on that link until it is answered. Its
 * pairs are kept in order of experts. A round takes the next pairs of all
 * questions of one layer, computes expert by expert, and sends each link its
 * rows from a buffer of the link's own: so a link that does not read pins
 * nothing but that.
 */
#ifndef WEFT_SHARD_EXPERT_SERVER_INTERNAL_H
#define WEFT_SHARD_EXPERT_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/log.h"
#include "shard/expert/body.h"
#include "shard/expert/server.h"

enum {
    WEFT_ROUND_PAIRS_MAX = 512, /* of all links together */
    WEFT_ANSWERS_FLYING = 2,    /* frames that a link may hold */
};

/* A stretch of `picked` that goes through one expert. */
typedef struct weft_server_stretch {
    int32_t expert, first, end;
} weft_server_stretch;

typedef struct weft_server_plan {
    int32_t layer, n_pairs, n_clients, n_stretches;
    int32_t only; /* the client, if there is one alone */
    weft_server_stretch stretches[WEFT_ROUND_PAIRS_MAX];
} weft_server_plan;

/* Buffers of a round on a device; opaque to others. */
typedef struct weft_server_device weft_server_device;

typedef struct weft_server_question {
    bool held;
    weft_frame frame;          /* body and rows as the link has them */
    weft_dispatch_pair *pairs; /* [WEFT_DISPATCH_PAIRS_MAX], by expert */
    int32_t n_pairs, next;
    int32_t *places; /* [max_rows], of a device: where a row of the round is
                        there; -1: not */
    uint64_t came_ns;
} weft_server_question;

/* A link, and what goes with it. Empty: link NULL. */
typedef struct weft_server_client {
    weft_link *link;
    weft_log_pace *pace; /* the server's */
    bool polled;         /* its link is in the poller */
    bool broken;
    weft_server_question question;
    void *memory;                        /* of the following */
    float *answers[WEFT_ANSWERS_FLYING]; /* [ANSWER_ROWS_MAX, hidden] */
    const void *rows[WEFT_ANSWERS_FLYING][WEFT_ANSWER_ROWS_MAX];
    int32_t n_flying;         /* answers that may not have left */
    uint64_t moved_ns, moved; /* when bytes last left, and how many had */
    int32_t n_taken;          /* pairs in the round at hand */
    int32_t n_computed;       /* rows that found no room in the queue yet */
    /* Of a near question: whether its link has room for an answer (asked once
     * before each round), its rows of the round on the device, and where the
     * list of its results begins there. */
    bool has_room;
    int32_t near_first, near_rows, near_at;
} weft_server_client;

typedef struct weft_server_picked {
    int32_t client, pair; /* index into its question's pairs */
} weft_server_picked;

struct weft_expert_server {
    weft_expert_server_options options;
    const weft_model_config *config;
    weft_threads *threads;
    weft_poller *poller;
    pthread_t thread;
    atomic_bool stopping;

    /* Any thread, under `lock`. */
    pthread_mutex_t lock;
    weft_link **inbox; /* [links_max] */
    int32_t n_inbox;
    int32_t n_links; /* the inbox's and the clients' */
    uint64_t epoch_first, epoch_last;

    /* Counted by the serving thread, read by any. */
    _Atomic uint64_t rows, questions, rejected, busy_ns, idle_ns, wait_ns,
        n_waits, last_epoch;
    _Atomic double busy_share; /* recent.h */

    weft_log_pace pace;          /* of lines about links */
    weft_server_client *clients; /* [links_max] */
    int32_t n_clients;           /* those beyond were never used */
    uint64_t looked_ns, looking_since_ns;

    /* A round. */
    void *memory;
    float *x, *out;                /* [ROUND_PAIRS_MAX, hidden] */
    float *gate, *up;              /* [ROUND_PAIRS_MAX, moe width] */
    int32_t *x_rows;               /* [ROUND_PAIRS_MAX] */
    weft_server_picked *picked;    /* [ROUND_PAIRS_MAX] */
    weft_gemm *gemms;              /* [2 * ROUND_PAIRS_MAX] */
    const weft_mlp_weights **held; /* [n_expert], of the round's layer */
    weft_dispatch_pair *sorted;    /* [DISPATCH_PAIRS_MAX] */
    int32_t *counts;               /* [n_expert + 1] */

    weft_round round;           /* of results */
    weft_server_device *device; /* NULL: the host's memory */
    bool lost;                  /* the device is of no use any more */
};

/* Computes and answers the next round. Whether there was anything to do. When
 * the device fails nothing is answered. */
bool weft_server_round(weft_expert_server *server, uint64_t now_ns);
/* The device side of a server; NULL is fine for destroy. */
WEFT_MUST_CHECK weft_status
weft_server_device_create(const weft_expert_server_options *options,
                          weft_server_device **device_out, weft_err *err);
void weft_server_device_destroy(weft_server_device *device);
/* The serving thread's place there. */
WEFT_MUST_CHECK weft_status
weft_server_device_bind(const weft_server_device *device, weft_err *err);
void weft_server_device_unbind(const weft_server_device *device);
/* gate, up, silu and down of every pair; *out: the host's rows, in the order of
 * `picked`, until the next round; of near questions they are on the device
 * alone. INTERNAL: the device has failed. */
WEFT_MUST_CHECK weft_status weft_server_device_compute(
    weft_expert_server *server, const weft_server_plan *plan, const float **out,
    weft_err *err);

/* Sends the rows of the round that are the client's, near, as `frame` says. */
WEFT_MUST_CHECK weft_status weft_server_device_send(
    const weft_expert_server *server, const weft_server_client *client,
    const weft_frame *frame, weft_err *err);

/* The row of a picked pair, where its link has it. */
const float *weft_server_asked_row(const weft_expert_server *server,
                                   const weft_server_picked *picked);

/* Whether the client's question could be answered now. */
bool weft_server_is_ready(const weft_server_client *client);
/* Puts a frame that answers the client's question on its way. False: its queue
 * is full, or it is broken (noted). */
bool weft_server_send(weft_server_client *client, weft_frame *frame,
                      const void *const *rows);

/* The device has failed: said once, all links end. */
void weft_server_fail(weft_expert_server *server, const weft_err *why);

/* Its link has ended by itself: says why, once. */
void weft_server_lose(weft_server_client *client, const weft_err *err);

/* Sends the n_computed rows of the client's question that lie in its buffer, if
 * there is room. */
void weft_server_answer(weft_expert_server *server, weft_server_client *client);
/* Answers the client's question with a REJECT; the question is over. */
void weft_server_reject(weft_expert_server *server, weft_server_client *client,
                        weft_reject_reason reason, const char *text);

#endif
