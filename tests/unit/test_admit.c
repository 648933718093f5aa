/* Admission against a table: each field at its edges, what a refusal says, and
 * what an accepted request has become. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "router/admit.h"
#include "tests/support/suite.h"

enum { VOCAB = 300, CONTEXT = 64, N_PROMPT = 12, FIELD_BYTES = 512 };

static const uint32_t PROMPT[N_PROMPT] = {5,  6,  7, 8, 9, 10,
                                          11, 12, 1, 2, 3, 4};
static const int32_t MODEL_STOPS[] = {298, 299};
static const int32_t SUPPRESSED[] = {290};

static const weft_admit_limits LIMITS = {
    .vocab_size = VOCAB,
    .max_context = CONTEXT,
    .stop_ids = MODEL_STOPS,
    .n_stop_ids = 2,
    .suppressed_ids = SUPPRESSED,
    .n_suppressed_ids = 1,
    .temperature = 0.7F,
    .top_p = 0.95F,
    .top_k = 40,
    .repetition_penalty = 1.1F,
};

static weft_request plain(void)
{
    return (weft_request){
        .request_id = {"an-id", 5},
        .has_ids = true,
        .ids = PROMPT,
        .n_ids = N_PROMPT,
        .stream = true,
        .deadline_ns = UINT64_MAX,
        .max_tokens = {true, 8},
    };
}

static weft_arena *new_arena(void)
{
    weft_arena *arena = NULL;
    ck_assert_int_eq(weft_arena_create(WEFT_REQUEST_ARENA_MAX, &arena, NULL),
                     WEFT_OK);
    return arena;
}

/* The admitted request points into *arena_out. */
static weft_admitted accept(const weft_admit_limits *limits,
                            const weft_request *request, weft_arena **arena_out)
{
    weft_admitted a;
    weft_err err = {0};
    *arena_out = new_arena();
    ck_assert_msg(weft_admit_request(limits, request, *arena_out, &a, &err) ==
                      WEFT_OK,
                  "%s", err.text);
    return a;
}

/* -- one scalar at a time ------------------------------------------------- */

typedef struct scalar_case {
    const char *field;
    double value;
    weft_status status;
    const char *says; /* NULL: not looked at */
} scalar_case;

static void set_scalar(weft_request *r, const char *field, double value)
{
    const struct {
        const char *name;
        weft_opt_f32 *place;
    } reals[] = {
        {"temperature", &r->temperature},
        {"top_p", &r->top_p},
        {"min_p", &r->min_p},
        {"frequency_penalty", &r->frequency_penalty},
        {"presence_penalty", &r->presence_penalty},
        {"repetition_penalty", &r->repetition_penalty},
    };
    const struct {
        const char *name;
        weft_opt_u32 *place;
    } counts[] = {
        {"top_k", &r->top_k},
        {"max_tokens", &r->max_tokens},
        {"min_tokens", &r->min_tokens},
        {"n", &r->n},
        {"logprobs", &r->logprobs},
        {"prompt_logprobs", &r->prompt_logprobs},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if (strcmp(field, reals[i].name) == 0) {
            *reals[i].place = (weft_opt_f32){true, (float)value};
            return;
        }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(field, counts[i].name) == 0) {
            *counts[i].place = (weft_opt_u32){true, (uint32_t)value};
            return;
        }
    ck_abort_msg("no field %s", field);
}

