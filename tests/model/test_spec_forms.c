/* The main config of model-spec 8.4 in other forms: packings and spellings bit
 * for bit, refusals, and the profile bf16 with forced choices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/spec.h"
#include "tests/support/suite.h"

enum { N = SPEC_TOKENS, LAYERS = 6, TOP_K = 3, INDEX_K = 7 };

/* model-spec 8.6. */
static const double BF16_MAX = 1e-1;

static const char PLAIN[] = "{}";

/* -- T13, T17: other packings and spellings of T02 ------------------------ */

#define OTHER_TYPES(name)                                                      \
    "{\"layer_types\":[\"" name "\",\"" name "\",\"sliding_attention\","       \
    "\"sliding_attention\",\"sliding_attention\",\"" name "\"]}"

static const struct {
    const char *what, *more;
    synth_options options;
} SPELLINGS[] = {
    {"packed experts", PLAIN, {.packed = true}},
    {"F32", PLAIN, {.f32 = true}},
    {"F32, packed", PLAIN, {.f32 = true, .packed = true}},
    {"prefix", PLAIN, {.prefix = "model.language_model."}},
    {"two files", PLAIN, {.n_shards = 2}},
    {"five files, packed, prefix",
     PLAIN,
     {.n_shards = 5, .packed = true, .prefix = "model.language_model."}},
    {"vision, audio, MTP and inv_freq tensors", PLAIN, {.junk = true}},
    {"MTP announced",
     "{\"num_nextn_predict_layers\":1,\"mtp_layer_types\":"
     "[\"sliding_attention\"]}",
     {.junk = true}},
    {"leading layout, said", PLAIN, {.layout = "leading"}},
    {"alias of the window",
     "{\"sliding_window_size\":\"absent\",\"sliding_window\":5}",
     {0}},
    {"null beside the alias", "{\"sliding_window\":null}", {0}},
    {"DeepSeek's name of sparse layers",
     OTHER_TYPES("deepseek_sparse_attention"),
     {0}},
    {"indexed layers", OTHER_TYPES("indexed_attention"), {0}},
    {"optional keys absent",
     "{\"attention_gate_type\":\"absent\","
     "\"swa_attention_gate_type\":\"absent\","
     "\"apply_mla_qkv_lora_rescale\":\"absent\","
     "\"k_rope_only_layernorm\":\"absent\","
     "\"indexer_rope_interleave\":\"absent\",\"n_group\":\"absent\","
     "\"topk_group\":\"absent\",\"norm_topk_prob\":\"absent\","
     "\"routed_scaling_factor\":\"absent\",\"scoring_func\":\"absent\","
     "\"topk_method\":\"absent\",\"moe_layer_freq\":\"absent\","
     "\"first_k_dense_replace\":\"absent\","
     "\"swa_qk_rope_head_dim\":\"absent\",\"hidden_act\":\"absent\"}",
     {0}},
    {"layer_types absent",
     /* Layer i is full if i < 2 or i % 4 = 1: F F S S S F. */
     "{\"layer_types\":\"absent\"}",
     {0}},
    {"aliases of the experts",
     "{\"n_routed_experts\":\"absent\",\"num_local_experts\":8}",
     {0}},
    {"MoE layers listed",
     "{\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\","
     "\"sparse\",\"sparse\"]}",
     {0}},
    {"harmless keys",
     "{\"initializer_range\":0.02,\"use_cache\":true,\"torch_dtype\":"
     "\"bfloat16\",\"head_dim\":40,\"vision_config\":{\"embed_dim\":8},"
     "\"audio_config\":{\"whisper_config\":{}}}",
     {0}},
};
enum { N_SPELLINGS = sizeof SPELLINGS / sizeof SPELLINGS[0] };

START_TEST(t17_spellings_are_bit_for_bit_equal)
{
    const harness_run run = {0};
    float *const want = spec_logits("T02", NULL, NULL, &run);
    float *const got =
        spec_logits("T02", SPELLINGS[_i].more, &SPELLINGS[_i].options, &run);
    spec_expect_same(got, want, SPELLINGS[_i].what);
    spec_expect_golden("T02", got, SPELLINGS[_i].what);
    weft_mem_free(got);
    weft_mem_free(want);
}
END_TEST

START_TEST(t17_text_config_wrapper)
{
    const harness_run run = {0};
    int32_t ids[N];
    synth_prompt(ids, N);
    char *const inner = synth_config("dots3", NULL);
    const size_t n = strlen(inner) + 128;
    char *const outer = weft_mem_new(n, 1);
    (void)snprintf(outer, n,
                   "{\"model_type\":\"dots3_note\",\"architectures\":["
                   "\"Dots3NoteForConditionalGeneration\"],"
                   "\"text_config\":%s}",
                   inner);
    const synth_options options = {.prefix = "model.language_model."};
    harness h = spec_open_text(outer, &options, WEFT_EXACT);
    float *const got = harness_logits(&h, ids, N, &run);
    float *const want = spec_logits("T02", NULL, NULL, &run);
    spec_expect_same(got, want, "text_config");
    harness_close(&h);
    weft_mem_free(got);
    weft_mem_free(want);
    weft_mem_free(outer);
    weft_mem_free(inner);
}
END_TEST

/* -- T18: what is not built is refused by name ----------------------------- */

