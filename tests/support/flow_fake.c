#include "tests/support/flow_fake.h"

#include <string.h>

#include "node/base/mem.h"

weft_fake_lead_state weft_fake_lead;
weft_fake_state weft_fake;
const uint32_t WEFT_FAKE_PROMPT[3] = {10, 11, 12};

/* -- a lead that does what it is told ------------------------------------- */

static bool lead_has_room(void)
{
    if (weft_fake_lead.room == 0) return false;
    if (weft_fake_lead.room > 0) weft_fake_lead.room--;
    return true;
}

static weft_status lead_submit(void *arg, const weft_job *job)
{
    (void)arg;
    if (!lead_has_room()) return WEFT_RESOURCE_EXHAUSTED;
    if (weft_fake_lead.refusal != WEFT_OK) return weft_fake_lead.refusal;
    ck_assert(weft_fake_lead.n_jobs < WEFT_FAKE_SLOTS * 2);
    for (int32_t i = 0; i < weft_fake_lead.n_jobs; i++)
        ck_assert_uint_ne(weft_fake_lead.jobs[i].handle, job->handle);
    weft_fake_lead.jobs[weft_fake_lead.n_jobs++] =
        (weft_fake_job){.job = job,
                        .handle = job->handle,
                        .n_prompt = job->n_prompt,
                        .n_tokens = job->n_tokens};
    weft_fake_lead.n_submits++;
    weft_fake_lead.last = *job;
    return WEFT_OK;
}

static weft_status lead_cancel(void *arg, uint64_t handle)
{
    (void)arg;
    if (!lead_has_room()) return WEFT_RESOURCE_EXHAUSTED;
    weft_fake_lead.n_cancels++;
    for (int32_t i = 0; i < weft_fake_lead.n_jobs; i++)
        if (weft_fake_lead.jobs[i].handle == handle)
            weft_fake_lead.jobs[i].cancelled = true;
    return WEFT_OK;
}

weft_fake_job *weft_fake_lead_find(uint64_t handle)
{
    for (int32_t i = 0; i < weft_fake_lead.n_jobs; i++)
        if (weft_fake_lead.jobs[i].handle == handle)
            return &weft_fake_lead.jobs[i];
    return NULL;
}

int32_t weft_fake_token_at(uint64_t handle, int32_t position)
{
    return (int32_t)((handle * 131 + (uint64_t)position * 17) % 90 + 5);
}

/* -- clients that write down what they hear ------------------------------- */

void weft_fake_heard_chunk(void *arg, const weft_stream_chunk *chunk)
{
    weft_fake_client *const c = arg;
    ck_assert_int_eq(c->n_completes + c->n_fails, 0);
    c->n_chunks++;
    for (int32_t i = 0; i < chunk->n_ids; i++) {
        ck_assert_int_lt(c->n_ids, WEFT_FAKE_IDS_MAX);
        c->ids[c->n_ids++] = chunk->ids[i];
    }
    ck_assert_int_eq(chunk->completion_tokens, c->n_ids);
    c->n_logprobs += chunk->logprobs.n;
    (void)strncat(c->text, chunk->text.n > 0 ? chunk->text.data : "",
                  chunk->text.n);
}

void weft_fake_heard_complete(void *arg, const weft_stream_complete *done)
{
    weft_fake_client *const c = arg;
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

void weft_fake_heard_fail(void *arg, weft_status status, const char *text,
                          int32_t retry_after_ms)
{
    weft_fake_client *const c = arg;
    ck_assert_int_eq(c->n_completes + c->n_fails, 0);
    c->n_fails++;
    c->status = status;
    c->retry_after_ms = retry_after_ms;
    (void)strncat(c->why, text, sizeof c->why - 1);
}

static const weft_client_ops CLIENT = {
    weft_fake_heard_chunk, weft_fake_heard_complete, weft_fake_heard_fail};

/* -- the flow between them ------------------------------------------------ */

static void to_text(void *arg, weft_entry *entry)
{
    (void)arg;
    weft_fake.at_text[weft_fake.n_at_text++] = entry;
}

static void released(void *arg, const weft_entry *entry)
{
    (void)arg;
    weft_fake.slot_used[weft_handle_slot(entry->handle)] = false;
    ck_assert_ptr_null(weft_fake_lead_find(entry->handle));
}

static void count_tokens(void *arg, int32_t n_prompt, int32_t n_generated)
{
    (void)arg;
    weft_fake.n_prompt_counted += n_prompt;
    weft_fake.n_generated_counted += n_generated;
}
static void count_queued(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    weft_fake.n_queued++;
}
static void count_first(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    weft_fake.n_first++;
}
static void count_between(void *arg, uint64_t ns)
{
    (void)arg;
    (void)ns;
    weft_fake.n_between++;
}
static void count_preempted(void *arg)
{
    (void)arg;
    weft_fake.n_preempted++;
}

void weft_fake_begin(bool with_tokenizer)
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
    memset(&weft_fake, 0, sizeof weft_fake);
    memset(&weft_fake_lead, 0, sizeof weft_fake_lead);
    weft_fake_lead.room = -1;
    weft_fake.ops = &CLIENT;
    weft_fake.now_ns = 1000;
    if (with_tokenizer)
        ck_assert_int_eq(
            weft_tokenizer_read("tests/data/tiny-model/tokenizer.json", 1 << 20,
                                &weft_fake.tokenizer, NULL),
            WEFT_OK);
    weft_fake.limits = (weft_admit_limits){.vocab_size = WEFT_FAKE_VOCAB,
                                           .max_context = WEFT_FAKE_CONTEXT,
                                           .tokenizer = weft_fake.tokenizer,
                                           .top_p = 1.0F,
                                           .temperature = 1.0F,
                                           .repetition_penalty = 1.0F};
    ck_assert_int_eq(weft_flow_create(WEFT_FAKE_SLOTS, weft_fake.tokenizer,
                                      &hooks, &weft_fake.flow, NULL),
                     WEFT_OK);
    weft_flow_set_lead(weft_fake.flow,
                       (weft_lead){lead_submit, lead_cancel, NULL});
}

