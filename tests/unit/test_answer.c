/* What `weft generate` prints for the messages of a stream. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "node/app/answer.h"

static const int32_t ids[] = {7, 0, 4093};

/* "Once\n", a chunk without text, "\"é" and a NUL; then the closing message. */
static const weft_generate_response stream[] = {
    {.chunk = {.ids = ids,
               .n_ids = 1,
               .text = {"Once", 4},
               .prompt_tokens = 5,
               .completion_tokens = 1}},
    {.chunk = {.ids = ids + 1,
               .n_ids = 1,
               .prompt_tokens = 5,
               .completion_tokens = 2}},
    {.chunk = {.ids = ids + 2,
               .n_ids = 1,
               .text = {"\"\xC3\xA9\0", 4},
               .prompt_tokens = 5,
               .completion_tokens = 3}},
    {.is_complete = true,
     .complete = {.ids = ids,
                  .n_ids = 3,
                  .text = {"Once\"\xC3\xA9\0", 8},
                  .finish_reason = {"stop", 4},
                  .prompt_tokens = 5,
                  .completion_tokens = 3,
                  .cached_tokens = 1,
                  .matched = WEFT_MATCHED_TOKEN,
                  .matched_token = 4093}},
};
enum { N_MESSAGES = sizeof stream / sizeof stream[0] };

static const struct shown {
    weft_answer_form form;
    const char *text;
    size_t n;
} forms[] = {
    {WEFT_ANSWER_TEXT, "Once\"\xC3\xA9\0\n", 9},
    {WEFT_ANSWER_IDS, "7 0 4093\n", 9},
    {WEFT_ANSWER_JSON,
     "{\"chunk\":{\"token_ids\":[7],\"prompt_tokens\":5,"
     "\"completion_tokens\":1,\"cached_tokens\":0,\"text\":\"Once\"}}\n"
     "{\"chunk\":{\"token_ids\":[0],\"prompt_tokens\":5,"
     "\"completion_tokens\":2,\"cached_tokens\":0}}\n"
     "{\"chunk\":{\"token_ids\":[4093],\"prompt_tokens\":5,"
     "\"completion_tokens\":3,\"cached_tokens\":0,"
     "\"text\":\"\\\"\xC3\xA9\\u0000\"}}\n"
     "{\"complete\":{\"output_ids\":[7,0,4093],\"finish_reason\":\"stop\","
     "\"prompt_tokens\":5,\"completion_tokens\":3,\"cached_tokens\":1,"
     "\"matched_token_id\":4093,\"text\":\"Once\\\"\xC3\xA9\\u0000\"}}\n",
     0},
};

START_TEST(shows_a_stream)
{
    const struct shown *const want = &forms[_i];
    const size_t want_n = want->n > 0 ? want->n : strlen(want->text);
    char *text = NULL;
    size_t n = 0;
    weft_answer answer = {.out = open_memstream(&text, &n), .form = want->form};
    size_t before = 0;
    for (int i = 0; i < N_MESSAGES; i++) {
        weft_err err = {0};
        ck_assert_msg(weft_answer_show(&answer, &stream[i], &err) == WEFT_OK,
                      "%s", err.text);
        /* What has something to show is there at once, not at the end. */
        const bool empty = i == 1 && want->form == WEFT_ANSWER_TEXT;
        ck_assert_msg(empty ? n == before : n > before, "message %d", i);
        ck_assert_int_eq(answer.is_complete, i == N_MESSAGES - 1);
        before = n;
    }
    ck_assert_uint_eq(n, want_n);
    ck_assert_msg(memcmp(text, want->text, want_n) == 0, "got %s", text);
    ck_assert_int_eq(fclose(answer.out), 0);
    free(text);
}
END_TEST

START_TEST(a_text_that_ends_a_line_gets_no_other)
{
    char *text = NULL;
    size_t n = 0;
    weft_answer answer = {.out = open_memstream(&text, &n)};
    const weft_generate_response chunk = {.chunk = {.text = {"x\n", 2}}};
    ck_assert_int_eq(weft_answer_show(&answer, &chunk, NULL), WEFT_OK);
    ck_assert_int_eq(weft_answer_show(&answer, &stream[3], NULL), WEFT_OK);
    ck_assert_int_eq(fclose(answer.out), 0);
    ck_assert_str_eq(text, "x\n");
    free(text);
}
END_TEST

START_TEST(a_full_disk_is_told)
{
    weft_answer answer = {.out = fopen("/dev/full", "w"),
                          .form = (weft_answer_form)_i};
    if (answer.out == NULL) return;
    weft_err err = {0};
    ck_assert_int_eq(weft_answer_show(&answer, &stream[0], &err),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "No space left"));
    (void)fclose(answer.out);
}
END_TEST

int main(void)
{
    Suite *const s = suite_create("answer");
    TCase *const t = tcase_create("answer");
    tcase_add_loop_test(t, shows_a_stream, 0, 3);
    tcase_add_test(t, a_text_that_ends_a_line_gets_no_other);
    tcase_add_loop_test(t, a_full_disk_is_told, 0, 3);
    suite_add_tcase(s, t);
    SRunner *const r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
