/* Bodies of frames between a router and a lead: what is written is read back,
 * and nothing that is cut, too long or out of range is believed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/fleet/codec.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { VOCAB = 97, BODY_BYTES = 8192 };

static const int32_t TOKENS[] = {1, 2, 3, 96, 5};
static const int32_t STOP_IDS[] = {7, 200000};
static const int32_t BIAS_IDS[] = {3, 9};
static const float BIAS[] = {-100.0F, 2.5F};

static weft_job sample_job(void)
{
    return (weft_job){
        .handle = UINT64_C(0x123456789abcdef),
        .age = 42,
        .deadline_ns = 5000,
        .priority = -3,
        .tokens = TOKENS,
        .n_prompt = 3,
        .n_tokens = 5,
        .max_tokens = 10,
        .min_tokens = 2,
        .stop_ids = STOP_IDS,
        .n_stop_ids = 2,
        .sampling = {.temperature = 0.7F,
                     .top_p = 0.9F,
                     .min_p = 0.1F,
                     .top_k = 40,
                     .frequency_penalty = -0.5F,
                     .presence_penalty = 1.5F,
                     .repetition_penalty = 1.1F,
                     .seed = UINT64_MAX,
                     .n_bias = 2,
                     .bias_ids = BIAS_IDS,
                     .bias = BIAS},
        .logprobs = 5,
        .prompt_logprobs = -1,
    };
}

static size_t encode_job(const weft_job *job, unsigned char body[BODY_BYTES])
{
    weft_pack pack = weft_pack_into(body, BODY_BYTES);
    OK(weft_job_encode(job, 1000, &pack, &err));
    ck_assert_uint_le(pack.n, weft_job_bytes(job));
    return pack.n;
}

/* The decoded job is in the arena. */
static weft_status decode_job(const void *body, size_t n, weft_arena **arena,
                              weft_job **job, weft_err *why)
{
    OK(weft_arena_create(1 << 16, arena, &err));
    return weft_job_decode(body, n, VOCAB, 20000, *arena, job, why);
}

