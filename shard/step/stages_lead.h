/* stages_lead.h - the lead's side of a pipeline: what stages_lead.c (links and
 * runs) and stages_run.c (one step) share. */
#ifndef WEFT_SHARD_STEP_STAGES_LEAD_H
#define WEFT_SHARD_STEP_STAGES_LEAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "shard/step/stages_internal.h"

/* How a stage stands with its lead. */
typedef struct weft_follower {
    weft_link *link;  /* NULL: none */
    weft_peer wanted; /* under the lock; id "": nobody */
    weft_peer peer;   /* whose link it is, if it came from peers */
    bool dialled;
    bool hailed;  /* has told its budget */
    bool refused; /* takes no part until it is another link */
    char refusal[WEFT_STUCK_TEXT_BYTES];
    int64_t kv_bytes;
    uint64_t run;       /* that it has answered */
    uint64_t asked;     /* that RESET has told it */
    uint64_t map_epoch; /* of the last MAP that went there */
} weft_follower;

struct weft_stages {
    weft_stages_options options;
    weft_poller *poller;
    pthread_mutex_t lock; /* wanted, want_ns, missing */
    uint64_t want_ns;     /* when to ask for them again; 0: it is known */
    char missing[64 + WEFT_STUCK_TEXT_BYTES]; /* why it is not whole */
    weft_follower *at;                        /* [n_stages]; at[0] is unused */
    atomic_bool whole, stop;
    atomic_bool must_restart; /* a stage has less KV memory than before */
    bool lost;                /* a run has ended and nobody was told */
    uint64_t run;
    /* The last judging, and since when it has been done without a gap: of all
     * turns and waits, so that one that is short does not begin it anew. */
    uint64_t looked_ns, looking_since_ns;

    /* Of bind. */
    bool bound;
    weft_engine_options engine;
    int32_t hidden_size, max_rows;
    const weft_kv_spaces *spaces;
    unsigned char *body; /* [body_bytes]: the PLAN that is being made */
    size_t body_bytes;
    float *got;        /* [max_rows, hidden]: wanted rows that came back */
    const void **rows; /* [max_rows] */

    /* The step at hand. */
    const weft_stages_step *step;
    weft_micro micros[WEFT_MICRO_MAX];
    int32_t n_micros, n_got;
    bool has[WEFT_MICRO_MAX];
    bool stuck;
    char stuck_text[WEFT_STUCK_TEXT_BYTES];
};

/* The link of that stage is of no use any more, and so is the run. */
void weft_follower_break(weft_stages *stages, int32_t stage, const char *why);
/* The run is over. */
void weft_stages_end_run(weft_stages *stages, const char *why);
/* Takes in everything that has come. */
void weft_stages_pump(weft_stages *stages);
/* Breaks links that have been silent for too long while they were looked at.
 * After a pump. */
void weft_stages_judge(weft_stages *stages);
/* Stages hear of an epoch between steps, too: they connect to whoever is in it,
 * and do not miss who is not. Does not wait. */
void weft_stages_tell_maps(weft_stages *stages);
/* A HIDDEN frame of a stage. False: it must not send that. */
bool weft_stages_take_rows(weft_stages *stages, const weft_frame *frame);

#endif
