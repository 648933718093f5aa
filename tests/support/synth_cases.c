/* synth_cases.c - base configs and the named cases of model-spec 8.3, 8.4. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/synth_internal.h"

#define SHARED_KEYS                                                            \
    "\"hidden_size\":80,\"vocab_size\":97,\"intermediate_size\":72,"           \
    "\"moe_intermediate_size\":24,\"num_experts_per_tok\":3,"                  \
    "\"first_k_dense_replace\":1,\"moe_layer_freq\":1,"                        \
    "\"num_attention_heads\":4,\"kv_lora_rank\":40,\"qk_nope_head_dim\":24,"   \
    "\"qk_rope_head_dim\":16,\"v_head_dim\":20,"                               \
    "\"max_position_embeddings\":4096,\"hidden_act\":\"silu\","

#define YARN(all_dim, one)                                                     \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,"      \
    "\"beta_slow\":1,\"original_max_position_embeddings\":64,"                 \
    "\"mscale\":" one ",\"mscale_all_dim\":" all_dim "}"

static const struct {
    const char *name, *text;
} bases[] = {
    {"dots3",
     "{\"model_type\":\"dots3_note\","
     "\"architectures\":[\"Dots3NoteForCausalLM\"]," SHARED_KEYS
     "\"num_hidden_layers\":6,\"layer_types\":[\"full_attention\","
     "\"full_attention\",\"sliding_attention\",\"sliding_attention\","
     "\"sliding_attention\",\"full_attention\"],\"n_routed_experts\":8,"
     "\"n_shared_experts\":1,\"q_lora_rank\":24,\"rope_theta\":1e6,"
     "\"swa_num_attention_heads\":2,\"swa_q_lora_rank\":20,"
     "\"swa_kv_lora_rank\":56,\"swa_qk_nope_head_dim\":40,"
     "\"swa_qk_rope_head_dim\":16,\"swa_v_head_dim\":28,\"swa_head_dim\":56,"
     "\"swa_rope_theta\":100,\"sliding_window_size\":5,\"index_n_heads\":8,"
     "\"index_head_dim\":40,\"index_topk\":7,\"indexer_rope_interleave\":true,"
     "\"attention_gate_type\":\"headwise\","
     "\"swa_attention_gate_type\":\"headwise\","
     "\"apply_mla_qkv_lora_rescale\":true,\"k_rope_only_layernorm\":true,"
     "\"rms_norm_eps\":0.01,\"n_group\":1,\"topk_group\":1,"
     "\"norm_topk_prob\":true,\"routed_scaling_factor\":1.0,"
     "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"}"},
    {"v2", "{\"model_type\":\"deepseek_v2\","
           "\"architectures\":[\"DeepseekV2ForCausalLM\"]," SHARED_KEYS
           "\"num_hidden_layers\":4,\"n_routed_experts\":8,"
           "\"n_shared_experts\":2,\"q_lora_rank\":null,\"rope_theta\":10000,"
           "\"rms_norm_eps\":1e-6,\"n_group\":1,\"topk_group\":1,"
           "\"norm_topk_prob\":false,\"routed_scaling_factor\":1.0,"
           "\"scoring_func\":\"softmax\",\"topk_method\":\"greedy\"," YARN(
               "1.0", "0.707") "}"},
    {"v3", "{\"model_type\":\"deepseek_v3\","
           "\"architectures\":[\"DeepseekV3ForCausalLM\"]," SHARED_KEYS
           "\"num_hidden_layers\":4,\"n_routed_experts\":12,"
           "\"n_shared_experts\":1,\"q_lora_rank\":24,\"rope_theta\":10000,"
           "\"rms_norm_eps\":1e-6,\"n_group\":4,\"topk_group\":2,"
           "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
           "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"," YARN(
               "1.0", "1.0") "}"},
    {"v32", "{\"model_type\":\"deepseek_v32\","
            "\"architectures\":[\"DeepseekV32ForCausalLM\"]," SHARED_KEYS
            "\"num_hidden_layers\":4,\"n_routed_experts\":12,"
            "\"n_shared_experts\":1,\"q_lora_rank\":24,\"rope_theta\":10000,"
            "\"rms_norm_eps\":1e-6,\"n_group\":4,\"topk_group\":2,"
            "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
            "\"index_n_heads\":8,\"index_head_dim\":40,\"index_topk\":7,"
            "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"," YARN(
                "1.0", "1.0") "}"},
};

static const struct {
    const char *id, *base, *edits, *layout;
    double bias_base, bias_amp; /* 0: the usual */
} cases[] = {
    {"T01", "dots3", "{\"index_topk\":64,\"sliding_window_size\":64}", NULL, 0,
     0},
    {"T02", "dots3", "{}", NULL, 0, 0},
    {"T05a", "dots3", "{\"indexer_rope_interleave\":false}", NULL, 0, 0},
    {"T05b", "dots3", "{}", "tail", 0, 0},
    {"T06", "dots3",
     "{\"apply_mla_qkv_lora_rescale\":false,\"k_rope_only_layernorm\":false,"
     "\"attention_gate_type\":\"none\","
     "\"swa_attention_gate_type\":\"elementwise\"}",
     NULL, 0, 0},
    {"T07", "dots3",
     "{\"n_routed_experts\":12,\"n_group\":4,\"topk_group\":2,"
     "\"norm_topk_prob\":false,\"routed_scaling_factor\":2.5}",
     NULL, -1.2, 0.4},
    {"T08", "dots3",
     "{\"use_dynamic_rsf\":true,\"moe_layer_freq\":2,"
     "\"first_k_dense_replace\":2,\"n_shared_experts\":2}",
     NULL, 0, 0},
    {"T09", "dots3",
     "{\"hidden_size\":200,\"q_lora_rank\":136,\"swa_q_lora_rank\":136,"
     "\"kv_lora_rank\":136,\"swa_kv_lora_rank\":136,"
     "\"swa_qk_nope_head_dim\":96,\"swa_v_head_dim\":64,"
     "\"swa_num_attention_heads\":3,\"swa_head_dim\":112,"
     "\"moe_intermediate_size\":136,\"quantization_config\":{"
     "\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\","
     "\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}}",
     NULL, 0, 0},
    {"T10", "v2", "{}", NULL, 0, 0},
    {"T11", "v2",
     "{\"q_lora_rank\":24,\"topk_method\":\"group_limited_greedy\","
     "\"n_routed_experts\":12,\"n_group\":4,\"topk_group\":2,"
     "\"routed_scaling_factor\":16," YARN("0.707", "0.707") "}",
     NULL, 0, 0},
    {"T12", "v32", "{}", NULL, -1.2, 0.4},
};

