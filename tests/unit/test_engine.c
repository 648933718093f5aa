/* What the router relies on: every job ends exactly once, whatever ends it; a
 * row that went wrong hurts its own job alone; no event is lost or reordered
 * when there is no room for it; a stop leaves nothing behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/desk.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

enum { NAN_BF16 = 0x7fc0 };

/* -- ends of its own accord ------------------------------------------------ */

/* The job alone, greedily, on an engine of its own. */
static desk_told usual(int32_t n_prompt, int32_t n_new, int32_t salt)
{
    desk *const d = desk_open((weft_engine_options){0});
    desk_start(d);
    (void)desk_job(d, 0, n_prompt, n_new, salt);
    desk_submit(d, 0);
    desk_wait_over(d, 0);
    desk_expect(d, 0, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect_idle(d);
    const desk_told told = d->told[0];
    desk_close(d);
    return told;
}

START_TEST(length)
{
    desk *const d = desk_open((weft_engine_options){.max_context = 32});
    desk_start(d);
    (void)desk_job(d, 0, 10, 7, 0);
    (void)desk_job(d, 1, 10, 200, 1); /* to the end of the context */
    (void)desk_job(d, 2, 32, 200, 2); /* which its prompt fills */
    (void)desk_job(d, 3, 1, 1, 3);
    static const int32_t n_tokens[] = {17, 32, 33, 2};
    for (uint64_t i = 0; i < 4; i++) desk_submit(d, i);
    for (uint64_t i = 0; i < 4; i++) {
        desk_wait_over(d, i);
        desk_expect(d, i, WEFT_FINISH_LENGTH, WEFT_OK);
        ck_assert_int_eq(d->told[i].n_tokens, n_tokens[i]);
        ck_assert_int_eq(d->told[i].n_started, 1);
    }
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* The token at its first place in what is generated. */
static int32_t first_place(const desk_told *t, int32_t token)
{
    int32_t at = t->job.n_prompt;
    while (t->tokens[at] != token) at++;
    return at;
}

START_TEST(stop_id)
{
    const desk_told before = usual(12, 24, 0);
    const int32_t stop[] = {before.tokens[12 + 9], DESK_VOCAB - 1};
    const int32_t at = first_place(&before, stop[0]);
    desk *const d = desk_open((weft_engine_options){0});
    desk_start(d);
    weft_job *const job = desk_job(d, 0, 12, 24, 0);
    job->stop_ids = stop;
    job->n_stop_ids = 2;
    weft_job *const late = desk_job(d, 1, 12, 24, 0);
    late->stop_ids = stop;
    late->n_stop_ids = 2;
    late->min_tokens = at - 12 + 3;
    desk_submit(d, 0);
    desk_submit(d, 1);
    desk_wait_over(d, 0);
    desk_wait_over(d, 1);
    /* The stop id itself is told, and is the last. */
    desk_expect(d, 0, WEFT_FINISH_STOP, WEFT_OK);
    ck_assert_int_eq(d->told[0].n_tokens, at + 1);
    ck_assert_mem_eq(d->told[0].tokens, before.tokens,
                     (size_t)(at + 1) * sizeof(int32_t));
    ck_assert_int_eq(d->told[1].n_last, 1);
    for (int32_t i = 12; i < 12 + late->min_tokens; i++)
        ck_assert(d->told[1].tokens[i] != stop[0] &&
                  d->told[1].tokens[i] != stop[1]);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- cancelled ------------------------------------------------------------- */

START_TEST(cancel_before_the_start)
{
    desk *const d = desk_open((weft_engine_options){0});
    (void)desk_job(d, 0, 12, 24, 0);
    (void)desk_job(d, 1, 12, 4, 0);
    desk_submit(d, 0);
    desk_cancel(d, 0);
    desk_submit(d, 1);
    desk_start(d);
    desk_wait_over(d, 0);
    desk_wait_over(d, 1);
    desk_expect(d, 0, WEFT_FINISH_FAILED, WEFT_CANCELLED);
    ck_assert_int_eq(d->told[0].n_tokens, 12);
    ck_assert_int_eq(d->told[0].n_started, 0);
    desk_expect(d, 1, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

START_TEST(cancel_while_waiting)
{
    desk *const d = desk_open((weft_engine_options){.max_seqs = 1});
    desk_start(d);
    (void)desk_job(d, 0, 12, 100, 0);
    (void)desk_job(d, 1, 12, 24, 1);
    desk_submit(d, 0);
    desk_submit(d, 1);
    desk_wait_tokens(d, 0, 14);
    desk_cancel(d, 1);
    desk_wait_over(d, 1);
    desk_expect(d, 1, WEFT_FINISH_FAILED, WEFT_CANCELLED);
    ck_assert_int_eq(d->told[1].n_tokens, 12);
    desk_wait_over(d, 0);
    desk_expect(d, 0, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

START_TEST(cancel_while_running)
{
    const desk_told other = usual(9, 40, 5);
    desk *const d = desk_open((weft_engine_options){.max_context = 2000});
    desk_start(d);
    (void)desk_job(d, 0, 12, 1900, 0);
    (void)desk_job(d, 1, 9, 40, 5);
    desk_submit(d, 0);
    desk_submit(d, 1);
    desk_wait_tokens(d, 0, 15);
    desk_cancel(d, 0);
    desk_cancel(d, 0); /* twice is once */
    desk_wait_over(d, 0);
    desk_expect(d, 0, WEFT_FINISH_FAILED, WEFT_CANCELLED);
    ck_assert_int_lt(d->told[0].n_tokens, 12 + 1900);
    desk_wait_over(d, 1);
    desk_expect_same(&d->told[1], &other);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

START_TEST(cancel_after_the_end)
{
    desk *const d = desk_open((weft_engine_options){0});
    desk_start(d);
    (void)desk_job(d, 0, 12, 3, 0);
    desk_submit(d, 0);
    desk_wait_over(d, 0);
    desk_cancel(d, 0);
    desk_cancel(d, DESK_JOBS + 5); /* nobody's handle */
    /* Whatever the cancel would say comes before this job's events. */
    (void)desk_job(d, 1, 12, 3, 0);
    desk_submit(d, 1);
    desk_wait_over(d, 1);
    desk_expect(d, 0, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect(d, 1, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- deadlines --------------------------------------------------------------
 */

/* Holds the step until the job's deadline has passed. */
static void outlast(void *arg, int32_t position, const float *logits)
{
    const weft_job *const job = arg;
    (void)logits;
    if (position != 20) return;
    while (weft_clock_now_ns() <= job->deadline_ns) {
    }
}

START_TEST(deadline_while_running_and_before)
{
    const desk_told other = usual(9, 40, 5);
    desk *const d = desk_open((weft_engine_options){.max_seqs = 2});
    weft_job *const job = desk_job(d, 0, 12, 200, 0);
    job->on_logits = outlast;
    job->on_logits_arg = job;
    (void)desk_job(d, 1, 9, 40, 5);
    desk_job(d, 2, 12, 5, 1)->deadline_ns = 1;
    job->deadline_ns = weft_clock_now_ns() + 100 * MS;
    for (uint64_t i = 0; i < 3; i++) desk_submit(d, i);
    desk_start(d);
    for (uint64_t i = 0; i < 3; i++) desk_wait_over(d, i);
    desk_expect(d, 0, WEFT_FINISH_FAILED, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_le(d->told[0].n_tokens, 22);
    ck_assert_ptr_nonnull(strstr(d->told[0].text, "deadline"));
    desk_expect(d, 2, WEFT_FINISH_FAILED, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(d->told[2].n_tokens, 12);
    desk_expect_same(&d->told[1], &other);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- refused -----------------------------------------------------------------
 */

/* The number that *text begins with, and `words` behind it, which are passed.
 */
static int64_t pass_number(const char **text, const char *words)
{
    char *end = NULL;
    const long long n = strtoll(*text, &end, 10);
    ck_assert_msg(end != *text && strncmp(end, words, strlen(words)) == 0, "%s",
                  *text);
    *text = end + strlen(words);
    return n;
}

START_TEST(refusals_have_their_numbers)
{
    desk *const d = desk_open((weft_engine_options){
        .max_context = 1000, .kv_bytes = 400000, .max_seqs = 2});
    desk_start(d);
    (void)desk_job(d, 0, 1001, 5, 0);  /* longer than the context */
    (void)desk_job(d, 1, 600, 300, 1); /* more than the whole pool */
    (void)desk_job(d, 2, 12, 5, 2);
    (void)desk_job(d, 3, 12, 0, 2); /* nothing to generate */
    desk_job(d, 4, 12, 5, 2)->n_prompt = 0;
    for (uint64_t i = 0; i < 5; i++) desk_submit(d, i);
    for (uint64_t i = 0; i < 5; i++) desk_wait_over(d, i);
    desk_expect(d, 0, WEFT_FINISH_FAILED, WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(d->told[0].text, "1001"));
    ck_assert_ptr_nonnull(strstr(d->told[0].text, "1000"));
    desk_expect(d, 1, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED);
    weft_engine_load load;
    weft_engine_get_load(d->engine, &load);
    const char *text = strstr(d->told[1].text, "need ");
    ck_assert_ptr_nonnull(text);
    text += strlen("need ");
    const int64_t needed = pass_number(&text, " bytes of KV memory, ");
    const int64_t unused = pass_number(&text, " are free, ");
    const int64_t total = pass_number(&text, " in total");
    ck_assert_int_eq(total, load.kv.total_bytes);
    ck_assert_int_gt(needed, total);
    ck_assert_int_le(unused, total);
    desk_expect(d, 2, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect(d, 3, WEFT_FINISH_FAILED, WEFT_INVALID_ARGUMENT);
    desk_expect(d, 4, WEFT_FINISH_FAILED, WEFT_INVALID_ARGUMENT);
    for (uint64_t i = 0; i < 5; i++)
        ck_assert_int_eq(d->told[i].n_started, i == 2);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

START_TEST(a_full_queue_refuses)
{
    desk *const d =
        desk_open((weft_engine_options){.max_seqs = 1, .max_waiting = 2});
    for (uint64_t i = 0; i < 4; i++) {
        (void)desk_job(d, i, 12, 5, (int32_t)i);
        desk_submit(d, i);
    }
    desk_start(d);
    for (uint64_t i = 0; i < 4; i++) desk_wait_over(d, i);
    for (uint64_t i = 0; i < 2; i++)
        desk_expect(d, i, WEFT_FINISH_LENGTH, WEFT_OK);
    for (uint64_t i = 2; i < 4; i++)
        desk_expect(d, i, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- rows that went wrong ----------------------------------------------------
 */

static bool has_token(const desk_told *t, int32_t token)
{
    for (int32_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i] == token) return true;
    return false;
}

static void poison_embedding(desk *d, int32_t token)
{
    const weft_weights *const w = weft_model_weights(d->model.model);
    ck_assert_int_eq(w->embed_dtype, WEFT_BF16);
    const int32_t hidden = d->model.config.hidden_size;
    uint16_t *row = NULL; /* all but this test only read there */
    memcpy(&row, &w->embed, sizeof row);
    row += (int64_t)token * hidden;
    for (int32_t i = 0; i < hidden; i++) row[i] = NAN_BF16;
}

START_TEST(nan_fails_the_jobs_that_meet_it)
{
    const desk_told others[] = {usual(9, 40, 5), usual(17, 30, 6)};
    int32_t bad = 0;
    while (has_token(&others[0], bad) || has_token(&others[1], bad)) bad++;
    desk *const d = desk_open((weft_engine_options){0});
    poison_embedding(d, bad);
    (void)desk_job(d, 0, 9, 40, 5);
    (void)desk_job(d, 1, 12, 40, 0);
    d->told[1].tokens[11] = bad;
    (void)desk_job(d, 2, 17, 30, 6);
    desk_job(d, 3, 20, 40, 1)->prompt_logprobs = 2;
    d->told[3].tokens[15] = bad; /* its own rows fail before the last */
    desk_start(d);
    for (uint64_t i = 0; i < 4; i++) desk_submit(d, i);
    for (uint64_t i = 0; i < 4; i++) desk_wait_over(d, i);
    desk_expect(d, 1, WEFT_FINISH_FAILED, WEFT_INTERNAL);
    desk_expect(d, 3, WEFT_FINISH_FAILED, WEFT_INTERNAL);
    ck_assert_int_eq(d->told[1].n_tokens, 12);
    ck_assert_int_eq(d->told[3].n_tokens, 20);
    ck_assert_int_le(d->told[3].n_prompt_logprobs, 15);
    desk_expect_same(&d->told[0], &others[0]);
    desk_expect_same(&d->told[2], &others[1]);
    /* The pages that held NaN are used again. */
    (void)desk_job(d, 4, 17, 30, 6);
    desk_submit(d, 4);
    desk_wait_over(d, 4);
    desk_expect_same(&d->told[4], &others[1]);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- no memory ----------------------------------------------------------------
 */

static void take_memory_away(void *arg, int32_t position, const float *logits)
{
    (void)arg, (void)logits;
    if (position == 15) weft_mem_fail_after(0);
}

START_TEST(no_memory_ends_the_job_alone)
{
    const desk_told want = usual(17, 20, 6);
    desk *const d = desk_open((weft_engine_options){0});
    (void)desk_job(d, 0, 12, 20, 0);
    weft_job *const job = desk_job(d, 1, 12, 20, 1);
    job->on_logits = take_memory_away;
    job->logprobs = 4; /* a list that nothing is left for */
    (void)desk_job(d, 2, 17, 20, 6);
    desk_submit(d, 0);
    weft_mem_fail_after(0);
    desk_start(d);
    desk_wait_over(d, 0);
    weft_mem_fail_after(-1);
    desk_submit(d, 1);
    desk_wait_over(d, 1);
    weft_mem_fail_after(-1);
    desk_submit(d, 2);
    desk_wait_over(d, 2);
    for (uint64_t i = 0; i < 2; i++) {
        desk_expect(d, i, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_msg(strstr(d->told[i].text, "memory") != NULL,
                      "the text is \"%s\"", d->told[i].text);
    }
    ck_assert_int_eq(d->told[0].n_tokens, 12);
    ck_assert_int_eq(d->told[1].n_tokens, 16);
    desk_expect_same(&d->told[2], &want);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

static void take_memory_away_at_once(void *arg, int32_t position,
                                     const float *logits)
{
    (void)arg, (void)logits;
    if (position == 0) weft_mem_fail_after(0);
}

/* From the first step of a job on: chunks, decodes, logprobs of the chosen. */
START_TEST(a_step_allocates_nothing)
{
    const desk_told want = usual(40, 30, 3);
    desk *const d = desk_open((weft_engine_options){0});
    weft_job *const job = desk_job(d, 0, 40, 30, 3);
    job->on_logits = take_memory_away_at_once;
    desk_submit(d, 0);
    desk_start(d);
    desk_wait_over(d, 0);
    weft_mem_fail_after(-1);
    desk_expect_same(&d->told[0], &want);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* Tables of pages are the larger part of a sequence where pages are small. */
START_TEST(overhead_counts_page_tables)
{
    desk *const d = desk_open((weft_engine_options){0});
    weft_engine_options o = {.chunk_tokens = 8,
                             .max_seqs = 4,
                             .max_context = 1000,
                             .threads = 1,
                             .ops = harness_ops(NULL)};
    const weft_model_config *const c = &d->model.config;
    o.page_tokens = 1;
    const int64_t small = weft_engine_overhead_bytes(c, &o);
    o.page_tokens = 1000;
    const int64_t large = weft_engine_overhead_bytes(c, &o);
    const int64_t kinds = (c->n_kind[0] > 0) + (c->n_kind[1] > 0);
    ck_assert_int_eq(small - large, 4 * kinds * (1000 - 1) * 8);
    desk_close(d);
}
END_TEST

/* -- no room for events -------------------------------------------------------
 */

static void run_four(desk *d)
{
    desk_start(d);
    for (uint64_t i = 0; i < 4; i++) {
        weft_job *const job = desk_job(d, i, 8 + 3 * (int32_t)i, 20, (int)i);
        job->logprobs = 3;
        job->prompt_logprobs = 1;
        desk_submit(d, i);
    }
    for (uint64_t i = 0; i < 4; i++) {
        desk_wait_over(d, i);
        desk_expect(d, i, WEFT_FINISH_LENGTH, WEFT_OK);
    }
}

START_TEST(a_slow_sink_loses_and_reorders_nothing)
{
    desk *const fast = desk_open((weft_engine_options){0});
    desk *const slow = desk_open((weft_engine_options){0});
    atomic_store(&slow->refusals, 2);
    run_four(fast);
    run_four(slow);
    ck_assert_int_ge(atomic_load(&slow->n_refused), INT64_C(2) * 4 * 20);
    for (uint64_t i = 0; i < 4; i++) {
        desk_expect_same(&slow->told[i], &fast->told[i]);
        ck_assert_int_eq(slow->told[i].n_started, 1);
        ck_assert_int_eq(slow->told[i].n_prompt_events, 7 + 3 * (int32_t)i);
        ck_assert_mem_eq(slow->told[i].prompt_logprobs,
                         fast->told[i].prompt_logprobs,
                         sizeof fast->told[i].prompt_logprobs);
    }
    desk_expect_idle(slow);
    desk_close(slow);
    desk_close(fast);
}
END_TEST

static void wait_for_refusals(desk *d, long n)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + 20000000000ULL;
    while (atomic_load(&d->n_refused) < n)
        ck_assert_msg(weft_clock_now_ns() < deadline_ns, "never refused");
}

START_TEST(a_closed_sink_is_waited_for)
{
    const desk_told want[] = {usual(9, 20, 5), usual(17, 20, 6)};
    desk *const d = desk_open((weft_engine_options){0});
    atomic_store(&d->closed, true);
    (void)desk_job(d, 0, 9, 20, 5);
    desk_submit(d, 0);
    desk_start(d);
    wait_for_refusals(d, 3);
    (void)desk_job(d, 1, 17, 20, 6); /* comes while the engine is held */
    (void)desk_job(d, 2, 17, 20, 6);
    desk_submit(d, 1);
    desk_submit(d, 2);
    desk_cancel(d, 2);
    atomic_store(&d->closed, false);
    for (uint64_t i = 0; i < 3; i++) desk_wait_over(d, i);
    desk_expect_same(&d->told[0], &want[0]);
    desk_expect_same(&d->told[1], &want[1]);
    desk_expect(d, 2, WEFT_FINISH_FAILED, WEFT_CANCELLED);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* -- the end of the engine: the suite counts what is left
 * ---------------------- */

static void submit_many(desk *d)
{
    for (uint64_t i = 0; i < 6; i++) {
        desk_job(d, i, 12, 200, (int32_t)i)->logprobs = 5;
        desk_submit(d, i);
    }
}

/* Also while there is something in the inbox, which has to wait as well. */
START_TEST(a_closed_sink_is_not_besieged)
{
    desk *const d = desk_open((weft_engine_options){0});
    atomic_store(&d->closed, true);
    (void)desk_job(d, 0, 9, 20, 5);
    desk_submit(d, 0);
    desk_start(d);
    wait_for_refusals(d, 3);
    (void)desk_job(d, 1, 17, 20, 6);
    desk_submit(d, 1);
    const long before = atomic_load(&d->n_refused);
    const uint64_t until_ns = weft_clock_now_ns() + 100 * MS;
    while (weft_clock_now_ns() < until_ns) {
    }
    ck_assert_int_lt(atomic_load(&d->n_refused) - before, 1000);
    atomic_store(&d->closed, false);
    for (uint64_t i = 0; i < 2; i++) desk_wait_over(d, i);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

START_TEST(stop_with_jobs_in_flight)
{
    desk *const d = desk_open((weft_engine_options){.max_seqs = 2});
    desk_start(d);
    submit_many(d);
    desk_wait_tokens(d, 0, 15);
    desk_cancel(d, 1);
    desk_close(d);
}
END_TEST

START_TEST(stop_while_the_sink_is_closed)
{
    desk *const d = desk_open((weft_engine_options){.max_seqs = 2});
    desk_start(d);
    submit_many(d);
    desk_wait_tokens(d, 0, 15);
    const long n = atomic_load(&d->n_refused);
    atomic_store(&d->closed, true);
    wait_for_refusals(d, n + 2);
    desk_close(d);
}
END_TEST

START_TEST(stop_before_the_start)
{
    desk *const d = desk_open((weft_engine_options){0});
    submit_many(d);
    desk_close(d);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        length,
        stop_id,
        cancel_before_the_start,
        cancel_while_waiting,
        cancel_while_running,
        cancel_after_the_end,
        deadline_while_running_and_before,
        refusals_have_their_numbers,
        a_full_queue_refuses,
        nan_fails_the_jobs_that_meet_it,
        no_memory_ends_the_job_alone,
        a_step_allocates_nothing,
        overhead_counts_page_tables,
        a_slow_sink_loses_and_reorders_nothing,
        a_closed_sink_is_waited_for,
        a_closed_sink_is_not_besieged,
        stop_with_jobs_in_flight,
        stop_while_the_sink_is_closed,
        stop_before_the_start,
    };
    return WEFT_SUITE_RUN("engine", tests);
}
