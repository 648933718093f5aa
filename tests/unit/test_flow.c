/* The router without its threads, between a lead and clients that follow a
 * script, and against a random course of everything at once. */
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "router/flow.h"
#include "tests/support/suite.h"

enum { SLOTS = 8, VOCAB = 256, CONTEXT = 200, CALLS_MAX = 512, IDS_MAX = 128 };

/* -- a lead that does what it is told ----------------------------------------
 */

typedef struct held_job {
    const weft_job *job; /* borrowed from the flow until the last event */
    uint64_t handle;
    int32_t n_prompt, n_tokens, n_sent;
    bool cancelled;
} held_job;

static struct {
    held_job jobs[SLOTS * 2];
    int32_t n_jobs, n_submits, n_cancels;
    int32_t room; /* submits and cancels that are taken; -1: all */
    weft_status refusal;
    weft_job last; /* as submitted */
} lead;

static bool lead_has_room(void)
{
    if (lead.room == 0) return false;
    if (lead.room > 0) lead.room--;
    return true;
}

static weft_status lead_submit(void *arg, const weft_job *job)
{
    (void)arg;
    if (!lead_has_room()) return WEFT_RESOURCE_EXHAUSTED;
    if (lead.refusal != WEFT_OK) return lead.refusal;
    ck_assert_int_lt(lead.n_jobs, SLOTS * 2);
    for (int32_t i = 0; i < lead.n_jobs; i++)
        ck_assert_uint_ne(lead.jobs[i].handle, job->handle);
    lead.jobs[lead.n_jobs++] = (held_job){.job = job,
                                          .handle = job->handle,
                                          .n_prompt = job->n_prompt,
                                          .n_tokens = job->n_tokens};
    lead.n_submits++;
    lead.last = *job;
    return WEFT_OK;
}

static weft_status lead_cancel(void *arg, uint64_t handle)
{
    (void)arg;
    if (!lead_has_room()) return WEFT_RESOURCE_EXHAUSTED;
    lead.n_cancels++;
    for (int32_t i = 0; i < lead.n_jobs; i++)
        if (lead.jobs[i].handle == handle) lead.jobs[i].cancelled = true;
    return WEFT_OK;
}

static held_job *lead_find(uint64_t handle)
{
    for (int32_t i = 0; i < lead.n_jobs; i++)
        if (lead.jobs[i].handle == handle) return &lead.jobs[i];
    return NULL;
}

/* The token of a request at a position: what every lead would compute. */
static int32_t token_at(uint64_t handle, int32_t position)
{
    return (int32_t)((handle * 131 + (uint64_t)position * 17) % 90 + 5);
}

/* -- clients that write down what they hear ----------------------------------
 */

typedef struct client {
    uint64_t handle;
    int32_t n_chunks, n_ids, n_completes, n_fails, n_logprobs;
    int32_t ids[IDS_MAX];
    char text[4096], whole[4096];
    weft_status status;
    char why[256];
    int32_t retry_after_ms;
    weft_stream_end end;
    int32_t n_all, n_prompt;
    bool matched_token;
    char matched[64];
} client;

static void heard_chunk(void *arg, const weft_stream_chunk *chunk)
{
    client *const c = arg;
    ck_assert_int_eq(c->n_completes + c->n_fails, 0);
    c->n_chunks++;
    for (int32_t i = 0; i < chunk->n_ids; i++) {
        ck_assert_int_lt(c->n_ids, IDS_MAX);
        c->ids[c->n_ids++] = chunk->ids[i];
    }
    ck_assert_int_eq(chunk->completion_tokens, c->n_ids);
    c->n_logprobs += chunk->logprobs.n;
    (void)strncat(c->text, chunk->text.n > 0 ? chunk->text.data : "",
                  chunk->text.n);
}

static void heard_complete(void *arg, const weft_stream_complete *done)
{
    client *const c = arg;
    ck_assert_int_eq(c->n_completes + c->n_fails, 0);
    c->n_completes++;
    c->end = done->end;
    c->n_all = done->n_ids;
    c->n_prompt = done->prompt_tokens;
    c->matched_token = done->matched_token;
    if (done->matched_stop.data != NULL)
        (void)strncat(c->matched, done->matched_stop.data,
                      done->matched_stop.n);
    (void)strncat(c->whole, done->text.n > 0 ? done->text.data : "",
                  done->text.n);
    if (c->n_chunks == 0) return;
    ck_assert_int_eq(done->n_ids, c->n_ids);
    for (int32_t i = 0; i < done->n_ids; i++)
        ck_assert_int_eq(done->ids[i], c->ids[i]);
    ck_assert_str_eq(c->text, c->whole);
}

