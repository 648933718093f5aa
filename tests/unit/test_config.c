/* One row a rule: what a key, an alias, a default or a null means. The base
 * configs are those of tests/support/synth. */
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

/* A field by name; layers as "kind3", "moe3". */
static double field(const weft_model_config *c, const char *name)
{
    const weft_geometry *const full = &c->geometry[WEFT_FULL];
    const weft_geometry *const swa = &c->geometry[WEFT_WINDOW];
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"window", c->window},
        {"dsa", c->dsa},
        {"topk", c->index_topk},
        {"index_heads", c->index_n_head},
        {"index_interleave", c->index_rope_interleave},
        {"interleave", c->rope_interleave},
        {"rescale", c->rescale},
        {"k_rope_norm", c->k_rope_norm},
        {"gate", (double)full->gate},
        {"swa_gate", (double)swa->gate},
        {"heads", full->n_head},
        {"q_lora", full->q_lora_rank},
        {"theta", full->rope_theta},
        {"scale", (double)full->softmax_scale},
        {"swa_heads", swa->n_head},
        {"swa_q_lora", swa->q_lora_rank},
        {"swa_kv_lora", swa->kv_lora_rank},
        {"swa_nope", swa->qk_nope_head_dim},
        {"swa_rope", swa->qk_rope_head_dim},
        {"swa_v", swa->v_head_dim},
        {"swa_theta", swa->rope_theta},
        {"eps", (double)c->rms_norm_eps},
        {"n_full", c->n_kind[WEFT_FULL]},
        {"n_window", c->n_kind[WEFT_WINDOW]},
        {"n_expert", c->n_expert},
        {"n_group", c->n_group},
        {"topk_group", c->topk_group},
        {"shared", c->shared_intermediate_size},
        {"scoring", (double)c->scoring},
        {"method", (double)c->topk_method},
        {"norm", c->norm_topk},
        {"rsf", c->dynamic_rsf},
        {"scaling", (double)c->routed_scaling},
        {"yarn", c->yarn.on},
        {"cos_sin", (double)c->yarn.cos_sin_factor},
        {"beta_fast", c->yarn.beta_fast},
        {"beta_slow", c->yarn.beta_slow},
        {"nextn", c->n_nextn},
        {"tie", c->tie_embeddings},
        {"stops", c->n_stop_ids},
        {"suppressed", c->n_suppressed_ids},
        {"context", c->max_context},
    };
    if (strncmp(name, "kind", 4) == 0) return (double)c->kind[name[4] - '0'];
    if (strncmp(name, "moe", 3) == 0) return c->moe[name[3] - '0'];
    if (strncmp(name, "stop", 4) == 0 && name[4] < 's')
        return c->stop_ids[name[4] - '0'];
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, name) == 0) return fields[i].value;
    ck_abort_msg("no field %s", name);
}

