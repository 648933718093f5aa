#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "shard/sched/sched_internal.h"

/* A preempted job is back after its event has gone to the router and the
 * submission has come in: one or two plans when all is well. More than these
 * are not waited for, since it may have been cancelled on the way. */
enum { HOLD_PLANS = 8 };

/* ---- ends --------------------------------------------------------------- */

static void add_end(weft_sched *sched, const weft_job *job, weft_finish finish,
                    weft_status status)
{
    WEFT_ASSERT(sched->n_ends < sched->ends_max);
    sched->ends[sched->n_ends++] =
        (struct weft_sched_end){.job = job, .finish = finish, .status = status};
}

static void end_waiting(void *arg, const weft_job *job)
{
    add_end(arg, job, WEFT_FINISH_FAILED, WEFT_DEADLINE_EXCEEDED);
}

/* earliest_ns is a lower bound: it may belong to a job that has ended, and then
 * costs this one look at every job. */
static void expire(weft_sched *sched, uint64_t now_ns)
{
    if (now_ns < sched->earliest_ns) return;
    weft_queue_expire(&sched->waiting, now_ns, end_waiting, sched);
    for (int32_t i = sched->n_running - 1; i >= 0; i--) {
        weft_seq *const seq = sched->running[i];
        if (seq->job->deadline_ns > now_ns) continue;
        end_waiting(sched, seq->job);
        weft_sched_remove(sched, seq);
    }
    sched->earliest_ns = weft_sched_next_deadline(sched);
}

static bool rank_before(const weft_rank *rank, const weft_job *job)
{
    if (rank->priority != job->priority) return rank->priority > job->priority;
    return rank->age < job->age;
}

static void preempt(weft_sched *sched, weft_seq *seq)
{
    const weft_job *const job = seq->job;
    const weft_rank rank = {.priority = job->priority, .age = job->age};
    if (sched->hold_plans == 0 || !rank_before(&sched->hold, job))
        sched->hold = rank;
    sched->hold_plans = HOLD_PLANS;
    sched->n_preempted++;
    add_end(sched, job, WEFT_FINISH_PREEMPTED, WEFT_OK);
    weft_sched_remove(sched, seq);
}

/* ---- pieces ------------------------------------------------------------- */

/* Grow the table to n_tokens positions; whoever calls knows that it fits. */
static void grow(weft_sched *sched, weft_seq *seq, int64_t n_tokens)
{
    const weft_status st =
        weft_kv_table_grow(&seq->table, sched->spaces, n_tokens);
    WEFT_ASSERT(st == WEFT_OK);
    weft_sched_count_reserved(sched, seq);
}

static void add_piece(weft_sched *sched, weft_seq *seq, int32_t n_rows)
{
    const int32_t end = seq->computed + n_rows;
    seq->piece = sched->n_pieces++;
    seq->expects = end == seq->n_tokens;
    sched->piece_seqs[seq->piece] = seq;
    sched->pieces[seq->piece] = (weft_piece){.job = seq->job,
                                             .table = &seq->table,
                                             .slot = seq->slot,
                                             .first = seq->computed,
                                             .n_rows = n_rows,
                                             .last_of_prompt = seq->expects,
                                             .started = seq->computed == 0,
                                             .tokens = seq->tokens};
    sched->n_rows += n_rows;
}

/* Room for one more position. Takes from those behind it in the order, from the
 * last on. False: it was the last itself, and is preempted. */
static bool make_room(weft_sched *sched, weft_seq *seq)
{
    int64_t need[WEFT_KINDS];
    weft_kv_table_need(&seq->table, sched->spaces, seq->computed + 1, need);
    if (need[WEFT_FULL] == 0 && need[WEFT_WINDOW] == 0) return true;
    for (;;) {
        int64_t wanted[WEFT_KINDS];
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t own = seq->reserved[k];
            wanted[k] =
                sched->reserved[k] - own + (need[k] > own ? need[k] : own);
        }
        if (weft_kv_spaces_can(sched->spaces, wanted)) break;
        weft_seq *const last = sched->running[sched->n_running - 1];
        preempt(sched, last);
        if (last == seq) return false;
    }
    grow(sched, seq, seq->computed + 1);
    return true;
}

static void plan_decodes(weft_sched *sched)
{
    /* Those preempted lie behind i, so the places before it stay. */
    for (int32_t i = 0; i < sched->n_running; i++) {
        weft_seq *const seq = sched->running[i];
        if (seq->computed < seq->goal) continue;
        if (!make_room(sched, seq)) return;
        add_piece(sched, seq, 1);
    }
}

static void plan_chunk(weft_sched *sched, weft_seq *seq)
{
    const int32_t left = seq->goal - seq->computed;
    const int32_t n = left < sched->prefill_left ? left : sched->prefill_left;
    if (n == 0) return;
    sched->prefill_left -= n;
    grow(sched, seq, seq->computed + n); /* reserved at admission */
    add_piece(sched, seq, n);
}

static void plan_chunks(weft_sched *sched)
{
    for (int32_t i = 0; i < sched->n_running; i++)
        if (sched->running[i]->computed < sched->running[i]->goal)
            plan_chunk(sched, sched->running[i]);
}

/* ---- admission ---------------------------------------------------------- */

/* With nobody running there is room for anyone and nothing to wait for. */
static bool is_held_back(const weft_sched *sched, const weft_job *job)
{
    return sched->n_running > 0 && sched->hold_plans > 0 &&
           rank_before(&sched->hold, job);
}

