/* The configs of model-spec 8.4 on synthetic checkpoints: logits of all rows
 * against that document's fp64 reference (tests/data/spec), thresholds from
 * both sides, FP8, one sequence in pieces, ties. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"
#include "tests/support/crowd.h"
#include "tests/support/spec.h"
#include "tests/support/suite.h"

enum {
    N = SPEC_TOKENS,
    VOCAB = SPEC_VOCAB,
    LAST = (N - 1) * VOCAB, /* where the logits of the last row begin */
    TOP_K = 3,
    INDEX_K = 7
};

/* -- the goldens themselves ------------------------------------------------ */

static const struct {
    const char *name;
    double first[4], l2;
    int32_t argmax[N];
} TABLE[] = {
    {"T01",
     {-1.050060268, 0.710428493, 0.611289922, 2.275991113},
     48.185561833,
     {17, 88, 84, 86, 38, 38, 19, 31, 18, 1, 87,
      31, 38, 34, 42, 80, 93, 24, 37, 94, 3}},
    {"T02",
     {-1.253727765, 1.257563584, 0.058069632, 1.619930302},
     47.655090493,
     {17, 88, 84, 86, 38, 19, 19, 31, 61, 74, 13,
      26, 35, 8,  39, 60, 26, 85, 31, 55, 23}},
    {"T05a",
     {-2.217535916, 0.310261819, -1.492946413, 1.347897608},
     47.711618347,
     {17, 88, 84, 86, 38, 19, 19, 72, 35, 74, 73,
      46, 19, 17, 88, 54, 76, 49, 50, 79, 85}},
    {"T05b",
     {-0.265107926, 0.093506238, 0.471599132, 0.954413912},
     48.122567845,
     {17, 88, 84, 86, 38, 19, 19, 31, 81, 31, 28,
      26, 17, 46, 61, 18, 11, 86, 52, 59, 82}},
    {"T06",
     {-0.702381525, 0.122651996, 0.797606139, 1.121664168},
     46.294697919,
     {37, 47, 2,  93, 2,  11, 19, 60, 55, 33, 17,
      31, 48, 15, 61, 20, 81, 37, 15, 12, 86}},
    {"T07",
     {-0.395937529, 0.244909745, 2.442927809, 1.463909128},
     49.097794013,
     {17, 46, 2, 57, 76, 95, 19, 60, 60, 74, 65,
      5,  31, 2, 12, 70, 94, 77, 37, 3,  45}},
    {"T08",
     {-0.237177006, 0.590377096, -0.607811939, 2.209508310},
     46.830161648,
     {5,  40, 82, 5,  79, 11, 57, 4,  60, 88, 14,
      62, 10, 8,  26, 73, 47, 45, 52, 30, 54}},
    {"T10",
     {0.422704228, -1.429568706, 1.746246446, 0.856461345},
     47.926648001,
     {95, 95, 94, 95, 49, 37, 79, 95, 35, 69, 35,
      60, 25, 20, 29, 94, 81, 49, 85, 35, 36}},
    {"T11",
     {0.284246931, -0.560427108, 1.035441185, 1.234481908},
     45.874652325,
     {48, 88, 82, 42, 53, 37, 5,  76, 15, 95, 47,
      44, 92, 35, 43, 86, 91, 86, 33, 12, 30}},
    {"T12",
     {-0.230114599, -0.982157362, 1.350178688, 1.008927651},
     47.552543418,
     {43, 95, 2,  43, 35, 77, 44, 47, 55, 62, 83,
      60, 29, 92, 70, 43, 29, 49, 73, 80, 88}},
};
enum { N_TABLE = sizeof TABLE / sizeof TABLE[0] };

/* What the document prints, against the file that was made from it. */
START_TEST(goldens_are_those_of_the_document)
{
    for (int32_t i = 0; i < N_TABLE; i++) {
        const golden_tensor t = spec_golden(TABLE[i].name);
        const double *const last = t.values + LAST;
        double sum = 0.0;
        for (int64_t j = 0; j < t.n; j++) sum += t.values[j] * t.values[j];
        ck_assert_double_eq_tol(sqrt(sum), TABLE[i].l2, 1e-9);
        for (int32_t j = 0; j < 4; j++)
            ck_assert_double_eq_tol(last[j], TABLE[i].first[j], 1e-9);
        for (int32_t r = 0; r < N; r++)
            ck_assert_int_eq(spec_largest(t.values + (int64_t)r * VOCAB),
                             TABLE[i].argmax[r]);
        free(t.values);
    }
}
END_TEST