START_TEST(a_job_comes_back)
{
    const weft_job job = sample_job();
    unsigned char body[BODY_BYTES];
    const size_t n = encode_job(&job, body);
    weft_arena *arena = NULL;
    weft_job *back = NULL;
    OK(decode_job(body, n, &arena, &back, &err));
    ck_assert_uint_eq(back->handle, job.handle);
    ck_assert_uint_eq(back->age, 42);
    ck_assert_uint_eq(back->deadline_ns, 24000); /* what was left, from here */
    ck_assert_int_eq(back->priority, -3);
    ck_assert_int_eq(back->n_prompt, 3);
    ck_assert_int_eq(back->n_tokens, 5);
    ck_assert_mem_eq(back->tokens, TOKENS, sizeof TOKENS);
    ck_assert_int_eq(back->max_tokens, 10);
    ck_assert_int_eq(back->min_tokens, 2);
    ck_assert_int_eq(back->n_stop_ids, 2);
    ck_assert_mem_eq(back->stop_ids, STOP_IDS, sizeof STOP_IDS);
    ck_assert_int_eq(back->logprobs, 5);
    ck_assert_int_eq(back->prompt_logprobs, -1);
    const weft_sampling *const a = &job.sampling, *const b = &back->sampling;
    ck_assert(a->temperature == b->temperature && a->top_p == b->top_p &&
              a->min_p == b->min_p && a->top_k == b->top_k &&
              a->frequency_penalty == b->frequency_penalty &&
              a->presence_penalty == b->presence_penalty &&
              a->repetition_penalty == b->repetition_penalty &&
              a->seed == b->seed && b->n_bias == 2);
    ck_assert_mem_eq(b->bias_ids, BIAS_IDS, sizeof BIAS_IDS);
    ck_assert_mem_eq(b->bias, BIAS, sizeof BIAS);
    ck_assert_ptr_null(back->forced);
    ck_assert(back->on_logits == NULL);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(deadlines_cross_as_what_is_left)
{
    static const struct {
        uint64_t given, back;
    } cases[] = {{UINT64_MAX, UINT64_MAX},
                 {1000, 20000},
                 {999, 20000},
                 {UINT64_MAX - 1, UINT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_job job = sample_job();
        unsigned char body[BODY_BYTES];
        weft_arena *arena = NULL;
        weft_job *back = NULL;
        job.deadline_ns = cases[i].given;
        const size_t n = encode_job(&job, body);
        OK(decode_job(body, n, &arena, &back, &err));
        ck_assert_uint_eq(back->deadline_ns, cases[i].back);
        weft_arena_destroy(arena);
    }
}
END_TEST

START_TEST(a_job_cut_or_longer_is_refused)
{
    const weft_job job = sample_job();
    unsigned char body[BODY_BYTES] = {0};
    const size_t n = encode_job(&job, body);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        weft_arena *arena = NULL;
        weft_job *back = NULL;
        const weft_status st = decode_job(body, cut, &arena, &back, NULL);
        ck_assert_int_eq(st, cut == n ? WEFT_OK : WEFT_INVALID_ARGUMENT);
        weft_arena_destroy(arena);
    }
}
END_TEST

static void refuse_job(const weft_job *job, const char *field)
{
    unsigned char body[BODY_BYTES];
    const size_t n = encode_job(job, body);
    weft_arena *arena = NULL;
    weft_job *back = NULL;
    weft_err err = {0};
    ck_assert_int_eq(decode_job(body, n, &arena, &back, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, field) != NULL, "%s: %s", field, err.text);
    weft_arena_destroy(arena);
}

#define REFUSED(field, change)                                                 \
    do {                                                                       \
        weft_job job = sample_job();                                           \
        change;                                                                \
        refuse_job(&job, field);                                               \
    } while (0)

START_TEST(a_job_out_of_range_is_refused)
{
    static const int32_t big[] = {1, 2, VOCAB}, negative[] = {1, -1};
    static const float endless[] = {INFINITY, 0};
    REFUSED("tokens", (job.tokens = big, job.n_tokens = 3));
    REFUSED("tokens",
            (job.tokens = negative, job.n_tokens = 2, job.n_prompt = 2));
    REFUSED("n_prompt", job.n_prompt = 0);
    REFUSED("n_prompt", job.n_prompt = 6);
    REFUSED("n_prompt", (job.n_prompt = 0, job.n_tokens = 0));
    REFUSED("max_tokens", job.max_tokens = 2); /* two are there already */
    REFUSED("max_tokens", job.max_tokens = INT32_MAX);
    REFUSED("min_tokens", job.min_tokens = -1);
    REFUSED("min_tokens", job.min_tokens = 11);
    REFUSED("logprobs", job.logprobs = 513);
    REFUSED("logprobs", job.logprobs = -2);
    REFUSED("prompt_logprobs", job.prompt_logprobs = 513);
    REFUSED("sampling", job.sampling.temperature = NAN);
    REFUSED("sampling", job.sampling.temperature = -1.0F);
    REFUSED("sampling", job.sampling.top_p = 1.5F);
    REFUSED("sampling", job.sampling.min_p = 1.5F);
    REFUSED("sampling", job.sampling.repetition_penalty = 0.0F);
    REFUSED("sampling", job.sampling.presence_penalty = INFINITY);
    REFUSED("sampling", job.sampling.bias_ids = big + 1);
    REFUSED("sampling", job.sampling.bias = endless);
}
END_TEST

/* A count that the bytes do not hold takes no memory. */
START_TEST(a_count_that_lies_is_refused)
{
    const weft_job job = sample_job();
    unsigned char body[BODY_BYTES];
    const size_t n = encode_job(&job, body);
    /* The count of tokens lies before the last five. */
    memset(body + n - 6 * sizeof(int32_t), 0xff, sizeof(int32_t));
    weft_arena *arena = NULL;
    weft_job *back = NULL;
    ck_assert_int_eq(decode_job(body, n, &arena, &back, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_uint_lt(weft_arena_used(arena), 4096);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(no_memory_is_not_the_router_s_fault)
{
    const weft_job job = sample_job();
    unsigned char body[BODY_BYTES];
    const size_t n = encode_job(&job, body);
    weft_arena *arena = NULL;
    weft_job *back = NULL;
    OK(weft_arena_create(128, &arena, &err));
    ck_assert_int_eq(weft_job_decode(body, n, VOCAB, 0, arena, &back, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(a_job_too_long_for_a_frame)
{
    const weft_job job = sample_job();
    unsigned char body[64];
    weft_pack pack = weft_pack_into(body, sizeof body);
    weft_err err = {0};
    ck_assert_int_eq(weft_job_encode(&job, 0, &pack, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "5 tokens"));
}
END_TEST

/* -- events ---------------------------------------------------------------- */

static size_t encode_event(const weft_event *event,
                           unsigned char body[BODY_BYTES])
{
    weft_pack pack = weft_pack_into(body, BODY_BYTES);
    weft_event_encode(event, &pack);
    ck_assert(!pack.full);
    return pack.n;
}

static weft_status decode_event(const void *body, size_t n, weft_event *event)
{
    weft_unpack unpack = weft_unpack_from(body, n);
    const weft_status st = weft_event_decode(&unpack, VOCAB, event, NULL);
    if (st == WEFT_OK) ck_assert(weft_unpack_done(&unpack));
    return st;
}

START_TEST(events_come_back)
{
    weft_logprob top[2] = {{-0.5F, 3}, {-1.5F, 96}};
    const weft_event events[] = {
        {.handle = 9,
         .kind = WEFT_EVENT_TOKEN,
         .finish = WEFT_FINISH_STOP,
         .token = 96,
         .position = 4,
         .logprob = -0.25F,
         .n_top = 2,
         .top = top},
        {.handle = 9, .kind = WEFT_EVENT_STARTED, .position = 2},
        {.handle = 9, .kind = WEFT_EVENT_PROMPT, .token = 1, .position = 1},
        {.handle = 9, .kind = WEFT_EVENT_END, .finish = WEFT_FINISH_PREEMPTED},
        {.handle = 9,
         .kind = WEFT_EVENT_END,
         .finish = WEFT_FINISH_FAILED,
         .status = WEFT_RESOURCE_EXHAUSTED,
         .text = "no memory"},
    };
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        const weft_event *const a = &events[i];
        unsigned char body[BODY_BYTES];
        weft_event b = {0};
        const size_t n = encode_event(a, body);
        ck_assert_uint_le(n, WEFT_EVENT_BYTES_MAX);
        ck_assert_int_eq(decode_event(body, n, &b), WEFT_OK);
        ck_assert(a->handle == b.handle && a->kind == b.kind &&
                  a->finish == b.finish && a->token == b.token &&
                  a->position == b.position && a->logprob == b.logprob &&
                  a->n_top == b.n_top && a->status == b.status);
        ck_assert_str_eq(a->text, b.text);
        if (b.n_top > 0) ck_assert_mem_eq(b.top, top, sizeof top);
        weft_mem_free(b.top);
        for (size_t cut = 0; cut < n; cut++)
            ck_assert_int_eq(decode_event(body, cut, &b),
                             WEFT_INVALID_ARGUMENT);
    }
}
END_TEST

START_TEST(the_longest_event_fits)
{
    static weft_logprob top[WEFT_LOGPROBS_MAX];
    const weft_event event = {.kind = WEFT_EVENT_TOKEN,
                              .position = 1,
                              .n_top = WEFT_LOGPROBS_MAX,
                              .top = top};
    unsigned char body[BODY_BYTES];
    ck_assert_uint_le(encode_event(&event, body), WEFT_EVENT_BYTES_MAX);
}
END_TEST

START_TEST(events_out_of_range_are_refused)
{
    weft_logprob top[1] = {{0, VOCAB}};
    const weft_event events[] = {
        {.kind = WEFT_EVENT_TOKEN, .token = VOCAB, .position = 1},
        {.kind = WEFT_EVENT_TOKEN, .token = -1, .position = 1},
        {.kind = WEFT_EVENT_TOKEN, .token = 1, .position = 0},
        {.kind = WEFT_EVENT_TOKEN, .finish = WEFT_FINISH_FAILED, .position = 1},
        {.kind = WEFT_EVENT_TOKEN, .position = 1, .n_top = 1, .top = top},
        {.kind = WEFT_EVENT_PROMPT, .finish = WEFT_FINISH_STOP, .position = 1},
        {.kind = WEFT_EVENT_STARTED, .finish = WEFT_FINISH_LENGTH},
        {.kind = WEFT_EVENT_END},
        {.kind = WEFT_EVENT_END, .finish = WEFT_FINISH_STOP},
        {.kind = WEFT_EVENT_END, .finish = WEFT_FINISH_FAILED},
        {.kind = WEFT_EVENT_END,
         .finish = WEFT_FINISH_FAILED,
         .status = (weft_status)99},
        {.kind = (weft_event_kind)4},
        {.kind = WEFT_EVENT_TOKEN, .finish = (weft_finish)5, .position = 1},
    };
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        unsigned char body[BODY_BYTES];
        weft_event back = {0};
        const size_t n = encode_event(&events[i], body);
        ck_assert_msg(decode_event(body, n, &back) == WEFT_INVALID_ARGUMENT,
                      "event %zu", i);
    }
}
END_TEST

/* It will be told to a client. */
START_TEST(a_text_becomes_one_line)
{
    weft_event event = {.kind = WEFT_EVENT_END,
                        .finish = WEFT_FINISH_FAILED,
                        .status = WEFT_INTERNAL,
                        .text = "one\ntwo\xff"};
    unsigned char body[BODY_BYTES];
    weft_event back = {0};
    const size_t n = encode_event(&event, body);
    ck_assert_int_eq(decode_event(body, n, &back), WEFT_OK);
    ck_assert_str_eq(back.text, "one?two?");
}
END_TEST

/* -- states ---------------------------------------------------------------- */

static weft_group_state sample_state(void)
{
    weft_group_state s = {
        .group = 3,
        .whole = true,
        .been_whole = true,
        .epoch = 17,
        .max_seqs = 64,
        .max_context = 4096,
        .jobs_max = 1088,
        .jobs_live = 5,
        .weights_hash = UINT64_C(0xfedcba9876543210),
        .id = "layers-3-0",
        .reason = "expert 3 of layer 1 has no owner",
    };
    s.load.sched = (weft_sched_stats){2, 3, 4};
    s.load.n_steps = 77;
    s.load.idle = true;
    s.load.kv_group.total_bytes = 1 << 20;
    s.load.kv_group.free_bytes = 4096;
    s.load.kv_group.used_bytes[WEFT_WINDOW] = 12;
    s.load.kv_group.pages_used[WEFT_FULL] = 6;
    s.exchange.pairs = 1000;
    s.exchange.buckets[WEFT_HISTOGRAM_BUCKETS - 1] = 8;
    s.exchange.imbalance = 1.5F;
    s.exchange.n_top = 2;
    s.exchange.top[1] = (weft_expert_share){1, 255, 99};
    return s;
}

START_TEST(a_state_comes_back)
{
    weft_group_state state = sample_state(), back;
    unsigned char body[WEFT_STATE_BYTES_MAX];
    weft_pack pack = weft_pack_into(body, sizeof body);
    weft_state_encode(&state, &pack);
    ck_assert(!pack.full);
    OK(weft_state_decode(body, pack.n, &back, &err));
    /* What follows from the rest, or is the receiver's to say. */
    state.load.whole = true;
    state.load.epoch = 17;
    unsigned char again[WEFT_STATE_BYTES_MAX];
    weft_pack second = weft_pack_into(again, sizeof again);
    weft_state_encode(&back, &second);
    ck_assert_uint_eq(pack.n, second.n);
    ck_assert_mem_eq(body, again, pack.n);
    ck_assert(back.whole && back.been_whole && !back.draining);
    ck_assert(back.load.whole && back.load.epoch == 17);
    ck_assert_str_eq(back.id, state.id);
    ck_assert_str_eq(back.reason, state.reason);
    ck_assert_int_eq(back.exchange.top[1].expert, 255);
    for (size_t cut = 0; cut < pack.n; cut++)
        ck_assert_int_eq(weft_state_decode(body, cut, &back, NULL),
                         WEFT_INVALID_ARGUMENT);
}
END_TEST

START_TEST(the_longest_state_fits)
{
    weft_group_state state = sample_state();
    unsigned char body[WEFT_STATE_BYTES_MAX];
    weft_pack pack = weft_pack_into(body, sizeof body);
    state.exchange.n_top = WEFT_TOP_EXPERTS;
    memset(state.id, 'i', sizeof state.id - 1);
    memset(state.reason, 'r', sizeof state.reason - 1);
    weft_state_encode(&state, &pack);
    ck_assert(!pack.full);
}
END_TEST

START_TEST(states_out_of_range_are_refused)
{
    for (int i = 0; i < 5; i++) {
        weft_group_state state = sample_state(), back;
        unsigned char body[WEFT_STATE_BYTES_MAX];
        weft_pack pack = weft_pack_into(body, sizeof body);
        if (i == 0) state.max_seqs = -1;
        if (i == 1) state.load.kv_group.total_bytes = -1;
        if (i == 2) state.load.kv_group.used_bytes[WEFT_FULL] = INT64_MAX;
        if (i == 3) state.exchange.imbalance = NAN;
        if (i == 4) state.exchange.top[0].layer = -1;
        weft_state_encode(&state, &pack);
        ck_assert_int_eq(weft_state_decode(body, pack.n, &back, NULL),
                         WEFT_INVALID_ARGUMENT);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_job_comes_back,
        deadlines_cross_as_what_is_left,
        a_job_cut_or_longer_is_refused,
        a_job_out_of_range_is_refused,
        a_count_that_lies_is_refused,
        no_memory_is_not_the_router_s_fault,
        a_job_too_long_for_a_frame,
        events_come_back,
        the_longest_event_fits,
        events_out_of_range_are_refused,
        a_text_becomes_one_line,
        a_state_comes_back,
        the_longest_state_fits,
        states_out_of_range_are_refused,
    };
    return WEFT_SUITE_RUN("fleet_codec", tests);
}