static const struct {
    const char *base, *edits, *field;
    double value;
} accepted[] = {
    /* dots3: defaults for what the released file leaves out */
    {"dots3", "{\"layer_types\":\"absent\"}", "n_full", 3},
    {"dots3", "{\"layer_types\":\"absent\"}", "kind5", WEFT_FULL},
    {"dots3", "{\"layer_types\":null}", "kind2", WEFT_WINDOW},
    {"dots3", "{\"layer_types\":null,\"use_sliding_window\":false}", "n_full",
     6},
    {"dots3", "{\"n_group\":null,\"topk_group\":\"absent\"}", "n_group", 1},
    {"dots3", "{\"scoring_func\":\"absent\"}", "scoring", WEFT_SIGMOID},
    {"dots3", "{\"scoring_func\":\"softmax\"}", "scoring", WEFT_SOFTMAX},
    {"dots3", "{\"topk_method\":null}", "method", WEFT_TOPK_NOAUX_TC},
    {"dots3", "{\"norm_topk_prob\":\"absent\"}", "norm", 1},
    {"dots3", "{\"routed_scaling_factor\":\"absent\"}", "scaling", 1},
    {"dots3", "{\"use_dynamic_rsf\":true}", "rsf", 1},
    {"dots3", "{\"attention_gate_type\":\"absent\"}", "gate",
     WEFT_GATE_HEADWISE},
    {"dots3", "{\"swa_attention_gate_type\":\"elementwise\"}", "swa_gate",
     WEFT_GATE_ELEMENTWISE},
    {"dots3", "{\"attention_gate_type\":\"none\"}", "gate", WEFT_GATE_NONE},
    {"dots3", "{\"apply_mla_qkv_lora_rescale\":\"absent\"}", "rescale", 1},
    {"dots3", "{\"apply_mla_qkv_lora_rescale\":false}", "rescale", 0},
    {"dots3", "{\"k_rope_only_layernorm\":\"absent\"}", "k_rope_norm", 1},
    {"dots3", "{\"k_rope_only_layernorm\":false}", "k_rope_norm", 0},
    {"dots3", "{\"indexer_rope_interleave\":\"absent\"}", "index_interleave",
     1},
    {"dots3", "{\"indexer_rope_interleave\":false}", "index_interleave", 0},
    {"dots3", "{\"rope_interleave\":false}", "interleave", 0},
    {"dots3", "{}", "interleave", 1},
    {"dots3", "{\"rms_norm_eps\":\"absent\"}", "eps", (double)1e-6F},
    {"dots3", "{\"rope_theta\":\"absent\"}", "theta", 80e6},
    {"dots3", "{\"swa_rope_theta\":\"absent\"}", "swa_theta", 50e3},
    {"dots3", "{\"rope_theta\":10000}", "theta", 10e3},
    {"dots3", "{\"rope_scaling\":null}", "yarn", 0},
    {"dots3", "{\"rope_scaling\":{\"type\":\"default\"}}", "yarn", 0},
    {"dots3", "{\"num_key_value_heads\":4}", "heads", 4},
    {"dots3", "{\"num_attention_heads\":4.0}", "heads", 4},
    {"dots3",
     "{\"swa_num_attention_heads\":\"absent\",\"swa_q_lora_rank\":null,"
     "\"swa_kv_lora_rank\":null,\"swa_head_dim\":null,"
     "\"swa_qk_nope_head_dim\":null,\"swa_qk_rope_head_dim\":null,"
     "\"swa_v_head_dim\":null}",
     "swa_heads", 64},
    {"dots3", "{\"swa_kv_lora_rank\":null}", "swa_kv_lora", 1024},
    {"dots3", "{\"swa_q_lora_rank\":null}", "swa_q_lora", 1024},
    {"dots3", "{\"swa_v_head_dim\":null}", "swa_v", 128},
    {"dots3", "{\"swa_qk_rope_head_dim\":null}", "swa_rope", 16},
    {"dots3", "{\"swa_head_dim\":null}", "swa_rope", 16},
    {"dots3", "{\"swa_qk_nope_head_dim\":null,\"swa_head_dim\":null}",
     "swa_nope", 192},
    {"dots3",
     "{\"swa_qk_nope_head_dim\":null,\"swa_head_dim\":null,"
     "\"swa_qk_rope_head_dim\":null}",
     "swa_rope", 64},
    /* the window and its alias */
    {"dots3", "{}", "window", 5},
    {"dots3", "{\"sliding_window_size\":\"absent\",\"sliding_window\":9}",
     "window", 9},
    {"dots3", "{\"sliding_window\":null}", "window", 5},
    {"dots3", "{\"sliding_window\":5}", "window", 5},
    {"dots3", "{\"sliding_window_size\":null}", "window", 512},
    {"dots3", "{\"layer_types\":null,\"use_sliding_window\":false}", "window",
     0},
    {"dots3",
     "{\"layer_types\":null,\"use_sliding_window\":false,"
     "\"swa_num_attention_heads\":77,\"swa_head_dim\":1}",
     "n_window", 0},
    /* layer types: three names of one geometry, and entries past the trunk */
    {"dots3",
     "{\"layer_types\":[\"indexed_attention\",\"deepseek_sparse_attention\","
     "\"sliding_attention\",\"full_attention\",\"sliding_attention\","
     "\"full_attention\",\"sliding_attention\"]}",
     "n_full", 4},
    {"dots3", "{\"num_hidden_layers\":5}", "n_full", 2},
    /* the indexer */
    {"dots3", "{\"use_dsa\":false}", "dsa", 0},
    {"dots3", "{\"use_dsa\":false}", "topk", 0},
    {"dots3", "{\"use_dsa\":true}", "dsa", 1},
    {"dots3", "{\"index_topk\":null}", "dsa", 0},
    {"dots3", "{\"index_topk\":\"absent\"}", "topk", 2048},
    {"dots3", "{\"index_n_heads\":\"absent\"}", "index_heads", 64},
    {"dots3", "{\"index_topk_freq\":1,\"index_skip_topk_offset\":3}", "dsa", 1},
    {"dots3", "{\"indexer_types\":[\"full\",\"full\"]}", "dsa", 1},
    {"dots3", "{\"index_topk_pattern\":null}", "dsa", 1},
    /* which layers are routed */
    {"dots3", "{\"first_k_dense_replace\":\"absent\"}", "moe1", 1},
    {"dots3", "{\"first_k_dense_replace\":\"absent\"}", "moe0", 0},
    {"dots3", "{\"first_k_dense_replace\":2,\"moe_layer_freq\":2}", "moe2", 1},
    {"dots3", "{\"first_k_dense_replace\":1,\"moe_layer_freq\":2}", "moe1", 0},
    {"dots3", "{\"moe_layer_freq\":[0,0,1,0,1,0]}", "moe2", 1},
    {"dots3", "{\"moe_layer_freq\":[0,0,1,0,1,0]}", "moe5", 0},
    {"dots3", "{\"moe_layer_freq\":[true,true,true,true,true,false]}", "moe5",
     0},
    {"dots3", "{\"moe_layer_freq\":[1,1,1,1,1,1]}", "moe0", 0},
    {"dots3",
     "{\"mlp_layer_types\":[\"sparse\",\"dense\",\"dense\",\"dense\",\"dense\","
     "\"dense\"]}",
     "moe0", 1},
    {"dots3",
     "{\"mlp_layer_types\":[\"sparse\",\"dense\",\"dense\",\"dense\",\"dense\","
     "\"dense\"]}",
     "moe1", 0},
    {"dots3", "{\"n_routed_experts\":null,\"num_local_experts\":8}", "n_expert",
     8},
    {"dots3", "{\"n_routed_experts\":null,\"num_experts\":16}", "n_expert", 16},
    {"dots3", "{\"num_experts\":8}", "n_expert", 8},
    {"dots3", "{\"shared_experts_intermediate_size\":30}", "shared", 30},
    {"dots3",
     "{\"moe_shared_expert_intermediate_size\":30,\"n_shared_experts\":2}",
     "shared", 60},
    {"dots3", "{\"n_shared_experts\":2}", "shared", 48},
    /* ids */
    {"dots3", "{\"eos_token_id\":5}", "stop0", 5},
    {"dots3", "{\"eos_token_id\":[5,9,5]}", "stops", 2},
    {"dots3", "{\"eos_token_id\":[5,9]}", "stop1", 9},
    {"dots3", "{\"eos_token_id\":null}", "stops", 0},
    {"dots3", "{\"eos_token_id\":[]}", "stops", 0},
    {"dots3", "{\"eos_token_id\":97}", "stops", 0}, /* outside vocab_size */
    {"dots3", "{\"image_token_id\":90,\"video_token_id\":91}", "suppressed", 2},
    {"dots3", "{\"vocab_size\":152064}", "suppressed", 3},
    {"dots3", "{}", "suppressed", 0},
    /* other names of the family, and switches with one value */
    {"dots3", "{\"model_type\":\"dots3_note_omni\"}", "n_full", 3},
    {"dots3", "{\"model_type\":\"dots3_note_text\"}", "n_full", 3},
    {"dots3", "{\"architectures\":[\"Dot3NoteForCausalLM\"]}", "n_full", 3},
    {"dots3", "{\"architectures\":[\"Dots3NoteForConditionalGeneration\"]}",
     "n_full", 3},
    {"dots3", "{\"architectures\":[\"Dots3NoteTextForCausalLM\"]}", "n_full",
     3},
    {"dots3", "{\"architectures\":null}", "n_full", 3},
    {"dots3",
     "{\"normalization\":\"RMSNorm\",\"final_norm\":\"RMSNorm\","
     "\"attention_bias\":false,\"mlp_bias\":false,\"hidden_act\":null}",
     "n_full", 3},
    {"dots3", "{\"tie_word_embeddings\":true}", "tie", 1},
    {"dots3", "{\"num_nextn_predict_layers\":1}", "nextn", 1},
    {"dots3",
     "{\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"weight_block_size\":[128,128],\"activation_scheme\":\"dynamic\","
     "\"fmt\":\"e4m3\",\"scale_fmt\":\"ue8m0\",\"ignored_layers\":[\"x\"]}}",
     "n_full", 3},
    {"dots3", "{\"unheard_of\":null}", "n_full", 3},
    {"dots3", "{\"text_config\":null}", "n_full", 3},
    /* DeepSeek */
    {"v2", "{\"first_k_dense_replace\":\"absent\"}", "moe0", 1},
    {"v2", "{\"n_group\":null,\"topk_group\":null}", "topk_group", 1},
    {"v2", "{\"scoring_func\":\"absent\"}", "scoring", WEFT_SOFTMAX},
    {"v2", "{\"topk_method\":\"absent\"}", "method", WEFT_TOPK_GREEDY},
    {"v2", "{\"norm_topk_prob\":\"absent\"}", "norm", 0},
    {"v2", "{\"norm_topk_prob\":true,\"routed_scaling_factor\":16}", "scaling",
     1},
    {"v2",
     "{\"norm_topk_prob\":true,\"num_experts_per_tok\":1,"
     "\"routed_scaling_factor\":16}",
     "scaling", 16},
    {"v2", "{\"norm_topk_prob\":true,\"num_experts_per_tok\":1}", "norm", 0},
    {"v2", "{}", "q_lora", 0},
    {"v2", "{\"q_lora_rank\":24}", "q_lora", 24},
    {"v2", "{\"n_shared_experts\":null}", "shared", 0},
    {"v2", "{}", "gate", WEFT_GATE_NONE},
    {"v2", "{}", "rescale", 0},
    {"v2", "{}", "k_rope_norm", 0},
    {"v2", "{}", "dsa", 0},
    {"v2", "{\"rope_theta\":\"absent\"}", "theta", 10e3},
    {"v2", "{\"moe_layer_freq\":2}", "moe2", 1},
    {"v2", "{\"moe_layer_freq\":2}", "moe1", 0},
    {"v3", "{\"first_k_dense_replace\":\"absent\"}", "moe2", 0},
    {"v3", "{\"first_k_dense_replace\":\"absent\"}", "moe3", 1},
    {"v3",
     "{\"n_group\":\"absent\",\"topk_group\":\"absent\","
     "\"n_routed_experts\":16}",
     "n_group", 8},
    {"v3",
     "{\"n_group\":\"absent\",\"topk_group\":\"absent\","
     "\"n_routed_experts\":16}",
     "topk_group", 4},
    {"v3", "{\"routed_scaling_factor\":\"absent\"}", "scaling", 2.5},
    {"v3", "{\"scoring_func\":null}", "scoring", WEFT_SIGMOID},
    {"v3", "{\"norm_topk_prob\":null}", "norm", 1},
    {"v32", "{}", "index_interleave", 0},
    {"v32", "{\"indexer_rope_interleave\":true}", "index_interleave", 1},
    {"v32", "{}", "dsa", 1},
    {"v32", "{\"use_dsa\":false}", "dsa", 0},
    {"v32", "{\"index_topk\":\"absent\"}", "topk", 2048},
    /* rope in its other spellings */
    {"v2", "{}", "yarn", 1},
    {"v2", "{\"rope_scaling\":null}", "yarn", 0},
    {"v2", "{\"rope_scaling\":null}", "cos_sin", 1},
    {"v2",
     "{\"rope_scaling\":null,\"rope_theta\":\"absent\",\"rope_parameters\":{"
     "\"rope_type\":\"default\",\"rope_theta\":77}}",
     "theta", 77},
    {"v2",
     "{\"rope_scaling\":null,\"rope_theta\":\"absent\",\"rope_parameters\":{"
     "\"rope_type\":\"yarn\",\"type\":\"yarn\",\"rope_theta\":77,\"factor\":8,"
     "\"original_max_position_embeddings\":64}}",
     "yarn", 1},
    {"v2",
     "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
     "\"original_max_position_embeddings\":64}}",
     "beta_fast", 32},
    {"v2",
     "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
     "\"original_max_position_embeddings\":64}}",
     "beta_slow", 1},
    {"dots3",
     "{\"rope_theta\":\"absent\",\"swa_rope_theta\":\"absent\","
     "\"rope_parameters\":{\"indexed_attention\":{\"rope_theta\":3e6,"
     "\"rope_type\":\"default\",\"partial_rotary_factor\":0.25},"
     "\"sliding_attention\":{\"rope_theta\":200}}}",
     "theta", 3e6},
    {"dots3",
     "{\"rope_theta\":\"absent\",\"swa_rope_theta\":\"absent\","
     "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":3e6},"
     "\"sliding_attention\":{\"rope_theta\":200}}}",
     "swa_theta", 200},
    {"dots3",
     "{\"rope_parameters\":{\"deepseek_sparse_attention\":{\"rope_theta\":1e6}}"
     "}",
     "theta", 1e6},
    /* per_layer_config: an absent key is the top level's */
    {"dots3",
     "{\"swa_v_head_dim\":99,\"per_layer_config\":{\"2\":{\"kv_lora_rank\":56},"
     "\"3\":{\"kv_lora_rank\":56},\"4\":{\"kv_lora_rank\":56}}}",
     "swa_kv_lora", 56},
    {"dots3",
     "{\"swa_v_head_dim\":99,\"per_layer_config\":{\"2\":{\"kv_lora_rank\":56},"
     "\"3\":{\"kv_lora_rank\":56},\"4\":{\"kv_lora_rank\":56}}}",
     "swa_v", 20},
    {"dots3", "{\"per_layer_config\":{}}", "dsa", 0}, /* by the layers' names */
    {"dots3", "{\"per_layer_config\":{},\"use_dsa\":true}", "dsa", 1},
    {"dots3",
     "{\"per_layer_config\":{},\"layer_types\":[\"indexed_attention\","
     "\"indexed_attention\",\"sliding_attention\",\"sliding_attention\","
     "\"sliding_attention\",\"indexed_attention\"]}",
     "dsa", 1},
};

