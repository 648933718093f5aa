/* Token ids as text, and where a prompt comes from. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "node/app/prompt.h"
#include "node/base/mem.h"

static const struct good {
    const char *text;
    size_t n;
    uint32_t ids[4];
} goods[] = {
    {"", 0, {0}},
    {" \n\t", 0, {0}},
    {"7", 1, {7}},
    {"1 2\n3\r\n\t4 ", 4, {1, 2, 3, 4}},
    {"0 4294967295 007", 3, {0, UINT32_MAX, 7}},
};

START_TEST(takes_numbers)
{
    const struct good *const g = &goods[_i];
    weft_prompt_ids ids;
    weft_err err = {0};
    ck_assert_msg(weft_prompt_ids_parse(g->text, strlen(g->text), &ids, &err) ==
                      WEFT_OK,
                  "%s", err.text);
    ck_assert_uint_eq(ids.n, g->n);
    for (size_t i = 0; i < g->n; i++) ck_assert_uint_eq(ids.ids[i], g->ids[i]);
    weft_prompt_ids_deinit(&ids);
}
END_TEST

static const struct bad {
    const char *text;
    size_t n;
    const char *told;
} bads[] = {
    {"1 2 x", 5, "3 is \"x\""},
    {"1 -2", 4, "2 is \"-2\""},
    {"-0", 2, "1 is \"-0\""},
    {"1.5", 3, "1 is \"1.5\""},
    {"4294967296", 10, "4294967296"},
    {"99999999999999999999999", 23, "1 is \"9999"},
    {"000000000000000000000000000007", 30, "1 is \"0000"},
    {"1\0002", 3, "1 is \"1\""},
    {"+1", 2, "1 is \"+1\""},
};

START_TEST(refuses_others)
{
    const struct bad *const b = &bads[_i];
    const long live = weft_mem_live();
    weft_prompt_ids ids;
    weft_err err = {0};
    ck_assert_int_eq(weft_prompt_ids_parse(b->text, b->n, &ids, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, b->told) != NULL, "%s", err.text);
    ck_assert_int_eq(weft_mem_live(), live);
}
END_TEST

START_TEST(no_memory_is_told)
{
    weft_prompt_ids ids;
    weft_mem_fail_after(0);
    const weft_status st = weft_prompt_ids_parse("1", 1, &ids, NULL);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(words_come_before_stdin)
{
    char once[] = "Once ", upon[] = "upon";
    char *words[] = {once, upon};
    const weft_options with = {.words = words, .n_words = 2};
    const weft_options without = {0};
    char told[] = "a\0b\n";
    FILE *const in = fmemopen(told, sizeof told - 1, "r");
    weft_buf prompt = {0};
    ck_assert_int_eq(weft_prompt_read(&with, in, &prompt, NULL), WEFT_OK);
    ck_assert_str_eq(prompt.data, "Once  upon");
    weft_buf_clear(&prompt);
    ck_assert_int_eq(weft_prompt_read(&without, in, &prompt, NULL), WEFT_OK);
    ck_assert_uint_eq(prompt.n, 4);
    ck_assert_int_eq(memcmp(prompt.data, "a\0b\n", 4), 0);
    weft_buf_deinit(&prompt);
    ck_assert_int_eq(fclose(in), 0);
}
END_TEST

START_TEST(stdin_has_a_limit)
{
    FILE *const in = fopen("/dev/zero", "r");
    const weft_options without = {0};
    weft_buf prompt = {0};
    weft_err err = {0};
    ck_assert_int_eq(weft_prompt_read(&without, in, &prompt, &err),
                     WEFT_DATA_LOSS);
    ck_assert_ptr_nonnull(strstr(err.text, "16777216"));
    weft_buf_deinit(&prompt);
    ck_assert_int_eq(fclose(in), 0);
}
END_TEST

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

int main(void)
{
    Suite *const s = suite_create("prompt");
    TCase *const t = tcase_create("prompt");
    tcase_add_loop_test(t, takes_numbers, 0, COUNT(goods));
    tcase_add_loop_test(t, refuses_others, 0, COUNT(bads));
    tcase_add_test(t, no_memory_is_told);
    tcase_add_test(t, words_come_before_stdin);
    tcase_add_test(t, stdin_has_a_limit);
    suite_add_tcase(s, t);
    SRunner *const r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
