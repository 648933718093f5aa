/* The golden checkpoints of tests/data/fixtures, which another implementation
 * computed: logits of whole prompts in one prefill, token by token, in chunks
 * and with small pages; greedy continuations; residual streams, expert sets and
 * key sets of one prompt, layer by layer; and rewrapped twins, bit for bit.
 * Bounds: tests/data/fixtures/README.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/golden.h"
#include "tests/support/harness.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

static const double REL_MAX = 2e-5, ABS_MAX = 3e-4;
/* A weight's relative error is the absolute one of its router logit, which is
 * of size 1 to 5 like the vocabulary's. */
static const double WEIGHT_MAX = 5e-5;

static const char *const CASES[] = {
    "dots3-mixed", "dots3-defaults", "dots3-groups",
    "dots3-dense", "dots3-fp8",      "v2-lite",
    "v2-mscale",   "v2-nomscale",    "v2-groups",
    "v3",          "v3-fp8",         "v32"};
enum { N_CASES = sizeof CASES / sizeof CASES[0], PROMPTS_MAX = 16 };

static const char *const TWINS[][2] = {{"dots3-sharded", "dots3-mixed"},
                                       {"dots3-resaved", "dots3-defaults"},
                                       {"v2-resaved", "v2-mscale"}};
enum { N_TWINS = sizeof TWINS / sizeof TWINS[0] };

static golden open_golden(const char *name, const char *file)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s/%s", name, file);
    return golden_open(path);
}

static harness open_model(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s", name);
    return harness_open(path, WEFT_EXACT);
}

/* The ids "KIND{i}.ids", or 0 if the file has no such prompt. */
static int32_t get_ids(const golden *g, const char *kind, int32_t i,
                       int32_t **ids_out)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s%d.ids", kind, i);
    if (!golden_has(g, name)) return 0;
    const golden_tensor t = golden_get(g, name);
    int32_t *const ids = weft_mem_new((size_t)t.n, sizeof *ids);
    for (int64_t j = 0; j < t.n; j++) ids[j] = (int32_t)t.values[j];
    free(t.values);
    *ids_out = ids;
    return (int32_t)t.n;
}

static void compare(const golden *g, int32_t prompt, const float *logits,
                    int32_t n, int32_t vocab, const char *what)
{
    char name[64];
    (void)snprintf(name, sizeof name, "prompt%d.logits", prompt);
    const golden_tensor want = golden_get(g, name);
    double largest = 0.0;
    const double rel = golden_distance(logits + (n - want.rows) * vocab,
                                       want.values, want.n, &largest);
    ck_assert_msg(rel <= REL_MAX && largest <= ABS_MAX,
                  "%s, prompt %d (%d tokens), %s: relative L2 %.3g, largest "
                  "%.3g",
                  g->path, prompt, n, what, rel, largest);
    free(want.values);
}

static void check_run(const harness *h, const golden *g, const harness_run *run,
                      const char *what)
{
    for (int32_t i = 0; i < PROMPTS_MAX; i++) {
        int32_t *ids = NULL;
        const int32_t n = get_ids(g, "prompt", i, &ids);
        if (n == 0) break;
        float *const logits = harness_logits(h, ids, n, run);
        compare(g, i, logits, n, h->config.vocab_size, what);
        weft_mem_free(logits);
        weft_mem_free(ids);
    }
}

static void check_case(const harness_run *run, const char *what, int32_t i)
{
    golden g = open_golden(CASES[i], "golden.safetensors");
    harness h = open_model(CASES[i]);
    check_run(&h, &g, run, what);
    harness_close(&h);
    golden_close(&g);
}

START_TEST(prefill_at_once)
{
    const harness_run run = {0};
    check_case(&run, "one prefill", _i);
}
END_TEST

START_TEST(token_by_token)
{
    const harness_run run = {.decode_from = 1, .page_tokens = 4};
    check_case(&run, "token by token", _i);
}
END_TEST