static void keys_mean_what_they_should_row(size_t row)
{
    char *const json = synth_config(accepted[row].base, accepted[row].edits);
    weft_err err = {0};
    weft_model_config config;
    const weft_status st = parse(json, NULL, NULL, NULL, &config, &err);
    ck_assert_msg(st == WEFT_OK, "%s %s: %s", accepted[row].base,
                  accepted[row].edits, err.text);
    const double found = field(&config, accepted[row].field);
    ck_assert_msg(found == accepted[row].value, "%s %s: %s is %.9g, not %.9g",
                  accepted[row].base, accepted[row].edits, accepted[row].field,
                  found, accepted[row].value);
    weft_mem_free(json);
}

START_TEST(keys_mean_what_they_should)
{
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        keys_mean_what_they_should_row(i);
}
END_TEST

/* Every word of `words` must be in `text`. */
static void expect_words(const char *text, const char *words, const char *what)
{
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        ck_assert_msg(strstr(text, word) != NULL, "%s: no \"%s\" in: %s", what,
                      word, text);
}

/* What was told, as "key key ..." */
static void hear(void *arg, const char *key, const char *reason)
{
    char *const heard = arg;
    ck_assert_uint_gt(strlen(reason), 5);
    const size_t used = strlen(heard);
    (void)snprintf(heard + used, 2048 - used, "%s ", key);
}

