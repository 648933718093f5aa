/* The router without its threads, between a lead and clients that follow a
 * script. The guarantees are those of router/flow.h. */
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/flow_fake.h"
#include "tests/support/suite.h"

START_TEST(one_request)
{
    weft_fake_begin(false);
    weft_fake_client *const c = weft_fake_open_plain(3);
    weft_fake_check_load(0, 1, 0);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_submits, 1);
    weft_fake_check_load(0, 1, 0);
    weft_fake_send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    weft_fake_check_load(1, 0, 0);
    weft_fake_send_tokens(c, (int32_t[]){7, 8}, 2);
    ck_assert_int_eq(c->n_chunks, 2);
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 9);
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->end, WEFT_END_LENGTH);
    ck_assert_int_eq(c->n_all, 3);
    ck_assert_int_eq(c->n_prompt, 3);
    weft_fake_check_load(0, 0, 0);
    ck_assert_int_eq(weft_fake_lead.n_cancels, 0);
    ck_assert(weft_fake.n_prompt_counted == 3 &&
              weft_fake.n_generated_counted == 3);
    ck_assert(weft_fake.n_first == 1 && weft_fake.n_between == 2 &&
              weft_fake.n_queued == 1);
    ck_assert_int_eq(weft_fake_free_slot(), 0);
    weft_fake_end();
}
END_TEST

START_TEST(whole_answer)
{
    weft_fake_begin(false);
    weft_request r = weft_fake_request(2);
    r.stream = false;
    weft_fake_client *const c = weft_fake_open(&r);
    weft_fake_tick();
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_NONE, 7);
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_STOP, 8);
    ck_assert_int_eq(c->n_chunks, 0);
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->n_all, 2);
    ck_assert_int_eq(c->end, WEFT_END_STOP);
    ck_assert(c->matched_token);
    weft_fake_end();
}
END_TEST

START_TEST(resubmit)
{
    weft_fake_begin(false);
    weft_request r = weft_fake_request(5);
    r.seed = (weft_opt_u64){true, 77};
    r.priority = 3;
    weft_fake_client *const c = weft_fake_open(&r);
    weft_fake_client *const other = weft_fake_open_plain(5);
    weft_fake_tick();
    const weft_job before = *weft_fake_lead_find(c->handle)->job;
    weft_fake_send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    weft_fake_send_tokens(c, (int32_t[]){20, 21}, 2);
    weft_fake_send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    weft_fake_check_load(0, 2, 0);
    ck_assert_int_eq(weft_fake.n_preempted, 1);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_submits, 3);
    const weft_job *const again = &weft_fake_lead.last;
    ck_assert_uint_eq(again->handle, c->handle);
    ck_assert_uint_eq(again->age, before.age);
    ck_assert_int_eq(again->priority, 3);
    ck_assert_uint_eq(again->sampling.seed, 77);
    ck_assert_int_eq(again->n_prompt, 3);
    ck_assert_int_eq(again->n_tokens, 5);
    ck_assert_int_eq(again->max_tokens, 5);
    const int32_t wanted[] = {10, 11, 12, 20, 21};
    for (int i = 0; i < 5; i++) ck_assert_int_eq(again->tokens[i], wanted[i]);
    weft_fake_send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    weft_fake_send_tokens(c, (int32_t[]){22, 23}, 2);
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 24);
    ck_assert_int_eq(c->n_all, 5);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(c->ids[i], 20 + i);
    ck_assert_int_eq(weft_fake.n_prompt_counted,
                     3); /* recompute is not counted */
    ck_assert_int_eq(weft_fake.n_queued, 1);
    ck_assert_int_eq(other->n_completes, 0);
    weft_fake_end();
}
END_TEST

