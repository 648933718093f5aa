/* One row a refusal: what config.json may not say, and the words by which it
 * is told. The base configs are those of tests/support/synth. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/model/config.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

static const struct {
    const char *base, *edits, *words;
} refused[] = {
    {"dots3", "{\"model_type\":\"llama\"}", "model_type llama"},
    {"dots3", "{\"model_type\":\"absent\"}", "model_type"},
    {"dots3", "{\"model_type\":7}", "model_type"},
    {"dots3", "{\"model_type\":\"deepseek_v4\"}", "model_type V4"},
    {"dots3", "{\"model_type\":\"deepseek_v3\"}", "architectures Dots3"},
    {"dots3", "{\"architectures\":[\"LlamaForCausalLM\"]}",
     "architectures LlamaForCausalLM"},
    {"dots3", "{\"architectures\":\"x\"}", "architectures"},
    {"dots3", "{\"architectures\":[3]}", "architectures"},
    {"dots3", "{\"text_config\":7}", "text_config"},
    {"dots3", "{\"unheard_of\":1}", "unheard_of unknown"},
    {"dots3", "{\"unheard\\nof\":1}", "unheard?of unknown"},
    {"v2", "{\"index_topk\":7}", "index_topk unknown"},
    {"v2", "{\"sliding_window\":7}", "sliding_window unknown"},
    {"v2", "{\"apply_mla_qkv_lora_rescale\":true}", "rescale unknown"},
    /* what is not built */
    {"dots3", "{\"attention_bias\":true}", "attention_bias"},
    {"dots3", "{\"attention_bias\":\"no\"}", "attention_bias true or false"},
    {"dots3", "{\"mlp_bias\":true}", "mlp_bias"},
    {"dots3", "{\"normalization\":\"LayerNorm\"}", "normalization LayerNorm"},
    {"dots3", "{\"final_norm\":\"LayerNorm\"}", "final_norm LayerNorm"},
    {"dots3", "{\"hidden_act\":\"gelu\"}", "hidden_act gelu"},
    {"dots3", "{\"index_topk_freq\":2}", "index_topk_freq"},
    {"dots3", "{\"index_topk_pattern\":\"FSF\"}", "index_topk_pattern"},
    {"dots3", "{\"indexer_types\":[\"full\",\"shared\"]}",
     "indexer_types shared"},
    {"dots3", "{\"indexer_types\":{}}", "indexer_types"},
    {"v32", "{\"index_topk_freq\":4}", "index_topk_freq"},
    {"dots3", "{\"attention_gate_type\":\"tokenwise\"}",
     "attention_gate_type tokenwise"},
    /* sizes */
    {"dots3", "{\"hidden_size\":\"absent\"}", "hidden_size required"},
    {"dots3", "{\"hidden_size\":null}", "hidden_size required"},
    {"dots3", "{\"hidden_size\":0}", "hidden_size"},
    {"dots3", "{\"hidden_size\":-1}", "hidden_size"},
    {"dots3", "{\"hidden_size\":1e12}", "hidden_size"},
    {"dots3", "{\"hidden_size\":80.5}", "hidden_size integer"},
    {"dots3", "{\"hidden_size\":\"80\"}", "hidden_size integer"},
    {"dots3", "{\"hidden_size\":true}", "hidden_size integer"},
    {"dots3", "{\"hidden_size\":[80]}", "hidden_size integer"},
    {"dots3", "{\"hidden_size\":1e300}", "hidden_size integer"},
    {"dots3", "{\"num_hidden_layers\":513}", "num_hidden_layers 512"},
    {"dots3", "{\"num_hidden_layers\":0}", "num_hidden_layers"},
    {"dots3", "{\"num_hidden_layers\":7}", "layer_types"},
    {"dots3", "{\"vocab_size\":2147483648}", "vocab_size"},
    {"dots3", "{\"max_position_embeddings\":\"absent\"}",
     "max_position_embeddings"},
    {"dots3", "{\"max_position_embeddings\":16777217}",
     "max_position_embeddings"},
    {"dots3", "{\"num_attention_heads\":-4}", "num_attention_heads"},
    {"dots3", "{\"num_key_value_heads\":2}", "num_key_value_heads"},
    {"dots3", "{\"swa_num_key_value_heads\":1}", "swa_num_key_value_heads"},
    {"dots3", "{\"q_lora_rank\":null}", "q_lora_rank"},
    {"v2", "{\"q_lora_rank\":\"absent\"}", "q_lora_rank"},
    {"v32", "{\"q_lora_rank\":null}", "q_lora_rank"},
    {"dots3", "{\"qk_rope_head_dim\":15}", "qk_rope_head_dim even"},
    {"dots3", "{\"qk_rope_head_dim\":0}", "qk_rope_head_dim"},
    {"dots3", "{\"qk_rope_head_dim\":64}", "index_head_dim"},
    {"dots3", "{\"swa_head_dim\":57}", "swa_head_dim"},
    {"dots3", "{\"swa_head_dim\":30,\"swa_qk_rope_head_dim\":null}",
     "swa_head_dim"},
    {"dots3", "{\"sliding_window_size\":0}", "sliding_window_size"},
    {"dots3", "{\"sliding_window_size\":-5}", "sliding_window_size"},
    {"dots3", "{\"sliding_window\":6}", "sliding_window"},
    {"dots3", "{\"index_topk\":0}", "index_topk"},
    {"dots3", "{\"rms_norm_eps\":-1}", "rms_norm_eps"},
    {"dots3", "{\"rms_norm_eps\":\"tiny\"}", "rms_norm_eps number"},
    /* layers */
    {"dots3", "{\"layer_types\":[\"full_attention\"]}", "layer_types"},
    {"dots3", "{\"layer_types\":\"full_attention\"}", "layer_types"},
    {"dots3", "{\"layer_types\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"]}",
     "layer_types"},
    {"dots3", "{\"mlp_layer_types\":[\"dense\"]}", "mlp_layer_types"},
    {"dots3",
     "{\"mlp_layer_types\":[\"dense\",\"wet\",\"dense\",\"dense\",\"dense\","
     "\"dense\"]}",
     "mlp_layer_types wet"},
    {"dots3", "{\"moe_layer_freq\":0}", "moe_layer_freq"},
    {"dots3", "{\"moe_layer_freq\":[1,1]}", "moe_layer_freq"},
    {"dots3", "{\"moe_layer_freq\":[0,2,0,0,0,0]}", "moe_layer_freq"},
    {"dots3", "{\"first_k_dense_replace\":-1}", "first_k_dense_replace"},
    {"dots3", "{\"per_layer_config\":[]}", "per_layer_config"},
    {"dots3", "{\"per_layer_config\":{\"two\":{}}}", "two layer number"},
    {"dots3", "{\"per_layer_config\":{\"02\":{}}}", "02 layer number"},
    {"dots3", "{\"per_layer_config\":{\"-1\":{}}}", "-1 layer number"},
    {"dots3", "{\"per_layer_config\":{\"2\":7}}", "per_layer_config.2 object"},
    {"dots3", "{\"per_layer_config\":{\"2\":{\"spin\":1}}}",
     "per_layer_config.2.spin unknown"},
    {"dots3", "{\"per_layer_config\":{\"2\":{\"kv_lora_rank\":56}}}",
     "two attention geometries"},
    {"dots3", "{\"per_layer_config\":{\"1\":{\"v_head_dim\":28}}}",
     "two attention geometries"},
    {"dots3",
     "{\"per_layer_config\":{\"2\":{\"num_attention_heads\":2,"
     "\"num_key_value_heads\":4}}}",
     "num_key_value_heads"},
    {"dots3",
     "{\"per_layer_config\":{},\"layer_types\":[\"indexed_attention\","
     "\"full_attention\",\"sliding_attention\",\"sliding_attention\","
     "\"sliding_attention\",\"full_attention\"]}",
     "layer_types indexer"},
    /* experts */
    {"dots3", "{\"n_routed_experts\":null}", "n_routed_experts required"},
    {"dots3", "{\"num_local_experts\":9}", "num_local_experts"},
    {"dots3", "{\"num_experts\":9}", "num_experts"},
    /* more than a route of kernels/ops.h can choose among */
    {"dots3", "{\"n_routed_experts\":4097}", "n_routed_experts 4096"},
    {"dots3", "{\"num_experts_per_tok\":9}", "num_experts_per_tok"},
    {"dots3", "{\"num_experts_per_tok\":null}", "num_experts_per_tok"},
    {"dots3", "{\"n_group\":3}", "n_group divide"},
    {"dots3", "{\"n_group\":8}", "n_group two experts"},
    {"dots3", "{\"n_group\":2,\"topk_group\":3}", "topk_group"},
    {"dots3", "{\"n_group\":4,\"topk_group\":1}",
     "num_experts_per_tok topk_group"},
    {"dots3", "{\"n_shared_experts\":null}", "n_shared_experts"},
    {"dots3", "{\"n_shared_experts\":0}", "n_shared_experts"},
    {"dots3", "{\"scoring_func\":\"tanh\"}", "scoring_func tanh"},
    {"dots3", "{\"topk_method\":\"best\"}", "topk_method best"},
    {"dots3", "{\"routed_scaling_factor\":0}", "routed_scaling_factor"},
    /* rope */
    {"dots3", "{\"rope_scaling\":{\"type\":\"spiral\"}}",
     "rope_scaling spiral"},
    {"dots3", "{\"rope_scaling\":7}", "rope_scaling"},
    {"dots3",
     "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
     "\"original_max_position_embeddings\":64}}",
     "rope_scaling yarn"},
    {"v2", "{\"rope_scaling\":{\"type\":\"yarn\"}}", "rope_scaling.factor"},
    {"v2", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}}",
     "rope_scaling.factor"},
    {"v2", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
     "original_max_position_embeddings"},
    {"v2", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", "linear"},
    {"v2", "{\"rope_scaling\":{\"type\":\"default\",\"rope_type\":\"yarn\"}}",
     "rope_scaling.type contradicts"},
    {"v2",
     "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
     "\"original_max_position_embeddings\":64,\"attention_factor\":2}}",
     "rope_scaling.attention_factor unknown"},
    {"v2",
     "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":1,"
     "\"beta_slow\":2,\"original_max_position_embeddings\":64}}",
     "beta_slow"},
    {"v2", "{\"rope_parameters\":{\"rope_type\":\"default\"}}",
     "rope_parameters"},
    {"dots3", "{\"rope_parameters\":{\"rope_theta\":5}}", "rope_theta"},
    {"dots3", "{\"rope_parameters\":{\"odd_attention\":{}}}", "odd_attention"},
    {"dots3", "{\"rope_theta\":0}", "rope_theta"},
    {"dots3", "{\"swa_rope_theta\":1}", "swa_rope_theta"},
    {"dots3", "{\"rope_interleave\":1}", "rope_interleave"},
    /* ids */
    {"dots3", "{\"eos_token_id\":\"end\"}", "eos_token_id"},
    {"dots3", "{\"eos_token_id\":[1,\"x\"]}", "eos_token_id"},
    {"dots3", "{\"eos_token_id\":-1}", "eos_token_id"},
    {"dots3", "{\"image_token_id\":\"img\"}", "image_token_id"},
    /* quantisation */
    {"dots3", "{\"quantization_config\":7}", "quantization_config"},
    {"dots3", "{\"quantization_config\":{}}", "quant_method"},
    {"dots3", "{\"quantization_config\":{\"quant_method\":\"exl3\"}}", "exl3"},
    {"dots3", "{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "gptq"},
    {"dots3", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}",
     "weight_block_size"},
    {"dots3",
     "{\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"weight_block_size\":[64,128]}}",
     "weight_block_size [64,128]"},
    {"dots3",
     "{\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"weight_block_size\":[128,128],\"activation_scheme\":\"static\"}}",
     "activation_scheme static"},
    {"dots3",
     "{\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"weight_block_size\":[128,128],\"fmt\":\"e5m2\"}}",
     "fmt e5m2"},
    {"dots3",
     "{\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"weight_block_size\":[128,128],\"bits\":3}}",
     "quantization_config.bits unknown"},
};