START_TEST(ignored_keys_and_defaults_are_told)
{
    char heard[2048] = "";
    char *json = synth_config(
        "dots3", "{\"initializer_range\":0.02,\"use_cache\":true,"
                 "\"transformers_version\":\"9\",\"vision_config\":{\"a\":1},"
                 "\"head_dim\":256,\"torch_dtype\":\"bfloat16\",\"gone\":null,"
                 "\"rms_norm_eps\":null,\"apply_mla_qkv_lora_rescale\":null,"
                 "\"sliding_window_size\":null,\"eos_token_id\":12345}");
    weft_model_config config;
    ck_assert_int_eq(parse(json, "{\"do_sample\":false,\"min_p\":1}", hear,
                           heard, &config, NULL),
                     WEFT_OK);
    expect_words(heard,
                 "initializer_range use_cache transformers_version "
                 "vision_config head_dim torch_dtype gone rms_norm_eps "
                 "apply_mla_qkv_lora_rescale",
                 "remarks");
    expect_words(heard, "sliding_window_size eos_token_id do_sample min_p",
                 "remarks");
    weft_mem_free(json);
    heard[0] = '\0'; /* and nothing is told of what is used */
    json = synth_config("dots3", NULL);
    ck_assert_int_eq(parse(json, NULL, hear, heard, &config, NULL), WEFT_OK);
    ck_assert_str_eq(heard, "");
    weft_mem_free(json);
}
END_TEST

