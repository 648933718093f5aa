/* `weft generate` and `weft status` against a server with canned answers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/rpc/server.h"
#include "tests/support/command.h"

enum { TEXT_BYTES = COMMAND_TEXT_BYTES };

/* What the server was asked, kept for the test: the last request. */
static struct {
    char text[TEXT_BYTES], request_id[TEXT_BYTES], stops[TEXT_BYTES];
    uint32_t ids[4];
    size_t n_ids;
    weft_sampling_params sampling;
    bool stream;
} asked;

static void copy(char out[TEXT_BYTES], weft_span text)
{
    ck_assert_uint_lt(text.n, TEXT_BYTES);
    if (text.n > 0) memcpy(out, text.data, text.n);
    out[text.n] = '\0';
}

static void keep(const weft_generate_request *r)
{
    memset(&asked, 0, sizeof asked);
    copy(asked.text, r->text);
    copy(asked.request_id, r->request_id);
    for (size_t i = 0; i < r->sampling.n_stop; i++) {
        const weft_span stop = r->sampling.stop[i];
        const size_t at = strlen(asked.stops);
        (void)snprintf(asked.stops + at, sizeof asked.stops - at, "%.*s|",
                       (int)stop.n, stop.data);
    }
    asked.sampling = r->sampling;
    asked.stream = r->stream;
    asked.n_ids = r->n_ids;
    for (size_t i = 0; i < r->n_ids && i < 4; i++) asked.ids[i] = r->ids[i];
}

static void on_generate(void *arg, weft_call *call,
                        const weft_generate_request *request)
{
    static const int32_t ids[] = {5, 6};
    (void)arg;
    keep(request);
    if (request->n_ids == 1) {
        weft_call_fail(call, WEFT_INVALID_ARGUMENT,
                       "input_ids[0]: 4000000000 is beyond the vocabulary", -1);
        return;
    }
    if (strcmp(asked.text, "drain") == 0) {
        weft_call_fail(call, WEFT_UNAVAILABLE, "the node is draining", 250);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const weft_chunk chunk = {
            .ids = ids + i,
            .n_ids = 1,
            .text = {i == 0 ? "Hello " : "world", i == 0 ? 6 : 5},
            .prompt_tokens = 3,
            .completion_tokens = (uint32_t)i + 1,
        };
        weft_call_send_chunk(call, &chunk);
    }
    const weft_complete complete = {
        .ids = ids,
        .n_ids = 2,
        .text = {"Hello world", 11},
        .finish_reason = {"length", 6},
        .prompt_tokens = 3,
        .completion_tokens = 2,
    };
    weft_call_complete(call, &complete);
}

static void on_get_model(void *arg, weft_call *call)
{
    (void)arg;
    const weft_model_info model = {.name = {"tiny", 4},
                                   .model_type = {"dots3_note", 10},
                                   .max_context = 77};
    weft_call_reply_model(call, &model);
}

static void on_get_load(void *arg, weft_call *call)
{
    (void)arg;
    const weft_load_info load = {
        .running = 2,
        .waiting = 1,
        .kv_bytes_used = 100,
        .kv_bytes_total = INT64_C(1) << 40,
        .pages_used = {{"full", 7}, {"window", 3}},
        .n_kinds = 2,
    };
    weft_call_reply_load(call, &load);
}

static void on_cancel(void *arg, uint64_t call_id, weft_status why)
{
    (void)arg;
    (void)call_id;
    (void)why;
}

static weft_rpc_server *server;

static void start(void)
{
    static const weft_service_ops ops = {
        .generate = on_generate,
        .get_model = on_get_model,
        .get_load = on_get_load,
        .cancel = on_cancel,
    };
    weft_rpc_options options = weft_rpc_options_default();
    options.listen = "127.0.0.1:0";
    options.ops = &ops;
    weft_err err = {0};
    ck_assert_msg(weft_rpc_server_start(&options, &server, &err) == WEFT_OK,
                  "%s", err.text);
}

static void stop(void)
{
    weft_rpc_server_destroy(server);
    server = NULL;
}

/* Run "generate|--ids|1 2" against the server; out_path as command_run's.
 */
static command_seen run_to(const char *line, const char *address,
                           const char *out_path)
{
    char whole[TEXT_BYTES];
    (void)snprintf(whole, sizeof whole, "%s|--addr=%s", line, address);
    return command_run(whole, out_path);
}

static command_seen run(const char *line)
{
    return run_to(line, weft_rpc_server_address(server), NULL);
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++) n += *text == '\n';
    return n;
}

START_TEST(streams_text)
{
    const command_seen s =
        run("generate|Once|upon|--max-tokens|2|--stop|a|--stop|b");
    ck_assert_int_eq(s.code, 0);
    ck_assert_str_eq(s.out, "Hello world\n");
    ck_assert_int_eq(lines_of(s.err), 1);
    ck_assert_ptr_nonnull(strstr(s.err, "prompt_tokens 3 completion_tokens 2"));
    ck_assert_ptr_nonnull(strstr(s.err, "finish_reason length"));
    ck_assert_ptr_nonnull(strstr(s.err, "first_token_seconds "));
    ck_assert_str_eq(asked.text, "Once upon");
    ck_assert_str_eq(asked.stops, "a|b|");
    ck_assert(asked.stream);
    ck_assert(asked.sampling.max_tokens.set);
    ck_assert_uint_eq(asked.sampling.max_tokens.value, 2);
    ck_assert(!asked.sampling.temperature.set);
    ck_assert(!asked.sampling.top_k.set && !asked.sampling.seed.set);
}
END_TEST

