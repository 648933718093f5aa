/* Log-probabilities that the engine tells, of prompt tokens and of generated
 * ones: the log-softmax of the model's own rows, whatever the chunks are and
 * however often the job was preempted. */
#include <math.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/desk.h"
#include "tests/support/suite.h"

enum { N_PROMPT = 23, N_NEW = 60, N_TOP = 5, N_ALL = N_PROMPT + N_NEW };

/* Two fp32 sums over the vocabulary apart. */
static const double TOLERANCE = 1e-5;

typedef struct rows {
    float logits[N_ALL][DESK_VOCAB]; /* [p]: computed at position p */
    int32_t n_seen;
} rows;

static rows seen; /* by the engine's thread, read after the last event */

static void keep_row(void *arg, int32_t position, const float *logits)
{
    rows *const r = arg;
    ck_assert_int_lt(position, N_ALL);
    memcpy(r->logits[position], logits, sizeof r->logits[position]);
    r->n_seen++;
}

static double log_softmax(const float *logits, int32_t token)
{
    double most = (double)logits[0], sum = 0.0;
    for (int32_t i = 1; i < DESK_VOCAB; i++)
        most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < DESK_VOCAB; i++)
        sum += exp((double)logits[i] - most);
    return (double)logits[token] - most - log(sum);
}

/* How many tokens are before this one: larger, or as large and lower. */
static int32_t rank_of(const float *logits, int32_t token)
{
    int32_t n = 0;
    for (int32_t i = 0; i < DESK_VOCAB; i++)
        n += logits[i] > logits[token] ||
             (logits[i] == logits[token] && i < token);
    return n;
}

static int32_t n_checked;

/* The row must be known by the time its event comes. */
static void check_event(desk *d, const weft_event *event)
{
    (void)d;
    const bool prompt = event->kind == WEFT_EVENT_PROMPT;
    if (!prompt && event->kind != WEFT_EVENT_TOKEN) return;
    const float *const logits = seen.logits[event->position - 1];
    ck_assert_int_eq(event->n_top, prompt ? N_TOP - 1 : N_TOP);
    ck_assert_double_eq_tol((double)event->logprob,
                            log_softmax(logits, event->token), TOLERANCE);
    for (int32_t i = 0; i < event->n_top; i++) {
        ck_assert_int_eq(rank_of(logits, event->top[i].id), i);
        ck_assert_double_eq_tol((double)event->top[i].value,
                                log_softmax(logits, event->top[i].id),
                                TOLERANCE);
        if (event->top[i].id == event->token)
            ck_assert_mem_eq(&event->top[i].value, &event->logprob,
                             sizeof event->logprob);
    }
    if (!prompt) ck_assert_int_eq(event->top[0].id, event->token);
    n_checked++;
}

static void ask(desk *d, uint64_t handle)
{
    weft_job *const job = desk_job(d, handle, N_PROMPT, N_NEW, 3);
    job->logprobs = N_TOP;
    job->prompt_logprobs = N_TOP - 1;
}

static desk_told in_chunks(int32_t chunk)
{
    desk *const d = desk_open((weft_engine_options){.chunk_tokens = chunk});
    desk_start(d);
    ask(d, 0);
    desk_submit(d, 0);
    desk_wait_over(d, 0);
    desk_expect(d, 0, WEFT_FINISH_LENGTH, WEFT_OK);
    desk_expect_idle(d);
    const desk_told told = d->told[0];
    desk_close(d);
    return told;
}

START_TEST(values_are_those_of_the_rows)
{
    desk *const d = desk_open((weft_engine_options){0});
    desk_start(d);
    ask(d, 0);
    d->told[0].job.on_logits = keep_row;
    d->told[0].job.on_logits_arg = &seen;
    d->on_event = check_event;
    desk_submit(d, 0);
    desk_wait_over(d, 0);
    desk_expect(d, 0, WEFT_FINISH_LENGTH, WEFT_OK);
    ck_assert_int_eq(d->told[0].n_prompt_events, N_PROMPT - 1);
    ck_assert_int_eq(n_checked, N_PROMPT - 1 + N_NEW);
    ck_assert_int_eq(seen.n_seen, N_ALL - 1);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

static void expect_as(const desk_told *got, const desk_told *want)
{
    desk_expect_same(got, want);
    ck_assert_int_eq(got->n_prompt_logprobs, N_PROMPT - 1);
    ck_assert_mem_eq(got->prompt_logprobs, want->prompt_logprobs,
                     sizeof want->prompt_logprobs);
}

START_TEST(chunks_change_nothing)
{
    const desk_told want = in_chunks(64);
    static const int32_t chunks[] = {1, 3, 8, 22};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const desk_told got = in_chunks(chunks[i]);
        ck_assert_int_eq(got.n_prompt_events, N_PROMPT - 1);
        expect_as(&got, &want);
    }
}
END_TEST

/* None was asked, none comes; 0 is the chosen token's alone. */
static void expect_none(desk *d, const weft_event *event)
{
    (void)d;
    ck_assert_int_ne(event->kind, WEFT_EVENT_PROMPT);
    ck_assert_int_eq(event->n_top, 0);
    ck_assert_ptr_null(event->top);
}

START_TEST(no_more_than_was_asked)
{
    const desk_told want = in_chunks(8);
    desk *const d = desk_open((weft_engine_options){0});
    desk_start(d);
    d->on_event = expect_none;
    (void)desk_job(d, 0, N_PROMPT, N_NEW, 3);
    desk_submit(d, 0);
    desk_wait_over(d, 0);
    desk_expect_same(&d->told[0], &want);
    desk_expect_idle(d);
    desk_close(d);
}
END_TEST

/* The job among two older ones that fill the pool; how often it went back. */
static int32_t in_a_pool_of(int64_t kv_bytes, const desk_told *want)
{
    desk *const d = desk_open((weft_engine_options){.kv_bytes = kv_bytes});
    for (uint64_t i = 0; i < 2; i++) {
        (void)desk_job(d, i, 12, 120, (int32_t)i);
        desk_submit(d, i);
    }
    ask(d, 2);
    desk_submit(d, 2);
    desk_start(d);
    for (uint64_t i = 0; i < 3; i++) {
        desk_wait_over(d, i);
        desk_expect(d, i, WEFT_FINISH_LENGTH, WEFT_OK);
    }
    const int32_t n_preempted = d->told[2].n_preempted;
    ck_assert_int_ge(d->told[2].n_prompt_events, N_PROMPT - 1);
    ck_assert_int_ge(d->told[2].n_started, 1);
    expect_as(&d->told[2], want);
    desk_expect_idle(d);
    desk_close(d);
    return n_preempted;
}

/* From a pool for one job on; in some of them the youngest goes back and comes
 * again, its prompt logprobs with it. */
START_TEST(preemption_changes_nothing)
{
    const desk_told want = in_chunks(8);
    desk *const d = desk_open((weft_engine_options){0});
    const weft_kv_layout *const layout = weft_engine_layout(d->engine);
    const int64_t slab = layout->slab_bytes;
    const int64_t one =
        weft_kv_bytes_for(&d->model.config, layout, 12 + 120, 8) / slab * slab +
        3 * slab;
    desk_close(d);
    int32_t n_preempted = 0;
    for (int64_t n = 0; n < 12; n++)
        n_preempted += in_a_pool_of(one + n * slab, &want);
    ck_assert_msg(n_preempted > 0, "no pool was small enough to preempt");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        values_are_those_of_the_rows,
        chunks_change_nothing,
        no_more_than_was_asked,
        preemption_changes_nothing,
    };
    return WEFT_SUITE_RUN("engine_logprobs", tests);
}