START_TEST(every_config_against_the_reference)
{
    const harness_run runs[] = {
        {0},
        {.chunk_tokens = 3, .page_tokens = 4, .threads = 2},
        {.decode_from = 1, .page_tokens = 1},
        {.cpu_path = "scalar", .chunk_tokens = 8},
    };
    int32_t ids[N];
    synth_prompt(ids, N);
    harness h = spec_open(TABLE[_i].name, NULL, NULL, WEFT_EXACT);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "run %zu", i);
        float *const logits = harness_logits(&h, ids, N, &runs[i]);
        spec_expect_golden(TABLE[_i].name, logits, what);
        weft_mem_free(logits);
    }
    harness_close(&h);
}
END_TEST

/* -- T03, T04: thresholds from both sides --------------------------------- */

static void threshold_edits(char out[64], const char *key, int32_t value)
{
    (void)snprintf(out, 64, "{\"%s\":%d}", key, (int)value);
}

static float *at_threshold(const char *key, const char *golden_prefix,
                           int32_t value)
{
    const harness_run run = {.chunk_tokens = 4, .page_tokens = 4};
    char more[64], name[32];
    threshold_edits(more, key, value);
    (void)snprintf(name, sizeof name, "%s_%d", golden_prefix, (int)value);
    float *const logits = spec_logits("T02", more, NULL, &run);
    spec_expect_golden(name, logits, more);
    return logits;
}

static void free_all(float **list, int32_t n)
{
    for (int32_t i = 0; i < n; i++) weft_mem_free(list[i]);
}

/* 21 tokens: windows of 21 and more see everything; 20 hides one key of the
 * last row alone. */
START_TEST(t03_windows)
{
    static const char key[] = "sliding_window_size";
    float *w[5];
    static const int32_t sizes[] = {1, 2, 20, 21, 22};
    for (int32_t i = 0; i < 5; i++) w[i] = at_threshold(key, "T03", sizes[i]);
    spec_expect_same(w[3], w[4], "windows 21 and 22");
    ck_assert_int_eq(spec_rows_that_differ(w[2], w[3]), 1);
    ck_assert(!same_bytes(w[2] + LAST, w[3] + LAST, VOCAB * sizeof(float)));
    ck_assert_int_eq(spec_rows_that_differ(w[0], w[1]), N - 1);

    int32_t ids[N];
    synth_prompt(ids, N);
    char more[64];
    threshold_edits(more, key, N);
    harness h = spec_open("T02", more, NULL, WEFT_EXACT);
    float *const with = harness_forward(&h, ids, N, NULL);
    h.config.window = 0;
    float *const without = harness_forward(&h, ids, N, NULL);
    spec_expect_same(with, without, "no window");
    spec_expect_same(with, w[3], "window of the sequence");
    weft_mem_free(with);
    weft_mem_free(without);
    harness_close(&h);
    free_all(w, 5);
}
END_TEST

START_TEST(t04_top_k)
{
    static const int32_t sizes[] = {1, 19, 20, 21, 22};
    const harness_run run = {.chunk_tokens = 4, .page_tokens = 4};
    float *k[5];
    for (int32_t i = 0; i < 5; i++)
        k[i] = at_threshold("index_topk", "T04", sizes[i]);
    float *const dense = spec_logits("T02", "{\"use_dsa\":false}", NULL, &run);
    spec_expect_same(k[3], dense, "top-k 21 and dense");
    spec_expect_same(k[4], dense, "top-k 22 and dense");
    ck_assert_int_eq(spec_rows_that_differ(k[2], dense), 1);
    ck_assert_int_eq(spec_rows_that_differ(k[1], dense), 2);
    weft_mem_free(dense);
    free_all(k, 5);
}
END_TEST

/* -- T05b: rope channels at the tail -------------------------------------- */

