/* stages_internal.h - the bodies of the frames that a lead and its stages
 * exchange, and what the engine asks of the lead's side.
 *
 *   RESET   lead to stage: weft_stages_values: forget all, this is the run.
 *           stage to lead: weft_stages_hail: who I am, and which run I am in.
 *   PLAN    run, micro-batches of the step, pieces with their new pages, rows
 *           wanted; see weft_plan_encode
 *   HIDDEN  run; the rows beside it
 *   STUCK   run, why, text
 *   MAP     expert/map.h
 *
 * (run, step, attempt, tag) names a micro-batch. A piece brings the pages that
 * begin within its rows, so a step that is sent again brings them again, and
 * nobody keeps account of what was told.
 */
#ifndef WEFT_SHARD_STEP_STAGES_INTERNAL_H
#define WEFT_SHARD_STEP_STAGES_INTERNAL_H

#include "node/base/pack.h"
#include "shard/step/layers.h"
#include "shard/step/stages.h"

enum {
    WEFT_MICRO_MAX = 16, /* micro-batches of one step */
    WEFT_STUCK_TEXT_BYTES = 160,
};

/* -- bodies --------------------------------------------------------------- */

typedef struct weft_stages_values {
    uint64_t run;
    int32_t n_stages, stage;
    int32_t page_tokens, chunk_tokens, max_seqs, max_context, profile;
    int32_t hidden_size;
    int64_t kv_bytes; /* of the stage, as the lead accounts for it */
} weft_stages_values;

typedef struct weft_stages_hail {
    uint64_t run; /* 0: none yet */
    int64_t kv_bytes;
} weft_stages_hail;

typedef enum weft_stuck_why {
    WEFT_STUCK_EXPERTS = 1, /* not all experts can be had: try again */
    WEFT_STUCK_BROKEN,      /* a link of the chain broke: the run is over */
    WEFT_STUCK_REFUSED,     /* the values contradict: nothing will help */
} weft_stuck_why;

typedef struct weft_stuck {
    uint64_t run;
    uint32_t why;
    char text[WEFT_STUCK_TEXT_BYTES];
} weft_stuck;

enum { WEFT_STAGES_BODY_BYTES = 256 }; /* room for any but PLAN and MAP */

size_t weft_stages_values_encode(const weft_stages_values *values, void *out);
size_t weft_stages_hail_encode(const weft_stages_hail *hail, void *out);
size_t weft_stuck_encode(const weft_stuck *stuck, void *out);
size_t weft_stages_run_encode(uint64_t run, void *out);
/* False: malformed. */
bool weft_stages_values_decode(const weft_frame *frame,
                               weft_stages_values *values_out);
bool weft_stages_hail_decode(const weft_frame *frame,
                             weft_stages_hail *hail_out);
bool weft_stuck_decode(const weft_frame *frame, weft_stuck *stuck_out);
bool weft_stages_run_decode(const weft_frame *frame, uint64_t *run_out);

/* -- plans ---------------------------------------------------------------- */

/* Some neighbouring rows of a step. */
typedef struct weft_micro {
    int32_t first, n_rows;
    int32_t first_wanted, n_wanted; /* of the step's wanted rows */
} weft_micro;

typedef struct weft_stages_step {
    uint64_t step, epoch;
    uint32_t attempt;
    const weft_piece *pieces;
    const bool *dead; /* [n_pieces]: not computed */
    int32_t n_pieces, n_rows;
    weft_layers *layers;        /* the lead's own, rows laid out */
    const int32_t *wanted_rows; /* rising */
    int32_t n_wanted;
    const float **wanted_out; /* [n_wanted] */
} weft_stages_step;

/* Bytes of the largest PLAN body. */
size_t weft_plan_bytes_max(const weft_engine_options *options);

/* The PLAN of one micro-batch for `stage`. Bytes written; 0: it does not fit,
 * which weft_plan_bytes_max rules out. */
size_t weft_plan_encode(const weft_stages_step *step, const weft_micro *micro,
                        uint64_t run, int32_t n_micros, int32_t stage,
                        int32_t page_tokens, weft_pack *pack);

/* What a stage knows of one sequence. */
typedef struct weft_slot {
    int64_t *offsets[WEFT_KINDS]; /* [max_pages]; NULL: no such layers here */
    int32_t n_pages[WEFT_KINDS];
    int32_t n_written; /* positions that have been computed */
} weft_slot;

/* What a PLAN is decoded against, and into. */
typedef struct weft_slots {
    const weft_kv_layout *layout;
    int64_t arena_bytes;
    weft_slot *at; /* [n] */
    int32_t n, max_pages, max_context, max_rows;
    weft_kv_store *store; /* pages that come in are poisoned there */
} weft_slots;

typedef struct weft_plan_head {
    uint64_t run;
    int32_t n_micros, n_rows;
} weft_plan_head;

/* Only what says which plan it is. False: malformed. */
bool weft_plan_decode_head(const void *body, size_t n,
                           weft_plan_head *head_out);
/* Check everything against the slots and take it in: page tables, the rows of
 * `layers`, wanted rows [max_rows] into wanted_out. INVALID_ARGUMENT says what
 * is wrong; the slots are then of no use until they are reset. */
WEFT_MUST_CHECK weft_status weft_plan_decode(
    const void *body, size_t n, weft_slots *slots, weft_layers *layers,
    int32_t *wanted_out, int32_t *n_wanted_out, weft_err *err);

/* -- for the engine ------------------------------------------------------- */

/* What the run will be: before the first turn. spaces are borrowed. */
WEFT_MUST_CHECK weft_status weft_stages_bind(weft_stages *stages,
                                             const weft_engine_options *options,
                                             int32_t hidden_size,
                                             const weft_kv_spaces *spaces,
                                             weft_err *err);
/* Looks after the links, starts a run when it can. Does not wait. */
void weft_stages_turn(weft_stages *stages);
/* Returns when a link has something, or at deadline_ns. */
void weft_stages_idle(weft_stages *stages, uint64_t deadline_ns);
/* Whether the run has ended since the last call: cache rows are lost. */
bool weft_stages_take_lost(weft_stages *stages);
/* One try of a step. UNAVAILABLE: try again with a higher attempt, unless
 * take_lost says that there is no more use. */
WEFT_MUST_CHECK weft_status weft_stages_run(weft_stages *stages,
                                            const weft_stages_step *step,
                                            weft_err *err);
/* Whatever waits returns UNAVAILABLE from here on. Any thread. */
void weft_stages_stop(weft_stages *stages);
/* No link borrows rows of a step any more: one that does ends. After the
 * engine's thread has ended, and before its rows do; the pulse thread sends
 * what a link holds until then. */
void weft_stages_let_go(weft_stages *stages);

#endif