START_TEST(cancel_in_every_state)
{
    weft_fake_begin(false);
    /* queued: the lead never hears of it */
    weft_fake_client *c = weft_fake_open_plain(4);
    weft_flow_cancel(weft_fake.flow, c->handle, WEFT_CANCELLED, "left");
    ck_assert(c->n_fails == 1 && c->status == WEFT_CANCELLED);
    weft_fake_check_load(0, 0, 0);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_submits, 0);
    /* submitted and running: it stays until the lead lets go */
    for (int running = 0; running < 2; running++) {
        c = weft_fake_open_plain(4);
        weft_fake_tick();
        if (running)
            weft_fake_send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
        weft_flow_cancel(weft_fake.flow, c->handle, WEFT_CANCELLED, "left");
        weft_flow_cancel(weft_fake.flow, c->handle, WEFT_CANCELLED, "twice");
        ck_assert_int_eq(c->n_fails, 1);
        weft_fake_check_load(0, 0, 1);
        weft_fake_tick();
        ck_assert_int_eq(weft_fake_lead.n_cancels, running + 1);
        weft_fake_send_tokens(c, (int32_t[]){1}, 1); /* it was on its way */
        ck_assert_int_eq(c->n_chunks, 0);
        weft_fake_check_load(0, 0, 1);
        weft_fake_send_end(c->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
        weft_fake_check_load(0, 0, 0);
        ck_assert_int_eq(weft_fake_free_slot(), 0);
    }
    /* preempted while the cancel was on its way: not submitted again */
    c = weft_fake_open_plain(4);
    weft_fake_tick();
    const int32_t before = weft_fake_lead.n_submits;
    weft_flow_cancel(weft_fake.flow, c->handle, WEFT_CANCELLED, "left");
    weft_fake_send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_submits, before);
    ck_assert_int_eq(weft_fake_free_slot(), 0);
    /* ended while the cancel was on its way: no cancel is sent */
    c = weft_fake_open_plain(1);
    weft_fake_tick();
    const int32_t cancels = weft_fake_lead.n_cancels;
    weft_flow_cancel(weft_fake.flow, c->handle, WEFT_CANCELLED, "left");
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 4);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, cancels);
    ck_assert_int_eq(weft_fake_free_slot(), 0);
    weft_fake_end();
}
END_TEST