START_TEST(sends_what_is_given)
{
    ck_assert_int_eq(run("generate|x|--temperature|0|--top-p=0.5|--top-k|0|"
                         "--min-p|0.25|--seed|18446744073709551615")
                         .code,
                     0);
    ck_assert(asked.sampling.temperature.set && asked.sampling.top_k.set);
    ck_assert_float_eq(asked.sampling.temperature.value, 0.0F);
    ck_assert_float_eq(asked.sampling.top_p.value, 0.5F);
    ck_assert_float_eq(asked.sampling.min_p.value, 0.25F);
    ck_assert_uint_eq(asked.sampling.seed.value, UINT64_MAX);
    ck_assert(!asked.sampling.max_tokens.set);
    char first[TEXT_BYTES];
    (void)snprintf(first, sizeof first, "%s", asked.request_id);
    ck_assert_uint_gt(strlen(first), 8);
    ck_assert_int_eq(run("generate|x").code, 0);
    ck_assert_str_ne(asked.request_id, first);
}
END_TEST

START_TEST(ids_in_and_out)
{
    const command_seen s = run("generate|--ids|1 2|3");
    ck_assert_int_eq(s.code, 0);
    ck_assert_str_eq(s.out, "5 6\n");
    ck_assert_uint_eq(asked.n_ids, 3);
    ck_assert_uint_eq(asked.ids[2], 3);
    ck_assert_str_eq(asked.text, "");
}
END_TEST

START_TEST(json_lines)
{
    const command_seen s = run("generate|--json|x");
    ck_assert_int_eq(s.code, 0);
    const char *const complete = strstr(s.out, "{\"complete\":");
    ck_assert_ptr_nonnull(complete);
    ck_assert_int_eq(lines_of(complete), 1);
    ck_assert_int_eq(strncmp(s.out, "{\"chunk\":", 9), 0);
}
END_TEST

START_TEST(an_answer_with_an_error_is_6)
{
    const command_seen s = run("generate|--ids|4000000000");
    ck_assert_int_eq(s.code, 6);
    ck_assert_str_eq(s.out, "");
    ck_assert_int_eq(lines_of(s.err), 1);
    ck_assert_ptr_nonnull(strstr(s.err, "INVALID_ARGUMENT"));
    ck_assert_ptr_nonnull(strstr(s.err, "4000000000 is beyond"));
    const command_seen drained = run("generate|drain");
    ck_assert_int_eq(drained.code, 6);
    ck_assert_ptr_nonnull(strstr(drained.err, "UNAVAILABLE"));
    ck_assert_ptr_nonnull(strstr(drained.err, "retry after 250 ms"));
}
END_TEST

START_TEST(ids_that_are_none_are_2)
{
    const command_seen s = run("generate|--ids|1 two");
    ck_assert_int_eq(s.code, 2);
    ck_assert_ptr_nonnull(strstr(s.err, "\"two\""));
}
END_TEST

START_TEST(nobody_there_is_5)
{
    const command_seen g = run_to("generate|x", "127.0.0.1:1", NULL);
    ck_assert_int_eq(g.code, 5);
    ck_assert_int_eq(lines_of(g.err), 1);
    ck_assert_ptr_nonnull(strstr(g.err, "127.0.0.1:1"));
    const command_seen s = run_to("status|--json", "127.0.0.1:1", NULL);
    ck_assert_int_eq(s.code, 5);
    ck_assert_ptr_nonnull(strstr(s.err, "127.0.0.1:1"));
    ck_assert_str_eq(s.out, "");
}
END_TEST

START_TEST(an_output_that_is_full_is_4)
{
    const command_seen s =
        run_to("generate|x", weft_rpc_server_address(server), "/dev/full");
    ck_assert_int_eq(s.code, 4);
    ck_assert_int_eq(lines_of(s.err), 1);
    ck_assert_ptr_nonnull(strstr(s.err, "No space left"));
}
END_TEST

START_TEST(status_of_a_server)
{
    const command_seen json = run("status|--json");
    ck_assert_int_eq(json.code, 0);
    ck_assert_int_eq(lines_of(json.out), 1);
    static const char *const parts[] = {
        "{\"epoch\":0,\"members\":[{\"id\":\"127.0.0.1:",
        "\"role\":\"router\",\"state\":\"serving\"",
        "\"model\":\"tiny\"",
        ("\"streams\":3,\"kv\":{\"total_bytes\":1099511627776,"
         "\"used_bytes\":100,\"pages\":{\"full\":7,\"window\":3}}}"),
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        ck_assert_msg(strstr(json.out, parts[i]) != NULL, "no %s in %s",
                      parts[i], json.out);
    const command_seen text = run("status");
    ck_assert_int_eq(text.code, 0);
    ck_assert_ptr_nonnull(strstr(text.out, "2 running, 1 waiting"));
    ck_assert_ptr_nonnull(strstr(text.out, "tiny (dots3_note, context 77)"));
}
END_TEST

int main(void)
{
    Suite *const s = suite_create("generate");
    TCase *const t = tcase_create("generate");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, start, stop);
    tcase_add_test(t, streams_text);
    tcase_add_test(t, sends_what_is_given);
    tcase_add_test(t, ids_in_and_out);
    tcase_add_test(t, json_lines);
    tcase_add_test(t, an_answer_with_an_error_is_6);
    tcase_add_test(t, ids_that_are_none_are_2);
    tcase_add_test(t, nobody_there_is_5);
    tcase_add_test(t, an_output_that_is_full_is_4);
    tcase_add_test(t, status_of_a_server);
    suite_add_tcase(s, t);
    SRunner *const r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