static void heard_fail(void *arg, weft_status status, const char *text,
                       int32_t retry_after_ms)
{
    client *const c = arg;
    ck_assert_int_eq(c->n_completes + c->n_fails, 0);
    c->n_fails++;
    c->status = status;
    c->retry_after_ms = retry_after_ms;
    (void)strncat(c->why, text, sizeof c->why - 1);
}

static const weft_client_ops CLIENT = {heard_chunk, heard_complete, heard_fail};

/* -- the flow between them ----------------------------------------------------
 */

static struct {
    weft_flow *flow;
    const weft_client_ops *ops;
    weft_tokenizer *tokenizer;
    weft_admit_limits limits;
    client clients[CALLS_MAX];
    int32_t n_clients;
    bool slot_used[SLOTS];
    weft_entry *at_text[SLOTS]; /* the text thread has these */
    int32_t n_at_text;
    int32_t n_prompt_counted, n_generated_counted, n_preempted, n_queued;
    int32_t n_first, n_between;
    uint64_t now_ns, serial;
} t;

static void to_text(void *arg, weft_entry *entry)
{
    (void)arg;
    t.at_text[t.n_at_text++] = entry;
}

static void released(void *arg, const weft_entry *entry)
{
    (void)arg;
    t.slot_used[weft_handle_slot(entry->handle)] = false;
    ck_assert_ptr_null(lead_find(entry->handle));
}

static void count_tokens(void *arg, int32_t n_prompt, int32_t n_generated)
{
    (void)arg;
    t.n_prompt_counted += n_prompt;
    t.n_generated_counted += n_generated;
}
static void count_queued(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    t.n_queued++;
}
static void count_first(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    t.n_first++;
}
static void count_between(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    t.n_between++;
}
static void count_preempted(void *arg)
{
    (void)arg;
    t.n_preempted++;
}

static void begin(bool with_tokenizer)
{
    const weft_flow_hooks hooks = {
        .watch = {.queued = count_queued,
                  .first_token = count_first,
                  .between_tokens = count_between,
                  .tokens = count_tokens,
                  .preempted = count_preempted},
        .to_text = to_text,
        .release = released,
    };
    memset(&t, 0, sizeof t);
    memset(&lead, 0, sizeof lead);
    lead.room = -1;
    t.ops = &CLIENT;
    t.now_ns = 1000;
    if (with_tokenizer)
        ck_assert_int_eq(
            weft_tokenizer_read("tests/data/tiny-model/tokenizer.json", 1 << 20,
                                &t.tokenizer, NULL),
            WEFT_OK);
    t.limits = (weft_admit_limits){.vocab_size = VOCAB,
                                   .max_context = CONTEXT,
                                   .tokenizer = t.tokenizer,
                                   .top_p = 1.0F,
                                   .temperature = 1.0F,
                                   .repetition_penalty = 1.0F};
    ck_assert_int_eq(
        weft_flow_create(SLOTS, t.tokenizer, &hooks, &t.flow, NULL), WEFT_OK);
    weft_flow_set_lead(t.flow, (weft_lead){lead_submit, lead_cancel, NULL});
}

static void end(void)
{
    weft_flow_destroy(t.flow);
    weft_tokenizer_destroy(t.tokenizer);
}

static const uint32_t PROMPT[3] = {10, 11, 12};

static weft_request asked(uint32_t max_tokens)
{
    return (weft_request){.request_id = {"r", 1},
                          .has_ids = true,
                          .ids = PROMPT,
                          .n_ids = 3,
                          .stream = true,
                          .deadline_ns = UINT64_MAX,
                          .max_tokens = {true, max_tokens}};
}

static int32_t free_slot(void)
{
    for (int32_t i = 0; i < SLOTS; i++)
        if (!t.slot_used[i]) return i;
    return -1;
}

