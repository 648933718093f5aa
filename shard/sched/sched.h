/* sched.h - which tokens a group computes in its next step.
 *
 * Continuous batching: each step mixes the next token of running sequences
 * (decode, first) with chunks of prompts (prefill), within a budget of rows.
 *
 *        submit             pages for it            stop, length
 *   ----> WAITING ------------------> RUNNING ------------------> gone
 *                                        |
 *                    preempt: pages freed, the job goes back to the router,
 *                    which submits it again from its journal (same age)
 *
 * Policy:
 *   - order: priority, then age (older first). The plan serves decodes of all
 *     running sequences first, then prefill chunks in that order, then admits
 *     waiting jobs in that order, up to max_seqs.
 *   - admission reserves pages for the whole prompt (window pages as many as
 *     they can ever be) and for one step of generation, so that a prompt once
 *     begun is not thrown away half way by younger ones; growth after that may
 *     preempt. A job that could not run alone in the whole pool is refused at
 *     submit with needed, free and total bytes.
 *   - when pages run out, the running sequence that is last in the order is
 *     preempted, and while a preempted or refused-for-space job waits, nobody
 *     behind it in the order is admitted. So the first in the order always
 *     moves: no deadlock, no starvation.
 *
 *   - who is let in leaves one page of each kind for each of those that run,
 * and nobody behind a preempted job is let in for a few plans, until it is
 * back.
 *   - a sequence that runs alone and still finds no page, because its own pages
 *     lie in too many slabs, is preempted too. It comes back to a pool that is
 *     less scattered; and each life of a job gives at least the one token that
 *     admission has reserved for, so it ends.
 *
 * It owns the page tables (shard/kv/table.h) and the tokens of running
 * sequences. Pure: no clock, thread, I/O or device; the caller passes now_ns.
 * Memory: a step allocates nothing. Admission of a job allocates its tokens and
 * page tables, as long as the job can become (4 bytes a position and 8 bytes a
 * page and kind; max_seqs times max_context of them would lie idle), and they
 * are freed when it ends; if they cannot be had, the job ends FAILED with
 * RESOURCE_EXHAUSTED.
 *
 * Guarantees, each with a test of its name in tests/unit/test_sched.c or
 * test_sched_sim.c:
 *   budget, progress, no_starvation, determinism, all_pages_back,
 *   one_end_per_job, decode_first, could_never_fit_is_refused.
 */
#ifndef WEFT_SHARD_SCHED_SCHED_H
#define WEFT_SHARD_SCHED_SCHED_H

#include "node/base/gen.h"
#include "shard/kv/table.h"

typedef struct weft_sched weft_sched;

typedef struct weft_sched_limits {
    int32_t max_seqs;     /* running at once */
    int32_t max_waiting;  /* submitted and not running */
    int32_t chunk_tokens; /* prefill rows of one step, over all sequences */
    int32_t max_context;  /* positions of one sequence */
} weft_sched_limits;

/* config and spaces are borrowed until destroy. */
WEFT_MUST_CHECK weft_status weft_sched_create(
    const weft_sched_limits *limits, const weft_model_config *config,
    const weft_kv_spaces *spaces, weft_kv_page_fn before_release,
    void *before_release_arg, weft_sched **sched_out, weft_err *err);
void weft_sched_destroy(weft_sched *sched); /* all jobs must be gone */
/* Forget every job and release every page: the end of the engine. */
void weft_sched_clear(weft_sched *sched);

/* RESOURCE_EXHAUSTED: max_waiting reached, or it can never fit (three numbers
 * in the text). INVALID_ARGUMENT: empty, longer than max_context, or nothing
 * left to generate. A prompt of max_context tokens is fine: it ends with the
 * one token that its last row gives. On success the job is borrowed until it
 * ends. A job whose age is not the newest comes back after a preemption: the
 * queue keeps 2 * max_seqs places beside max_waiting for these. */
WEFT_MUST_CHECK weft_status weft_sched_submit(weft_sched *sched,
                                              const weft_job *job,
                                              weft_err *err);

/* Forget the job at once, wherever it is; pages are released. NOT_FOUND: no
 * such handle (it has ended), which is not an error of anybody. Between plan
 * and step_done too: its piece must then be left alone and not committed. */
weft_status weft_sched_cancel(weft_sched *sched, uint64_t handle);

/* The stretch of one sequence that a step computes. */
typedef struct weft_piece {
    const weft_job *job;
    const weft_kv_table *table;
    int32_t slot;        /* [0, max_seqs): stable while the job runs */
    int32_t first;       /* position of the first row */
    int32_t n_rows;      /* rows, consecutive positions */
    bool last_of_prompt; /* the last row's logits give the next token */
    bool started;        /* first piece since submit */
    /* Tokens of the sequence, [0, first + n_rows): prompt, told, generated */
    const int32_t *tokens;
} weft_piece;

typedef struct weft_plan {
    const weft_piece *pieces;
    int32_t n_pieces, n_rows;
    /* Ended by the plan itself: deadlines passed, preempted. The job pointers
     * end with the next call. */
    const struct weft_sched_end {
        const weft_job *job;
        weft_finish finish; /* FAILED (deadline, no memory) or PREEMPTED */
        weft_status status;
    } * ends;
    int32_t n_ends;
} weft_plan;

/* Plan the next step. The plan, and the jobs it names, live until the next
 * plan, give_back or clear; submits and commits leave it as it is, a cancel
 * leaves one piece dead. */
void weft_sched_plan(weft_sched *sched, uint64_t now_ns, weft_plan *plan_out);

/* Every job, running or waiting, ends PREEMPTED in a plan without rows: the
 * cache rows of all of them are lost. Pages are released. */
void weft_sched_give_back(weft_sched *sched, weft_plan *plan_out);

/* The planned rows have been computed: advance. For each piece whose logits
 * give a token (last_of_prompt), weft_sched_commit takes it and says whether
 * the job ends with it (STOP, not before min_tokens others were generated;
 * LENGTH at max_tokens or max_context; pages are then free). Call once per such
 * piece, then weft_sched_step_done. */
weft_finish weft_sched_commit(weft_sched *sched, int32_t slot, int32_t token);
void weft_sched_step_done(weft_sched *sched);

typedef struct weft_sched_stats {
    int32_t n_running, n_waiting;
    int64_t n_preempted; /* ever */
} weft_sched_stats;

void weft_sched_get_stats(const weft_sched *sched, weft_sched_stats *stats_out);
/* The earliest deadline among all jobs, UINT64_MAX if none: when an idle
 * engine must wake. */
uint64_t weft_sched_next_deadline(const weft_sched *sched);

#endif
