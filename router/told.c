#include "router/told.h"

#include <string.h>

#include "node/base/mem.h"

/* -- logprobs ------------------------------------------------------------- */

static weft_status store_init(weft_logprob_store *store, int32_t n,
                              int32_t width, weft_err *err)
{
    if (width < 0) return WEFT_OK;
    const size_t tops = (size_t)n * (size_t)width;
    store->width = width;
    store->values = weft_mem_new((size_t)n, sizeof *store->values);
    store->n_top = weft_mem_new((size_t)n, sizeof *store->n_top);
    store->top_values = weft_mem_new(tops, sizeof *store->top_values);
    store->top_ids = weft_mem_new(tops, sizeof *store->top_ids);
    if (store->values != NULL && store->n_top != NULL &&
        store->top_values != NULL && store->top_ids != NULL)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "logprobs of %d tokens: out of memory", n);
}

static void store_deinit(weft_logprob_store *store)
{
    weft_mem_free(store->values);
    weft_mem_free(store->n_top);
    weft_mem_free(store->top_values);
    weft_mem_free(store->top_ids);
}

/* Row `row` of the tops is at token i's place among those that have tops. */
static weft_status store_put(weft_logprob_store *store, int32_t i, int32_t row,
                             const weft_event *event, weft_err *err)
{
    if (event->n_top != store->width)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the lead sent %d logprobs of a token, asked were %d",
                         event->n_top, store->width);
    const size_t base = (size_t)row * (size_t)store->width;
    store->values[i] = event->logprob;
    store->n_top[i] = store->width;
    for (int32_t k = 0; k < store->width; k++) {
        store->top_values[base + (size_t)k] = event->top[k].value;
        store->top_ids[base + (size_t)k] = event->top[k].id;
    }
    return WEFT_OK;
}

/* Rows of tokens [first, first + n). `ids` are those tokens. */
static weft_logprob_rows store_rows(const weft_logprob_store *store,
                                    int32_t first, int32_t n,
                                    const int32_t *ids)
{
    if (store->values == NULL || n == 0) return (weft_logprob_rows){0};
    const size_t base = (size_t)first * (size_t)store->width;
    return (weft_logprob_rows){
        .n = n,
        .values = store->values + first,
        .ids = ids,
        .n_top = store->width > 0 ? store->n_top + first : NULL,
        .top_values = store->top_values + base,
        .top_ids = store->top_ids + base,
    };
}

/* -- life ----------------------------------------------------------------- */

weft_status weft_told_init(weft_told *told, const weft_tokenizer *tokenizer,
                           const weft_admitted *ask, weft_err *err)
{
    const weft_job *const job = &ask->job;
    weft_told made = {0};
    weft_status st =
        store_init(&made.logprobs, job->max_tokens, job->logprobs, err);
    if (st == WEFT_OK)
        st = store_init(&made.prompt_logprobs, job->n_prompt,
                        job->prompt_logprobs, err);
    if (st == WEFT_OK && ask->n_stop > 0)
        st = weft_stops_create(ask->stop, (size_t)ask->n_stop,
                               ask->include_stop_str, &made.stops, err);
    if (st != WEFT_OK) {
        weft_told_deinit(&made);
        return st;
    }
    made.has_text = tokenizer != NULL;
    if (made.has_text)
        weft_detok_init(&made.detok, tokenizer, ask->skip_special_tokens);
    /* Of the first token nothing is predicted: it counts as seen, with 0. */
    made.n_prompt_seen = 1;
    *told = made;
    return WEFT_OK;
}

void weft_told_deinit(weft_told *told)
{
    weft_stops_destroy(told->stops);
    weft_buf_deinit(&told->fresh);
    weft_buf_deinit(&told->text);
    store_deinit(&told->logprobs);
    store_deinit(&told->prompt_logprobs);
    *told = (weft_told){0};
}

/* -- what the lead says --------------------------------------------------- */

weft_status weft_told_add_prompt(weft_told *told, const weft_admitted *ask,
                                 const weft_event *event, weft_err *err)
{
    const int32_t at = event->position;
    if (told->prompt_logprobs.values == NULL || at < 1 ||
        at >= ask->job.n_prompt)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the lead sent a logprob of prompt token %d of %d", at,
                         ask->job.n_prompt);
    WEFT_TRY(store_put(&told->prompt_logprobs, at, at - 1, event, err));
    /* After a preemption they come again, with the same values. */
    if (at == told->n_prompt_seen) told->n_prompt_seen++;
    return WEFT_OK;
}