static client *open_request(const weft_request *request)
{
    weft_arena *arena = NULL;
    weft_admitted ask;
    weft_entry *entry = NULL;
    weft_err err = {0};
    const int32_t slot = free_slot();
    ck_assert_int_ge(slot, 0);
    ck_assert_int_eq(weft_arena_create(WEFT_REQUEST_BYTES_MAX, &arena, NULL),
                     WEFT_OK);
    ck_assert_msg(weft_admit_request(&t.limits, request, arena, &ask, &err) ==
                      WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(
        weft_entry_create(arena, &ask, request->text, &entry, NULL), WEFT_OK);
    client *const c = &t.clients[t.n_clients++];
    t.slot_used[slot] = true;
    entry->handle = weft_handle_make(++t.serial, slot);
    entry->ask.job.age = t.serial;
    entry->accepted_ns = t.now_ns;
    entry->client = t.ops;
    entry->client_arg = c;
    c->handle = entry->handle;
    weft_flow_open(t.flow, entry);
    return c;
}

static client *open_plain(uint32_t max_tokens)
{
    const weft_request r = asked(max_tokens);
    return open_request(&r);
}

static void tick(void)
{
    (void)weft_flow_tick(t.flow, ++t.now_ns);
}

/* The lead lets go of a job before it tells its last event. */
static void send_event(const weft_event *event)
{
    held_job *const held = lead_find(event->handle);
    if (event->finish != WEFT_FINISH_NONE && held != NULL)
        *held = lead.jobs[--lead.n_jobs];
    weft_flow_event(t.flow, event, ++t.now_ns);
}

static void send(uint64_t handle, weft_event_kind kind, weft_finish finish,
                 int32_t token)
{
    const weft_event event = {
        .handle = handle, .kind = kind, .finish = finish, .token = token};
    send_event(&event);
}

static void send_tokens(const client *c, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_NONE, ids[i]);
}

static void send_end(uint64_t handle, weft_finish finish, weft_status status,
                     const char *text)
{
    weft_event event = {.handle = handle,
                        .kind = WEFT_EVENT_END,
                        .finish = finish,
                        .status = status};
    (void)strncat(event.text, text, sizeof event.text - 1);
    send_event(&event);
}

static void check_load(int32_t running, int32_t waiting, int32_t closing)
{
    weft_flow_load load;
    weft_flow_get_load(t.flow, &load);
    ck_assert_int_eq(load.n_running, running);
    ck_assert_int_eq(load.n_waiting, waiting);
    ck_assert_int_eq(load.n_closing, closing);
}

/* -- scripts -----------------------------------------------------------------
 */

START_TEST(one_request)
{
    begin(false);
    client *const c = open_plain(3);
    check_load(0, 1, 0);
    tick();
    ck_assert_int_eq(lead.n_submits, 1);
    check_load(0, 1, 0);
    send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    check_load(1, 0, 0);
    send_tokens(c, (int32_t[]){7, 8}, 2);
    ck_assert_int_eq(c->n_chunks, 2);
    send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 9);
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->end, WEFT_END_LENGTH);
    ck_assert_int_eq(c->n_all, 3);
    ck_assert_int_eq(c->n_prompt, 3);
    check_load(0, 0, 0);
    ck_assert_int_eq(lead.n_cancels, 0);
    ck_assert(t.n_prompt_counted == 3 && t.n_generated_counted == 3);
    ck_assert(t.n_first == 1 && t.n_between == 2 && t.n_queued == 1);
    ck_assert_int_eq(free_slot(), 0);
    end();
}
END_TEST

START_TEST(whole_answer)
{
    begin(false);
    weft_request r = asked(2);
    r.stream = false;
    client *const c = open_request(&r);
    tick();
    send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_NONE, 7);
    send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_STOP, 8);
    ck_assert_int_eq(c->n_chunks, 0);
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->n_all, 2);
    ck_assert_int_eq(c->end, WEFT_END_STOP);
    ck_assert(c->matched_token);
    end();
}
END_TEST

