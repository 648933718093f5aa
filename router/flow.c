#include "router/flow.h"

#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "router/deadlines.h"

struct weft_flow {
    weft_journal journal;
    const weft_tokenizer *tokenizer;
    weft_flow_hooks hooks;
    weft_lead lead;
    weft_entry_queue submits; /* state QUEUED */
    weft_entry_queue
        cancels; /* state CLOSING, held by the lead, not yet told it */
    weft_deadlines deadlines; /* of what is not CLOSING */
};

weft_status weft_flow_create(int32_t n_slots, const weft_tokenizer *tokenizer,
                             const weft_flow_hooks *hooks, weft_flow **flow_out,
                             weft_err *err)
{
    weft_flow *const flow = weft_mem_new(1, sizeof *flow);
    if (flow == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the router");
    weft_status st = weft_journal_init(&flow->journal, n_slots, err);
    if (st == WEFT_OK) st = weft_deadlines_init(&flow->deadlines, n_slots, err);
    if (st != WEFT_OK) {
        weft_flow_destroy(flow);
        return st;
    }
    flow->tokenizer = tokenizer;
    flow->hooks = *hooks;
    *flow_out = flow;
    return WEFT_OK;
}

void weft_flow_destroy(weft_flow *flow)
{
    if (flow == NULL) return;
    weft_journal_deinit(&flow->journal);
    weft_deadlines_deinit(&flow->deadlines);
    weft_mem_free(flow);
}

void weft_flow_set_lead(weft_flow *flow, weft_lead lead)
{
    flow->lead = lead;
}

/* -- the end of a request ------------------------------------------------- */

static void free_entry(weft_flow *flow, weft_entry *entry)
{
    if (flow->hooks.release != NULL)
        flow->hooks.release(flow->hooks.arg, entry);
    weft_journal_remove(&flow->journal, entry);
}

/* The client has its end. The entry stays while somebody holds it; the lead is
 * told to let go. */
static void close_entry(weft_flow *flow, weft_entry *entry)
{
    weft_entry_queue_remove(entry);
    weft_deadlines_remove(&flow->deadlines, entry);
    weft_journal_set_state(&flow->journal, entry, WEFT_ENTRY_CLOSING);
    if (entry->held_by_lead)
        weft_entry_queue_push(&flow->cancels, entry);
    else if (!entry->held_by_text)
        free_entry(flow, entry);
}

static void fail(weft_flow *flow, weft_entry *entry, weft_status status,
                 const char *text, int32_t retry_after_ms)
{
    entry->client->fail(entry->client_arg, status, text, retry_after_ms);
    close_entry(flow, entry);
}

/* For a reason found here. Memory that is short for a moment may be there
 * later; a request that is wrong stays so. */
static void fail_for(weft_flow *flow, weft_entry *entry, const weft_err *err)
{
    fail(flow, entry, err->status, err->text,
         err->status == WEFT_RESOURCE_EXHAUSTED ? WEFT_RETRY_FULL_MS : -1);
}

static void send_chunk(weft_entry *entry, int32_t n_ids)
{
    weft_stream_chunk chunk;
    weft_told_take_chunk(&entry->told, &entry->ask, n_ids, &chunk);
    if (!entry->ask.stream || (chunk.n_ids == 0 && chunk.text.n == 0)) return;
    entry->client->chunk(entry->client_arg, &chunk);
}

static void complete(weft_flow *flow, weft_entry *entry, weft_stream_end end)
{
    weft_stream_complete done;
    weft_told_get_complete(&entry->told, &entry->ask, end, &done);
    entry->client->complete(entry->client_arg, &done);
    close_entry(flow, entry);
}

void weft_flow_cancel(weft_flow *flow, uint64_t handle, weft_status status,
                      const char *text)
{
    weft_entry *const entry = weft_journal_find(&flow->journal, handle);
    if (entry == NULL || entry->state == WEFT_ENTRY_CLOSING) return;
    fail(flow, entry, status, text, -1);
}

void weft_flow_cancel_all(weft_flow *flow, weft_status status, const char *text,
                          int32_t retry_after_ms)
{
    for (weft_entry *at = flow->journal.first, *next; at != NULL; at = next) {
        next = at->live_after;
        if (at->state != WEFT_ENTRY_CLOSING)
            fail(flow, at, status, text, retry_after_ms);
    }
}

static int by_id(const void *a, const void *b)
{
    const weft_span *const x = a, *const y = b;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->n == 0 ? 0 : memcmp(x->data, y->data, x->n);
}

void weft_flow_sort_ids(weft_span *ids, size_t n)
{
    qsort(ids, n, sizeof *ids, by_id);
}

static void abort_entry(weft_flow *flow, weft_entry *entry)
{
    weft_err err = {0};
    if (weft_told_flush(&entry->told, &entry->ask, &err) != WEFT_OK) {
        fail_for(flow, entry, &err);
        return;
    }
    send_chunk(entry, 0);
    complete(flow, entry, WEFT_END_ABORT);
}

int32_t weft_flow_abort(weft_flow *flow, const weft_span *ids, size_t n)
{
    int32_t n_aborted = 0;
    if (n == 0) return 0;
    for (weft_entry *at = flow->journal.first, *next; at != NULL; at = next) {
        next = at->live_after;
        if (at->state == WEFT_ENTRY_CLOSING ||
            bsearch(&at->ask.request_id, ids, n, sizeof *ids, by_id) == NULL)
            continue;
        abort_entry(flow, at);
        n_aborted++;
    }
    return n_aborted;
}

/* -- the beginning -------------------------------------------------------- */

static void enqueue(weft_flow *flow, weft_entry *entry)
{
    weft_journal_set_state(&flow->journal, entry, WEFT_ENTRY_QUEUED);
    weft_entry_queue_push(&flow->submits, entry);
}

/* An entry whose ids are there gets its answer and its place in the queue. */
static void admit(weft_flow *flow, weft_entry *entry)
{
    weft_err err = {0};
    if (weft_told_init(&entry->told, flow->tokenizer, &entry->ask, &err) !=
        WEFT_OK) {
        fail_for(flow, entry, &err);
        return;
    }
    enqueue(flow, entry);
}

void weft_flow_open(weft_flow *flow, weft_entry *entry)
{
    entry->state = WEFT_ENTRY_TEXT;
    entry->ask.job.handle = entry->handle;
    weft_journal_add(&flow->journal, entry);
    weft_deadlines_add(&flow->deadlines, entry);
    if (entry->ask.tokens != NULL) {
        admit(flow, entry);
        return;
    }
    entry->held_by_text = true;
    flow->hooks.to_text(flow->hooks.arg, entry);
}

void weft_flow_text_done(weft_flow *flow, weft_entry *entry)
{
    entry->held_by_text = false;
    weft_mem_free(entry->prompt_text);
    entry->prompt_text = NULL;
    if (entry->state == WEFT_ENTRY_CLOSING)
        free_entry(flow, entry);
    else if (entry->text_err.status != WEFT_OK)
        fail_for(flow, entry, &entry->text_err);
    else
        admit(flow, entry);
}

/* -- events of the lead --------------------------------------------------- */

static void note_started(weft_flow *flow, weft_entry *entry, uint64_t now_ns)
{
    const weft_watch *const watch = &flow->hooks.watch;
    if (entry->state == WEFT_ENTRY_RUNNING) return;
    weft_journal_set_state(&flow->journal, entry, WEFT_ENTRY_RUNNING);
    if (!entry->started && watch->queued != NULL)
        watch->queued(watch->arg, now_ns - entry->accepted_ns);
    entry->started = true;
}

static void note_token(weft_flow *flow, weft_entry *entry, uint64_t now_ns)
{
    const weft_watch *const watch = &flow->hooks.watch;
    const bool first = !entry->prompt_counted;
    if (watch->tokens != NULL)
        watch->tokens(watch->arg, first ? entry->ask.job.n_prompt : 0, 1);
    if (first && watch->first_token != NULL)
        watch->first_token(watch->arg, now_ns - entry->accepted_ns);
    if (!first && watch->between_tokens != NULL)
        watch->between_tokens(watch->arg, now_ns - entry->last_token_ns);
    entry->prompt_counted = true;
    entry->last_token_ns = now_ns;
}

static void take_token(weft_flow *flow, weft_entry *entry,
                       const weft_event *event, uint64_t now_ns)
{
    weft_err err = {0};
    bool last = event->finish != WEFT_FINISH_NONE;
    note_token(flow, entry, now_ns);
    if (weft_told_add(&entry->told, &entry->ask, event, &last, &err) !=
        WEFT_OK) {
        fail_for(flow, entry, &err);
        return;
    }
    send_chunk(entry, 1);
    if (!last) return;
    const bool stopped = event->finish == WEFT_FINISH_STOP ||
                         entry->told.matched_stop.data != NULL;
    complete(flow, entry, stopped ? WEFT_END_STOP : WEFT_END_LENGTH);
}

/* What the lead lost is in the journal: prompt and told tokens. */
static void take_preemption(weft_flow *flow, weft_entry *entry)
{
    const weft_watch *const watch = &flow->hooks.watch;
    weft_job *const job = &entry->ask.job;
    if (watch->preempted != NULL) watch->preempted(watch->arg);
    job->n_tokens = job->n_prompt + entry->told.n_tokens;
    if (entry->told.n_prompt_seen == job->n_prompt)
        job->prompt_logprobs = -1; /* they have all come */
    enqueue(flow, entry);
}

static void take_end(weft_flow *flow, weft_entry *entry,
                     const weft_event *event)
{
    if (event->finish == WEFT_FINISH_PREEMPTED)
        take_preemption(flow, entry);
    else if (event->status == WEFT_OK)
        fail(flow, entry, WEFT_INTERNAL, "the lead ended without a reason", -1);
    else
        fail(flow, entry, event->status, event->text, -1);
}

static void take_prompt(weft_flow *flow, weft_entry *entry,
                        const weft_event *event)
{
    weft_err err = {0};
    if (weft_told_add_prompt(&entry->told, &entry->ask, event, &err) != WEFT_OK)
        fail_for(flow, entry, &err);
}

/* The entry may be gone after this. */
static void take_event(weft_flow *flow, weft_entry *entry,
                       const weft_event *event, uint64_t now_ns)
{
    if (event->kind != WEFT_EVENT_END) note_started(flow, entry, now_ns);
    switch (event->kind) {
    case WEFT_EVENT_TOKEN: take_token(flow, entry, event, now_ns); return;
    case WEFT_EVENT_PROMPT: take_prompt(flow, entry, event); return;
    case WEFT_EVENT_END: take_end(flow, entry, event); return;
    case WEFT_EVENT_STARTED: return;
    }
}

void weft_flow_event(weft_flow *flow, const weft_event *event, uint64_t now_ns)
{
    weft_entry *const entry = weft_journal_find(&flow->journal, event->handle);
    if (entry == NULL || !entry->held_by_lead) {
        weft_mem_free(event->top);
        return;
    }
    if (event->finish != WEFT_FINISH_NONE) entry->held_by_lead = false;
    if (entry->state == WEFT_ENTRY_CLOSING) {
        weft_mem_free(event->top);
        if (!entry->held_by_lead) free_entry(flow, entry);
        return;
    }
    take_event(flow, entry, event, now_ns);
    weft_mem_free(event->top);
}

/* -- what is due ---------------------------------------------------------- */

/* false: the lead has no room. */
static bool submit_first(weft_flow *flow)
{
    weft_entry *const entry = flow->submits.first;
    /* Before the call: an event of it may be on its way at once. */
    entry->held_by_lead = true;
    const weft_status st = flow->lead.submit(flow->lead.arg, &entry->ask.job);
    if (st == WEFT_OK) {
        weft_entry_queue_remove(entry);
        weft_journal_set_state(&flow->journal, entry, WEFT_ENTRY_SUBMITTED);
        return true;
    }
    entry->held_by_lead = false;
    if (st == WEFT_RESOURCE_EXHAUSTED) return false;
    fail(flow, entry, st, "the lead refused the request", -1);
    return true;
}

static bool cancel_first(weft_flow *flow)
{
    weft_entry *const entry = flow->cancels.first;
    const weft_status st = flow->lead.cancel(flow->lead.arg, entry->handle);
    if (st == WEFT_RESOURCE_EXHAUSTED) return false;
    weft_entry_queue_remove(entry);
    return true;
}

static void pass_deadlines(weft_flow *flow, uint64_t now_ns)
{
    weft_entry *first;
    while ((first = weft_deadlines_first(&flow->deadlines)) != NULL &&
           first->ask.job.deadline_ns <= now_ns)
        fail(flow, first, WEFT_DEADLINE_EXCEEDED,
             "the request's deadline has passed", -1);
}

uint64_t weft_flow_tick(weft_flow *flow, uint64_t now_ns)
{
    pass_deadlines(flow, now_ns);
    /* Cancels first: they make room for submissions. */
    while (flow->cancels.first != NULL)
        if (!cancel_first(flow)) return now_ns;
    while (flow->submits.first != NULL)
        if (!submit_first(flow)) return now_ns;
    return weft_deadlines_next_ns(&flow->deadlines);
}

void weft_flow_get_load(const weft_flow *flow, weft_flow_load *load_out)
{
    const int32_t *const n = flow->journal.n_state;
    *load_out = (weft_flow_load){
        .n_running = n[WEFT_ENTRY_RUNNING],
        .n_waiting =
            n[WEFT_ENTRY_TEXT] + n[WEFT_ENTRY_QUEUED] + n[WEFT_ENTRY_SUBMITTED],
        .n_closing = n[WEFT_ENTRY_CLOSING],
    };
}