/* The last 16 of every 40 rows to the front, as the loader does. */
static void tail_first(void *arg, const char *key, double *values,
                       int64_t n_row, int64_t n_in)
{
    (void)arg;
    if (strstr(key, "indexer.") == NULL || strstr(key, "weights_proj") != NULL)
        return;
    const int64_t head = 40, rope = 16, n = n_row * n_in;
    const int64_t width = n_row == 1 ? 1 : n_in, rows = n / width;
    double *const old = weft_mem_new((size_t)n, sizeof *old);
    memcpy(old, values, (size_t)n * sizeof *old);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t from = r / head * head + (r % head + head - rope) % head;
        memcpy(values + r * width, old + from * width,
               (size_t)width * sizeof *old);
    }
    weft_mem_free(old);
}

START_TEST(t05b_tail_layout_is_permuted_at_load)
{
    const harness_run run = {0};
    const synth_options moved = {.edit = tail_first};
    float *const tail = spec_logits("T05b", NULL, NULL, &run);
    float *const leading = spec_logits("T02", NULL, &moved, &run);
    spec_expect_same(tail, leading, "tail layout and permuted rows");
    weft_mem_free(tail);
    weft_mem_free(leading);
}
END_TEST

/* -- T08: which layers have experts --------------------------------------- */

START_TEST(t08_patterns_of_layers)
{
    const harness_run run = {0};
    static const char *const same[] = {
        "{\"moe_layer_freq\":[0,0,1,0,1,0]}",
        "{\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"dense\","
        "\"sparse\",\"dense\"],\"moe_layer_freq\":\"absent\","
        "\"first_k_dense_replace\":\"absent\"}",
        "{\"n_shared_experts\":1,\"shared_experts_intermediate_size\":48}",
    };
    float *const want = spec_logits("T08", NULL, NULL, &run);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        float *const got = spec_logits("T08", same[i], NULL, &run);
        spec_expect_same(got, want, same[i]);
        weft_mem_free(got);
    }
    weft_mem_free(want);
}
END_TEST

/* -- T09: FP8 with ragged blocks ------------------------------------------ */

START_TEST(t09_fp8_is_its_dequantised_file)
{
    const harness_run run = {.chunk_tokens = 5, .page_tokens = 4};
    for (int32_t packed = 0; packed < 2; packed++) {
        const synth_options f8 = {.f8 = true, .packed = packed != 0};
        const synth_options wide = {.dequantised = true, .packed = packed != 0};
        static const char no_quant[] = "{\"quantization_config\":\"absent\"}";
        float *const a = spec_logits("T09", NULL, &f8, &run);
        float *const b = spec_logits("T09", no_quant, &wide, &run);
        spec_expect_same(a, b, packed ? "packed" : "each expert by itself");
        if (!packed) spec_expect_golden("T09", a, "FP8");
        weft_mem_free(a);
        weft_mem_free(b);
    }
}
END_TEST

/* -- T14: one sequence in pieces, and in company --------------------------- */

START_TEST(t14_in_pieces)
{
    int32_t ids[N];
    synth_prompt(ids, N);
    harness h = spec_open("T02", NULL, NULL, WEFT_EXACT);
    const harness_run plain = {0};
    const harness_run runs[] = {
        {.chunk_tokens = 1},
        {.chunk_tokens = 3},
        {.chunk_tokens = 5, .page_tokens = 2},
        {.decode_from = 1},
        {.decode_from = 1, .page_tokens = 1},
        {.decode_from = 9, .chunk_tokens = 4, .page_tokens = 3},
        {.cpu_path = "reference", .chunk_tokens = 5},
    };
    float *const want = harness_logits(&h, ids, N, &plain);
    spec_expect_golden("T02", want, "one prefill");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "run %zu", i);
        float *const got = harness_logits(&h, ids, N, &runs[i]);
        spec_expect_same(got, want, what);
        weft_mem_free(got);
    }
    weft_mem_free(want);
    harness_close(&h);
}
END_TEST

START_TEST(t14_two_sequences_interleaved)
{
    int32_t ids[2][N];
    synth_prompt(ids[0], N);
    for (int32_t i = 0; i < N; i++) ids[1][i] = (ids[0][i] * 5 + 1) % VOCAB;
    harness h = spec_open("T02", NULL, NULL, WEFT_EXACT);
    const harness_run run = {.chunk_tokens = 3, .page_tokens = 2};
    crowd_job alone[2], both[2];
    for (int32_t i = 0; i < 2; i++) {
        alone[i] = crowd_make(ids[i], N - i, 30);
        both[i] = crowd_make(ids[i], N - i, 30);
        (void)crowd_run(&h, &alone[i], 1, &run, 1);
    }
    ck_assert_int_eq(crowd_run(&h, both, 2, &run, 2), 0);
    /* The first token that comes is the golden's. */
    const golden_tensor want = spec_golden("T02");
    ck_assert_int_eq(both[0].tokens[N], spec_largest(want.values + LAST));
    free(want.values);
    for (int32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(both[i].n_tokens, N - i + 30);
        ck_assert_mem_eq(both[i].tokens, alone[i].tokens,
                         (size_t)both[i].n_tokens * sizeof(int32_t));
        ck_assert_mem_eq(both[i].logprobs, alone[i].logprobs,
                         30 * sizeof(float));
        crowd_free(&alone[i]);
        crowd_free(&both[i]);
    }
    harness_close(&h);
}
END_TEST

