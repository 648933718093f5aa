/* config.c - reads the two files, finds the family, and goes through the parts
 * (config_internal.h). What no part asks for is listed here with the reason
 * why it may be ignored, or is refused. */
#include "shard/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/file.h"
#include "shard/model/config_internal.h"
#include "shard/model/json.h"

/* Real files have a few kilobytes. */
enum { FILE_BYTES_MAX = 4 << 20, PATH_BYTES = 4096 };

/* Attributes that transformers' configuration class gives to every model, and
 * that some versions write out with each file. */
#define BASE_CLASS "of transformers' base class; nothing here depends on it"
#define SAMPLING   "a sampling value; generation_config.json is the place"

static const weft_ignored_key ignored[] = {
    {"head_dim", "follows from the nope and rope widths"},
    {"qk_head_dim", "follows from the nope and rope widths"},
    {"partial_rotary_factor", "qk_rope_head_dim says it"},
    {"index_skip_topk_offset", "no layer shares its selection"},
    {"initializer_range", "only for training"},
    {"attention_dropout", "only for training"},
    {"aux_loss_alpha", "only for training"},
    {"seq_aux", "only for training"},
    {"router_aux_loss_coef", "only for training"},
    {"output_router_logits", "only for training"},
    {"pretraining_tp", "only for training"},
    {"ep_size", "only for training"},
    {"seq_length", "only for training"},
    {"use_cache", "keys and values are always cached"},
    {"transformers_version", "says who wrote the file"},
    {"_name_or_path", "says where the file came from"},
    {"auto_map", "code beside a checkpoint is never run"},
    {"torch_dtype", "each tensor says its own type"},
    {"dtype", "each tensor says its own type"},
    {"bos_token_id", "the tokenizer adds what a prompt begins with"},
    {"pad_token_id", "nothing is padded"},
    {"moe_gating_fp32", "the router is always computed in fp32"},
    {"moe_router_dtype", "the router is always computed in fp32"},
    {"mtp_layer_types", "MTP layers are not used"},
    {"vision_config", "text only: media are not supported"},
    {"audio_config", "text only: media are not supported"},
    {"tokenizer_class", BASE_CLASS},
    {"return_dict", BASE_CLASS},
    {"output_attentions", BASE_CLASS},
    {"output_hidden_states", BASE_CLASS},
    {"torchscript", BASE_CLASS},
    {"use_bfloat16", BASE_CLASS},
    {"tf_legacy_loss", BASE_CLASS},
    {"pruned_heads", BASE_CLASS},
    {"chunk_size_feed_forward", BASE_CLASS},
    {"tie_encoder_decoder", BASE_CLASS},
    {"finetuning_task", BASE_CLASS},
    {"id2label", BASE_CLASS},
    {"label2id", BASE_CLASS},
    {"problem_type", BASE_CLASS},
    {"task_specific_params", BASE_CLASS},
    {"prefix", BASE_CLASS},
    {"sep_token_id", BASE_CLASS},
    {"decoder_start_token_id", BASE_CLASS},
    {"cross_attention_hidden_size", BASE_CLASS},
    {"is_encoder_decoder", BASE_CLASS},
    {"is_decoder", BASE_CLASS},
    {"add_cross_attention", BASE_CLASS},
    {"_attn_implementation_autoset", BASE_CLASS},
    {"_attn_implementation", BASE_CLASS},
    {"model_name", BASE_CLASS},
    {"unsloth_fixed", BASE_CLASS},
    {"unsloth_version", BASE_CLASS},
    {"max_length", SAMPLING},
    {"min_length", SAMPLING},
    {"do_sample", SAMPLING},
    {"temperature", SAMPLING},
    {"top_k", SAMPLING},
    {"top_p", SAMPLING},
    {"typical_p", SAMPLING},
    {"repetition_penalty", SAMPLING},
    {"length_penalty", SAMPLING},
    {"no_repeat_ngram_size", SAMPLING},
    {"num_beams", SAMPLING},
    {"num_beam_groups", SAMPLING},
    {"num_return_sequences", SAMPLING},
    {"early_stopping", SAMPLING},
    {"diversity_penalty", SAMPLING},
    {"bad_words_ids", SAMPLING},
    {"begin_suppress_tokens", SAMPLING},
    {"suppress_tokens", SAMPLING},
    {"encoder_no_repeat_ngram_size", SAMPLING},
    {"exponential_decay_length_penalty", SAMPLING},
    {"forced_bos_token_id", SAMPLING},
    {"forced_eos_token_id", SAMPLING},
    {"remove_invalid_values", SAMPLING},
    {"output_scores", SAMPLING},
    {"return_dict_in_generate", SAMPLING},
    {NULL, NULL}};