static json_t *parse(const char *text)
{
    json_error_t why;
    json_t *const value = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(value)) synth_die("not a JSON object", text);
    return value;
}

static void lay_over(json_t *config, const char *edits)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (edits == NULL) return;
    json_t *const change = parse(edits);
    json_object_foreach(change, key, value)
    {
        const char *const text = json_string_value(value);
        if (text != NULL && strcmp(text, "absent") == 0)
            (void)json_object_del(config, key);
        else if (json_object_set(config, key, value) != 0)
            synth_die("memory", "none left");
    }
    json_decref(change);
}

static char *text_of(json_t *config)
{
    char *const text = json_dumps(config, JSON_INDENT(1));
    json_decref(config);
    if (text == NULL) synth_die("memory", "none left");
    char *const copy = weft_mem_copy_text(text, strlen(text));
    free(text); /* jansson's own */
    if (copy == NULL) synth_die("memory", "none left");
    return copy;
}

static json_t *base_config(const char *base)
{
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (strcmp(bases[i].name, base) == 0) return parse(bases[i].text);
    synth_die("no such base config", base);
}

char *synth_config(const char *base, const char *edits)
{
    json_t *const config = base_config(base);
    lay_over(config, edits);
    return text_of(config);
}

static size_t find_case(const char *id)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].id, id) == 0) return i;
    synth_die("no such case", id);
}

char *synth_case_config(const char *id, const char *more)
{
    const size_t i = find_case(id);
    json_t *const config = base_config(cases[i].base);
    lay_over(config, cases[i].edits);
    lay_over(config, more);
    return text_of(config);
}

void synth_case_write(const char *dir, const char *id, const char *more,
                      const synth_options *options)
{
    const size_t i = find_case(id);
    synth_options own = {0};
    if (options != NULL) own = *options;
    if (own.layout == NULL) own.layout = cases[i].layout;
    if (own.bias_amp == 0) {
        own.bias_base = cases[i].bias_base;
        own.bias_amp = cases[i].bias_amp;
    }
    char *const config = synth_case_config(id, more);
    synth_write(dir, config, &own);
    weft_mem_free(config);
}
