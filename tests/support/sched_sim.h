/* sched_sim.h - a scheduler with a router and a model around it, all simulated.
 *
 * Random jobs arrive, are preempted and come back, are cancelled, run out of
 * time. The model is a hash of the tokens, and the KV memory holds a tag for
 * each row: every planned row must find its own tokens in every position that
 * it sees, in both kinds of page, and a released page is poisoned at once. So a
 * page given away too early, twice or to the wrong sequence shows, as does a
 * token that depends on the schedule.
 *
 * Time is the number of the step. Same options, same run.
 */
#ifndef WEFT_TESTS_SUPPORT_SCHED_SIM_H
#define WEFT_TESTS_SUPPORT_SCHED_SIM_H

#include "shard/sched/sched.h"

typedef struct weft_sim_options {
    uint64_t seed;
    int32_t n_full, n_window, window, page_tokens;
    /* Further stages: layers of each kind, and slabs beyond the least. */
    int32_t n_others;
    struct {
        int32_t n_full, n_window, spare_slabs;
    } others[2];
    weft_sched_limits limits;
    int32_t n_jobs;
    int32_t prompt_max, generate_max; /* tokens of one job */
    bool all_large; /* every job is as long as that, and never stops early */
    /* Slabs beyond what the largest possible job needs by itself. */
    int32_t spare_slabs;
    int32_t limbo_steps_max; /* a preempted job stays away so long */
    int32_t arrive_every;    /* steps between arrivals; 0: all at once */
    bool cancels, deadlines, priorities, no_memory;
} weft_sim_options;

typedef struct weft_sim_result {
    int64_t n_steps, n_rows, n_preempted;
    int32_t n_stop, n_length, n_cancelled, n_late, n_no_memory, n_refused;
    int64_t most_lives; /* of one job */
    int32_t n_alone;    /* preempted with nobody else running */
    uint64_t trace;     /* a hash of every plan */
} weft_sim_result;

/* Run until every job has ended; fails the test that calls it otherwise. */
void weft_sim_run(const weft_sim_options *options, weft_sim_result *result_out);

/* A model of so many layers, and its layout with fp32 rows of a few values. */
void weft_sim_model(int32_t n_full, int32_t n_window, int32_t window,
                    int32_t page_tokens, weft_model_config *config_out,
                    weft_kv_layout *layout_out);

#endif
