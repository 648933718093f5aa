/* sched_internal.h - the state that sched.c (jobs come and go) and plan.c (what
 * a step computes) share.
 *
 * A running sequence:
 *
 *   tokens    | prompt, told               | generated here ... |
 *   position  0        computed           goal                n_tokens
 *
 * While computed < goal it is in prefill; after that n_tokens = computed + 1
 * before each step, and a step decodes the one row.
 *
 * Reservation. Admission promises a sequence the pages of its whole prefill and
 * of one decode. They are taken as the chunks come; what is promised and not
 * yet taken is counted in `reserved`, and nobody else may have it:
 *
 *   invariant: the pool can give reserved[] of both kinds together, always.
 */
#ifndef WEFT_SHARD_SCHED_SCHED_INTERNAL_H
#define WEFT_SHARD_SCHED_SCHED_INTERNAL_H

#include "shard/sched/queue.h"
#include "shard/sched/sched.h"

typedef enum weft_seq_state {
    WEFT_SEQ_FREE = 0,
    WEFT_SEQ_RUNNING,
    WEFT_SEQ_DEAD /* ended; its tokens stay until the step is done */
} weft_seq_state;

typedef struct weft_seq {
    const weft_job *job; /* borrowed; NULL once ended */
    weft_seq_state state;
    int32_t slot;
    int32_t *tokens; /* [positions + 1] */
    int32_t n_tokens, computed, goal;
    weft_kv_table table;
    int64_t quota_tokens;            /* promised at admission */
    int64_t quota_pages[WEFT_KINDS]; /* most held at once meanwhile */
    int64_t reserved[WEFT_KINDS];    /* promised and not yet taken */
    int32_t piece;                   /* in this step's plan; -1: none */
    bool expects;                    /* a commit is due */
} weft_seq;

/* Who comes first among jobs that are not here at the moment. */
typedef struct weft_rank {
    int32_t priority;
    uint64_t age;
} weft_rank;

struct weft_sched {
    weft_sched_limits limits;
    const weft_model_config *config;
    const weft_kv_spaces *spaces;
    weft_kv_page_fn before_release;
    void *before_release_arg;

    weft_queue waiting;
    weft_seq *seqs;     /* [max_seqs], by slot */
    weft_seq **running; /* [n_running], in order */
    int32_t n_running;
    int64_t reserved[WEFT_KINDS]; /* over all running */

    weft_piece *pieces;    /* [max_seqs] */
    weft_seq **piece_seqs; /* [max_seqs]; NULL: cancelled meanwhile */
    int32_t n_pieces, n_rows, prefill_left;
    bool committed; /* some piece of this plan was */

    struct weft_sched_end *ends; /* [ends_max]: every job at once */
    int32_t n_ends, ends_max;

    int64_t n_preempted;
    uint64_t newest_age;  /* of any job ever submitted */
    uint64_t earliest_ns; /* no deadline lies before this */

    /* The best of those preempted lately, who are about to be submitted again.
     * For hold_plans more plans nobody behind it is admitted. */
    weft_rank hold;
    int32_t hold_plans;
};

/* Positions that the job can compute: all its tokens but the last. */
int64_t weft_sched_positions(const weft_sched *sched, const weft_job *job);

/* Take the sequence out of the running ones and release its pages. `tokens`
 * lives on until weft_sched_bury. */
void weft_sched_remove(weft_sched *sched, weft_seq *seq);
void weft_sched_bury(weft_sched *sched);

/* Set what is still promised to it, after its table or goal changed. */
void weft_sched_count_reserved(weft_sched *sched, weft_seq *seq);

bool weft_rank_is(const weft_rank *rank, const weft_job *job);

#endif
