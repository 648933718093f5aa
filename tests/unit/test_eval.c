/* `weft eval` and `weft check` as a script sees them: JSON that can be read, a
 * code that tells whether the figures are there. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/app/eval_input.h"
#include "tests/support/command.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

enum { PATH_BYTES = 128, LINE_BYTES = 512 };

static char folder[PATH_BYTES];

/* `line` with the folder in place of each @. */
static command_seen run(const char *line, const char *out_path)
{
    char whole[LINE_BYTES];
    size_t n = 0;
    for (; *line != '\0'; line++) {
        const size_t more = *line == '@' ? strlen(folder) : 1;
        ck_assert_uint_lt(n + more, sizeof whole);
        memcpy(whole + n, *line == '@' ? folder : line, more);
        n += more;
    }
    whole[n] = '\0';
    return command_run(whole, out_path);
}

static void write_model(const synth_options *options)
{
    static const char ids[] = "11 21 45 83 38 7 90 90 4 61 17 2";
    synth_folder_make(folder);
    synth_case_write(folder, "T02", NULL, options);
    synth_file_write(folder, "ids", ids, (int64_t)strlen(ids));
}

static json_t *parse(const command_seen *s)
{
    json_error_t why;
    json_t *const report = json_loads(s->out, 0, &why);
    ck_assert_msg(report != NULL, "%s: %s%s", why.text, s->out, s->err);
    return report;
}

static double number(const json_t *report, const char *key)
{
    return json_number_value(json_object_get(report, key));
}

/* nll of the ids, with more flags. */
static double score(const char *flags)
{
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof line,
                   "eval|--model=@|--ids=@/ids|--profile=exact%s", flags);
    const command_seen s = run(line, NULL);
    ck_assert_msg(s.code == 0, "%s", s.err);
    json_t *const report = parse(&s);
    const double nll = number(report, "nll");
    ck_assert(number(report, "scored") == 11.0 && nll > 0.0);
    ck_assert(fabs(number(report, "perplexity") - exp(nll / 11.0)) < 1e-6);
    json_decref(report);
    return nll;
}

START_TEST(a_nul_among_ids_is_refused)
{
    static const char ids[] = "11 2\0 1 7";
    write_model(NULL);
    synth_file_write(folder, "nul", ids, (int64_t)sizeof ids - 1);
    const command_seen s = run("eval|--model=@|--ids=@/nul", NULL);
    ck_assert_int_eq(s.code, WEFT_EXIT_USAGE);
    ck_assert_ptr_nonnull(strstr(s.err, "number 2"));
    synth_folder_remove(folder);
}
END_TEST

START_TEST(any_part_may_be_decoded)
{
    write_model(NULL);
    const double all = score("");
    ck_assert(score("|--decode-from=5") == all);
    ck_assert(score("|--decode-from=12") == all);
    ck_assert(score("|--decode-from=100") == all);
    ck_assert(score("|--decode-from=0") == all);
    synth_folder_remove(folder);
}
END_TEST

/* Zero is a number of tokens as others are, not "all". */
START_TEST(decode_from_is_what_is_prefilled)
{
    static const int32_t cases[][2] = {{-1, 12}, {0, 1},   {1, 1},
                                       {11, 11}, {12, 12}, {100, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const weft_options o = {.decode_from = cases[i][0]};
        ck_assert_int_eq(weft_eval_prefilled(&o, 12), cases[i][1]);
    }
}
END_TEST

START_TEST(an_output_that_is_full_is_4)
{
    write_model(NULL);
    command_seen s = run("eval|--model=@|--ids=@/ids", "/dev/full");
    ck_assert_int_eq(s.code, 4);
    ck_assert_ptr_nonnull(strstr(s.err, "output"));
    s = run("check|--model=@", "/dev/full");
    ck_assert_int_eq(s.code, 4);
    ck_assert_ptr_nonnull(strstr(s.err, "output"));
    s = run("check|--json|--model=@", "/dev/full");
    ck_assert_int_eq(s.code, 4);
    synth_folder_remove(folder);
}
END_TEST

static void spoil(void *arg, const char *key, double *values, int64_t n_row,
                  int64_t n_in)
{
    (void)n_row, (void)n_in;
    if (strncmp(key, "model.embed_tokens", strlen("model.embed_tokens")) == 0)
        values[83 * n_in] = *(const double *)arg;
}

/* No figure rather than one that is none, which is no JSON either. */
START_TEST(logits_that_are_not_numbers_fail)
{
    static double bad = NAN;
    write_model(&(synth_options){.edit = spoil, .edit_arg = &bad});
    const command_seen s = run("eval|--model=@|--ids=@/ids", NULL);
    ck_assert_int_eq(s.code, 1);
    ck_assert_str_eq(s.out, "");
    ck_assert_msg(strstr(s.err, "position 3") != NULL, "%s", s.err);
    synth_folder_remove(folder);
}
END_TEST

/* A path is bytes, JSON is UTF-8. */
START_TEST(a_folder_with_any_name_is_told)
{
    char old[64], moved[PATH_BYTES];
    write_model(NULL);
    (void)snprintf(old, sizeof old, "%.60s", folder);
    (void)snprintf(moved, sizeof moved, "%s-\xc3\xff", old);
    ck_assert_int_eq(rename(old, moved), 0);
    (void)snprintf(folder, sizeof folder, "%s", moved);
    command_seen s = run("check|--json|--model=@", NULL);
    ck_assert_int_eq(rename(moved, old), 0);
    ck_assert_msg(s.code == 0, "%s", s.err);
    json_t *report = parse(&s);
    (void)snprintf(moved, sizeof moved, "%s-??", old);
    ck_assert_str_eq(json_string_value(json_object_get(
                         json_object_get(report, "model"), "folder")),
                     moved);
    json_decref(report);

    s = run("check|--json|--model=@", NULL); /* it is not there any more */
    ck_assert_int_eq(s.code, 3);
    report = parse(&s);
    ck_assert(json_is_false(json_object_get(report, "ok")));
    ck_assert_ptr_nonnull(
        strstr(json_string_value(json_object_get(report, "refused")), moved));
    json_decref(report);
    synth_folder_remove(old);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_nul_among_ids_is_refused,       any_part_may_be_decoded,
        decode_from_is_what_is_prefilled, an_output_that_is_full_is_4,
        logits_that_are_not_numbers_fail, a_folder_with_any_name_is_told,
    };
    return WEFT_SUITE_RUN("app/eval", tests);
}
