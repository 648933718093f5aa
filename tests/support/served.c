#include "tests/support/served.h"

#include <check.h>
#include <string.h>

#ifdef __SANITIZE_THREAD__
/* gRPC may end without joining a thread of its executor. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "thread:grpc_core::Thread::Thread\n";
}
#endif

served serve(weft_rpc_options options)
{
    served s = {.fake = weft_fake_create()};
    weft_err err = {0};
    options.listen = "127.0.0.1:0";
    options.ops = &weft_fake_ops;
    options.ops_arg = s.fake;
    const weft_status st = weft_rpc_server_start(&options, &s.server, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return s;
}

void serve_end(served *s)
{
    weft_rpc_server_stop(s->server, SECONDS(20));
    weft_rpc_server_destroy(s->server);
    ck_assert(weft_fake_wait(s->fake, is_idle, 0));
    weft_fake_destroy(s->fake);
}

weft_client *serve_client(const served *s)
{
    weft_client *client = NULL;
    weft_err err = {0};
    const weft_client_options options = {.address =
                                             weft_rpc_server_address(s->server),
                                         .timeout_ns = SECONDS(20)};
    const weft_status st = weft_client_create(&options, &client, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return client;
}

bool is_idle(const weft_fake_counts *counts, int value)
{
    return counts->live == value;
}

static void check_logprobs(const weft_chunk *chunk, int32_t n_top)
{
    ck_assert_uint_eq(chunk->logprobs.n_tokens, n_top < 0 ? 0 : chunk->n_ids);
    for (size_t i = 0; i < chunk->logprobs.n_tokens; i++) {
        ck_assert_int_eq(chunk->logprobs.ids[i], chunk->ids[i]);
        if (n_top > 0) ck_assert_int_eq(chunk->logprobs.n_top[i], n_top);
    }
}

bool on_response(void *arg, const weft_generate_response *response)
{
    struct seen *seen = arg;
    if (response->is_complete) {
        const weft_complete *done = &response->complete;
        seen->completes++;
        if (seen->chunks == 0) seen->tokens = (int32_t)done->n_ids;
        ck_assert_int_eq((int32_t)done->n_ids, seen->tokens);
        for (int32_t i = 0; i < seen->tokens; i++)
            ck_assert_int_eq(done->ids[i], i);
        if (seen->chunks > 0) ck_assert_uint_eq(done->text.n, seen->text_bytes);
        ck_assert_uint_eq(done->finish_reason.n, 6);
        return true;
    }
    const weft_chunk *chunk = &response->chunk;
    ck_assert_uint_gt(chunk->n_ids, 0);
    for (size_t i = 0; i < chunk->n_ids; i++)
        ck_assert_int_eq(chunk->ids[i], seen->tokens + (int32_t)i);
    check_logprobs(chunk, seen->n_top);
    seen->tokens += (int32_t)chunk->n_ids;
    seen->text_bytes += chunk->text.n;
    ck_assert_uint_eq(chunk->completion_tokens, (uint32_t)seen->tokens);
    if (seen->chunks++ == 0 && seen->on_first != NULL) seen->on_first();
    return seen->stop_at == 0 || seen->tokens < seen->stop_at;
}

weft_generate_request request_of(const char *text, uint32_t max_tokens)
{
    return (weft_generate_request){
        .prompt = WEFT_PROMPT_TEXT,
        .text = {text, strlen(text)},
        .stream = true,
        .sampling = {.max_tokens = {true, max_tokens}},
    };
}

bool is_cancelled(const weft_fake_counts *counts, int value)
{
    return counts->cancelled >= value;
}

bool is_started(const weft_fake_counts *counts, int value)
{
    return counts->started >= value;
}

bool has_made(const weft_fake_counts *counts, int value)
{
    return counts->tokens >= value;
}
