/* exchange_internal.h - what the files of the exchange share.
 *
 *   exchange.c         making, epochs, begin and idle
 *   exchange_peers.c   slots: one for each peer that a map names, with its link
 *   exchange_calls.c   dispatch and collect: pieces out, answers in
 *   exchange_near.c    rows that stay on the device
 *
 * A call's pairs lie in `order`, grouped by the piece that asks for them; a
 * piece is one DISPATCH frame and owns a range of it. When a piece is lost, the
 * pairs that are missing are moved to the front of its range and that range is
 * cut into other pieces, so nothing is ever allocated for that.
 *
 * Whatever goes wrong with a link is only noted where it is seen (`broken`);
 * weft_exchange_repair, called from the loops, acts on it. So no function that
 * sends or receives is ever re-entered.
 */
#ifndef WEFT_SHARD_EXPERT_EXCHANGE_INTERNAL_H
#define WEFT_SHARD_EXPERT_EXCHANGE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "shard/expert/body.h"
#include "shard/expert/exchange.h"
#include "shard/link/near.h"

enum {
    WEFT_EXCHANGE_MAPS = 4, /* held at once, the current one among them */
    WEFT_EXCHANGE_WHY_BYTES = 160,
    WEFT_NO_SLOT = -1,
    WEFT_PAIR_DONE = -1,
};

/* One peer: of a map that is held, or added by hand. */
typedef struct weft_exchange_slot {
    bool used;
    bool fixed;  /* added by hand: stays when no map names it */
    bool named;  /* by a map that is held */
    bool wanted; /* named, or suspected not long ago */
    weft_peer peer;
    weft_link *link; /* NULL: not connected */

    bool broken; /* noted; its link is still to be ended */
    bool slow;   /* broken because it lives and does not answer */
    char why[WEFT_EXCHANGE_WHY_BYTES];
    bool suspected;
    uint64_t suspected_ns;    /* since when */
    uint64_t second_until_ns; /* asked only if nobody else can be, till then */
    uint64_t reject_epoch;    /* not usable for it (0: none) ... */
    uint64_t reject_until_ns; /* ... until then */
    uint32_t n_rejects;       /* in a row */
    uint64_t unlinked_ns;     /* since when it is not connected */
    int32_t n_owed;           /* pieces under way, of all lanes */
    uint64_t progress_ns;     /* last answer, or the question after none */
} weft_exchange_slot;

typedef enum weft_piece_state {
    WEFT_PIECE_WAITING, /* for room in the link's queue */
    WEFT_PIECE_SENT,
    WEFT_PIECE_REFUSED, /* what is missing has to go elsewhere */
    WEFT_PIECE_OVER,
} weft_piece_state;

typedef struct weft_exchange_piece {
    weft_piece_state state;
    uint32_t attempt;
    int32_t slot;
    int32_t first, end; /* its pairs are order[first, end) */
    int32_t n_missing;
    bool is_near; /* its rows stay on the device */
    bool is_put;  /* its list of rows is on its way there */
} weft_exchange_piece;

typedef struct weft_exchange_owed {
    int32_t n; /* pieces of this lane under way */
    uint64_t bytes;
} weft_exchange_owed;

typedef struct weft_exchange_lane {
    weft_experts_call call;
    bool active, failed;
    int32_t n_missing, n_pieces;
    uint64_t began_ns;
    int32_t *order;    /* [pairs_max] */
    int32_t *piece_of; /* [pairs_max]: by pair; WEFT_PAIR_DONE */
    const void **rows; /* [pairs_max]: of a piece at its `first` */
    /* Lists of near rows, [pairs_max] each, on the host and at the ops: rows of
     * pieces, as `rows`, and pairs of answers in the order in which they came.
     * Each place is used once in a call: what an upload reads must not change
     * before the next sync, and the caller syncs before each dispatch. */
    int32_t *x_rows, *y_rows, *x_rows_ops, *y_rows_ops;
    weft_exchange_piece *pieces; /* [pieces_max] */
    weft_exchange_owed *owed;    /* [slots] */
} weft_exchange_lane;

/* A map, and which slot each of its peers has. */
typedef struct weft_exchange_held {
    weft_expert_map *map;
    int16_t slots[WEFT_EXPERT_SHARDS_MAX];
    uint64_t checked; /* topology at which `whole` was found; 0: never */
    bool whole;
    char missing[WEFT_EXCHANGE_WHY_BYTES];
} weft_exchange_held;

struct weft_exchange {
    weft_exchange_options options;
    const weft_model_config *config;
    int32_t pairs_max, pieces_max;
    weft_poller *poller;

    /* Any thread, under `lock`. */
    pthread_mutex_t lock;
    weft_expert_map *inbox[WEFT_EXCHANGE_MAPS];
    int32_t n_inbox;
    uint64_t newest_epoch;
    weft_exchange_state state;
    atomic_bool woken, stopped;