void weft_fake_end(void)
{
    weft_flow_destroy(weft_fake.flow);
    weft_tokenizer_destroy(weft_fake.tokenizer);
}

weft_request weft_fake_request(uint32_t max_tokens)
{
    return (weft_request){.request_id = {"r", 1},
                          .has_ids = true,
                          .ids = WEFT_FAKE_PROMPT,
                          .n_ids = 3,
                          .stream = true,
                          .deadline_ns = UINT64_MAX,
                          .max_tokens = {true, max_tokens}};
}

int32_t weft_fake_free_slot(void)
{
    for (int32_t i = 0; i < WEFT_FAKE_SLOTS; i++)
        if (!weft_fake.slot_used[i]) return i;
    return -1;
}

weft_fake_client *weft_fake_open(const weft_request *request)
{
    weft_arena *arena = NULL;
    weft_admitted ask;
    weft_entry *entry = NULL;
    weft_err err = {0};
    const int32_t slot = weft_fake_free_slot();
    ck_assert_int_ge(slot, 0);
    ck_assert_int_eq(weft_arena_create(WEFT_REQUEST_ARENA_MAX, &arena, NULL),
                     WEFT_OK);
    ck_assert_msg(weft_admit_request(&weft_fake.limits, request, arena, &ask,
                                     &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(
        weft_entry_create(arena, &ask, request->text, &entry, NULL), WEFT_OK);
    weft_fake_client *const c = &weft_fake.clients[weft_fake.n_clients++];
    weft_fake.slot_used[slot] = true;
    entry->handle = weft_handle_make(++weft_fake.serial, slot);
    entry->ask.job.age = weft_fake.serial;
    entry->accepted_ns = weft_fake.now_ns;
    entry->client = weft_fake.ops;
    entry->client_arg = c;
    c->handle = entry->handle;
    weft_flow_open(weft_fake.flow, entry);
    return c;
}

weft_fake_client *weft_fake_open_plain(uint32_t max_tokens)
{
    const weft_request r = weft_fake_request(max_tokens);
    return weft_fake_open(&r);
}

void weft_fake_tick(void)
{
    (void)weft_flow_tick(weft_fake.flow, ++weft_fake.now_ns);
}

void weft_fake_send_event(const weft_event *event)
{
    weft_fake_job *const held = weft_fake_lead_find(event->handle);
    if (event->finish != WEFT_FINISH_NONE && held != NULL)
        *held = weft_fake_lead.jobs[--weft_fake_lead.n_jobs];
    weft_flow_event(weft_fake.flow, event, ++weft_fake.now_ns);
}

void weft_fake_send(uint64_t handle, weft_event_kind kind, weft_finish finish,
                    int32_t token)
{
    const weft_event event = {
        .handle = handle, .kind = kind, .finish = finish, .token = token};
    weft_fake_send_event(&event);
}

void weft_fake_send_tokens(const weft_fake_client *c, const int32_t *ids,
                           int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        weft_fake_send(c->handle, WEFT_EVENT_TOKEN, WEFT_FINISH_NONE, ids[i]);
}

void weft_fake_send_end(uint64_t handle, weft_finish finish, weft_status status,
                        const char *text)
{
    weft_event event = {.handle = handle,
                        .kind = WEFT_EVENT_END,
                        .finish = finish,
                        .status = status};
    (void)strncat(event.text, text, sizeof event.text - 1);
    weft_fake_send_event(&event);
}

void weft_fake_check_load(int32_t running, int32_t waiting, int32_t closing)
{
    weft_flow_load load;
    weft_flow_get_load(weft_fake.flow, &load);
    ck_assert_int_eq(load.n_running, running);
    ck_assert_int_eq(load.n_waiting, waiting);
    ck_assert_int_eq(load.n_closing, closing);
}