/* What transformers' base class may write into any file. */
START_TEST(keys_of_the_base_class_are_ignored)
{
    char heard[2048] = "";
    char *const json = synth_config(
        "v3", "{\"return_dict\":true,\"pruned_heads\":{},\"id2label\":"
              "{\"0\":\"LABEL_0\"},\"tokenizer_class\":\"T\","
              "\"chunk_size_feed_forward\":0,\"is_decoder\":false,"
              "\"max_length\":20,\"do_sample\":false,\"num_beams\":1}");
    weft_model_config config;
    ck_assert_int_eq(parse(json, NULL, hear, heard, &config, NULL), WEFT_OK);
    expect_words(heard,
                 "return_dict pruned_heads id2label tokenizer_class "
                 "chunk_size_feed_forward is_decoder max_length do_sample "
                 "num_beams",
                 "remarks");
    weft_mem_free(json);
}
END_TEST

/* A wrapper's text_config holds the text fields; what it lacks comes from
 * beside it. */
START_TEST(text_config_wrapper)
{
    char *const inner = synth_config("dots3", "{\"vocab_size\":\"absent\","
                                              "\"model_type\":\"dots3_note_"
                                              "text\"}");
    char wrapped[8192];
    (void)snprintf(wrapped, sizeof wrapped,
                   "{\"model_type\":\"dots3_note\",\"vocab_size\":97,"
                   "\"hidden_size\":1000,\"audio_token_id\":3,"
                   "\"vision_config\":{},\"text_config\":%s}",
                   inner);
    weft_err err = {0};
    weft_model_config config;
    ck_assert_msg(parse(wrapped, NULL, NULL, NULL, &config, &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_str_eq(config.model_type, "dots3_note");
    ck_assert_int_eq(config.hidden_size, 80);
    ck_assert_int_eq(config.vocab_size, 97);
    ck_assert_int_eq(config.suppressed_ids[0], 3);
    (void)snprintf(wrapped, sizeof wrapped,
                   "{\"model_type\":\"deepseek_v3\",\"vocab_size\":97,"
                   "\"text_config\":%s}",
                   inner);
    ck_assert_int_eq(parse(wrapped, NULL, NULL, NULL, &config, &err),
                     WEFT_INVALID_ARGUMENT);
    expect_words(err.text, "model_type", "wrapper");
    (void)snprintf(wrapped, sizeof wrapped,
                   "{\"model_type\":\"dots3_note\",\"vocab_size\":97,"
                   "\"odd\":1,\"text_config\":%s}",
                   inner);
    ck_assert_int_eq(parse(wrapped, NULL, NULL, NULL, &config, &err),
                     WEFT_INVALID_ARGUMENT);
    expect_words(err.text, "odd", "wrapper");
    weft_mem_free(inner);
}
END_TEST

static void expect_near(double found, double wanted)
{
    ck_assert_msg(fabs(found - wanted) <= 2e-7 * fabs(wanted) + 1e-30,
                  "%.9g is not %.9g", found, wanted);
}

/* The figures of model-spec 1.2 and 2.2. */
START_TEST(rope_figures)
{
    static const struct {
        int32_t i;
        double value;
    } yarn[] = {{10, 0.0562341325},
                {11, 0.0390069266},
                {15, 0.00833450895},
                {20, 0.000790569415},
                {23, 3.33380358e-5}};
    weft_model_config config;
    float f[WEFT_KINDS][32];
    char *json =
        synth_config("v3", "{\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                           "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
                           "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,"
                           "\"mscale_all_dim\":1.0,"
                           "\"original_max_position_embeddings\":4096}}");
    ck_assert_int_eq(parse(json, NULL, NULL, NULL, &config, NULL), WEFT_OK);
    weft_config_inv_freq(&config, WEFT_FULL, f[0]);
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn; i++)
        expect_near((double)f[0][yarn[i].i], yarn[i].value);
    expect_near((double)config.geometry[WEFT_FULL].softmax_scale, 0.135233779);
    expect_near((double)config.yarn.cos_sin_factor, 1);
    weft_mem_free(json);

    json = synth_config("dots3",
                        "{\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
                        "\"index_head_dim\":128,\"swa_qk_nope_head_dim\":192,"
                        "\"swa_qk_rope_head_dim\":64,\"swa_head_dim\":256,"
                        "\"rope_theta\":8e7,\"swa_rope_theta\":5e4}");
    ck_assert_int_eq(parse(json, NULL, NULL, NULL, &config, NULL), WEFT_OK);
    for (int k = 0; k < WEFT_KINDS; k++)
        weft_config_inv_freq(&config, (weft_kind)k, f[k]);
    ck_assert(f[0][0] == 1.0F && f[1][0] == 1.0F);
    expect_near((double)f[0][1], 0.566276368);
    expect_near((double)f[0][8], 0.0105737126);
    expect_near((double)f[0][31], 2.20740273e-8);
    expect_near((double)f[1][1], 0.713111085);
    expect_near((double)f[1][8], 0.0668740305);
    expect_near((double)f[1][31], 2.80461213e-5);
    expect_near((double)config.geometry[WEFT_FULL].softmax_scale, 0.0721687836);
    expect_near((double)config.geometry[WEFT_WINDOW].softmax_scale, 0.0625);
    ck_assert_int_eq(weft_config_row_width(&config, WEFT_FULL), 104);
    ck_assert_int_eq(weft_config_row_width(&config, WEFT_WINDOW), 120);
    weft_mem_free(json);
}
END_TEST

/* mscale and mscale_all_dim: the cosines' factor, and the softmax's. */
static const struct {
    const char *keys;
    double cos_sin, scale; /* scale: times (24 + 16)^-1/2 */
} mscales[] = {
    {",\"mscale\":0.707,\"mscale_all_dim\":0.707", 1, 1.58962617},
    {",\"mscale\":0.707,\"mscale_all_dim\":1.0", 0.921042391, 1.87385421},
    {"", 1.36888795, 1},
    {",\"mscale\":0.707", 1.26080378, 1},
    {",\"mscale_all_dim\":1.0", 1, 1.87385421},
    {",\"mscale_all_dim\":0", 1.36888795, 1},
};

static void mscale_figures_row(size_t row)
{
    char edits[256];
    weft_model_config config;
    (void)snprintf(edits, sizeof edits,
                   "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
                   "\"original_max_position_embeddings\":64%s}}",
                   mscales[row].keys);
    char *const json = synth_config("v2", edits);
    ck_assert_int_eq(parse(json, NULL, NULL, NULL, &config, NULL), WEFT_OK);
    expect_near((double)config.yarn.cos_sin_factor, mscales[row].cos_sin);
    expect_near((double)config.geometry[WEFT_FULL].softmax_scale,
                mscales[row].scale / sqrt(40));
    weft_mem_free(json);
}

START_TEST(mscale_figures)
{
    for (size_t i = 0; i < sizeof mscales / sizeof *mscales; i++)
        mscale_figures_row(i);
}
END_TEST

/* A file as the library saves it again says the same as the released one. */
static const char *const pairs[][2] = {
    {"tests/data/fixtures/dots3-defaults", "tests/data/fixtures/dots3-resaved"},
    {"tests/data/fixtures/v2-mscale", "tests/data/fixtures/v2-resaved"}};

static void resaved_files_say_the_same_row(size_t row)
{
    weft_model_config c[2];
    memset(c, 0, sizeof c);
    for (int i = 0; i < 2; i++) {
        weft_err err = {0};
        ck_assert_msg(weft_model_config_read(pairs[row][i], NULL, NULL, &c[i],
                                             &err) == WEFT_OK,
                      "%s", err.text);
        memset(c[i].model_type, 0, sizeof c[i].model_type);
    }
    ck_assert_mem_eq(&c[0], &c[1], sizeof c[0]);
}

START_TEST(resaved_files_say_the_same)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        resaved_files_say_the_same_row(i);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {keys_mean_what_they_should,
                                  ignored_keys_and_defaults_are_told,
                                  keys_of_the_base_class_are_ignored,
                                  text_config_wrapper,
                                  rope_figures,
                                  mscale_figures,
                                  resaved_files_say_the_same};
    return WEFT_SUITE_RUN("model/config", tests);
}