START_TEST(late_events)
{
    weft_fake_begin(false);
    weft_fake_client *const first = weft_fake_open_plain(1);
    weft_fake_tick();
    const uint64_t old = first->handle;
    weft_fake_send(old, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 4);
    weft_fake_client *const second =
        weft_fake_open_plain(2); /* the same slot */
    weft_fake_tick();
    ck_assert_int_eq(weft_handle_slot(old), weft_handle_slot(second->handle));
    const weft_event late = {.handle = old,
                             .kind = WEFT_EVENT_TOKEN,
                             .finish = WEFT_FINISH_LENGTH,
                             .token = 9,
                             .n_top = 1,
                             .top = weft_mem_new(1, sizeof(weft_logprob))};
    weft_flow_event(weft_fake.flow, &late, weft_fake.now_ns);
    weft_flow_cancel(weft_fake.flow, old, WEFT_CANCELLED, "left");
    ck_assert_int_eq(second->n_chunks + second->n_fails, 0);
    weft_fake_check_load(0, 1, 0);
    /* The lead has given it back: what it says before it has it again is not
     * of this run. */
    weft_fake_send_end(second->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    weft_fake_send_tokens(second, (int32_t[]){9}, 1);
    ck_assert_int_eq(second->n_chunks, 0);
    weft_fake_check_load(0, 1, 0);
    weft_fake_end();
}
END_TEST

START_TEST(full_lead)
{
    weft_fake_begin(false);
    weft_fake_client *const a = weft_fake_open_plain(2);
    weft_fake_client *const b = weft_fake_open_plain(2);
    weft_fake_lead.room = 1;
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 50), 50); /* soon again */
    ck_assert_int_eq(weft_fake_lead.n_submits, 1);
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 60), 60);
    weft_fake_lead.room = -1;
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 70), UINT64_MAX);
    ck_assert_int_eq(weft_fake_lead.n_submits, 2);
    ck_assert_uint_eq(weft_fake_lead.jobs[0].handle, a->handle);
    weft_fake_lead.room = 0;
    weft_flow_cancel(weft_fake.flow, a->handle, WEFT_CANCELLED, "left");
    weft_flow_cancel(weft_fake.flow, b->handle, WEFT_CANCELLED, "left");
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, 0);
    weft_fake_lead.room = 1;
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, 1);
    weft_fake_lead.room = -1;
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, 2);
    weft_fake_send_end(a->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    weft_fake_send_end(b->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    weft_fake_check_load(0, 0, 0);
    weft_fake_end();
}
END_TEST

START_TEST(refused_by_the_lead)
{
    weft_fake_begin(false);
    weft_fake_client *c = weft_fake_open_plain(2);
    weft_fake_tick();
    weft_fake_send_end(c->handle, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED,
                       "needed 900, free 10, total 100");
    ck_assert_int_eq(c->status, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(c->why, "needed 900, free 10, total 100");
    ck_assert_int_lt(c->retry_after_ms, 0);
    weft_fake_lead.refusal = WEFT_UNAVAILABLE;
    c = weft_fake_open_plain(2);
    weft_fake_tick();
    ck_assert_int_eq(c->status, WEFT_UNAVAILABLE);
    weft_fake_check_load(0, 0, 0);
    weft_fake_end();
}
END_TEST

START_TEST(deadlines)
{
    weft_fake_begin(false);
    weft_request r = weft_fake_request(4);
    r.deadline_ns = 5000;
    weft_fake_client *const queued = weft_fake_open(&r);
    r.deadline_ns = 9000;
    weft_fake_client *const running = weft_fake_open(&r);
    weft_fake_client *const endless = weft_fake_open_plain(4);
    weft_fake_lead.room = 0;
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 4000), 4000);
    weft_fake_lead.room = -1;
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 5000), 9000);
    ck_assert_int_eq(queued->status, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(weft_fake_lead.n_submits, 2);
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 8999), 9000);
    ck_assert_int_eq(running->n_fails, 0);
    ck_assert_uint_eq(weft_flow_tick(weft_fake.flow, 9000), UINT64_MAX);
    ck_assert_int_eq(running->status, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(weft_fake_lead.n_cancels, 1);
    ck_assert_int_eq(endless->n_fails, 0);
    weft_fake_end();
}
END_TEST

START_TEST(abort_by_id)
{
    weft_fake_begin(true);
    weft_request r = weft_fake_request(9);
    r.request_id = (weft_span){"one", 3};
    const weft_span stop = {"zzz", 3};
    r.stop = &stop;
    r.n_stop = 1;
    weft_fake_client *const a = weft_fake_open(&r);
    weft_fake_client *const b = weft_fake_open(&r);
    r.request_id = (weft_span){"on", 2};
    weft_fake_client *const other = weft_fake_open(&r);
    weft_fake_tick();
    weft_ids z = {0};
    ck_assert_int_eq(weft_tokenizer_encode(weft_fake.tokenizer, "azz", 3,
                                           (weft_encode_options){0}, &z, NULL),
                     WEFT_OK);
    weft_fake_send_tokens(a, z.data, (int32_t)z.n);
    ck_assert_str_eq(a->text, "a"); /* zz may become zzz */
    const weft_span strangers[] = {{"", 0}, {"nobody", 6}};
    ck_assert_int_eq(weft_flow_abort(weft_fake.flow, strangers, 2), 0);
    ck_assert_int_eq(weft_flow_abort(weft_fake.flow, NULL, 0), 0);
    weft_span ids[] = {{"two", 3}, {"one", 3}, {"o", 1},
                       {"one", 3}, {NULL, 0},  {"onetwo", 6}};
    weft_flow_sort_ids(ids, 6);
    ck_assert_int_eq(weft_flow_abort(weft_fake.flow, ids, 6), 2);
    ck_assert_int_eq(weft_flow_abort(weft_fake.flow, ids, 6), 0);
    ck_assert(a->n_completes == 1 && a->end == WEFT_END_ABORT);
    ck_assert_str_eq(a->whole, "azz");
    ck_assert(b->n_completes == 1 && b->end == WEFT_END_ABORT);
    ck_assert_int_eq(b->n_all, 0);
    ck_assert_int_eq(other->n_completes + other->n_fails, 0);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, 2);
    weft_ids_deinit(&z);
    weft_fake_end();
}
END_TEST