#define NO WEFT_INVALID_ARGUMENT
static const scalar_case SCALARS[] = {
    {"temperature", NAN, NO, "nan"},
    {"temperature", INFINITY, NO, "inf"},
    {"temperature", -1.0, NO, "-1"},
    {"temperature", -1e-6, NO, NULL},
    {"temperature", 1e30, NO, "100"},
    {"temperature", 1e-45, NO, NULL},
    {"temperature", 1e-6, WEFT_OK, NULL},
    {"temperature", -0.0, WEFT_OK, NULL},
    {"temperature", 100.0, WEFT_OK, NULL},
    {"top_p", NAN, NO, NULL},
    {"top_p", -1.0, NO, NULL},
    {"top_p", -1e-6, NO, NULL},
    {"top_p", 1.0001, NO, "0 to 1"},
    {"top_p", 0.0, WEFT_OK, NULL},
    {"top_p", 1.0, WEFT_OK, NULL},
    {"min_p", NAN, NO, NULL},
    {"min_p", -1.0, NO, NULL},
    {"min_p", 1.0001, NO, NULL},
    {"min_p", 1.0, WEFT_OK, NULL},
    {"frequency_penalty", NAN, NO, NULL},
    {"frequency_penalty", 1e30, NO, NULL},
    {"frequency_penalty", -2.0, WEFT_OK, NULL},
    {"frequency_penalty", 2.0, WEFT_OK, NULL},
    {"presence_penalty", INFINITY, NO, NULL},
    {"presence_penalty", -2.5, NO, "-2 to 2"},
    {"presence_penalty", 2.0, WEFT_OK, NULL},
    {"repetition_penalty", NAN, NO, NULL},
    {"repetition_penalty", 0.0, NO, NULL},
    {"repetition_penalty", 1e30, NO, NULL},
    {"repetition_penalty", 1.3, WEFT_OK, NULL},
    {"max_tokens", 0, NO, "1 to 63"},
    {"max_tokens", 1, WEFT_OK, NULL},
    {"max_tokens", CONTEXT - N_PROMPT, WEFT_OK, NULL},
    {"max_tokens", CONTEXT - N_PROMPT + 1, NO, "52"},
    {"max_tokens", 2147483647.0, NO, "2147483647"},
    {"max_tokens", 4294967295.0, NO, "4294967295"},
    {"min_tokens", 0, WEFT_OK, NULL},
    {"min_tokens", 8, WEFT_OK, NULL},
    {"min_tokens", 9, NO, "0 to 8"},
    {"min_tokens", 4294967295.0, NO, NULL},
    {"top_k", 1, WEFT_OK, NULL},
    {"top_k", 4294967295.0, WEFT_OK, NULL},
    {"n", 0, NO, NULL},
    {"n", 1, WEFT_OK, NULL},
    {"n", 2, WEFT_UNIMPLEMENTED, "2"},
    {"n", 129, NO, NULL},
    {"n", 4294967295.0, NO, NULL},
    {"logprobs", 0, WEFT_OK, NULL},
    {"logprobs", VOCAB, WEFT_OK, NULL},
    {"logprobs", VOCAB + 1, NO, "300"},
    {"logprobs", 4294967295.0, NO, NULL},
    {"prompt_logprobs", VOCAB, WEFT_OK, NULL},
    {"prompt_logprobs", 2147483648.0, NO, NULL},
};

/* One line that names the field and tells something of the value or range. */
static void check_refusal(const weft_err *err, const char *field,
                          const char *says)
{
    ck_assert_msg(strstr(err->text, field) != NULL, "%s is not named: %s",
                  field, err->text);
    ck_assert_ptr_null(strchr(err->text, '\n'));
    ck_assert_uint_gt(strlen(err->text), strlen(field) + 8);
    if (says != NULL)
        ck_assert_msg(strstr(err->text, says) != NULL, "\"%s\" not in: %s",
                      says, err->text);
}

static void refuse(const weft_admit_limits *limits, const weft_request *request,
                   weft_status status, const char *field, const char *says)
{
    weft_arena *const arena = new_arena();
    weft_err err = {0};
    weft_admitted a;
    const weft_status st = weft_admit_request(limits, request, arena, &a, &err);
    ck_assert_msg(st == status, "%s: %s, \"%s\"", field, weft_status_name(st),
                  err.text);
    if (status != WEFT_OK) check_refusal(&err, field, says);
    weft_arena_destroy(arena);
}

START_TEST(scalars)
{
    for (size_t i = 0; i < sizeof SCALARS / sizeof SCALARS[0]; i++) {
        const scalar_case *const c = &SCALARS[i];
        weft_request r = plain();
        set_scalar(&r, c->field, c->value);
        refuse(&LIMITS, &r, c->status, c->field, c->says);
    }
}
END_TEST

/* -- prompts -------------------------------------------------------------- */