static const struct {
    const char *model_type;
    weft_family family;
} families[] = {
    {"dots3_note", WEFT_DOTS3},        {"dots3_note_text", WEFT_DOTS3},
    {"dots3_note_omni", WEFT_DOTS3},   {"deepseek_v2", WEFT_DEEPSEEK_V2},
    {"deepseek_v3", WEFT_DEEPSEEK_V3}, {"deepseek_v32", WEFT_DEEPSEEK_V32},
};

static const struct {
    const char *name;
    weft_family family;
} architectures[] = {
    {"Dots3NoteForCausalLM", WEFT_DOTS3},
    {"Dot3NoteForCausalLM", WEFT_DOTS3},
    {"Dots3NoteTextForCausalLM", WEFT_DOTS3},
    {"Dots3NoteForConditionalGeneration", WEFT_DOTS3},
    {"Dots3NoteOmniForCausalLM", WEFT_DOTS3},
    {"Dots3NoteOmniForConditionalGeneration", WEFT_DOTS3},
    {"DeepseekV2ForCausalLM", WEFT_DEEPSEEK_V2},
    {"DeepseekV3ForCausalLM", WEFT_DEEPSEEK_V3},
    {"DeepseekV32ForCausalLM", WEFT_DEEPSEEK_V32},
};

static weft_status read_architectures(weft_fields *fields, weft_family family,
                                      weft_err *err)
{
    json_t *const list = weft_fields_get(fields, "architectures");
    if (list != NULL && !json_is_array(list))
        return weft_fields_refuse(fields, "architectures", list,
                                  "must be a list of names", err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *const item = json_array_get(list, i);
        const char *const text = json_string_value(item);
        bool known = false;
        for (size_t k = 0; k < sizeof architectures / sizeof *architectures;
             k++)
            known =
                known || (text != NULL && architectures[k].family == family &&
                          strcmp(text, architectures[k].name) == 0);
        if (!known)
            return weft_fields_refuse(fields, "architectures", item,
                                      "not an architecture of this model_type",
                                      err);
    }
    return WEFT_OK;
}

/* `root` is the outermost object: a wrapper's own model_type is the one that
 * counts, and one inside it must be of the same family. */
static weft_status find_family(const weft_fields *fields, const json_t *value,
                               weft_family *out, weft_err *err)
{
    const char *const text = json_string_value(value);
    if (text == NULL)
        return weft_fields_refuse(fields, "model_type", value,
                                  "required, and a text", err);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(text, families[i].model_type) == 0) {
            *out = families[i].family;
            return WEFT_OK;
        }
    }
    if (strncmp(text, "deepseek_v4", strlen("deepseek_v4")) == 0)
        return weft_fields_refuse(fields, "model_type", value,
                                  "DeepSeek-V4 is not supported", err);
    return weft_fields_refuse(fields, "model_type", value,
                              "not supported; known: dots3_note, deepseek_v2, "
                              "deepseek_v3, deepseek_v32",
                              err);
}

static weft_status read_family(weft_fields *fields, weft_model_config *config,
                               weft_family *family, weft_err *err)
{
    const json_t *value = NULL, *inner = NULL;
    if (fields->outer != NULL) {
        value = json_object_get(fields->outer, "model_type");
        inner = json_object_get(fields->inner, "model_type");
    }
    if (value == NULL) {
        value = weft_fields_get(fields, "model_type");
        inner = NULL;
    }
    (void)weft_fields_get(fields, "model_type");
    WEFT_TRY(find_family(fields, value, family, err));
    weft_family of_inner = *family;
    if (inner != NULL && !json_is_null(inner))
        WEFT_TRY(find_family(fields, inner, &of_inner, err));
    if (of_inner != *family)
        return weft_fields_refuse(fields, "model_type", inner,
                                  "contradicts the wrapper's model_type", err);
    (void)snprintf(config->model_type, sizeof config->model_type, "%s",
                   json_string_value(value));
    return read_architectures(fields, *family, err);
}