START_TEST(resubmit)
{
    begin(false);
    weft_request r = asked(5);
    r.seed = (weft_opt_u64){true, 77};
    r.priority = 3;
    client *const c = open_request(&r);
    client *const other = open_plain(5);
    tick();
    const weft_job before = *lead_find(c->handle)->job;
    send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    send_tokens(c, (int32_t[]){20, 21}, 2);
    send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    check_load(0, 2, 0);
    ck_assert_int_eq(t.n_preempted, 1);
    tick();
    ck_assert_int_eq(lead.n_submits, 3);
    const weft_job *const again = &lead.last;
    ck_assert_uint_eq(again->handle, c->handle);
    ck_assert_uint_eq(again->age, before.age);
    ck_assert_int_eq(again->priority, 3);
    ck_assert_uint_eq(again->sampling.seed, 77);
    ck_assert_int_eq(again->n_prompt, 3);
    ck_assert_int_eq(again->n_tokens, 5);
    ck_assert_int_eq(again->max_tokens, 5);
    const int32_t wanted[] = {10, 11, 12, 20, 21};
    for (int i = 0; i < 5; i++) ck_assert_int_eq(again->tokens[i], wanted[i]);
    send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    send_tokens(c, (int32_t[]){22, 23}, 2);
    send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 24);
    ck_assert_int_eq(c->n_all, 5);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(c->ids[i], 20 + i);
    ck_assert_int_eq(t.n_prompt_counted, 3); /* recompute is not counted */
    ck_assert_int_eq(t.n_queued, 1);
    ck_assert_int_eq(other->n_completes, 0);
    end();
}
END_TEST