START_TEST(chunks_of_three_pages_of_four)
{
    const harness_run run = {.chunk_tokens = 3, .page_tokens = 4, .threads = 2};
    check_case(&run, "chunks of 3", _i);
}
END_TEST

START_TEST(greedy)
{
    golden g = open_golden(CASES[_i], "golden.safetensors");
    harness h = open_model(CASES[_i]);
    const harness_run run = {0};
    for (int32_t p = 0; p < PROMPTS_MAX; p++) {
        int32_t *ids = NULL, *want = NULL;
        const int32_t n = get_ids(&g, "prompt", p, &ids);
        if (n == 0) break;
        const int32_t n_want = get_ids(&g, "greedy", p, &want);
        int32_t *const got = weft_mem_new((size_t)n_want + 1, sizeof *got);
        if (n_want > 0) harness_greedy(&h, ids, n, n_want, got, &run);
        for (int32_t i = 0; i < n_want; i++)
            ck_assert_msg(got[i] == want[i],
                          "%s prompt %d: token %d is %d, expected %d",
                          CASES[_i], p, i, got[i], want[i]);
        weft_mem_free(got);
        if (n_want > 0) weft_mem_free(want);
        weft_mem_free(ids);
    }
    harness_close(&h);
    golden_close(&g);
}
END_TEST

/* -- layer by layer ------------------------------------------------------- */

typedef struct watched {
    const golden *debug;
    const weft_model_config *config;
    int32_t layers_seen, routes_seen, selects_seen;
} watched;

