/* stage_internal.h - a stage: what stage.c (lifecycle, links) and stage_run.c
 * (frames, computing) share. */
#ifndef WEFT_SHARD_STEP_STAGE_INTERNAL_H
#define WEFT_SHARD_STEP_STAGE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "shard/step/snapshot.h"
#include "shard/step/stages_internal.h"

/* Names a micro-batch. */
typedef struct weft_micro_name {
    uint64_t run, step;
    uint32_t attempt, tag;
} weft_micro_name;

/* A PLAN that waits for its rows. */
typedef struct weft_stage_plan {
    weft_micro_name name;
    uint64_t epoch;
    weft_plan_head head;
    unsigned char *body; /* [body_bytes_max] */
    size_t body_bytes;
} weft_stage_plan;

typedef enum weft_stage_from {
    WEFT_FROM_LEAD,
    WEFT_FROM_BEFORE, /* the stage before; of stage 1 that is the lead */
    WEFT_FROM_NEXT,   /* the one that rows go to; of the last none */
    WEFT_STAGE_LINKS
} weft_stage_from;

struct weft_stage {
    weft_stage_options options;
    weft_experts pool;
    const weft_experts *experts; /* NULL: in the weights */
    weft_kv_spaces spaces;       /* one, for its layout and size */
    int64_t arena_bytes;
    weft_layers layers;
    weft_slots slots;

    pthread_t thread;
    bool started;
    atomic_bool stop;
    weft_poller *poller;
    weft_snapshot snapshot;
    pthread_mutex_t lock;
    weft_link *offered[WEFT_STAGE_LINKS]; /* under the lock: not yet taken */
    weft_peer wanted_next;                /* under the lock; id "": nobody */
    uint64_t want_ns; /* under the lock: when to ask for it again; 0: it is
                         known */

    weft_link *links[WEFT_STAGE_LINKS];
    weft_peer next; /* whose link NEXT is, if it came from peers */
    bool dialled;

    uint64_t run;      /* 0: none */
    uint64_t answered; /* the run that the lead has been told we are in */
    bool over;         /* the run is of no use any more */
    bool refusing;     /* its values contradict ours */
    bool lost;         /* the device is of no use any more */

    size_t body_bytes_max;
    weft_stage_plan plans[WEFT_MICRO_MAX]; /* a ring */
    int32_t first_plan, n_plans;
    weft_frame rows; /* HIDDEN, borrowed from its link; n_rows 0: none */
    weft_micro_name rows_name;
    weft_micro_name begun;  /* the last that experts have begun for */
    weft_micro_name failed; /* all of this attempt are passed over */
    int32_t *wanted;        /* [max_rows] */
    const void **row_at;    /* [max_rows] */

    uint64_t warned_ns; /* of a wrong frame, which is said once a second */
    uint64_t n_unsaid;

    uint64_t n_steps, epoch, step_begin_ns;
    int32_t step_rows;
};

/* The link ends; whatever was borrowed from it is gone, and so is the run. */
void weft_stage_break(weft_stage *s, weft_stage_from from, const char *why);
/* The device has failed: said once, all links end. */
void weft_stage_fail(weft_stage *s, const weft_err *why);
/* To the lead, if there is one; a link that does not take it ends. */
void weft_stage_tell(weft_stage *s, const weft_frame *frame);
/* Takes in what has come and computes what can be; whether there was any. */
bool weft_stage_turn(weft_stage *s);
/* Nothing of the run is kept. */
void weft_stage_forget(weft_stage *s);
/* Says hello to a lead whose link has just come. */
void weft_stage_hail(weft_stage *s, uint64_t run);
void weft_stage_publish(weft_stage *s);

#endif