/* -- T15, T16: help to see an epsilon, and ties --------------------------- */

static void scale_index_keys(void *arg, const char *key, double *values,
                             int64_t n_row, int64_t n_in)
{
    const double *const by = arg;
    if (!spec_key_ends(key, "indexer.wk")) return;
    for (int64_t i = 0; i < n_row * n_in; i++) values[i] *= *by;
}

START_TEST(t15_epsilon_of_the_index_norm)
{
    double by = 1e-3;
    const harness_run run = {0};
    const synth_options small = {.edit = scale_index_keys, .edit_arg = &by};
    float *const logits = spec_logits("T02", NULL, &small, &run);
    spec_expect_golden("T15", logits, "small keys");
    weft_mem_free(logits);
}
END_TEST

static void zero_index_queries(void *arg, const char *key, double *values,
                               int64_t n_row, int64_t n_in)
{
    (void)arg;
    if (spec_key_ends(key, "indexer.wq_b"))
        memset(values, 0, (size_t)(n_row * n_in) * sizeof *values);
}

static void see_lowest_keys(void *arg, int32_t layer, int32_t n_rows,
                            int32_t *keys, int32_t stride, int32_t *n_keys)
{
    int32_t *const seen = arg;
    for (int32_t r = 0; r < n_rows; r++) {
        ck_assert_int_eq(n_keys[r], r + 1 < INDEX_K ? r + 1 : INDEX_K);
        for (int32_t i = 0; i < n_keys[r]; i++)
            ck_assert_msg(keys[(int64_t)r * stride + i] == i,
                          "layer %d row %d: key %d in place %d", layer, r,
                          keys[(int64_t)r * stride + i], i);
    }
    ++*seen;
}

START_TEST(t16a_equal_scores_take_the_lowest_positions)
{
    int32_t ids[N], seen = 0;
    synth_prompt(ids, N);
    const synth_options zero = {.edit = zero_index_queries};
    const weft_forward_hooks hooks = {.arg = &seen, .select = see_lowest_keys};
    harness h = spec_open("T02", NULL, &zero, WEFT_EXACT);
    float *const logits = harness_forward(&h, ids, N, &hooks);
    spec_expect_golden("T16a", logits, "all scores zero");
    ck_assert_int_eq(seen, 3);
    weft_mem_free(logits);
    harness_close(&h);
}
END_TEST

enum { TWIN_LOW = 2, TWIN_HIGH = 5 };

static void twin_experts(void *arg, const char *key, double *values,
                         int64_t n_row, int64_t n_in)
{
    (void)arg, (void)n_row;
    if (spec_key_ends(key, "mlp.bias")) values[TWIN_HIGH] = values[TWIN_LOW];
    if (spec_key_ends(key, "mlp.gate"))
        memcpy(values + TWIN_HIGH * n_in, values + TWIN_LOW * n_in,
               (size_t)n_in * sizeof *values);
}

static void see_twins(void *arg, int32_t layer, int32_t n_rows,
                      int32_t *experts, float *weights)
{
    int32_t *const cuts = arg;
    (void)weights;
    for (int32_t r = 0; r < n_rows; r++) {
        int32_t low = TOP_K, high = TOP_K;
        for (int32_t s = 0; s < TOP_K; s++) {
            if (experts[r * TOP_K + s] == TWIN_LOW) low = s;
            if (experts[r * TOP_K + s] == TWIN_HIGH) high = s;
        }
        ck_assert_msg(
            low == TOP_K ? high == TOP_K : high == TOP_K || high == low + 1,
            "layer %d row %d: twins in slots %d and %d", layer, r, low, high);
        *cuts += low < TOP_K && high == TOP_K;
    }
}

