/* generation_config.json, and the files of a folder. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/model/config.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

static weft_status parse(const char *config_json, const char *generation,
                         weft_remark_fn remark, void *arg,
                         weft_model_config *config, weft_err *err)
{
    const weft_config_texts texts = {config_json, strlen(config_json),
                                     generation,
                                     generation ? strlen(generation) : 0};
    return weft_model_config_parse(&texts, remark, arg, config, err);
}

/* Every word of `words` must be in `text`. */
static void expect_words(const char *text, const char *words, const char *what)
{
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        ck_assert_msg(strstr(text, word) != NULL, "%s: no \"%s\" in: %s", what,
                      word, text);
}

static const struct {
    const char *generation, *words; /* words NULL: accepted */
    int32_t n_stops, last;
} generations[] = {
    {"{\"eos_token_id\":[9,5]}", NULL, 3, 5}, /* config.json's come first */
    {"{\"eos_token_id\":7}", NULL, 2, 9},
    {"{\"eos_token_id\":null}", NULL, 2, 9},
    {"{\"temperature\":0.5}", NULL, 2, 9},
    {"{\"eos_token_id\":[97,1]}", NULL, 3, 1}, /* 97 is past the vocabulary */
    {"{\"do_sample\":true,\"min_p\":0.1,\"whatever\":{}}", NULL, 2, 9},
    {"{\"top_k\":\"many\"}", "top_k", 0, 0},
    {"{\"temperature\":-1}", "temperature", 0, 0},
    /* what no request could ask for is no default either */
    {"{\"temperature\":101}", "temperature 100", 0, 0},
    {"{\"repetition_penalty\":0.005}", "repetition_penalty 0.01", 0, 0},
    {"{\"repetition_penalty\":101}", "repetition_penalty 100", 0, 0},
    {"{\"top_p\":1.5}", "top_p", 0, 0},
    {"{\"repetition_penalty\":0}", "repetition_penalty", 0, 0},
    {"{\"eos_token_id\":\"x\"}", "eos_token_id", 0, 0},
    {"{\"eos_token_id\":[-1]}", "eos_token_id", 0, 0},
    {"{", "line", 0, 0},
    {"[]", "object", 0, 0},
};

static void generation_config_row(size_t row)
{
    char *const json = synth_config("dots3", "{\"eos_token_id\":[7,9]}");
    weft_err err = {0};
    weft_model_config config;
    const weft_status st =
        parse(json, generations[row].generation, NULL, NULL, &config, &err);
    if (generations[row].words == NULL) {
        ck_assert_msg(st == WEFT_OK, "%s", err.text);
        ck_assert_int_eq(config.n_stop_ids, generations[row].n_stops);
        ck_assert_int_eq(config.stop_ids[config.n_stop_ids - 1],
                         generations[row].last);
    } else {
        ck_assert_int_ne(st, WEFT_OK);
        expect_words(err.text, "generation_config.json", "generation");
        expect_words(err.text, generations[row].words, "generation");
    }
    weft_mem_free(json);
}

START_TEST(generation_config)
{
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
        generation_config_row(i);
}
END_TEST

START_TEST(sampling_values)
{
    char *const json = synth_config("dots3", NULL);
    weft_model_config c;
    ck_assert_int_eq(parse(json, NULL, NULL, NULL, &c, NULL), WEFT_OK);
    ck_assert(isnan(c.temperature) && isnan(c.top_p) &&
              isnan(c.repetition_penalty));
    ck_assert_int_eq(c.top_k_sampling, -1);
    ck_assert_int_eq(parse(json,
                           "{\"temperature\":0.5,\"top_p\":0.25,\"top_k\":20,"
                           "\"repetition_penalty\":1.5}",
                           NULL, NULL, &c, NULL),
                     WEFT_OK);
    ck_assert(c.temperature == 0.5F && c.top_p == 0.25F &&
              c.repetition_penalty == 1.5F && c.top_k_sampling == 20);
    weft_mem_free(json);
}
END_TEST

START_TEST(files)
{
    char dir[64];
    weft_err err = {0};
    weft_model_config config;
    synth_folder_make(dir);
    ck_assert_int_eq(weft_model_config_read(dir, NULL, NULL, &config, &err),
                     WEFT_NOT_FOUND);
    expect_words(err.text, dir, "the folder");
    expect_words(err.text, "config.json", "no file");
    char *const json = synth_config("dots3", NULL);
    synth_file_write(dir, "config.json", json, (int64_t)strlen(json));
    err = (weft_err){0};
    ck_assert_int_eq(weft_model_config_read(dir, NULL, NULL, &config, &err),
                     WEFT_OK);
    ck_assert_int_eq(err.status, WEFT_OK);
    synth_file_write(dir, "generation_config.json", "{\"top_p\":2}", 11);
    ck_assert_int_eq(weft_model_config_read(dir, NULL, NULL, &config, &err),
                     WEFT_INVALID_ARGUMENT);
    expect_words(err.text, "generation_config.json top_p", "generation");
    weft_mem_free(json);
    synth_folder_remove(dir);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {generation_config, sampling_values, files};
    return WEFT_SUITE_RUN("model/config_generation", tests);
}