/* Keys that may only have the value that is built. */
static weft_status refuse_unbuilt(weft_fields *fields, weft_err *err)
{
    static const char *const norms[] = {"RMSNorm", NULL};
    static const char *const acts[] = {"silu", NULL};
    static const char *const switches[] = {"attention_bias", "mlp_bias"};
    int32_t only = 0;
    WEFT_TRY(weft_fields_choice(fields, "normalization", norms, 0, &only, err));
    WEFT_TRY(weft_fields_choice(fields, "final_norm", norms, 0, &only, err));
    WEFT_TRY(weft_fields_choice(fields, "hidden_act", acts, 0, &only, err));
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        bool on = false;
        WEFT_TRY(weft_fields_bool(fields, switches[i], false, &on, err));
        if (on)
            return weft_fields_refuse(fields, switches[i], NULL,
                                      "true is not supported", err);
    }
    return WEFT_OK;
}

static weft_status check_block(const weft_fields *fields, const json_t *block,
                               weft_err *err)
{
    bool good = json_array_size(block) == 2;
    for (size_t i = 0; good && i < 2; i++) {
        int64_t side = 0;
        good = weft_json_is_int(json_array_get(block, i), WEFT_SCALE_BLOCK,
                                WEFT_SCALE_BLOCK, &side);
    }
    if (good) return WEFT_OK;
    return weft_fields_refuse(fields, "weight_block_size", block,
                              "only [128, 128] is supported", err);
}

/* Which tensors are F8 is said by the tensors (model-spec 1.3); here it is
 * only made sure that the scheme is the one that is built. */
static weft_status read_quantization(const weft_fields *parent, json_t *value,
                                     weft_err *err)
{
    static const char *const methods[] = {"fp8", NULL};
    static const char *const schemes[] = {"dynamic", NULL};
    static const char *const formats[] = {"e4m3", NULL};
    static const char *const scales[] = {"float", "ue8m0", NULL};
    static const weft_ignored_key informal[] = {
        {"ignored_layers", "each tensor says its own type"},
        {"modules_to_not_convert", "each tensor says its own type"},
        {"exclude", "each tensor says its own type"},
        {NULL, NULL}};
    weft_fields fields;
    int32_t only = 0;
    WEFT_TRY(weft_fields_init_nested(&fields, parent, "quantization_config",
                                     value, err));
    weft_status st = WEFT_OK;
    if (!weft_fields_has(&fields, "quant_method"))
        st = weft_fields_refuse(&fields, "quant_method", NULL,
                                "required, but absent or null", err);
    if (st == WEFT_OK)
        st =
            weft_fields_choice(&fields, "quant_method", methods, 0, &only, err);
    if (st == WEFT_OK)
        st = weft_fields_choice(&fields, "activation_scheme", schemes, 0, &only,
                                err);
    if (st == WEFT_OK)
        st = weft_fields_choice(&fields, "fmt", formats, 0, &only, err);
    if (st == WEFT_OK)
        st = weft_fields_choice(&fields, "scale_fmt", scales, 0, &only, err);
    if (st == WEFT_OK)
        st = check_block(&fields, weft_fields_get(&fields, "weight_block_size"),
                         err);
    if (st == WEFT_OK) st = weft_fields_finish(&fields, informal, err);
    weft_fields_deinit(&fields);
    return st;
}

static weft_status read_sizes(weft_fields *fields, weft_model_config *config,
                              weft_err *err)
{
    double eps = 0;
    const weft_int_field list[] = {
        {"vocab_size", NULL, &config->vocab_size, 1, WEFT_VOCAB_MAX,
         WEFT_REQUIRED, false},
        {"hidden_size", NULL, &config->hidden_size, 1, WEFT_HIDDEN_MAX,
         WEFT_REQUIRED, false},
        {"num_hidden_layers", NULL, &config->n_layer, 1, WEFT_LAYERS_MAX,
         WEFT_REQUIRED, false},
        {"max_position_embeddings", NULL, &config->max_context, 1,
         WEFT_CONTEXT_MAX, WEFT_REQUIRED, false},
        {"num_nextn_predict_layers", NULL, &config->n_nextn, 0, WEFT_LAYERS_MAX,
         0, false},
    };
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    const weft_real_field field = {"rms_norm_eps", &eps, 0, 1, 1e-6, true};
    WEFT_TRY(weft_fields_real(fields, &field, err));
    config->rms_norm_eps = (float)eps;
    return weft_fields_bool(fields, "tie_word_embeddings", false,
                            &config->tie_embeddings, err);
}