/* Tokens of `text`, the last one with `finish`. */
static void say(const weft_fake_client *c, const char *text, weft_finish finish)
{
    weft_ids ids = {0};
    ck_assert_int_eq(
        weft_tokenizer_encode(weft_fake.tokenizer, text, strlen(text),
                              (weft_encode_options){0}, &ids, NULL),
        WEFT_OK);
    weft_fake_send_tokens(c, ids.data, (int32_t)ids.n - 1);
    weft_fake_send(c->handle, WEFT_EVENT_TOKEN, finish, ids.data[ids.n - 1]);
    weft_ids_deinit(&ids);
}

START_TEST(stop_strings)
{
    static const struct {
        const char *stop, *said, *text;
        bool include;
        uint32_t min_tokens;
        weft_finish finish;
    } cases[] = {
        {"END", "some text END", "some text ", false, 0, WEFT_FINISH_NONE},
        {"END", "some text END", "some text END", true, 0, WEFT_FINISH_NONE},
        /* the last token completes it: a stop, not a length */
        {"END", "some text END", "some text ", false, 0, WEFT_FINISH_LENGTH},
        /* held back, then final because the answer ends */
        {"END", "some text EN", "some text EN", false, 0, WEFT_FINISH_LENGTH},
        {"END", "END", "END", false, 90, WEFT_FINISH_LENGTH},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_fake_begin(true);
        weft_request r = weft_fake_request(100);
        const weft_span stop = {cases[i].stop, strlen(cases[i].stop)};
        r.stop = &stop;
        r.n_stop = 1;
        r.include_stop_str = (weft_opt_bool){true, cases[i].include};
        r.min_tokens = (weft_opt_u32){true, cases[i].min_tokens};
        weft_fake_client *const c = weft_fake_open(&r);
        weft_fake_tick();
        say(c, cases[i].said, cases[i].finish);
        const bool stopped =
            strstr(cases[i].said, "END") != NULL && cases[i].min_tokens == 0;
        ck_assert_int_eq(c->n_completes, 1);
        ck_assert_str_eq(c->whole, cases[i].text);
        ck_assert_str_eq(c->matched, stopped ? "END" : "");
        ck_assert_int_eq(c->end, stopped ? WEFT_END_STOP : WEFT_END_LENGTH);
        ck_assert_int_eq(c->n_all, c->n_ids);
        weft_fake_tick();
        ck_assert_int_eq(weft_fake_lead.n_cancels,
                         cases[i].finish == WEFT_FINISH_NONE ? 1 : 0);
        weft_fake_end();
    }
}
END_TEST

START_TEST(stop_token_has_no_text)
{
    weft_fake_begin(true);
    weft_fake_client *const c = weft_fake_open_plain(9);
    weft_fake_tick();
    say(c, "hi", WEFT_FINISH_NONE);
    say(c, "x", WEFT_FINISH_STOP);
    ck_assert_str_eq(c->whole, "hi");
    ck_assert(c->matched_token && c->end == WEFT_END_STOP);
    ck_assert_int_eq(c->n_all, c->n_ids);
    weft_fake_end();
}
END_TEST

static weft_logprob *tops(int32_t n, float first)
{
    weft_logprob *const top = weft_mem_new((size_t)n, sizeof *top);
    for (int32_t i = 0; i < n; i++)
        top[i] = (weft_logprob){.value = first - (float)i, .id = 30 + i};
    return top;
}

static void send_prompt_logprob(const weft_fake_client *c, int32_t position)
{
    const weft_event event = {.handle = c->handle,
                              .kind = WEFT_EVENT_PROMPT,
                              .position = position,
                              .logprob = -(float)position,
                              .n_top = 1,
                              .top = tops(1, -(float)position)};
    weft_flow_event(weft_fake.flow, &event, weft_fake.now_ns);
}