START_TEST(t16b_equal_experts_take_the_lowest)
{
    int32_t ids[N], cuts = 0;
    synth_prompt(ids, N);
    const synth_options twins = {.edit = twin_experts};
    const weft_forward_hooks hooks = {.arg = &cuts, .route = see_twins};
    harness h = spec_open("T02", NULL, &twins, WEFT_EXACT);
    float *const logits = harness_forward(&h, ids, N, &hooks);
    spec_expect_golden("T16b", logits, "twin experts");
    ck_assert_msg(cuts > 0, "the twins are never at the cut");
    weft_mem_free(logits);
    harness_close(&h);
}
END_TEST

static void negative_index_weights(void *arg, const char *key, double *values,
                                   int64_t n_row, int64_t n_in)
{
    (void)arg;
    if (!spec_key_ends(key, "weights_proj")) return;
    for (int64_t i = 0; i < n_row * n_in; i++) values[i] = -fabs(values[i]);
}

START_TEST(t16c_zeros_beat_negative_scores)
{
    const harness_run run = {0};
    const synth_options negative = {.edit = negative_index_weights};
    float *const logits = spec_logits("T02", NULL, &negative, &run);
    spec_expect_golden("T16c", logits, "negative weights");
    weft_mem_free(logits);
}
END_TEST

/* -- T02: spot checks of the document ------------------------------------- */

static void see_spot_keys(void *arg, int32_t layer, int32_t n_rows,
                          int32_t *keys, int32_t stride, int32_t *n_keys)
{
    static const int32_t first[] = {6, 8, 9, 10, 16, 17, 18};
    static const int32_t last[] = {2, 6, 11, 12, 14, 16, 18};
    int32_t *const seen = arg;
    ck_assert_int_eq(n_rows, N);
    ck_assert_int_eq(n_keys[N - 1], INDEX_K);
    if (layer != 0 && layer != 5) return;
    ck_assert_mem_eq(keys + (int64_t)(N - 1) * stride,
                     layer == 0 ? first : last, sizeof first);
    ++*seen;
}

static void see_spot_experts(void *arg, int32_t layer, int32_t n_rows,
                             int32_t *experts, float *weights)
{
    static const int32_t want[TOP_K] = {6, 3, 1};
    int32_t *const seen = arg;
    const float *const w = weights + (int64_t)(n_rows - 1) * TOP_K;
    ck_assert_float_eq_tol(w[0] + w[1] + w[2], 1.0F, 1e-6F);
    if (layer != 1) return;
    for (int32_t k = 0; k < TOP_K; k++)
        ck_assert_int_eq(experts[(int64_t)(n_rows - 1) * TOP_K + k], want[k]);
    ++*seen;
}

START_TEST(t02_choices_of_the_document)
{
    int32_t ids[N], seen = 0;
    synth_prompt(ids, N);
    const weft_forward_hooks hooks = {
        .arg = &seen, .select = see_spot_keys, .route = see_spot_experts};
    harness h = spec_open("T02", NULL, NULL, WEFT_EXACT);
    float *const logits = harness_forward(&h, ids, N, &hooks);
    ck_assert_int_eq(seen, 3);
    weft_mem_free(logits);
    harness_close(&h);
}
END_TEST

static void add_tests(TCase *t)
{
    tcase_add_test(t, goldens_are_those_of_the_document);
    tcase_add_loop_test(t, every_config_against_the_reference, 0, N_TABLE);
    tcase_add_test(t, t02_choices_of_the_document);
    tcase_add_test(t, t03_windows);
    tcase_add_test(t, t04_top_k);
    tcase_add_test(t, t05b_tail_layout_is_permuted_at_load);
    tcase_add_test(t, t08_patterns_of_layers);
    tcase_add_test(t, t09_fp8_is_its_dequantised_file);
    tcase_add_test(t, t14_in_pieces);
    tcase_add_test(t, t14_two_sequences_interleaved);
    tcase_add_test(t, t15_epsilon_of_the_index_norm);
    tcase_add_test(t, t16a_equal_scores_take_the_lowest_positions);
    tcase_add_test(t, t16b_equal_experts_take_the_lowest);
    tcase_add_test(t, t16c_zeros_beat_negative_scores);
}

int main(void)
{
    return weft_suite_run_added("spec", add_tests);
}