static weft_status read_all(weft_fields *fields, weft_model_config *config,
                            weft_err *err)
{
    weft_family family = WEFT_DOTS3;
    WEFT_TRY(read_family(fields, config, &family, err));
    WEFT_TRY(refuse_unbuilt(fields, err));
    json_t *const quant = weft_fields_get(fields, "quantization_config");
    if (quant != NULL) WEFT_TRY(read_quantization(fields, quant, err));
    WEFT_TRY(read_sizes(fields, config, err));
    WEFT_TRY(weft_config_layers(fields, family, config, err));
    WEFT_TRY(weft_config_rope(fields, family, config, err));
    WEFT_TRY(weft_config_moe(fields, family, config, err));
    WEFT_TRY(weft_config_ids(fields, family, config, err));
    return weft_fields_finish(fields, ignored, err);
}

static weft_status read_root(json_t *root, weft_remark_fn remark, void *arg,
                             weft_model_config *config, weft_err *err)
{
    weft_fields fields;
    json_t *const text = json_object_get(root, "text_config");
    const bool wrapped = json_is_object(text);
    WEFT_TRY(weft_fields_init(&fields, "config.json: ", wrapped ? text : root,
                              wrapped ? root : NULL, remark, arg, err));
    weft_status st = WEFT_OK;
    if (text != NULL && !wrapped && !json_is_null(text))
        st = weft_fields_refuse(&fields, "text_config", text, "not an object",
                                err);
    (void)json_object_del(fields.left, "text_config");
    if (st == WEFT_OK) st = read_all(&fields, config, err);
    weft_fields_deinit(&fields);
    return st;
}

weft_status weft_model_config_parse(const weft_config_texts *texts,
                                    weft_remark_fn remark, void *arg,
                                    weft_model_config *config_out,
                                    weft_err *err)
{
    json_t *root = NULL;
    weft_model_config config;
    memset(&config, 0, sizeof config);
    config.temperature = config.top_p = config.repetition_penalty = NAN;
    config.top_k_sampling = -1;
    WEFT_TRY(weft_json_read("config.json", texts->config, texts->config_bytes,
                            &root, err));
    weft_status st = read_root(root, remark, arg, &config, err);
    json_decref(root);
    if (st == WEFT_OK && texts->generation != NULL)
        st = weft_config_generation(texts->generation, texts->generation_bytes,
                                    remark, arg, &config, err);
    if (st == WEFT_OK) *config_out = config;
    return st;
}

static weft_status read_file(const char *dir, const char *name, weft_buf *buf,
                             weft_err *err)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the path of the model folder is too long");
    return weft_file_read_all(path, FILE_BYTES_MAX, buf, err);
}

weft_status weft_model_config_read(const char *dir, weft_remark_fn remark,
                                   void *arg, weft_model_config *config_out,
                                   weft_err *err)
{
    weft_buf config = {0}, generation = {0};
    weft_err absent = {.status = WEFT_OK};
    weft_status st = read_file(dir, "config.json", &config, err);
    if (st == WEFT_OK) {
        st = read_file(dir, "generation_config.json", &generation, &absent);
        /* Only its absence is fine: then there are no defaults to apply. */
        if (st == WEFT_NOT_FOUND) st = WEFT_OK;
        if (st != WEFT_OK && err != NULL) *err = absent;
    }
    if (st == WEFT_OK) {
        const weft_config_texts texts = {config.data, config.n, generation.data,
                                         generation.n};
        st = weft_model_config_parse(&texts, remark, arg, config_out, err);
    }
    weft_buf_deinit(&generation);
    weft_buf_deinit(&config);
    return st;
}

int32_t weft_config_row_width(const weft_model_config *config, weft_kind kind)
{
    const weft_geometry *const g = &config->geometry[kind];
    return g->kv_lora_rank + g->qk_rope_head_dim;
}
