/* controller_internal.h - what the files of controller.h share. */
#ifndef WEFT_NODE_CLUSTER_CONTROLLER_INTERNAL_H
#define WEFT_NODE_CLUSTER_CONTROLLER_INTERNAL_H

#include "node/base/str.h"
#include "node/cluster/controller.h"
#include "node/cluster/values.h"

enum {
    WEFT_DELETES_PER_TURN = 4,
    WEFT_EPOCHS_SHOWN_MAX = 64,
};

typedef enum weft_write_kind {
    WEFT_WRITE_NONE = 0,
    WEFT_WRITE_ELECT,
    WEFT_WRITE_RESTORE,
    WEFT_WRITE_PLAN,
    WEFT_WRITE_ROLLBACK,
    WEFT_WRITE_COMMIT,
    WEFT_WRITE_RETIRE,
} weft_write_kind;

/* A member that did not load what a plan gave it. */
typedef struct weft_failure {
    char id[WEFT_ID_BYTES];
    uint64_t incarnation;
    char text[96];
    int32_t times;
    uint64_t until_ns; /* forgotten then */
} weft_failure;

struct weft_controller {
    weft_placement_shape shape; /* borrowed arrays */
    int64_t *expert_bytes;      /* where shape has none: what members tell */
    int64_t told_bytes;         /* 0: nobody has told */
    char id[WEFT_ID_BYTES];
    int32_t replicas;
    uint64_t settle_ns, plan_ns, switch_ns;

    uint64_t in_use; /* as told; 0: none */
    float *load;     /* NULL: none */
    uint64_t n_loads;

    /* The registry, as it answers. */
    bool has_lease;
    bool is_linked;
    int64_t elected; /* revision of our controller key; 0: not elected */
    uint64_t tag;    /* of the last transaction */
    weft_write_kind writing;
    int64_t wait_seen;      /* act once the roster has seen this, */
    uint64_t wait_until_ns; /* or at this time */
    uint64_t settle_until_ns;

    /* What is known, whatever the store says. */
    weft_placement *last; /* committed; NULL: none seen */
    bool is_behind;       /* the store has less than that */
    uint64_t epoch_max;

    /* The plan under way. */
    uint64_t planned;     /* 0: none */
    uint64_t with_all;    /* the plan for which those that hold experts were
                             not enough; 0: none */
    uint64_t progress_ns; /* when it began, or its last ack came */
    int32_t n_acks;
    uint64_t committed_ns; /* when the last epoch was seen committed */
    weft_failure *failures;
    int32_t n_failures;

    /* Inputs of the last planning, and when they changed. */
    uint64_t inputs, decided;
    uint64_t changed_ns, gather_ns; /* last, and first since decided */
    char refused[160]; /* why the last inputs gave no placement; "" */

    weft_buf value, number;
    weft_controller_state state;
};

/* Who may own experts. *members_out is the caller's to free; lost_out: somebody
 * of the placement is not among them; missing_out: somebody of it has no key.
 * false: no memory. */
bool weft_controller_eligible(weft_controller *c, const weft_roster *roster,
                              const weft_placement *placement,
                              weft_placement_member **members_out,
                              int32_t *n_out, bool *lost_out,
                              const char **missing_out);

/* Whether an expert of the committed placement has no owner among these. */
bool weft_controller_uncovered(const weft_controller *c,
                               const weft_placement_member *members, int32_t n);
/* Those that the committed placement names to the front; how many they are. */
int32_t weft_controller_known_first(const weft_controller *c,
                                    weft_placement_member *members, int32_t n);

/* What to do about epochs, elected and with nothing under way. */
bool weft_controller_plan(weft_controller *c, const weft_roster *roster,
                          uint64_t now_ns, weft_txn *txn, uint64_t *next_ns);
bool weft_controller_check_plan(weft_controller *c, const weft_roster *roster,
                                uint64_t now_ns, weft_txn *txn,
                                uint64_t *next_ns);
bool weft_controller_retire(weft_controller *c, const weft_roster *roster,
                            weft_txn *txn);
/* Whether all leads say that they are of the epoch; *least_out: the lowest that
 * any of them may use. */
bool weft_controller_leads(const weft_roster *roster, uint64_t epoch,
                           uint64_t *least_out);

void weft_controller_fail(weft_controller *c, const char *id,
                          uint64_t incarnation, const char *text,
                          uint64_t now_ns);
void weft_controller_waits(weft_controller *c, const char *format, ...)
    WEFT_PRINTF(2, 3);
static inline void weft_controller_by(uint64_t *next_ns, uint64_t at_ns)
{
    if (at_ns < *next_ns) *next_ns = at_ns;
}

/* A transaction of the elected: begins with the comparison of its key. */
void weft_controller_begin(weft_controller *c, weft_write_kind kind,
                           weft_txn *txn);
void weft_txn_add_compare(weft_txn *txn, const char *key, int64_t revision);
void weft_txn_add_put(weft_txn *txn, const char *key, const weft_buf *value,
                      bool leased);
void weft_txn_add_remove(weft_txn *txn, const char *key, bool prefix);

#endif