/* What complete says of logprobs, looked at while it is there. */
static void check_logprobs(void *arg, const weft_stream_complete *done)
{
    const weft_logprob_rows *const prompt = &done->prompt_logprobs;
    const weft_logprob_rows *const rows = &done->logprobs;
    ck_assert_int_eq(prompt->n, 3);
    for (int32_t i = 0; i < 3; i++) {
        ck_assert(prompt->values[i] == (i == 0 ? 0.0F : -(float)i));
        ck_assert_int_eq(prompt->ids[i], (int32_t)WEFT_FAKE_PROMPT[i]);
        ck_assert_int_eq(prompt->n_top[i], i == 0 ? 0 : 1);
    }
    ck_assert(prompt->top_values[0] == -1.0F && prompt->top_values[1] == -2.0F);
    ck_assert_int_eq(rows->n, 2);
    ck_assert_int_eq(rows->ids[1], 41);
    ck_assert(rows->values[1] == -0.5F);
    ck_assert(rows->top_ids[2] == 30 && rows->top_ids[3] == 31);
    ck_assert(rows->top_values[2] == -0.5F && rows->top_values[3] == -1.5F);
    weft_fake_heard_complete(arg, done);
}

START_TEST(logprobs)
{
    static const weft_client_ops looker = {
        weft_fake_heard_chunk, check_logprobs, weft_fake_heard_fail};
    weft_fake_begin(false);
    weft_fake.ops = &looker;
    weft_request r = weft_fake_request(2);
    r.logprobs = (weft_opt_u32){true, 2};
    r.prompt_logprobs = (weft_opt_u32){true, 1};
    weft_fake_client *const c = weft_fake_open(&r);
    weft_fake_tick();
    send_prompt_logprob(c, 1);
    weft_fake_send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.last.prompt_logprobs,
                     1); /* one is still missing */
    send_prompt_logprob(c, 1);
    send_prompt_logprob(c, 2);
    weft_fake_send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.last.prompt_logprobs, -1); /* none is */
    for (int i = 0; i < 2; i++) {
        const weft_event event = {.handle = c->handle,
                                  .kind = WEFT_EVENT_TOKEN,
                                  .finish = i == 1 ? WEFT_FINISH_LENGTH
                                                   : WEFT_FINISH_NONE,
                                  .token = 40 + i,
                                  .logprob = -0.5F,
                                  .n_top = 2,
                                  .top = tops(2, -0.5F)};
        weft_fake_send_event(&event);
    }
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->n_logprobs, 2);
    weft_fake_end();
}
END_TEST