START_TEST(prompts)
{
    uint32_t ids[400] = {0};
    weft_request r = plain();
    r.has_ids = false;
    refuse(&LIMITS, &r, NO, "prompt", "none");
    r.has_ids = r.has_text = true;
    refuse(&LIMITS, &r, NO, "prompt", "both");
    r = plain();
    r.n_ids = 0;
    refuse(&LIMITS, &r, NO, "prompt", "1 to 63");
    r.ids = ids;
    r.max_tokens.set = false;
    for (size_t n = CONTEXT - 1; n <= CONTEXT + 1; n++) {
        r.n_ids = n;
        refuse(&LIMITS, &r, n < CONTEXT ? WEFT_OK : NO, "prompt", "64");
    }
    r.n_ids = CONTEXT - 1;
    r.max_tokens = (weft_opt_u32){true, 2};
    refuse(&LIMITS, &r, NO, "max_tokens", "1 to 1");
    r.n_ids = 400;
    refuse(&LIMITS, &r, NO, "prompt", "400");

    /* More tokens than the context leaves, where max_tokens is not set. */
    r = plain();
    r.max_tokens.set = false;
    r.min_tokens = (weft_opt_u32){true, CONTEXT - N_PROMPT};
    refuse(&LIMITS, &r, WEFT_OK, "min_tokens", NULL);
    r.min_tokens.value++;
    refuse(&LIMITS, &r, NO, "min_tokens", "0 to 52");
}
END_TEST