START_TEST(cancel_in_every_state)
{
    begin(false);
    /* queued: the lead never hears of it */
    client *c = open_plain(4);
    weft_flow_cancel(t.flow, c->handle, WEFT_CANCELLED, "left");
    ck_assert(c->n_fails == 1 && c->status == WEFT_CANCELLED);
    check_load(0, 0, 0);
    tick();
    ck_assert_int_eq(lead.n_submits, 0);
    /* submitted and running: it stays until the lead lets go */
    for (int running = 0; running < 2; running++) {
        c = open_plain(4);
        tick();
        if (running) send(c->handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
        weft_flow_cancel(t.flow, c->handle, WEFT_CANCELLED, "left");
        weft_flow_cancel(t.flow, c->handle, WEFT_CANCELLED, "twice");
        ck_assert_int_eq(c->n_fails, 1);
        check_load(0, 0, 1);
        tick();
        ck_assert_int_eq(lead.n_cancels, running + 1);
        send_tokens(c, (int32_t[]){1}, 1); /* it was on its way */
        ck_assert_int_eq(c->n_chunks, 0);
        check_load(0, 0, 1);
        send_end(c->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
        check_load(0, 0, 0);
        ck_assert_int_eq(free_slot(), 0);
    }
    /* preempted while the cancel was on its way: not submitted again */
    c = open_plain(4);
    tick();
    const int32_t before = lead.n_submits;
    weft_flow_cancel(t.flow, c->handle, WEFT_CANCELLED, "left");
    send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    tick();
    ck_assert_int_eq(lead.n_submits, before);
    ck_assert_int_eq(free_slot(), 0);
    /* ended while the cancel was on its way: no cancel is sent */
    c = open_plain(1);
    tick();
    const int32_t cancels = lead.n_cancels;
    weft_flow_cancel(t.flow, c->handle, WEFT_CANCELLED, "left");
    send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 4);
    tick();
    ck_assert_int_eq(lead.n_cancels, cancels);
    ck_assert_int_eq(free_slot(), 0);
    end();
}
END_TEST

START_TEST(late_events)
{
    begin(false);
    client *const first = open_plain(1);
    tick();
    const uint64_t old = first->handle;
    send(old, WEFT_EVENT_TOKEN, WEFT_FINISH_LENGTH, 4);
    client *const second = open_plain(2); /* the same slot */
    tick();
    ck_assert_int_eq(weft_handle_slot(old), weft_handle_slot(second->handle));
    const weft_event late = {.handle = old,
                             .kind = WEFT_EVENT_TOKEN,
                             .finish = WEFT_FINISH_LENGTH,
                             .token = 9,
                             .n_top = 1,
                             .top = weft_mem_new(1, sizeof(weft_logprob))};
    weft_flow_event(t.flow, &late, t.now_ns);
    weft_flow_cancel(t.flow, old, WEFT_CANCELLED, "left");
    ck_assert_int_eq(second->n_chunks + second->n_fails, 0);
    check_load(0, 1, 0);
    /* The lead has given it back: what it says before it has it again is not
     * of this run. */
    send_end(second->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    send_tokens(second, (int32_t[]){9}, 1);
    ck_assert_int_eq(second->n_chunks, 0);
    check_load(0, 1, 0);
    end();
}
END_TEST

START_TEST(full_lead)
{
    begin(false);
    client *const a = open_plain(2);
    client *const b = open_plain(2);
    lead.room = 1;
    ck_assert_uint_eq(weft_flow_tick(t.flow, 50), 50); /* soon again */
    ck_assert_int_eq(lead.n_submits, 1);
    ck_assert_uint_eq(weft_flow_tick(t.flow, 60), 60);
    lead.room = -1;
    ck_assert_uint_eq(weft_flow_tick(t.flow, 70), UINT64_MAX);
    ck_assert_int_eq(lead.n_submits, 2);
    ck_assert_uint_eq(lead.jobs[0].handle, a->handle);
    lead.room = 0;
    weft_flow_cancel(t.flow, a->handle, WEFT_CANCELLED, "left");
    weft_flow_cancel(t.flow, b->handle, WEFT_CANCELLED, "left");
    tick();
    ck_assert_int_eq(lead.n_cancels, 0);
    lead.room = 1;
    tick();
    ck_assert_int_eq(lead.n_cancels, 1);
    lead.room = -1;
    tick();
    ck_assert_int_eq(lead.n_cancels, 2);
    send_end(a->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    send_end(b->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    check_load(0, 0, 0);
    end();
}
END_TEST

START_TEST(refused_by_the_lead)
{
    begin(false);
    client *c = open_plain(2);
    tick();
    send_end(c->handle, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED,
             "needed 900, free 10, total 100");
    ck_assert_int_eq(c->status, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(c->why, "needed 900, free 10, total 100");
    ck_assert_int_lt(c->retry_after_ms, 0);
    lead.refusal = WEFT_UNAVAILABLE;
    c = open_plain(2);
    tick();
    ck_assert_int_eq(c->status, WEFT_UNAVAILABLE);
    check_load(0, 0, 0);
    end();
}
END_TEST

START_TEST(deadlines)
{
    begin(false);
    weft_request r = asked(4);
    r.deadline_ns = 5000;
    client *const queued = open_request(&r);
    r.deadline_ns = 9000;
    client *const running = open_request(&r);
    client *const endless = open_plain(4);
    lead.room = 0;
    ck_assert_uint_eq(weft_flow_tick(t.flow, 4000), 4000);
    lead.room = -1;
    ck_assert_uint_eq(weft_flow_tick(t.flow, 5000), 9000);
    ck_assert_int_eq(queued->status, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(lead.n_submits, 2);
    ck_assert_uint_eq(weft_flow_tick(t.flow, 8999), 9000);
    ck_assert_int_eq(running->n_fails, 0);
    ck_assert_uint_eq(weft_flow_tick(t.flow, 9000), UINT64_MAX);
    ck_assert_int_eq(running->status, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(lead.n_cancels, 1);
    ck_assert_int_eq(endless->n_fails, 0);
    end();
}
END_TEST

START_TEST(abort_by_id)
{
    begin(true);
    weft_request r = asked(9);
    r.request_id = (weft_span){"one", 3};
    const weft_span stop = {"zzz", 3};
    r.stop = &stop;
    r.n_stop = 1;
    client *const a = open_request(&r);
    client *const b = open_request(&r);
    r.request_id = (weft_span){"on", 2};
    client *const other = open_request(&r);
    tick();
    weft_ids z = {0};
    ck_assert_int_eq(weft_tokenizer_encode(t.tokenizer, "azz", 3,
                                           (weft_encode_options){0}, &z, NULL),
                     WEFT_OK);
    send_tokens(a, z.data, (int32_t)z.n);
    ck_assert_str_eq(a->text, "a"); /* zz may become zzz */
    ck_assert_int_eq(weft_flow_abort(t.flow, (weft_span){"nobody", 6}), 0);
    ck_assert_int_eq(weft_flow_abort(t.flow, (weft_span){"", 0}), 0);
    ck_assert_int_eq(weft_flow_abort(t.flow, (weft_span){"one", 3}), 2);
    ck_assert_int_eq(weft_flow_abort(t.flow, (weft_span){"one", 3}), 0);
    ck_assert(a->n_completes == 1 && a->end == WEFT_END_ABORT);
    ck_assert_str_eq(a->whole, "azz");
    ck_assert(b->n_completes == 1 && b->end == WEFT_END_ABORT);
    ck_assert_int_eq(b->n_all, 0);
    ck_assert_int_eq(other->n_completes + other->n_fails, 0);
    tick();
    ck_assert_int_eq(lead.n_cancels, 2);
    weft_ids_deinit(&z);
    end();
}
END_TEST

/* Tokens of `text`, the last one with `finish`. */
static void say(const client *c, const char *text, weft_finish finish)
{
    weft_ids ids = {0};
    ck_assert_int_eq(weft_tokenizer_encode(t.tokenizer, text, strlen(text),
                                           (weft_encode_options){0}, &ids,
                                           NULL),
                     WEFT_OK);
    send_tokens(c, ids.data, (int32_t)ids.n - 1);
    send(c->handle, WEFT_EVENT_TOKEN, finish, ids.data[ids.n - 1]);
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
        begin(true);
        weft_request r = asked(100);
        const weft_span stop = {cases[i].stop, strlen(cases[i].stop)};
        r.stop = &stop;
        r.n_stop = 1;
        r.include_stop_str = (weft_opt_bool){true, cases[i].include};
        r.min_tokens = (weft_opt_u32){true, cases[i].min_tokens};
        client *const c = open_request(&r);
        tick();
        say(c, cases[i].said, cases[i].finish);
        const bool stopped =
            strstr(cases[i].said, "END") != NULL && cases[i].min_tokens == 0;
        ck_assert_int_eq(c->n_completes, 1);
        ck_assert_str_eq(c->whole, cases[i].text);
        ck_assert_str_eq(c->matched, stopped ? "END" : "");
        ck_assert_int_eq(c->end, stopped ? WEFT_END_STOP : WEFT_END_LENGTH);
        ck_assert_int_eq(c->n_all, c->n_ids);
        tick();
        ck_assert_int_eq(lead.n_cancels,
                         cases[i].finish == WEFT_FINISH_NONE ? 1 : 0);
        end();
    }
}
END_TEST

START_TEST(stop_token_has_no_text)
{
    begin(true);
    client *const c = open_plain(9);
    tick();
    say(c, "hi", WEFT_FINISH_NONE);
    say(c, "x", WEFT_FINISH_STOP);
    ck_assert_str_eq(c->whole, "hi");
    ck_assert(c->matched_token && c->end == WEFT_END_STOP);
    ck_assert_int_eq(c->n_all, c->n_ids);
    end();
}
END_TEST

static weft_logprob *tops(int32_t n, float first)
{
    weft_logprob *const top = weft_mem_new((size_t)n, sizeof *top);
    for (int32_t i = 0; i < n; i++)
        top[i] = (weft_logprob){.value = first - (float)i, .id = 30 + i};
    return top;
}

static void send_prompt_logprob(const client *c, int32_t position)
{
    const weft_event event = {.handle = c->handle,
                              .kind = WEFT_EVENT_PROMPT,
                              .position = position,
                              .logprob = -(float)position,
                              .n_top = 1,
                              .top = tops(1, -(float)position)};
    weft_flow_event(t.flow, &event, t.now_ns);
}

/* What complete says of logprobs, looked at while it is there. */
static void check_logprobs(void *arg, const weft_stream_complete *done)
{
    const weft_logprob_rows *const prompt = &done->prompt_logprobs;
    const weft_logprob_rows *const rows = &done->logprobs;
    ck_assert_int_eq(prompt->n, 3);
    for (int32_t i = 0; i < 3; i++) {
        ck_assert(prompt->values[i] == (i == 0 ? 0.0F : -(float)i));
        ck_assert_int_eq(prompt->ids[i], (int32_t)PROMPT[i]);
        ck_assert_int_eq(prompt->n_top[i], i == 0 ? 0 : 1);
    }
    ck_assert(prompt->top_values[0] == -1.0F && prompt->top_values[1] == -2.0F);
    ck_assert_int_eq(rows->n, 2);
    ck_assert_int_eq(rows->ids[1], 41);
    ck_assert(rows->values[1] == -0.5F);
    ck_assert(rows->top_ids[2] == 30 && rows->top_ids[3] == 31);
    ck_assert(rows->top_values[2] == -0.5F && rows->top_values[3] == -1.5F);
    heard_complete(arg, done);
}

START_TEST(logprobs)
{
    static const weft_client_ops looker = {heard_chunk, check_logprobs,
                                           heard_fail};
    begin(false);
    t.ops = &looker;
    weft_request r = asked(2);
    r.logprobs = (weft_opt_u32){true, 2};
    r.prompt_logprobs = (weft_opt_u32){true, 1};
    client *const c = open_request(&r);
    tick();
    send_prompt_logprob(c, 1);
    send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    tick();
    ck_assert_int_eq(lead.last.prompt_logprobs, 1); /* one is still missing */
    send_prompt_logprob(c, 1);
    send_prompt_logprob(c, 2);
    send_end(c->handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    tick();
    ck_assert_int_eq(lead.last.prompt_logprobs, -1); /* none is */
    for (int i = 0; i < 2; i++) {
        const weft_event event = {.handle = c->handle,
                                  .kind = WEFT_EVENT_TOKEN,
                                  .finish = i == 1 ? WEFT_FINISH_LENGTH
                                                   : WEFT_FINISH_NONE,
                                  .token = 40 + i,
                                  .logprob = -0.5F,
                                  .n_top = 2,
                                  .top = tops(2, -0.5F)};
        send_event(&event);
    }
    ck_assert_int_eq(c->n_completes, 1);
    ck_assert_int_eq(c->n_logprobs, 2);
    end();
}
END_TEST

/* What a lead never sends: the request fails, nothing is written past. */
START_TEST(wrong_events_of_the_lead)
{
    static const int32_t positions[] = {-1, 0, 3, INT32_MAX};
    begin(false);
    for (int i = 0; i < 4; i++) {
        weft_request r = asked(2);
        r.prompt_logprobs = (weft_opt_u32){true, 1};
        client *const c = open_request(&r);
        tick();
        send_prompt_logprob(c, positions[i]);
        ck_assert_int_eq(c->status, WEFT_INTERNAL);
        send_end(c->handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    }
    client *const c = open_plain(1);
    tick();
    send_tokens(c, (int32_t[]){1, 2}, 2); /* max_tokens is 1 */
    ck_assert(c->n_ids == 1 && c->status == WEFT_INTERNAL);
    end();
}
END_TEST

START_TEST(text_prompts)
{
    begin(true);
    weft_request r = asked(2);
    r.has_ids = false;
    r.has_text = true;
    r.text = (weft_span){"abc", 3};
    client *const a = open_request(&r);
    client *const b = open_request(&r);
    client *const left = open_request(&r);
    r.request_id = (weft_span){"x", 1};
    client *const aborted = open_request(&r);
    ck_assert_int_eq(t.n_at_text, 4);
    check_load(0, 4, 0);
    weft_flow_cancel(t.flow, left->handle, WEFT_CANCELLED, "left");
    ck_assert_int_eq(weft_flow_abort(t.flow, (weft_span){"x", 1}), 1);
    ck_assert(aborted->end == WEFT_END_ABORT && aborted->n_completes == 1);
    check_load(0, 2, 2);
    for (int i = 0; i < t.n_at_text; i++) {
        weft_entry *const entry = t.at_text[i];
        ck_assert_str_eq(entry->prompt_text, "abc");
        if (entry->client_arg == b)
            (void)WEFT_FAIL(&entry->text_err, WEFT_INVALID_ARGUMENT,
                            "too long");
        else
            ck_assert_int_eq(weft_admit_prompt(&t.limits, PROMPT, 3,
                                               entry->arena, &entry->ask, NULL),
                             WEFT_OK);
        weft_flow_text_done(t.flow, entry);
    }
    ck_assert_str_eq(b->why, "too long");
    tick();
    ck_assert_int_eq(lead.n_submits, 1);
    ck_assert_uint_eq(lead.jobs[0].handle, a->handle);
    check_load(0, 1, 0);
    end();
}
END_TEST

START_TEST(cut)
{
    begin(false);
    client *const a = open_plain(2);
    tick();
    client *const b = open_plain(2);
    weft_flow_cancel_all(t.flow, WEFT_UNAVAILABLE, "draining", 700);
    ck_assert(a->status == WEFT_UNAVAILABLE && a->retry_after_ms == 700);
    ck_assert_int_eq(b->status, WEFT_UNAVAILABLE);
    check_load(0, 0, 1);
    end();
}
END_TEST

/* No memory for a token's text, or for the answer: that request fails. */
START_TEST(out_of_memory)
{
    begin(true);
    client *const a = open_plain(9);
    tick();
    weft_mem_fail_after(0);
    send_tokens(a, (int32_t[]){70}, 1);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(a->status, WEFT_RESOURCE_EXHAUSTED);
    tick();
    ck_assert_int_eq(lead.n_cancels, 1);
    weft_request r = asked(9);
    r.logprobs = (weft_opt_u32){true, 1};
    int failures = 0;
    for (; failures < 50; failures++) {
        weft_arena *arena = NULL;
        weft_admitted ask;
        weft_told told = {0};
        ck_assert_int_eq(
            weft_arena_create(WEFT_REQUEST_BYTES_MAX, &arena, NULL), WEFT_OK);
        ck_assert_int_eq(weft_admit_request(&t.limits, &r, arena, &ask, NULL),
                         WEFT_OK);
        weft_mem_fail_after(failures);
        const weft_status st = weft_told_init(&told, t.tokenizer, &ask, NULL);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) weft_told_deinit(&told);
        weft_arena_destroy(arena);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    }
    ck_assert_int_eq(failures, 4); /* the four arrays of logprobs */
    end();
}
END_TEST

/* -- everything at once ------------------------------------------------------
 */

enum { OPS = 6000, REQUESTS_MAX = 400, SEEDS = 12 };

static uint64_t draw(uint64_t seed, uint64_t *counter, uint64_t below)
{
    return weft_rng_u64(seed, (*counter)++) % below;
}

/* The lead does something with one of its jobs: what it may at that point. */
static void lead_step(uint64_t seed, uint64_t *counter)
{
    if (lead.n_jobs == 0) return;
    held_job *const held =
        &lead.jobs[draw(seed, counter, (uint64_t)lead.n_jobs)];
    const uint64_t handle = held->handle;
    const weft_job *const job = held->job;
    /* The borrowed job is as it was, and holds what was told. */
    ck_assert_int_eq(job->n_tokens, held->n_tokens);
    for (int32_t i = job->n_prompt; i < job->n_tokens; i++)
        ck_assert_int_eq(job->tokens[i], token_at(handle, i));
    const int32_t position = held->n_tokens + held->n_sent;
    const int32_t left = job->max_tokens - (position - job->n_prompt);
    const uint64_t what = draw(seed, counter, 20);
    if (held->cancelled && what < 10) {
        send_end(handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    } else if (what == 0) {
        send_end(handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    } else if (what == 1) {
        send(handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    } else {
        held->n_sent++;
        send(handle, WEFT_EVENT_TOKEN,
             left == 1 ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE,
             token_at(handle, position));
    }
}

static void check_client(const client *c)
{
    ck_assert_int_eq(c->n_completes + c->n_fails, 1);
    for (int32_t i = 0; i < c->n_ids; i++)
        ck_assert_int_eq(c->ids[i], token_at(c->handle, 3 + i));
}

START_TEST(order_and_one_end_in_any_course)
{
    const uint64_t seed = (uint64_t)_i;
    uint64_t counter = 0;
    int32_t n_open = 0;
    begin(false);
    for (int op = 0; op < OPS || lead.n_jobs > 0; op++) {
        const uint64_t what = draw(seed, &counter, 100);
        const bool over = op >= OPS;
        client *const some =
            n_open == 0 ? NULL
                        : &t.clients[draw(seed, &counter, (uint64_t)n_open)];
        if (!over && what < 12 && free_slot() >= 0 && n_open < REQUESTS_MAX) {
            weft_request r = asked((uint32_t)draw(seed, &counter, 20) + 1);
            if (draw(seed, &counter, 8) == 0)
                r.deadline_ns = t.now_ns + draw(seed, &counter, 300);
            (void)open_request(&r);
            n_open++;
        } else if (what < 14 && some != NULL) {
            weft_flow_cancel(t.flow, some->handle, WEFT_CANCELLED, "left");
        } else if (what < 15 && draw(seed, &counter, 20) == 0) {
            (void)weft_flow_abort(t.flow, (weft_span){"r", 1});
        } else if (what < 30) {
            lead.room = (int32_t)draw(seed, &counter, 3) - 1;
            tick();
        } else {
            lead_step(seed, &counter);
        }
        if (over) {
            lead.room = -1;
            tick();
        }
    }
    check_load(0, 0, 0);
    for (int32_t i = 0; i < n_open; i++) check_client(&t.clients[i]);
    for (int32_t i = 0; i < SLOTS; i++) ck_assert(!t.slot_used[i]);
    ck_assert_int_gt(n_open, 50);
    ck_assert_int_gt(t.n_preempted, 10);
    end();
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
    const int failed = WEFT_SUITE_RUN("flow", tests);
    Suite *const suite = suite_create("flow, random");
    TCase *const group = tcase_create("random");
    tcase_set_timeout(group, 240);
    tcase_add_loop_test(group, order_and_one_end_in_any_course, 0, SEEDS);
    suite_add_tcase(suite, group);
    SRunner *const runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int random_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0 || random_failed != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