static weft_status parse(const char *json, weft_model_config *config,
                         weft_err *err)
{
    const weft_config_texts texts = {.config = json,
                                     .config_bytes = strlen(json)};
    return weft_model_config_parse(&texts, NULL, NULL, config, err);
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

static void refusals_name_the_key_row(size_t row)
{
    char *const json = synth_config(refused[row].base, refused[row].edits);
    weft_err err = {0};
    weft_model_config config = {.n_layer = 77};
    const weft_status st = parse(json, &config, &err);
    ck_assert_msg(st == WEFT_INVALID_ARGUMENT, "%s %s: %s (%s)",
                  refused[row].base, refused[row].edits, weft_status_name(st),
                  err.text);
    expect_words(err.text, refused[row].words, refused[row].edits);
    expect_words(err.text, "config.json", refused[row].edits);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_int_eq(config.n_layer, 77); /* written only on success */
    weft_mem_free(json);
}

START_TEST(refusals_name_the_key)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refusals_name_the_key_row(i);
}
END_TEST

static const char *const not_configs[] = {
    "",
    "{",
    "[]",
    "7",
    "null",
    "{\"a\":1,\"a\":1}",
    "{\"hidden_size\":1e999}",
    "\xff\xfe",
    "{\"model_type\":\"dots3_note\"} x",
    "{\"a\":\"\\u0000\"}",
    "{\"num_hidden_layers\":99999999999999999999}"};

static void texts_that_are_not_a_config_row(size_t row)
{
    weft_err err = {0};
    weft_model_config config;
    ck_assert_int_eq(parse(not_configs[row], &config, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "config.json", not_configs[row]);
}

START_TEST(texts_that_are_not_a_config)
{
    for (size_t i = 0; i < sizeof not_configs / sizeof *not_configs; i++)
        texts_that_are_not_a_config_row(i);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {refusals_name_the_key,
                                  texts_that_are_not_a_config};
    return WEFT_SUITE_RUN("model/config_refused", tests);
}
