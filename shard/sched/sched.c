#include "shard/sched/sched.h"

#include "node/base/check.h"
#include "node/base/mem.h"
#include "shard/sched/sched_internal.h"

enum { LIMIT_MAX = 1 << 24 };

/* ---- create and destroy ------------------------------------------------- */

static weft_status check_limits(const weft_sched_limits *limits, weft_err *err)
{
    const struct {
        const char *name;
        int32_t value;
    } all[] = {
        {"max_seqs", limits->max_seqs},
        {"max_waiting", limits->max_waiting},
        {"chunk_tokens", limits->chunk_tokens},
        {"max_context", limits->max_context},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value < 1 || all[i].value > LIMIT_MAX)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s is %d, allowed is 1 to %d", all[i].name,
                             all[i].value, LIMIT_MAX);
    return WEFT_OK;
}

static void free_all(weft_sched *sched)
{
    weft_queue_deinit(&sched->waiting);
    weft_mem_free(sched->seqs);
    weft_mem_free(sched->running);
    weft_mem_free(sched->pieces);
    weft_mem_free(sched->piece_seqs);
    weft_mem_free(sched->ends);
    weft_mem_free(sched);
}

/* The queue has room for max_waiting jobs that come for the first time, and
 * beside them for running ones that come back after a preemption: those were
 * accepted long ago and must not meet a full queue. */
static int32_t queue_capacity(const weft_sched_limits *limits)
{
    return limits->max_waiting + 2 * limits->max_seqs;
}

static weft_status alloc_all(weft_sched *sched, weft_err *err)
{
    const size_t n = (size_t)sched->limits.max_seqs;
    const int32_t capacity = queue_capacity(&sched->limits);
    sched->ends_max = capacity + sched->limits.max_seqs;
    WEFT_TRY(weft_queue_init(&sched->waiting, capacity, err));
    sched->seqs = weft_mem_new(n, sizeof *sched->seqs);
    sched->running = weft_mem_new(n, sizeof *sched->running);
    sched->pieces = weft_mem_new(n, sizeof *sched->pieces);
    sched->piece_seqs = weft_mem_new(n, sizeof *sched->piece_seqs);
    sched->ends = weft_mem_new((size_t)sched->ends_max, sizeof *sched->ends);
    if (sched->seqs == NULL || sched->running == NULL ||
        sched->pieces == NULL || sched->piece_seqs == NULL ||
        sched->ends == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory to schedule %d sequences and %d waiting",
                         sched->limits.max_seqs, sched->limits.max_waiting);
    return WEFT_OK;
}

