#include "tests/support/sched_sim.h"

#include <check.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"

/* ck_assert talks to its runner each time; a simulation asks too often. */
#define MUST(cond)                                                             \
    do {                                                                       \
        if (!(cond)) ck_abort_msg("%s", #cond);                                \
    } while (0)

enum { VOCAB = 40, STOP_ID = 7, POISON = -1, STEPS_MAX = 200000 };

typedef enum sim_state {
    SIM_FUTURE,
    SIM_THERE, /* submitted */
    SIM_LIMBO, /* preempted, on its way back */
    SIM_ENDED,
} sim_state;

typedef struct sim_job {
    weft_job job;
    sim_state state;
    int64_t at;      /* the step at which it arrives, or comes back */
    int32_t *tokens; /* the journal: prompt and told */
    int32_t n_tokens;
    int32_t *borrowed; /* job.tokens of this life */
    /* Of this life: */
    int32_t slot, computed;
    bool admitted, planned; /* in a plan; in one that was computed */
    int64_t lives;
} sim_job;

typedef struct sim {
    weft_sim_options options;
    weft_model_config config;
    weft_kv_space at[3];
    weft_kv_spaces spaces;
    weft_sched *sched;
    /* [arena bytes] of each stage: tag of the row that starts at offset + row
     */
    int64_t *rows[3];
    sim_job *jobs;
    int32_t n_live;
    int64_t step;
    uint64_t draws;
    weft_sim_result result;
} sim;

static const int32_t stop_ids[] = {STOP_ID};

static uint64_t roll(sim *s)
{
    return weft_rng_u64(s->options.seed, s->draws++);
}

static int32_t roll_below(sim *s, int32_t n)
{
    return (int32_t)(roll(s) % (uint64_t)n);
}

static void trace(sim *s, int64_t value)
{
    s->result.trace = weft_rng_u64(s->result.trace, (uint64_t)value);
}

void weft_sim_model(int32_t n_full, int32_t n_window, int32_t window,
                    int32_t page_tokens, weft_model_config *config_out,
                    weft_kv_layout *layout_out)
{
    weft_model_config config = {.n_layer = n_full + n_window,
                                .end_layer = n_full + n_window,
                                .window = window};
    config.n_kind[WEFT_FULL] = n_full;
    config.n_kind[WEFT_WINDOW] = n_window;
    for (int32_t l = n_full; l < config.n_layer; l++)
        config.kind[l] = WEFT_WINDOW;
    for (int k = 0; k < WEFT_KINDS; k++) {
        config.geometry[k].kv_lora_rank = 3 + 2 * k;
        config.geometry[k].qk_rope_head_dim = 2;
    }
    *config_out = config;
    MUST(weft_kv_layout_make(&config, WEFT_F32, page_tokens, layout_out,
                             NULL) == WEFT_OK);
}

/* ---- the model ---------------------------------------------------------- */

static uint64_t job_seed(const sim *s, const sim_job *it)
{
    return s->options.seed * 1000 + it->job.handle;
}

/* The token for position n: a function of all tokens before it. */
static int32_t next_token(const sim *s, const sim_job *it,
                          const int32_t *tokens, int32_t n)
{
    uint64_t state = job_seed(s, it);
    for (int32_t i = 0; i < n; i++)
        state = weft_rng_u64(state, (uint64_t)tokens[i]);
    int32_t token = (int32_t)(state % VOCAB);
    if (token == STOP_ID && n - it->job.n_prompt < it->job.min_tokens) token++;
    return token;
}

static int64_t tag_of(const sim_job *it, int32_t position)
{
    return (int64_t)it->job.handle << 40 |
           (int64_t)(it->tokens[position] + 1) << 24 | position;
}

static int64_t *row_at(const sim *s, const weft_kv_table *table, int32_t stage,
                       int k, int32_t position)
{
    const int32_t page_tokens = s->at[0].layout.page_tokens;
    const int32_t page = position / page_tokens;
    MUST(page < table->n_pages[k]);
    const int64_t offset =
        weft_kv_table_offsets(table, stage, (weft_kind)k)[page];
    MUST(offset >= 0);
    return &s->rows[stage][offset + position % page_tokens];
}

static void poison(void *arg, weft_kind kind, int64_t offset)
{
    sim *const s = arg;
    (void)kind;
    for (int32_t i = 0; i < s->at[0].layout.page_tokens; i++)
        s->rows[0][offset + i] = POISON;
}

/* Write the rows of a piece, then let each of them look at all that it sees. */
static void compute_kind(sim *s, const sim_job *it, const weft_piece *piece,
                         int32_t stage, int k)
{
    const weft_kv_table *const t = piece->table;
    const int32_t end = piece->first + piece->n_rows;
    for (int32_t p = piece->first; p < end; p++)
        *row_at(s, t, stage, k, p) = tag_of(it, p);
    for (int32_t p = piece->first; p < end; p++) {
        int32_t q = k == WEFT_WINDOW ? p - s->config.window + 1 : 0;
        for (q = q < 0 ? 0 : q; q <= p; q++)
            MUST(*row_at(s, t, stage, k, q) == tag_of(it, q));
    }
}

static void compute(sim *s, const sim_job *it, const weft_piece *piece)
{
    for (int32_t i = 0; i < s->spaces.n; i++)
        for (int k = 0; k < WEFT_KINDS; k++)
            if (s->at[i].layout.page_bytes[k] > 0)
                compute_kind(s, it, piece, i, k);
}

/* ---- the router --------------------------------------------------------- */

static void make_job(sim *s, int32_t i)
{
    const weft_sim_options *const o = &s->options;
    sim_job *const it = &s->jobs[i];
    const int32_t n_prompt =
        o->all_large ? o->prompt_max : 1 + roll_below(s, o->prompt_max);
    it->job = (weft_job){.handle = (uint64_t)i + 1,
                         .age = (uint64_t)i + 1,
                         .deadline_ns = UINT64_MAX,
                         .n_prompt = n_prompt,
                         .n_tokens = n_prompt,
                         .max_tokens = 1 + roll_below(s, o->generate_max),
                         .stop_ids = stop_ids,
                         .n_stop_ids = 1};
    if (o->all_large) it->job.max_tokens = o->generate_max;
    it->job.min_tokens = o->all_large ? it->job.max_tokens
                                      : roll_below(s, it->job.max_tokens + 1);
    if (o->priorities) it->job.priority = roll_below(s, 3) - 1;
    it->at = (int64_t)i * o->arrive_every;
    if (o->deadlines && roll(s) % 4 == 0)
        it->job.deadline_ns = (uint64_t)(it->at + roll_below(s, 200));
    it->tokens =
        weft_mem_new((size_t)o->prompt_max + (size_t)o->generate_max + 1,
                     sizeof *it->tokens);
    it->n_tokens = n_prompt;
    for (int32_t t = 0; t < n_prompt; t++) it->tokens[t] = roll_below(s, VOCAB);
}

static sim_job *find(sim *s, const weft_job *job)
{
    for (int32_t i = 0; i < s->options.n_jobs; i++)
        if (&s->jobs[i].job == job) return &s->jobs[i];
    ck_abort_msg("a job that was never submitted");
    return NULL;
}

/* What the scheduler has borrowed is gone as soon as it may be. */
static void leave(sim *s, sim_job *it, sim_state state)
{
    MUST(it->state == SIM_THERE);
    it->state = state;
    weft_mem_free(it->borrowed);
    it->borrowed = NULL;
    it->job.tokens = NULL;
    if (state != SIM_ENDED) return;
    s->n_live--;
    weft_mem_free(it->tokens);
    it->tokens = NULL;
    it->job.stop_ids = NULL;
}

static void submit(sim *s, sim_job *it)
{
    const size_t n = (size_t)it->n_tokens;
    it->borrowed = weft_mem_new(n, sizeof *it->borrowed);
    memcpy(it->borrowed, it->tokens, n * sizeof *it->borrowed);
    it->job.tokens = it->borrowed;
    it->job.n_tokens = it->n_tokens;
    it->computed = 0;
    it->admitted = it->planned = false;
    it->state = SIM_THERE;
    it->lives++;
    if (it->lives > s->result.most_lives) s->result.most_lives = it->lives;
    weft_err err = {0};
    const weft_status st = weft_sched_submit(s->sched, &it->job, &err);
    if (st == WEFT_OK) return;
    /* Only a first submission may meet a full queue. */
    MUST(st == WEFT_RESOURCE_EXHAUSTED && it->lives == 1);
    MUST(strstr(err.text, "queue") != NULL);
    s->result.n_refused++;
    leave(s, it, SIM_ENDED);
}

static void submit_all(sim *s)
{
    for (int32_t i = 0; i < s->options.n_jobs; i++) {
        sim_job *const it = &s->jobs[i];
        const bool due = it->state == SIM_FUTURE || it->state == SIM_LIMBO;
        if (due && it->at <= s->step) submit(s, it);
    }
}

static void cancel_some(sim *s)
{
    if (!s->options.cancels || roll(s) % 6 != 0) return;
    sim_job *const it = &s->jobs[roll_below(s, s->options.n_jobs)];
    const weft_status st = weft_sched_cancel(s->sched, it->job.handle);
    MUST((st == WEFT_OK) == (it->state == SIM_THERE));
    MUST(st == WEFT_OK || st == WEFT_NOT_FOUND);
    if (st != WEFT_OK) return;
    s->result.n_cancelled++;
    leave(s, it, SIM_ENDED);
}

/* ---- a step ------------------------------------------------------------- */

static bool goes_before(const weft_job *a, const weft_job *b)
{
    return a->priority != b->priority ? a->priority > b->priority
                                      : a->age < b->age;
}

static void check_piece(sim *s, const weft_piece *piece)
{
    sim_job *const it = find(s, piece->job);
    MUST(it->state == SIM_THERE);
    MUST(piece->slot >= 0 && piece->slot < s->options.limits.max_seqs);
    MUST(piece->started == !it->planned);
    MUST(!it->planned || it->slot == piece->slot);
    it->slot = piece->slot;
    MUST(piece->n_rows > 0 && piece->first == it->computed);
    const int32_t end = piece->first + piece->n_rows;
    MUST(end <= it->n_tokens && end <= s->options.limits.max_context);
    MUST(piece->last_of_prompt == (end == it->n_tokens));
    MUST(memcmp(piece->tokens, it->tokens,
                (size_t)it->n_tokens * sizeof *it->tokens) == 0);
    trace(s, (int64_t)it->job.handle << 32 | piece->first);
    trace(s, piece->n_rows);
}

static bool has_piece(const weft_plan *plan, const weft_job *job)
{
    for (int32_t i = 0; i < plan->n_pieces; i++)
        if (plan->pieces[i].job == job) return true;
    return false;
}

static bool has_end(const weft_plan *plan, const weft_job *job)
{
    for (int32_t i = 0; i < plan->n_ends; i++)
        if (plan->ends[i].job == job) return true;
    return false;
}

/* Who is admitted has nobody before it that still waits; and the first of those
 * that run is in every plan. */
static void check_order(sim *s, const weft_plan *plan)
{
    sim_job *first = NULL;
    for (int32_t i = 0; i < s->options.n_jobs; i++) {
        sim_job *const it = &s->jobs[i];
        if (it->state != SIM_THERE || has_end(plan, &it->job)) continue;
        if (it->admitted &&
            (first == NULL || goes_before(&it->job, &first->job)))
            first = it;
        if (it->admitted || has_piece(plan, &it->job)) continue;
        for (int32_t k = 0; k < plan->n_pieces; k++) {
            const sim_job *const other = find(s, plan->pieces[k].job);
            MUST(other->admitted || goes_before(&other->job, &it->job));
        }
    }
    MUST(first == NULL || has_piece(plan, &first->job));
    for (int32_t i = 0; i < plan->n_pieces; i++)
        find(s, plan->pieces[i].job)->admitted = true;
}

static void check_plan(sim *s, const weft_plan *plan)
{
    int32_t rows = 0, prefill = 0, decodes = 0;
    const weft_job *before = NULL;
    for (int32_t i = 0; i < plan->n_pieces; i++) {
        const weft_piece *const piece = &plan->pieces[i];
        check_piece(s, piece);
        rows += piece->n_rows;
        for (int32_t k = 0; k < i; k++)
            MUST(plan->pieces[k].slot != piece->slot);
        if (piece->first < piece->job->n_tokens) {
            prefill += piece->n_rows;
            continue;
        }
        /* Decodes come first, in order, one row each. */
        MUST(prefill == 0 && piece->n_rows == 1);
        MUST(before == NULL || goes_before(before, piece->job));
        before = piece->job;
        decodes++;
    }
    MUST(rows == plan->n_rows);
    MUST(prefill <= s->options.limits.chunk_tokens);
    MUST(decodes <= s->options.limits.max_seqs);
    weft_sched_stats stats;
    weft_sched_get_stats(s->sched, &stats);
    MUST(plan->n_pieces > 0 || stats.n_running + stats.n_waiting == 0);
    MUST(plan->n_pieces <= stats.n_running);
}

/* Whether anybody else had been admitted before this plan. */
static bool was_alone(const sim *s, const sim_job *it)
{
    for (int32_t i = 0; i < s->options.n_jobs; i++) {
        const sim_job *const other = &s->jobs[i];
        if (other != it && other->state == SIM_THERE && other->planned)
            return false;
    }
    return true;
}

static void take_end(sim *s, const weft_plan *plan, int32_t i)
{
    sim_job *const it = find(s, plan->ends[i].job);
    trace(s, -(int64_t)it->job.handle);
    if (plan->ends[i].finish == WEFT_FINISH_PREEMPTED) {
        /* Nobody behind it goes on; with all pages scattered it may have been
         * the only one, and then others start in its place. */
        for (int32_t k = 0; k < plan->n_pieces; k++)
            MUST(goes_before(plan->pieces[k].job, &it->job) ||
                 plan->pieces[k].started);
        s->result.n_alone += was_alone(s, it);
        it->at = s->step + 1 + roll_below(s, s->options.limbo_steps_max + 1);
        leave(s, it, SIM_LIMBO);
        return;
    }
    MUST(plan->ends[i].finish == WEFT_FINISH_FAILED);
    if (plan->ends[i].status == WEFT_DEADLINE_EXCEEDED) {
        MUST(it->job.deadline_ns <= (uint64_t)s->step);
        s->result.n_late++;
    } else {
        MUST(plan->ends[i].status == WEFT_RESOURCE_EXHAUSTED);
        MUST(s->options.no_memory);
        s->result.n_no_memory++;
    }
    leave(s, it, SIM_ENDED);
}

static void check_finish(sim *s, sim_job *it, int32_t token, weft_finish finish)
{
    const int32_t generated = it->n_tokens - it->job.n_prompt;
    const bool stop = token == STOP_ID && generated > it->job.min_tokens;
    const bool length = generated == it->job.max_tokens ||
                        it->n_tokens >= s->options.limits.max_context;
    MUST((finish == WEFT_FINISH_STOP) == stop);
    MUST((finish == WEFT_FINISH_LENGTH) == (length && !stop));
    if (finish == WEFT_FINISH_NONE) return;
    s->result.n_stop += stop;
    s->result.n_length += !stop;
    leave(s, it, SIM_ENDED);
}

static void run_plan(sim *s, const weft_plan *plan)
{
    for (int32_t i = 0; i < plan->n_pieces; i++) {
        const weft_piece *const piece = &plan->pieces[i];
        sim_job *const it = find(s, piece->job);
        if (it->state != SIM_THERE) continue; /* cancelled since */
        compute(s, it, piece);
        it->computed += piece->n_rows;
        it->planned = true;
        if (!piece->last_of_prompt) continue;
        const int32_t token = next_token(s, it, piece->tokens, it->n_tokens);
        MUST(token == next_token(s, it, it->tokens, it->n_tokens));
        it->tokens[it->n_tokens++] = token;
        check_finish(s, it, token,
                     weft_sched_commit(s->sched, piece->slot, token));
    }
    weft_sched_step_done(s->sched);
    weft_kv_spaces_check(&s->spaces);
}

static uint64_t first_deadline(const sim *s)
{
    uint64_t first = UINT64_MAX;
    for (int32_t i = 0; i < s->options.n_jobs; i++)
        if (s->jobs[i].state == SIM_THERE && s->jobs[i].job.deadline_ns < first)
            first = s->jobs[i].job.deadline_ns;
    return first;
}

static void run_step(sim *s)
{
    submit_all(s);
    cancel_some(s);
    MUST(weft_sched_next_deadline(s->sched) == first_deadline(s));
    weft_plan plan;
    const bool starve = s->options.no_memory && roll(s) % 8 == 0;
    if (starve) weft_mem_fail_after(roll_below(s, 4));
    weft_sched_plan(s->sched, (uint64_t)s->step, &plan);
    weft_mem_fail_after(-1);
    check_plan(s, &plan);
    check_order(s, &plan);
    for (int32_t i = 0; i < plan.n_ends; i++) take_end(s, &plan, i);
    s->result.n_rows += plan.n_rows;
    cancel_some(s);
    /* Now and then the step is not computed, and planned anew. */
    if (s->options.cancels && roll(s) % 16 == 0) return;
    run_plan(s, &plan);
}

/* ---- set-up ------------------------------------------------------------- */

static void open_pool(sim *s, int32_t stage, int32_t spare_slabs)
{
    const weft_sim_options *const o = &s->options;
    weft_kv_space *const space = &s->at[stage];
    int64_t tokens = (int64_t)o->prompt_max + o->generate_max - 1;
    if (tokens > o->limits.max_context) tokens = o->limits.max_context;
    int64_t slabs = spare_slabs;
    for (int k = 0; k < WEFT_KINDS; k++) {
        const int64_t pages =
            weft_kv_pages_for(&s->config, &space->layout, (weft_kind)k, tokens,
                              o->limits.chunk_tokens);
        if (pages > 0) slabs += (pages - 1) / space->layout.slab_pages[k] + 1;
    }
    const int64_t bytes = slabs * space->layout.slab_bytes;
    MUST(weft_kv_pool_create(&space->layout, bytes, &space->pool, NULL) ==
         WEFT_OK);
    s->rows[stage] = weft_mem_new((size_t)bytes, sizeof *s->rows[stage]);
    for (int64_t i = 0; i < bytes; i++) s->rows[stage][i] = POISON;
}

static void open_spaces(sim *s)
{
    const weft_sim_options *const o = &s->options;
    s->spaces = (weft_kv_spaces){.n = 1 + o->n_others, .at = s->at};
    weft_sim_model(o->n_full, o->n_window, o->window, o->page_tokens,
                   &s->config, &s->at[0].layout);
    open_pool(s, 0, o->spare_slabs);
    for (int32_t i = 0; i < o->n_others; i++) {
        weft_model_config config;
        weft_sim_model(o->others[i].n_full, o->others[i].n_window, o->window,
                       o->page_tokens, &config, &s->at[1 + i].layout);
        open_pool(s, 1 + i, o->others[i].spare_slabs);
    }
}

void weft_sim_run(const weft_sim_options *options, weft_sim_result *result_out)
{
    sim s = {.options = *options};
    open_spaces(&s);
    MUST(weft_sched_create(&options->limits, &s.config, &s.spaces, poison, &s,
                           &s.sched, NULL) == WEFT_OK);
    s.jobs = weft_mem_new((size_t)options->n_jobs, sizeof *s.jobs);
    s.n_live = options->n_jobs;
    for (int32_t i = 0; i < options->n_jobs; i++) make_job(&s, i);

    while (s.n_live > 0) {
        MUST(s.step < STEPS_MAX);
        run_step(&s);
        s.step++;
    }

    weft_sched_stats stats;
    weft_sched_get_stats(s.sched, &stats);
    s.result.n_steps = s.step;
    s.result.n_preempted = stats.n_preempted;
    MUST(stats.n_running == 0 && stats.n_waiting == 0);
    weft_kv_stats kv;
    weft_kv_spaces_get_stats(&s.spaces, &kv);
    MUST(kv.free_bytes == kv.total_bytes && kv.slabs_free == kv.slabs);
    weft_sched_destroy(s.sched);
    for (int32_t i = 0; i < s.spaces.n; i++) {
        weft_kv_pool_destroy(s.at[i].pool);
        weft_mem_free(s.rows[i]);
    }
    weft_mem_free(s.jobs);
    *result_out = s.result;
}