START_TEST(prompt_ids)
{
    static const struct {
        uint32_t id;
        weft_status status;
        const char *says;
    } cases[] = {
        {VOCAB - 1, WEFT_OK, NULL},     {VOCAB, NO, "300"},
        {0x7FFFFFFF, NO, "2147483647"}, {0x80000000, NO, "2147483648"},
        {UINT32_MAX, NO, "4294967295"}, {290, NO, "290"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t place = 0; place < 4; place += 3) {
            uint32_t ids[4] = {1, 2, 3, 4};
            weft_request r = plain();
            ids[place] = cases[i].id;
            r.ids = ids;
            r.n_ids = 4;
            refuse(&LIMITS, &r, cases[i].status, "prompt token", cases[i].says);
        }
}
END_TEST

/* -- stops and bias ------------------------------------------------------- */

START_TEST(stop_strings)
{
    weft_tokenizer *tokenizer = NULL;
    ck_assert_int_eq(weft_tokenizer_read("tests/data/tiny-model/tokenizer.json",
                                         1 << 20, &tokenizer, NULL),
                     WEFT_OK);
    weft_admit_limits limits = LIMITS;
    static char long_stop[WEFT_REQUEST_STOP_BYTES_MAX + 1];
    memset(long_stop, 'x', sizeof long_stop);
    weft_span stops[WEFT_REQUEST_STOPS_MAX + 1];
    for (int i = 0; i <= WEFT_REQUEST_STOPS_MAX; i++)
        stops[i] = (weft_span){"a", 1};
    weft_request r = plain();
    r.stop = stops;
    r.n_stop = 1;
    refuse(&limits, &r, NO, "stop", "tokenizer");
    limits.tokenizer = tokenizer;
    refuse(&limits, &r, WEFT_OK, "stop", NULL);
    r.n_stop = WEFT_REQUEST_STOPS_MAX;
    refuse(&limits, &r, WEFT_OK, "stop", NULL);
    r.n_stop++;
    refuse(&limits, &r, NO, "stop", "65");
    r.n_stop = 1;
    const weft_span bad[] = {
        {"", 0},     {long_stop, sizeof long_stop}, {"\xFF", 1}, {"ab\xC3", 3},
        {"a\0b", 3},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        stops[0] = bad[i];
        refuse(&limits, &r, NO, "stop[0]", NULL);
    }
    stops[0] = (weft_span){long_stop, sizeof long_stop - 1};
    refuse(&limits, &r, WEFT_OK, "stop", NULL);
    weft_tokenizer_destroy(tokenizer);
}
END_TEST

static void check_ids(weft_job job, const int32_t *ids, int32_t n)
{
    ck_assert_int_eq(job.n_stop_ids, n);
    for (int32_t i = 0; i < n; i++) ck_assert_int_eq(job.stop_ids[i], ids[i]);
}

START_TEST(stop_ids)
{
    static uint32_t many[WEFT_REQUEST_STOP_IDS_MAX + 1];
    const uint32_t own[] = {7, 298, 7, 9};
    weft_arena *arena = NULL;
    weft_request r = plain();
    check_ids(accept(&LIMITS, &r, &arena).job, MODEL_STOPS, 2);
    weft_arena_destroy(arena);
    r.stop_token_ids = own;
    r.n_stop_token_ids = 4;
    check_ids(accept(&LIMITS, &r, &arena).job, (int32_t[]){298, 299, 7, 9}, 4);
    weft_arena_destroy(arena);
    r.ignore_eos = (weft_opt_bool){true, true};
    check_ids(accept(&LIMITS, &r, &arena).job, (int32_t[]){7, 298, 9}, 3);
    weft_arena_destroy(arena);
    r.n_stop_token_ids = 0;
    check_ids(accept(&LIMITS, &r, &arena).job, NULL, 0);
    weft_arena_destroy(arena);

    r.stop_token_ids = many;
    r.n_stop_token_ids = WEFT_REQUEST_STOP_IDS_MAX + 1;
    refuse(&LIMITS, &r, NO, "stop_token_ids", "1024");
    r.n_stop_token_ids = 1;
    many[0] = UINT32_MAX;
    refuse(&LIMITS, &r, NO, "stop_token_ids", "4294967295");
}
END_TEST

START_TEST(bias)
{
    static const struct {
        int32_t id;
        float value;
        weft_status status;
    } cases[] = {
        {0, 100.0F, WEFT_OK},  {VOCAB - 1, -100.0F, WEFT_OK},
        {VOCAB, 1.0F, NO},     {-1, 1.0F, NO},
        {INT32_MAX, 1.0F, NO}, {1, NAN, NO},
        {1, INFINITY, NO},     {1, -INFINITY, NO},
        {1, 100.5F, NO},       {1, -101.0F, NO},
    };
    weft_request r = plain();
    r.n_bias = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r.bias_ids = &cases[i].id;
        r.bias = &cases[i].value;
        refuse(&LIMITS, &r, cases[i].status, "logit_bias", NULL);
    }
    r.n_bias = WEFT_BIAS_MAX + 1;
    refuse(&LIMITS, &r, NO, "logit_bias", "1025");

    /* Of two with one id, the later one. */
    const int32_t ids[] = {9, 3, 9, 5, 3};
    const float values[] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
    r.n_bias = 5;
    r.bias_ids = ids;
    r.bias = values;
    weft_arena *arena = NULL;
    const weft_admitted a = accept(&LIMITS, &r, &arena);
    ck_assert_int_eq(a.job.sampling.n_bias, 3);
    ck_assert(a.job.sampling.bias_ids[0] == 3 &&
              a.job.sampling.bias[0] == 5.0F);
    ck_assert(a.job.sampling.bias_ids[1] == 5 &&
              a.job.sampling.bias[1] == 4.0F);
    ck_assert(a.job.sampling.bias_ids[2] == 9 &&
              a.job.sampling.bias[2] == 3.0F);
    weft_arena_destroy(arena);
}
END_TEST

/* -- what is not set ------------------------------------------------------ */