weft_status weft_sched_create(const weft_sched_limits *limits,
                              const weft_model_config *config,
                              const weft_kv_spaces *spaces,
                              weft_kv_page_fn before_release,
                              void *before_release_arg, weft_sched **sched_out,
                              weft_err *err)
{
    WEFT_TRY(check_limits(limits, err));
    weft_sched *const sched = weft_mem_new(1, sizeof *sched);
    if (sched == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a scheduler");
    sched->limits = *limits;
    sched->config = config;
    sched->spaces = spaces;
    sched->before_release = before_release;
    sched->before_release_arg = before_release_arg;
    sched->earliest_ns = UINT64_MAX;
    const weft_status st = alloc_all(sched, err);
    if (st != WEFT_OK) {
        free_all(sched);
        return st;
    }
    for (int32_t i = 0; i < limits->max_seqs; i++)
        sched->seqs[i] = (weft_seq){.slot = i, .piece = -1};
    *sched_out = sched;
    return WEFT_OK;
}

void weft_sched_destroy(weft_sched *sched)
{
    if (sched == NULL) return;
    WEFT_ASSERT(sched->n_running == 0 && sched->waiting.n == 0);
    weft_sched_bury(sched);
    free_all(sched);
}

/* ---- sequences end ------------------------------------------------------ */

bool weft_rank_is(const weft_rank *rank, const weft_job *job)
{
    return rank->priority == job->priority && rank->age == job->age;
}

static void free_seq(weft_seq *seq)
{
    weft_kv_table_deinit(&seq->table);
    weft_mem_free(seq->tokens);
    *seq = (weft_seq){.slot = seq->slot, .piece = -1};
}

void weft_sched_bury(weft_sched *sched)
{
    for (int32_t i = 0; i < sched->limits.max_seqs; i++)
        if (sched->seqs[i].state == WEFT_SEQ_DEAD) free_seq(&sched->seqs[i]);
}

void weft_sched_count_reserved(weft_sched *sched, weft_seq *seq)
{
    int64_t need[WEFT_KINDS] = {0};
    const bool active = seq->state == WEFT_SEQ_RUNNING;
    if (active)
        weft_kv_table_need(&seq->table, sched->spaces, seq->quota_tokens, need);
    for (int k = 0; k < WEFT_KINDS; k++) {
        const int64_t held = seq->table.n_pages[k] - seq->table.first_page[k];
        const int64_t more = seq->quota_pages[k] - held;
        int64_t promised = need[k] < more ? need[k] : more;
        if (promised < 0) promised = 0;
        sched->reserved[k] += promised - seq->reserved[k];
        seq->reserved[k] = promised;
    }
}

void weft_sched_remove(weft_sched *sched, weft_seq *seq)
{
    int32_t i = 0;
    while (sched->running[i] != seq) i++;
    sched->n_running--;
    for (; i < sched->n_running; i++) sched->running[i] = sched->running[i + 1];

    weft_kv_table_clear(&seq->table, sched->spaces, sched->before_release,
                        sched->before_release_arg);
    if (seq->piece >= 0) sched->piece_seqs[seq->piece] = NULL;
    seq->piece = -1;
    seq->expects = false;
    seq->state = WEFT_SEQ_DEAD;
    seq->job = NULL;
    weft_sched_count_reserved(sched, seq);
}

/* ---- submit and cancel -------------------------------------------------- */

int64_t weft_sched_positions(const weft_sched *sched, const weft_job *job)
{
    const int64_t all = (int64_t)job->n_prompt + job->max_tokens - 1;
    return all < sched->limits.max_context ? all : sched->limits.max_context;
}

static weft_status check_job(const weft_sched *sched, const weft_job *job,
                             weft_err *err)
{
    if (job->n_prompt < 1 || job->n_tokens < job->n_prompt)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the prompt has %d tokens of %d, at least 1 is needed",
                         job->n_prompt, job->n_tokens);
    if (job->n_tokens > sched->limits.max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d tokens are longer than max_context %d",
                         job->n_tokens, sched->limits.max_context);
    const int32_t generated = job->n_tokens - job->n_prompt;
    if (job->max_tokens < 1 || generated >= job->max_tokens)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "max_tokens is %d with %d generated, so none is left",
                         job->max_tokens, generated);
    return WEFT_OK;
}

/* In bytes of slabs: that is what has to be found. */
static weft_status refuse(const weft_sched *sched, const weft_job *job,
                          const int64_t pages[WEFT_KINDS], int32_t stage,
                          weft_err *err)
{
    const weft_kv_space *const space = &sched->spaces->at[stage];
    const weft_kv_layout *const layout = &space->layout;
    int64_t slabs = 0;
    for (int k = 0; k < WEFT_KINDS; k++)
        if (pages[k] > 0 && layout->page_bytes[k] > 0)
            slabs +=
                (pages[k] + layout->slab_pages[k] - 1) / layout->slab_pages[k];
    weft_kv_stats stats;
    weft_kv_pool_get_stats(space->pool, &stats);
    (void)WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                    "%d prompt tokens and max_tokens %d need %lld bytes of KV "
                    "memory, %lld are free, %lld in total",
                    job->n_prompt, job->max_tokens,
                    (long long)(slabs * layout->slab_bytes),
                    (long long)stats.free_bytes, (long long)stats.total_bytes);
    if (sched->spaces->n > 1)
        (void)WEFT_WRAP(err, WEFT_RESOURCE_EXHAUSTED, "stage %d", stage);
    return WEFT_RESOURCE_EXHAUSTED;
}

/* Whether the job can run to its last token with the whole pool of every stage
 * to itself. */
static weft_status check_could(const weft_sched *sched, const weft_job *job,
                               weft_err *err)
{
    int64_t pages[WEFT_KINDS];
    for (int k = 0; k < WEFT_KINDS; k++)
        pages[k] = weft_kv_spaces_pages_for(
            sched->spaces, sched->config, (weft_kind)k,
            weft_sched_positions(sched, job), sched->limits.chunk_tokens);
    const int32_t stage = weft_kv_spaces_cannot(sched->spaces, pages);
    return stage < 0 ? WEFT_OK : refuse(sched, job, pages, stage, err);
}

