/* stages.h - the pipeline of one group: its lead's side and a stage's side.
 *
 * The lead plans a step, cuts it into micro-batches of whole stretches of rows,
 * and sends each stage its PLAN (positions, new pages, which rows are wanted).
 * Rows go down the chain as HIDDEN frames while earlier micro-batches are one
 * stage further; the last stage sends the rows whose logits are wanted back to
 * the lead, which samples (so everything that is known of a sequence has one
 * owner, and a stage holds nothing but cache rows and page tables).
 *
 *   lead --PLAN--> every stage          (and MAP before the first PLAN of an
 *   lead --HIDDEN--> 1 --HIDDEN--> 2     epoch, at the latest; RESET before the
 *                                        first of all)
 *   lead <--------HIDDEN (wanted)-- last
 *   lead <--STUCK-- any stage            experts are missing: the lead sends
 *                                        the step again, attempt + 1
 *
 * A stage keeps, per slot, the page table that the plans have told it; a plan
 * tells only what is new. Whatever breaks a link of the chain ends the group's
 * run: the lead gives all its jobs back (PREEMPTED: the router submits them
 * again), and when all links stand again it sends RESET with a new run number
 * and begins afresh. Frames of an older run are dropped.
 * A stage whose device fails ends its links, and takes none any more.
 *
 * Threads: the lead's side is the engine's; a stage has a thread of its own.
 */
#ifndef WEFT_SHARD_STEP_STAGES_H
#define WEFT_SHARD_STEP_STAGES_H

#include "shard/expert/exchange.h"
#include "shard/load/weights.h"
#include "shard/step/engine.h"

/* Watching: the rows of one micro-batch begin or have ended in the layers of
 * this stage. The thread that computes. */
typedef void (*weft_micro_fn)(void *arg, uint64_t step, int32_t micro_batch,
                              bool ended);

/* What links between stages of one group must take. */
weft_frame_limits weft_stages_limits(const weft_model_config *config,
                                     const weft_engine_options *options);

/* Bytes of buffers that the pipeline adds to weft_engine_overhead_bytes, of a
 * lead and of a stage alike. */
int64_t weft_stages_bytes(const weft_model_config *config,
                          const weft_engine_options *options);

/* -- the lead's side ------------------------------------------------------ */

typedef struct weft_stages weft_stages;

typedef struct weft_stages_options {
    int32_t n_stages; /* >= 2 */
    uint32_t group;
    int32_t micro_batches; /* of one step at most; 0: n_stages */
    /* Rows of a micro-batch at least: each reads all weights of its layers, so
     * a few rows are computed sooner together. 0: 16 */
    int32_t micro_rows;
    weft_peers *peers; /* borrowed; links to stages 1 ... come from here, named
                          by weft_stages_want. NULL: by add_link alone */
    weft_pulse *pulse; /* borrowed; NULL: none */
    weft_micro_fn on_micro; /* may be NULL */
    void *on_micro_arg;
} weft_stages_options;

WEFT_MUST_CHECK weft_status
weft_stages_create(const weft_stages_options *options, weft_stages **stages_out,
                   weft_err *err);
void weft_stages_destroy(weft_stages *stages); /* NULL is fine */
/* Who stages 1 ... n - 1 are: peers [n_stages - 1]; NULL: nobody, and links
 * that there are end. Any thread. Errors as of weft_peers_want; who could not
 * be dialled is asked for again without another call. */
WEFT_MUST_CHECK weft_status weft_stages_want(weft_stages *stages,
                                             const weft_peer *peers,
                                             weft_err *err);
/* In one process: the link to that stage. Before the engine starts. */
WEFT_MUST_CHECK weft_status weft_stages_add_link(weft_stages *stages,
                                                 int32_t stage, weft_link *link,
                                                 weft_err *err);
int32_t weft_stages_count(const weft_stages *stages);
/* Whether all stages are connected and know the run. Any thread. */
bool weft_stages_is_whole(const weft_stages *stages);
/* What keeps it from being whole: a stage that is missing or has other values.
 * Any thread. */
void weft_stages_get_missing(weft_stages *stages, char *text_out, size_t bytes);
/* A stage has come back with less KV memory than the pools were made for, which
 * last as long as the engine: the lead has to start again. Any thread. */
bool weft_stages_must_restart(const weft_stages *stages);

/* What each stage has told of itself when it was connected: its KV budget.
 * Used once, before the engine can be created. DEADLINE_EXCEEDED names the
 * stage that is missing. kv_bytes_out [n_stages - 1]. */
WEFT_MUST_CHECK weft_status weft_stages_wait(weft_stages *stages,
                                             uint64_t deadline_ns,
                                             int64_t *kv_bytes_out,
                                             weft_err *err);

/* -- a stage's side ------------------------------------------------------- */

typedef struct weft_stage weft_stage;

typedef struct weft_stage_options {
    const weft_model_config *config; /* cut for this stage; borrowed */
    const weft_weights *weights;     /* of this stage; borrowed */
    weft_engine_options engine; /* kv_bytes, page_tokens ...: as the lead's,
                                   but for kv_bytes; the lead's RESET says its
                                   values, and a difference is refused */
    int32_t stage, n_stages;
    uint32_t group;
    weft_exchange *exchange; /* borrowed; NULL: experts are in weights */
    weft_peers *peers;       /* for the link to the next stage; NULL: by
                                add_link alone */
    weft_pulse *pulse;       /* borrowed; NULL: none */
    weft_step_fn on_step;    /* may be NULL */
    void *on_step_arg;
    weft_micro_fn on_micro; /* may be NULL */
    void *on_micro_arg;
} weft_stage_options;

/* Starts its thread. */
WEFT_MUST_CHECK weft_status weft_stage_start(const weft_stage_options *options,
                                             weft_stage **stage_out,
                                             weft_err *err);
void weft_stage_stop(weft_stage *stage); /* joins; NULL is fine */
/* A link is ready: for weft_peers_options.ready. Any thread. */
void weft_stage_wake(weft_stage *stage);
/* The next stage (not of the last); NULL: nobody. Any thread. Errors as of
 * weft_stages_want. */
WEFT_MUST_CHECK weft_status weft_stage_want(weft_stage *stage,
                                            const weft_peer *next,
                                            weft_err *err);
/* A link that the listener took (from the lead or the stage before, told apart
 * by the stage in its hello), or one made in the process. Taken. An earlier
 * link of the same kind is closed. Any thread. */
WEFT_MUST_CHECK weft_status weft_stage_add_link(weft_stage *stage,
                                                int32_t from_stage,
                                                weft_link *link, weft_err *err);
/* In one process: the link to the next stage. Before the first plan. */
WEFT_MUST_CHECK weft_status weft_stage_set_next(weft_stage *stage,
                                                weft_link *link, weft_err *err);

typedef struct weft_stage_state {
    uint64_t n_steps, epoch;
    bool connected; /* to its lead and its neighbours */
    uint64_t last_progress_ns;
} weft_stage_state;
void weft_stage_get_state(weft_stage *stage, weft_stage_state *state_out);

#endif