static weft_seq *free_slot(weft_sched *sched)
{
    for (int32_t i = 0; i < sched->limits.max_seqs; i++)
        if (sched->seqs[i].state == WEFT_SEQ_FREE) return &sched->seqs[i];
    return NULL;
}

/* What admission promises: pages for the whole prefill and one decode. */
static void fill_quota(const weft_sched *sched, const weft_job *job,
                       weft_seq *seq)
{
    const int64_t positions = weft_sched_positions(sched, job);
    const int64_t wanted = (int64_t)job->n_tokens + 1;
    seq->quota_tokens = wanted < positions ? wanted : positions;
    for (int k = 0; k < WEFT_KINDS; k++)
        seq->quota_pages[k] = weft_kv_spaces_pages_for(
            sched->spaces, sched->config, (weft_kind)k, seq->quota_tokens,
            sched->limits.chunk_tokens);
}

/* Beside the quota, one page of each kind is left for each of those that run:
 * who is let in between two page borders of the others would be thrown out
 * again at the next. */
static bool has_room(const weft_sched *sched, const weft_seq *seq)
{
    int64_t wanted[WEFT_KINDS];
    for (int k = 0; k < WEFT_KINDS; k++) {
        const bool used = weft_kv_spaces_have(sched->spaces, (weft_kind)k);
        wanted[k] = sched->reserved[k] + seq->quota_pages[k] +
                    (used ? sched->n_running : 0);
    }
    return weft_kv_spaces_can(sched->spaces, wanted);
}

static weft_status alloc_seq(const weft_sched *sched, const weft_job *job,
                             weft_seq *seq)
{
    const int64_t positions = weft_sched_positions(sched, job);
    seq->tokens = weft_mem_new((size_t)positions + 1, sizeof *seq->tokens);
    if (seq->tokens == NULL) return WEFT_RESOURCE_EXHAUSTED;
    const weft_status st =
        weft_kv_table_init(&seq->table, sched->spaces, positions, NULL);
    if (st != WEFT_OK) {
        weft_mem_free(seq->tokens);
        seq->tokens = NULL;
        return st;
    }
    memcpy(seq->tokens, job->tokens,
           (size_t)job->n_tokens * sizeof *seq->tokens);
    return WEFT_OK;
}

static void start(weft_sched *sched, const weft_job *job, weft_seq *seq)
{
    seq->job = job;
    seq->state = WEFT_SEQ_RUNNING;
    seq->n_tokens = job->n_tokens;
    seq->goal = job->n_tokens;
    int32_t i = sched->n_running++;
    for (; i > 0 && weft_queue_before(job, sched->running[i - 1]->job); i--)
        sched->running[i] = sched->running[i - 1];
    sched->running[i] = seq;
    weft_sched_count_reserved(sched, seq);
}

static void admit(weft_sched *sched)
{
    while (sched->prefill_left > 0) {
        const weft_job *const job = weft_queue_first(&sched->waiting);
        weft_seq *const seq = free_slot(sched);
        if (job == NULL || seq == NULL || is_held_back(sched, job)) return;
        fill_quota(sched, job, seq);
        if (!has_room(sched, seq)) return;
        weft_queue_pop(&sched->waiting);
        const weft_status st = alloc_seq(sched, job, seq);
        if (st != WEFT_OK) {
            add_end(sched, job, WEFT_FINISH_FAILED, st);
            continue;
        }
        start(sched, job, seq);
        plan_chunk(sched, seq);
    }
}

/* ---- plan --------------------------------------------------------------- */

/* A plan that was never computed is as if it had not been made. */
static void drop_plan(weft_sched *sched)
{
    WEFT_ASSERT(!sched->committed); /* step_done is due */
    for (int32_t i = 0; i < sched->n_pieces; i++) {
        weft_seq *const seq = sched->piece_seqs[i];
        if (seq == NULL) continue;
        seq->piece = -1;
        seq->expects = false;
    }
    sched->n_pieces = 0;
    sched->n_rows = 0;
    sched->n_ends = 0;
}

void weft_sched_plan(weft_sched *sched, uint64_t now_ns, weft_plan *plan_out)
{
    drop_plan(sched);
    weft_sched_bury(sched);
    if (sched->hold_plans > 0) sched->hold_plans--;
    sched->prefill_left = sched->limits.chunk_tokens;

    expire(sched, now_ns);
    plan_decodes(sched);
    plan_chunks(sched);
    weft_sched_bury(sched); /* slots of those that this plan has ended */
    admit(sched);

    *plan_out = (weft_plan){.pieces = sched->pieces,
                            .n_pieces = sched->n_pieces,
                            .n_rows = sched->n_rows,
                            .ends = sched->ends,
                            .n_ends = sched->n_ends};
}

void weft_sched_give_back(weft_sched *sched, weft_plan *plan_out)
{
    drop_plan(sched);
    weft_sched_bury(sched);
    while (sched->n_running > 0) {
        weft_seq *const seq = sched->running[sched->n_running - 1];
        sched->n_preempted++;
        add_end(sched, seq->job, WEFT_FINISH_PREEMPTED, WEFT_OK);
        weft_sched_remove(sched, seq);
    }
    while (sched->waiting.n > 0) {
        add_end(sched, weft_queue_first(&sched->waiting), WEFT_FINISH_PREEMPTED,
                WEFT_OK);
        weft_queue_pop(&sched->waiting);
    }
    weft_sched_bury(sched);
    sched->hold_plans = 0;
    *plan_out = (weft_plan){
        .pieces = sched->pieces, .ends = sched->ends, .n_ends = sched->n_ends};
}