/* What a lead never sends: the request fails, nothing is written past. */
START_TEST(wrong_events_of_the_lead)
{
    static const int32_t positions[] = {-1, 0, 3, INT32_MAX};
    weft_fake_begin(false);
    for (int i = 0; i < 4; i++) {
        weft_request r = weft_fake_request(2);
        r.prompt_logprobs = (weft_opt_u32){true, 1};
        weft_fake_client *const c = weft_fake_open(&r);
        weft_fake_tick();
        send_prompt_logprob(c, positions[i]);
        ck_assert_int_eq(c->status, WEFT_INTERNAL);
        weft_fake_send_end(c->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    }
    weft_fake_client *const c = weft_fake_open_plain(1);
    weft_fake_tick();
    weft_fake_send_tokens(c, (int32_t[]){1, 2}, 2); /* max_tokens is 1 */
    ck_assert(c->n_ids == 1 && c->status == WEFT_INTERNAL);
    weft_fake_end();
}
END_TEST

START_TEST(text_prompts)
{
    weft_fake_begin(true);
    weft_request r = weft_fake_request(2);
    r.has_ids = false;
    r.has_text = true;
    r.text = (weft_span){"abc", 3};
    weft_fake_client *const a = weft_fake_open(&r);
    weft_fake_client *const b = weft_fake_open(&r);
    weft_fake_client *const left = weft_fake_open(&r);
    r.request_id = (weft_span){"x", 1};
    weft_fake_client *const aborted = weft_fake_open(&r);
    ck_assert_int_eq(weft_fake.n_at_text, 4);
    weft_fake_check_load(0, 4, 0);
    weft_flow_cancel(weft_fake.flow, left->handle, WEFT_CANCELLED, "left");
    const weft_span x = {"x", 1};
    ck_assert_int_eq(weft_flow_abort(weft_fake.flow, &x, 1), 1);
    ck_assert(aborted->end == WEFT_END_ABORT && aborted->n_completes == 1);
    weft_fake_check_load(0, 2, 2);
    for (int i = 0; i < weft_fake.n_at_text; i++) {
        weft_entry *const entry = weft_fake.at_text[i];
        ck_assert_str_eq(entry->prompt_text, "abc");
        if (entry->client_arg == b)
            (void)WEFT_FAIL(&entry->text_err, WEFT_INVALID_ARGUMENT,
                            "too long");
        else
            ck_assert_int_eq(weft_admit_prompt(&weft_fake.limits,
                                               WEFT_FAKE_PROMPT, 3,
                                               entry->arena, &entry->ask, NULL),
                             WEFT_OK);
        weft_flow_text_done(weft_fake.flow, entry);
    }
    ck_assert_str_eq(b->why, "too long");
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_submits, 1);
    ck_assert_uint_eq(weft_fake_lead.jobs[0].handle, a->handle);
    weft_fake_check_load(0, 1, 0);
    weft_fake_end();
}
END_TEST

START_TEST(cut)
{
    weft_fake_begin(false);
    weft_fake_client *const a = weft_fake_open_plain(2);
    weft_fake_tick();
    weft_fake_client *const b = weft_fake_open_plain(2);
    weft_flow_cancel_all(weft_fake.flow, WEFT_UNAVAILABLE, "draining", 700);
    ck_assert(a->status == WEFT_UNAVAILABLE && a->retry_after_ms == 700);
    ck_assert_int_eq(b->status, WEFT_UNAVAILABLE);
    weft_fake_check_load(0, 0, 1);
    weft_fake_end();
}
END_TEST

/* No memory for a token's text, or for the answer: that request fails. */
START_TEST(out_of_memory)
{
    weft_fake_begin(true);
    weft_fake_client *const a = weft_fake_open_plain(9);
    weft_fake_tick();
    weft_mem_fail_after(0);
    weft_fake_send_tokens(a, (int32_t[]){70}, 1);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(a->status, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_int_gt(a->retry_after_ms, 0);
    weft_fake_tick();
    ck_assert_int_eq(weft_fake_lead.n_cancels, 1);
    weft_request r = weft_fake_request(9);
    r.logprobs = (weft_opt_u32){true, 1};
    int failures = 0;
    for (; failures < 50; failures++) {
        weft_arena *arena = NULL;
        weft_admitted ask;
        weft_told told = {0};
        ck_assert_int_eq(
            weft_arena_create(WEFT_REQUEST_ARENA_MAX, &arena, NULL), WEFT_OK);
        ck_assert_int_eq(
            weft_admit_request(&weft_fake.limits, &r, arena, &ask, NULL),
            WEFT_OK);
        weft_mem_fail_after(failures);
        const weft_status st =
            weft_told_init(&told, weft_fake.tokenizer, &ask, NULL);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) weft_told_deinit(&told);
        weft_arena_destroy(arena);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    }
    ck_assert_int_eq(failures, 4); /* the four arrays of logprobs */
    weft_fake_end();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        one_request,
        whole_answer,
        resubmit,
        cancel_in_every_state,
        late_events,
        full_lead,
        refused_by_the_lead,
        deadlines,
        abort_by_id,
        stop_strings,
        stop_token_has_no_text,
        logprobs,
        wrong_events_of_the_lead,
        text_prompts,
        cut,
        out_of_memory,
    };
    return WEFT_SUITE_RUN("flow", tests);
}