    /* The computing thread's. Held maps in rising order of epochs. */
    weft_exchange_held held[WEFT_EXCHANGE_MAPS];
    int32_t n_held;
    weft_exchange_held *current; /* of `held`; NULL: no step yet */
    uint64_t epoch;              /* of the last step */
    uint64_t step;
    uint32_t attempt;
    bool step_failed; /* until the next begin */
    bool on_device;   /* results are put there */
    bool is_near;     /* all rows of the step stay there */
    float *answer;    /* device: [ANSWER_ROWS_MAX, hidden]; rows of the host on
                         their way to their places */
    weft_err ops_err; /* of a sync; status OK: none failed */
    char failed_why[WEFT_EXCHANGE_WHY_BYTES];
    bool dirty;         /* something is noted for repair */
    uint64_t topology;  /* counts changes of who can be asked */
    uint64_t expiry_ns; /* the next end of a rejection */
    uint64_t want_ns;   /* when to say again whom it wants; 0: it is known */
    uint64_t looked_ns, looking_since_ns;
    uint64_t n_stale, n_resent, n_fenced, n_garbage, n_rejected;
    int32_t n_links, n_waiting;

    weft_exchange_slot *slots; /* [WEFT_EXPERT_SHARDS_MAX] */
    int32_t n_slots;           /* those beyond were never used */
    weft_exchange_lane lanes[WEFT_STEP_LANES];

    /* Scratch. */
    weft_peer *wanted;              /* [WEFT_EXPERT_SHARDS_MAX] */
    int32_t *counts;                /* [WEFT_EXPERT_SHARDS_MAX + 1] */
    int16_t *targets;               /* [pairs_max] */
    int32_t *sorted;                /* [pairs_max] */
    weft_dispatch_pair *body_pairs; /* [WEFT_DISPATCH_PAIRS_MAX] */
    unsigned char *body;            /* [WEFT_DISPATCH_BODY_BYTES_MAX] */
};

/* How long a turn of a wait lasts at most, so that silence is judged. */
#define WEFT_EXCHANGE_TICK_NS UINT64_C(20000000)

/* -- exchange_peers.c ----------------------------------------------------- */

/* Maps that set_map left; says whom it wants. Whether anything came. */
bool weft_exchange_take_maps(weft_exchange *ex);
/* Takes links that are ready. */
bool weft_exchange_take_links(weft_exchange *ex);
WEFT_MUST_CHECK weft_status weft_exchange_connect(weft_exchange *ex, int32_t s,
                                                  weft_link *link,
                                                  weft_err *err);
int32_t weft_exchange_slot_of(weft_exchange *ex, const weft_peer *peer);
/* Notes that the link of slot s is of no use, and why. */
void weft_exchange_break(weft_exchange *ex, int32_t s, bool slow,
                         const char *why);
/* Ends a noted link: fences, suspects. */
void weft_exchange_end_link(weft_exchange *ex, int32_t s);
void weft_exchange_close_link(weft_exchange *ex, int32_t s);
/* Rejections that are over; peers that cannot be reached. */
bool weft_exchange_age(weft_exchange *ex, uint64_t now_ns);
/* The slot to ask, or WEFT_NO_SLOT. */
int32_t weft_exchange_owner(const weft_exchange *ex, int32_t layer,
                            int32_t expert, uint64_t now_ns);
/* Whether every expert has somebody to ask. */
bool weft_exchange_is_whole(weft_exchange *ex, weft_exchange_held *held);

static inline bool weft_exchange_usable(const weft_exchange_slot *slot,
                                        uint64_t epoch)
{
    return slot->link != NULL && !slot->broken && slot->reject_epoch != epoch;
}

/* -- exchange_calls.c ----------------------------------------------------- */

void weft_exchange_dispatch(void *arg, const weft_experts_call *call);
WEFT_MUST_CHECK weft_status weft_exchange_collect(void *arg,
                                                  const weft_experts_call *call,
                                                  weft_err *err);
/* Everything that has come on slot s. Whether anything had. */
bool weft_exchange_receive(weft_exchange *ex, int32_t s);
/* Acts on what is noted: ends links, asks others. */
void weft_exchange_repair(weft_exchange *ex);
/* No lane has anything under way any more, and no link borrows rows. */
void weft_exchange_give_up(weft_exchange *ex, const char *why);
/* Judges silence of slot s. */
void weft_exchange_judge(weft_exchange *ex, int32_t s, uint64_t now_ns,
                         uint64_t since_ns);

/* -- exchange_near.c ------------------------------------------------------ */

/* What all this needs; nothing where there is no device. */
WEFT_MUST_CHECK weft_status weft_exchange_near_create(weft_exchange *ex,
                                                      weft_err *err);
void weft_exchange_near_destroy(weft_exchange *ex);
/* Whether all who could be asked by the map have near rows. */
bool weft_exchange_near_can(const weft_exchange *ex,
                            const weft_exchange_held *held);
int32_t weft_exchange_near_count(const weft_exchange *ex);
/* As weft_link_send of a piece whose rows are in lane->x_rows. */
WEFT_MUST_CHECK weft_status weft_exchange_near_send(weft_exchange *ex,
                                                    weft_exchange_lane *lane,
                                                    weft_exchange_piece *piece,
                                                    const weft_frame *frame,
                                                    weft_err *err);
/* The rows of an answer to these pairs go to their places on the device, from
 * there or from the host. */
void weft_exchange_near_place(weft_exchange *ex, weft_exchange_lane *lane,
                              const weft_frame *frame, const uint32_t *pairs);
/* Lists that are on their way may change afterwards. false: the device failed,
 * which is in ops_err. */
bool weft_exchange_near_sync(weft_exchange *ex);

/* -- exchange.c ----------------------------------------------------------- */

void weft_exchange_publish(weft_exchange *ex);

#endif