static const struct {
    const char *key, *more;
} REFUSED[] = {
    {"normalization", "{\"normalization\":\"LayerNorm\"}"},
    {"final_norm", "{\"final_norm\":\"LayerNorm\"}"},
    {"attention_bias", "{\"attention_bias\":true}"},
    {"mlp_bias", "{\"mlp_bias\":true}"},
    {"hidden_act", "{\"hidden_act\":\"gelu\"}"},
    {"attention_gate_type", "{\"attention_gate_type\":\"channelwise\"}"},
    {"scoring_func", "{\"scoring_func\":\"tanh\"}"},
    {"topk_method", "{\"topk_method\":\"expert_choice\"}"},
    {"quant_method", "{\"quantization_config\":{\"quant_method\":\"gptq\"}}"},
    {"model_type", "{\"model_type\":\"deepseek_v4\"}"},
    {"attention_sinks", "{\"attention_sinks\":true}"},
};
enum { N_REFUSED = sizeof REFUSED / sizeof REFUSED[0] };

START_TEST(t18_refusals_name_the_key)
{
    weft_err err = {0};
    weft_model_config config;
    char *const text = synth_config("dots3", REFUSED[_i].more);
    const weft_config_texts texts = {.config = text,
                                     .config_bytes = strlen(text)};
    ck_assert_int_eq(weft_model_config_parse(&texts, NULL, NULL, &config, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, REFUSED[_i].key) != NULL,
                  "\"%s\" does not name %s", err.text, REFUSED[_i].key);
    weft_mem_free(text);
}
END_TEST

/* -- profile bf16, choices forced ------------------------------------------ */

typedef struct choices {
    int32_t experts[LAYERS][N * TOP_K];
    float weights[LAYERS][N * TOP_K];
    int32_t keys[LAYERS][N * INDEX_K], n_keys[LAYERS][N];
    bool replay;
    int32_t n_forced;
} choices;

static void force_route(void *arg, int32_t layer, int32_t n_rows,
                        int32_t *experts, float *weights)
{
    choices *const c = arg;
    ck_assert_int_eq(n_rows, N);
    if (!c->replay) {
        memcpy(c->experts[layer], experts, sizeof c->experts[layer]);
        memcpy(c->weights[layer], weights, sizeof c->weights[layer]);
        return;
    }
    for (int32_t r = 0; r < N * TOP_K; r += TOP_K) {
        const size_t bytes = TOP_K * sizeof *experts;
        if (memcmp(experts + r, c->experts[layer] + r, bytes) == 0) continue;
        memcpy(experts + r, c->experts[layer] + r, bytes);
        memcpy(weights + r, c->weights[layer] + r, TOP_K * sizeof *weights);
        c->n_forced++;
    }
}

static void force_select(void *arg, int32_t layer, int32_t n_rows,
                         int32_t *keys, int32_t stride, int32_t *n_keys)
{
    choices *const c = arg;
    ck_assert_int_eq(n_rows, N);
    ck_assert_int_eq(stride, INDEX_K);
    if (!c->replay) {
        memcpy(c->keys[layer], keys, sizeof c->keys[layer]);
        memcpy(c->n_keys[layer], n_keys, sizeof c->n_keys[layer]);
        return;
    }
    c->n_forced += memcmp(keys, c->keys[layer], sizeof c->keys[layer]) != 0;
    memcpy(keys, c->keys[layer], sizeof c->keys[layer]);
    memcpy(n_keys, c->n_keys[layer], sizeof c->n_keys[layer]);
}

static const char *const HALF[] = {"T02", "T07", "T12"};

START_TEST(bf16_with_forced_choices)
{
    int32_t ids[N];
    synth_prompt(ids, N);
    choices *const c = weft_mem_new(1, sizeof *c);
    const weft_forward_hooks hooks = {
        .arg = c, .route = force_route, .select = force_select};
    harness h = spec_open(HALF[_i], NULL, NULL, WEFT_EXACT);
    float *const exact = harness_forward(&h, ids, N, &hooks);
    spec_expect_golden(HALF[_i], exact, "bare forward pass");
    harness_close(&h);
    c->replay = true;
    h = spec_open(HALF[_i], NULL, NULL, WEFT_PROFILE_BF16);
    float *const half = harness_forward(&h, ids, N, &hooks);
    const golden_tensor want = spec_golden(HALF[_i]);
    double largest = 0.0;
    const double rel = golden_distance(half, want.values, want.n, &largest);
    ck_assert_msg(rel <= BF16_MAX, "%s: relative L2 %.3g", HALF[_i], rel);
    ck_assert_msg(rel > SPEC_REL_MAX, "%s: nothing was rounded: %.3g", HALF[_i],
                  rel);
    free(want.values);
    weft_mem_free(exact);
    weft_mem_free(half);
    weft_mem_free(c);
    harness_close(&h);
}
END_TEST

static void add_tests(TCase *t)
{
    tcase_add_loop_test(t, t17_spellings_are_bit_for_bit_equal, 0, N_SPELLINGS);
    tcase_add_test(t, t17_text_config_wrapper);
    tcase_add_loop_test(t, t18_refusals_name_the_key, 0, N_REFUSED);
    tcase_add_loop_test(t, bf16_with_forced_choices, 0,
                        sizeof HALF / sizeof *HALF);
}

int main(void)
{
    return weft_suite_run_added("spec_forms", add_tests);
}