START_TEST(defaults)
{
    weft_arena *arena = NULL;
    weft_request r = plain();
    r.max_tokens.set = false;
    weft_admitted a = accept(&LIMITS, &r, &arena);
    const weft_sampling *const s = &a.job.sampling;
    ck_assert(s->temperature == 0.7F && s->top_p == 0.95F && s->top_k == 40);
    ck_assert(s->repetition_penalty == 1.1F && s->min_p == 0.0F);
    ck_assert(s->frequency_penalty == 0.0F && s->presence_penalty == 0.0F);
    ck_assert_int_eq(a.job.max_tokens, CONTEXT - N_PROMPT);
    ck_assert_int_eq(a.job.min_tokens, 0);
    ck_assert_int_eq(a.job.logprobs, -1);
    ck_assert_int_eq(a.job.prompt_logprobs, -1);
    ck_assert(a.skip_special_tokens && !a.include_stop_str && a.stream);
    ck_assert_int_eq(a.job.n_prompt, N_PROMPT);
    ck_assert_int_eq(a.job.n_tokens, N_PROMPT);
    for (int i = 0; i < N_PROMPT; i++)
        ck_assert_int_eq(a.job.tokens[i], (int32_t)PROMPT[i]);
    weft_arena_destroy(arena);

    /* Set to zero is not unset. */
    r.temperature = (weft_opt_f32){true, -0.0F};
    r.top_k = (weft_opt_u32){true, 0};
    r.skip_special_tokens = (weft_opt_bool){true, false};
    a = accept(&LIMITS, &r, &arena);
    ck_assert(a.job.sampling.temperature == 0.0F &&
              !signbit(a.job.sampling.temperature));
    ck_assert_uint_eq(a.job.sampling.top_k, 0);
    ck_assert(!a.skip_special_tokens);
    weft_arena_destroy(arena);

    /* The whole vocabulary is no filter. */
    r.top_k = (weft_opt_u32){true, VOCAB};
    a = accept(&LIMITS, &r, &arena);
    ck_assert_uint_eq(a.job.sampling.top_k, 0);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(max_tokens_default_is_4096)
{
    weft_admit_limits limits = LIMITS;
    limits.max_context = 100000;
    weft_request r = plain();
    r.max_tokens.set = false;
    weft_arena *arena = NULL;
    const weft_admitted a = accept(&limits, &r, &arena);
    ck_assert_int_eq(a.job.max_tokens, 4096);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(ids_and_seeds)
{
    weft_arena *arenas[5];
    weft_request r = plain();
    const weft_admitted first = accept(&LIMITS, &r, &arenas[0]);
    const weft_admitted again = accept(&LIMITS, &r, &arenas[1]);
    ck_assert_uint_eq(first.job.sampling.seed, again.job.sampling.seed);
    r.request_id = (weft_span){NULL, 0};
    r.serial = 1;
    const weft_admitted one = accept(&LIMITS, &r, &arenas[2]);
    r.serial = 2;
    const weft_admitted two = accept(&LIMITS, &r, &arenas[3]);
    ck_assert_uint_ne(one.job.sampling.seed, two.job.sampling.seed);
    ck_assert_uint_gt(one.request_id.n, 0);
    ck_assert_str_ne(one.request_id.data, two.request_id.data);
    r.seed = (weft_opt_u64){true, 0};
    ck_assert_uint_eq(accept(&LIMITS, &r, &arenas[4]).job.sampling.seed, 0);
    for (int i = 0; i < 5; i++) weft_arena_destroy(arenas[i]);

    static char long_id[WEFT_REQUEST_ID_BYTES_MAX + 1];
    memset(long_id, 'x', sizeof long_id);
    r.request_id = (weft_span){long_id, sizeof long_id};
    refuse(&LIMITS, &r, NO, "request_id", "256");
    r.request_id = (weft_span){"\xED\xA0\x80", 3};
    refuse(&LIMITS, &r, NO, "request_id", "UTF-8");
}
END_TEST

START_TEST(logprobs_that_no_memory_holds)
{
    weft_admit_limits limits = LIMITS;
    limits.max_context = 1 << 20;
    limits.vocab_size = 100000;
    weft_request r = plain();
    r.max_tokens = (weft_opt_u32){true, 500000};
    r.logprobs = (weft_opt_u32){true, 512};
    refuse(&limits, &r, NO, "logprobs", "500000");
    r.logprobs = (weft_opt_u32){true, 4};
    refuse(&limits, &r, WEFT_OK, "logprobs", NULL);
}
END_TEST

/* -- text ----------------------------------------------------------------- */

START_TEST(text_prompts)
{
    weft_tokenizer *tokenizer = NULL;
    weft_request r = plain();
    r.has_ids = false;
    r.has_text = true;
    r.text = (weft_span){"hello", 5};
    refuse(&LIMITS, &r, NO, "text", "tokenizer");
    ck_assert_int_eq(weft_tokenizer_read("tests/data/tiny-model/tokenizer.json",
                                         1 << 20, &tokenizer, NULL),
                     WEFT_OK);
    weft_admit_limits limits = LIMITS;
    limits.tokenizer = tokenizer;
    refuse(&limits, &r, WEFT_OK, "text", NULL);
    r.text = (weft_span){"\xC0\x80", 2};
    refuse(&limits, &r, NO, "text", "UTF-8");
    r.text = (weft_span){"", 0};
    refuse(&limits, &r, NO, "text", NULL);
    const size_t n = 1 << 20;
    char *const huge = weft_mem_new(n, 1);
    memset(huge, 'a', n);
    r.text = (weft_span){huge, n};
    refuse(&limits, &r, NO, "text", "1048576");
    weft_mem_free(huge);

    /* The second step holds the ids to the same rules. */
    r.text = (weft_span){"hello", 5};
    r.max_tokens = (weft_opt_u32){true, 60};
    weft_arena *arena = NULL;
    weft_admitted a = accept(&limits, &r, &arena);
    ck_assert_ptr_null(a.tokens);
    weft_err err = {0};
    ck_assert_int_eq(weft_admit_prompt(&limits, PROMPT, 5, arena, &a, &err),
                     NO);
    check_refusal(&err, "max_tokens", "1 to 59");
    ck_assert_ptr_null(a.tokens);
    ck_assert_int_eq(weft_admit_prompt(&limits, PROMPT, 4, arena, &a, &err),
                     WEFT_OK);
    ck_assert_int_eq(a.job.n_prompt, 4);
    weft_arena_destroy(arena);
    weft_tokenizer_destroy(tokenizer);
}
END_TEST

/* -- memory --------------------------------------------------------------- */

START_TEST(survives_every_allocation_failure)
{
    static const uint32_t own[] = {7};
    static const int32_t bias_ids[] = {3};
    static const float bias_values[] = {1.0F};
    weft_request r = plain();
    r.stop_token_ids = own;
    r.n_stop_token_ids = 1;
    r.bias_ids = bias_ids;
    r.bias = bias_values;
    r.n_bias = 1;
    r.max_tokens = (weft_opt_u32){true, 52};
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    int failures = 0;
    for (; st != WEFT_OK; failures += st != WEFT_OK) {
        weft_admitted a;
        weft_err err = {0};
        weft_arena *const arena = new_arena();
        ck_assert_int_lt(failures, 100);
        weft_mem_fail_after(failures);
        st = weft_admit_request(&LIMITS, &r, arena, &a, &err);
        weft_mem_fail_after(-1);
        if (st != WEFT_OK) {
            ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
            ck_assert_ptr_nonnull(strstr(err.text, "out of memory"));
        }
        weft_arena_destroy(arena);
    }
    ck_assert_int_ge(failures, 1);
}
END_TEST

/* Each piece is refused when the arena has no room for it, by name. */
START_TEST(arena_limit_is_told)
{
    weft_request r = plain();
    for (size_t room = 0; room < 400; room += 16) {
        weft_arena *arena = NULL;
        weft_admitted a;
        weft_err err = {0};
        ck_assert_int_eq(weft_arena_create(room, &arena, NULL), WEFT_OK);
        const weft_status st = weft_admit_request(&LIMITS, &r, arena, &a, &err);
        if (st != WEFT_OK) {
            ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
            ck_assert_ptr_nonnull(strstr(err.text, "bytes that one may hold"));
        }
        ck_assert(room >= 16 + 80 || st != WEFT_OK);
        weft_arena_destroy(arena);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        scalars,
        prompts,
        prompt_ids,
        stop_strings,
        stop_ids,
        bias,
        defaults,
        max_tokens_default_is_4096,
        ids_and_seeds,
        logprobs_that_no_memory_holds,
        text_prompts,
        survives_every_allocation_failure,
        arena_limit_is_told,
    };
    return WEFT_SUITE_RUN("admit", tests);
}