weft_status weft_sched_submit(weft_sched *sched, const weft_job *job,
                              weft_err *err)
{
    WEFT_TRY(check_job(sched, job, err));
    WEFT_TRY(check_could(sched, job, err));
    /* Ages rise with acceptance, so an age that is not the newest was here
     * before and comes back. */
    const bool back = job->age <= sched->newest_age;
    const int32_t limit =
        back ? sched->waiting.capacity : sched->limits.max_waiting;
    if (sched->waiting.n >= limit)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "the queue is full: %d requests wait, the limit is %d",
                         sched->waiting.n, sched->limits.max_waiting);
    if (!back) sched->newest_age = job->age;
    if (job->deadline_ns < sched->earliest_ns)
        sched->earliest_ns = job->deadline_ns;
    if (sched->hold_plans > 0 && weft_rank_is(&sched->hold, job))
        sched->hold_plans = 0;
    weft_queue_push(&sched->waiting, job);
    return WEFT_OK;
}

weft_status weft_sched_cancel(weft_sched *sched, uint64_t handle)
{
    for (int32_t i = 0; i < sched->n_running; i++) {
        weft_seq *const seq = sched->running[i];
        if (seq->job->handle != handle) continue;
        weft_sched_remove(sched, seq);
        return WEFT_OK;
    }
    return weft_queue_remove(&sched->waiting, handle) ? WEFT_OK
                                                      : WEFT_NOT_FOUND;
}

/* ---- a step was computed ------------------------------------------------ */

void weft_sched_clear(weft_sched *sched)
{
    while (sched->waiting.n > 0) weft_queue_pop(&sched->waiting);
    while (sched->n_running > 0)
        weft_sched_remove(sched, sched->running[sched->n_running - 1]);
    sched->n_pieces = 0;
    sched->committed = false;
    weft_sched_bury(sched);
}

static bool is_stop(const weft_job *job, int32_t token)
{
    for (int32_t i = 0; i < job->n_stop_ids; i++)
        if (job->stop_ids[i] == token) return true;
    return false;
}

static weft_finish finish_of(const weft_sched *sched, const weft_seq *seq,
                             int32_t token)
{
    const weft_job *const job = seq->job;
    const int32_t generated = seq->n_tokens - job->n_prompt;
    /* The token counts as generated already; the sampler kept stop ids off
     * while fewer than min_tokens were. */
    if (generated > job->min_tokens && is_stop(job, token))
        return WEFT_FINISH_STOP;
    if (generated >= job->max_tokens ||
        seq->n_tokens >= sched->limits.max_context)
        return WEFT_FINISH_LENGTH;
    return WEFT_FINISH_NONE;
}

weft_finish weft_sched_commit(weft_sched *sched, int32_t slot, int32_t token)
{
    WEFT_ASSERT(slot >= 0 && slot < sched->limits.max_seqs);
    weft_seq *const seq = &sched->seqs[slot];
    WEFT_ASSERT(seq->state == WEFT_SEQ_RUNNING && seq->expects);
    seq->expects = false;
    sched->committed = true;
    seq->tokens[seq->n_tokens++] = token;
    const weft_finish finish = finish_of(sched, seq, token);
    if (finish != WEFT_FINISH_NONE) {
        weft_sched_remove(sched, seq);
    }
    return finish;
}

void weft_sched_step_done(weft_sched *sched)
{
    for (int32_t i = 0; i < sched->n_pieces; i++) {
        weft_seq *const seq = sched->piece_seqs[i];
        if (seq == NULL) continue;
        WEFT_ASSERT(!seq->expects);
        seq->computed += sched->pieces[i].n_rows;
        seq->piece = -1;
        weft_kv_table_trim(&seq->table, sched->config, sched->spaces,
                           seq->computed, sched->before_release,
                           sched->before_release_arg);
        weft_sched_count_reserved(sched, seq);
    }
    sched->n_pieces = 0;
    sched->committed = false;
    weft_sched_bury(sched);
#ifndef NDEBUG
    weft_kv_spaces_check(sched->spaces);
    WEFT_ASSERT(weft_kv_spaces_can(sched->spaces, sched->reserved));
#endif
}

/* ---- queries ------------------------------------------------------------ */

void weft_sched_get_stats(const weft_sched *sched, weft_sched_stats *stats_out)
{
    *stats_out = (weft_sched_stats){.n_running = sched->n_running,
                                    .n_waiting = sched->waiting.n,
                                    .n_preempted = sched->n_preempted};
}

uint64_t weft_sched_next_deadline(const weft_sched *sched)
{
    uint64_t first = UINT64_MAX;
    for (int32_t i = 0; i < sched->waiting.n; i++)
        if (sched->waiting.jobs[i]->deadline_ns < first)
            first = sched->waiting.jobs[i]->deadline_ns;
    for (int32_t i = 0; i < sched->n_running; i++)
        if (sched->running[i]->job->deadline_ns < first)
            first = sched->running[i]->job->deadline_ns;
    return first;
}