/* Text that detok has let go passes the stop strings. */
static weft_status pass_fresh(weft_told *told, const weft_admitted *ask,
                              weft_err *err)
{
    const weft_buf *const fresh = &told->fresh;
    int32_t matched = -1;
    if (fresh->n == 0) return WEFT_OK;
    if (told->stops == NULL)
        return weft_buf_add(&told->text, fresh->data, fresh->n, err);
    if (told->n_tokens < ask->job.min_tokens)
        return weft_stops_pass(told->stops, fresh->data, fresh->n, &told->text,
                               err);
    WEFT_TRY(weft_stops_push(told->stops, fresh->data, fresh->n, &told->text,
                             &matched, err));
    if (matched >= 0)
        told->matched_stop = (weft_span){.data = ask->stop[matched],
                                         .n = strlen(ask->stop[matched])};
    return WEFT_OK;
}

static bool is_stop_token(const weft_event *event)
{
    return event->finish == WEFT_FINISH_STOP;
}

weft_status weft_told_add(weft_told *told, const weft_admitted *ask,
                          const weft_event *event, bool *last_out,
                          weft_err *err)
{
    if (told->n_tokens >= ask->job.max_tokens)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the lead sent more than max_tokens %d",
                         ask->job.max_tokens);
    const int32_t at = told->n_tokens++;
    ask->tokens[ask->job.n_prompt + at] = event->token;
    if (told->logprobs.values != NULL)
        WEFT_TRY(store_put(&told->logprobs, at, at, event, err));

    told->matched_token = is_stop_token(event);
    weft_buf_clear(&told->fresh);
    if (told->has_text && !told->matched_token) {
        WEFT_TRY(
            weft_detok_push(&told->detok, event->token, &told->fresh, err));
        WEFT_TRY(pass_fresh(told, ask, err));
    }
    *last_out =
        event->finish != WEFT_FINISH_NONE || told->matched_stop.data != NULL;
    return *last_out ? weft_told_flush(told, ask, err) : WEFT_OK;
}

weft_status weft_told_flush(weft_told *told, const weft_admitted *ask,
                            weft_err *err)
{
    if (!told->has_text || told->matched_stop.data != NULL) return WEFT_OK;
    weft_buf_clear(&told->fresh);
    WEFT_TRY(weft_detok_finish(&told->detok, &told->fresh, err));
    WEFT_TRY(pass_fresh(told, ask, err));
    if (told->stops == NULL || told->matched_stop.data != NULL) return WEFT_OK;
    return weft_stops_finish(told->stops, &told->text, err);
}

/* -- what the client hears ------------------------------------------------ */

static const int32_t *generated(const weft_admitted *ask)
{
    return ask->tokens == NULL ? NULL : ask->tokens + ask->job.n_prompt;
}

void weft_told_take_chunk(weft_told *told, const weft_admitted *ask,
                          int32_t n_ids, weft_stream_chunk *chunk_out)
{
    const int32_t first = told->n_tokens - n_ids;
    const int32_t *const ids = generated(ask);
    const size_t from = told->taken_bytes;
    *chunk_out = (weft_stream_chunk){
        .ids = ids == NULL ? NULL : ids + first,
        .n_ids = n_ids,
        .prompt_tokens = ask->job.n_prompt,
        .completion_tokens = told->n_tokens,
        .text = {.data =
                     told->text.data == NULL ? NULL : told->text.data + from,
                 .n = told->text.n - from},
    };
    if (n_ids > 0)
        chunk_out->logprobs =
            store_rows(&told->logprobs, first, n_ids, chunk_out->ids);
    told->taken_bytes = told->text.n;
}

void weft_told_get_complete(const weft_told *told, const weft_admitted *ask,
                            weft_stream_end end,
                            weft_stream_complete *complete_out)
{
    const int32_t *const ids = generated(ask);
    *complete_out = (weft_stream_complete){
        .end = end,
        .ids = ids,
        .n_ids = told->n_tokens,
        .prompt_tokens = ask->job.n_prompt,
        .logprobs = store_rows(&told->logprobs, 0, told->n_tokens, ids),
        .prompt_logprobs = store_rows(&told->prompt_logprobs, 0,
                                      told->n_prompt_seen, ask->tokens),
        .matched_token = told->matched_token,
        .matched_stop = told->matched_stop,
        .text = {.data = told->text.data, .n = told->text.n},
    };
}