static void see_layer(void *arg, int32_t layer, const float *h, int32_t n_rows)
{
    watched *const w = arg;
    char name[64];
    (void)snprintf(name, sizeof name, "layer%d.out", layer);
    if (!golden_has(w->debug, name)) return;
    const golden_tensor want = golden_get(w->debug, name);
    ck_assert_int_eq(want.n, (int64_t)n_rows * w->config->hidden_size);
    double largest = 0.0;
    const double rel = golden_distance(h, want.values, want.n, &largest);
    ck_assert_msg(rel <= REL_MAX, "%s after layer %d: relative L2 %.3g",
                  w->debug->path, layer, rel);
    free(want.values);
    w->layers_seen++;
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void see_route(void *arg, int32_t layer, int32_t n_rows,
                      int32_t *experts, float *weights)
{
    watched *const w = arg;
    const int32_t k = w->config->top_k;
    char name[64];
    (void)snprintf(name, sizeof name, "layer%d.expert_ids", layer);
    if (!golden_has(w->debug, name)) return;
    const golden_tensor ids = golden_get(w->debug, name);
    (void)snprintf(name, sizeof name, "layer%d.expert_weights", layer);
    const golden_tensor want = golden_get(w->debug, name);
    ck_assert_int_eq(ids.n, (int64_t)n_rows * k);
    for (int64_t i = 0; i < ids.n; i++) {
        const int64_t row = i / k * k;
        int64_t at = row;
        while (at < row + k && experts[at] != (int32_t)ids.values[i]) at++;
        ck_assert_msg(at < row + k, "layer %d row %ld: expert %g is missing",
                      layer, (long)(row / k), ids.values[i]);
        ck_assert_msg(fabs((double)weights[at] - want.values[i]) <=
                          WEIGHT_MAX * fmax(1.0, fabs(want.values[i])),
                      "layer %d row %ld: weight %g, expected %g", layer,
                      (long)(row / k), (double)weights[at], want.values[i]);
    }
    free(ids.values);
    free(want.values);
    w->routes_seen++;
}

static void see_select(void *arg, int32_t layer, int32_t n_rows, int32_t *keys,
                       int32_t stride, int32_t *n_keys)
{
    watched *const w = arg;
    char name[64];
    (void)snprintf(name, sizeof name, "layer%d.index_keys", layer);
    if (!golden_has(w->debug, name)) return;
    const golden_tensor want = golden_get(w->debug, name);
    ck_assert_int_eq(want.rows, n_rows);
    for (int32_t r = 0; r < n_rows; r++) {
        const double *const row = want.values + r * want.cols;
        int32_t n = 0;
        while (n < want.cols && row[n] >= 0.0) n++;
        ck_assert_msg(n == n_keys[r], "layer %d row %d: %d keys, expected %d",
                      layer, r, n_keys[r], n);
        int32_t *const sorted = keys + (int64_t)r * stride;
        qsort(sorted, (size_t)n, sizeof *sorted, ascending);
        for (int32_t i = 0; i < n; i++)
            ck_assert_msg(sorted[i] == (int32_t)row[i],
                          "layer %d row %d: key %d, expected %g", layer, r,
                          sorted[i], row[i]);
    }
    free(want.values);
    w->selects_seen++;
}

static int32_t debug_prompt(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s/golden.json", name);
    json_t *const j = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(j);
    const int32_t i =
        (int32_t)json_integer_value(json_object_get(j, "debug_prompt"));
    json_decref(j);
    return i;
}

START_TEST(layer_by_layer)
{
    golden g = open_golden(CASES[_i], "golden.safetensors");
    golden debug = open_golden(CASES[_i], "debug.safetensors");
    harness h = open_model(CASES[_i]);
    watched w = {.debug = &debug, .config = &h.config};
    const weft_forward_hooks hooks = {.arg = &w,
                                      .layer_out = see_layer,
                                      .route = see_route,
                                      .select = see_select};
    int32_t *ids = NULL;
    const int32_t prompt = debug_prompt(CASES[_i]);
    const int32_t n = get_ids(&g, "prompt", prompt, &ids);
    float *const logits = harness_forward(&h, ids, n, &hooks);
    compare(&g, prompt, logits, n, h.config.vocab_size, "bare forward pass");
    ck_assert_int_gt(w.layers_seen, 0);
    ck_assert_int_gt(w.routes_seen, 0);
    if (h.config.dsa && n > 1) ck_assert_int_gt(w.selects_seen, 0);
    weft_mem_free(logits);
    weft_mem_free(ids);
    harness_close(&h);
    golden_close(&debug);
    golden_close(&g);
}
END_TEST

/* -- twins ---------------------------------------------------------------- */

START_TEST(twins_are_equal_bit_for_bit)
{
    golden g = open_golden(TWINS[_i][1], "golden.safetensors");
    harness twin = open_model(TWINS[_i][0]);
    harness origin = open_model(TWINS[_i][1]);
    const harness_run run = {0};
    for (int32_t p = 0; p < PROMPTS_MAX; p++) {
        int32_t *ids = NULL;
        const int32_t n = get_ids(&g, "prompt", p, &ids);
        if (n == 0) break;
        float *const a = harness_logits(&twin, ids, n, &run);
        float *const b = harness_logits(&origin, ids, n, &run);
        ck_assert_msg(
            memcmp(a, b,
                   (size_t)n * (size_t)twin.config.vocab_size * sizeof *a) == 0,
            "%s and %s differ on prompt %d", TWINS[_i][0], TWINS[_i][1], p);
        weft_mem_free(a);
        weft_mem_free(b);
        weft_mem_free(ids);
    }
    harness_close(&twin);
    harness_close(&origin);
    golden_close(&g);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 300.0);
    tcase_add_loop_test(tests, prefill_at_once, 0, N_CASES);
    tcase_add_loop_test(tests, token_by_token, 0, N_CASES);
    tcase_add_loop_test(tests, chunks_of_three_pages_of_four, 0, N_CASES);
    tcase_add_loop_test(tests, greedy, 0, N_CASES);
    tcase_add_loop_test(tests, layer_by_layer, 0, N_CASES);
    tcase_add_loop_test(tests, twins_are_equal_bit_for_bit, 0, N_TWINS);
}

int main(void)
{
    return weft_suite_run_added("goldens", add_tests);
}
