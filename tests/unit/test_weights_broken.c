/* Checkpoints that are damaged, contradict themselves, or meet a machine
 * without memory: one error that names the thing, and nothing left behind. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/file.h"
#include "node/base/mem.h"
#include "shard/load/tensors.h"
#include "shard/load/weights.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

/* The smallest model with every kind of tensor. */
static const char tiny[] =
    "{\"hidden_size\":4,\"vocab_size\":5,\"num_hidden_layers\":2,"
    "\"layer_types\":[\"full_attention\",\"sliding_attention\"],"
    "\"intermediate_size\":3,\"moe_intermediate_size\":2,"
    "\"n_routed_experts\":2,\"num_experts_per_tok\":1,"
    "\"num_attention_heads\":1,\"q_lora_rank\":3,\"kv_lora_rank\":2,"
    "\"qk_nope_head_dim\":2,\"qk_rope_head_dim\":2,\"v_head_dim\":2,"
    "\"swa_num_attention_heads\":1,\"swa_q_lora_rank\":2,"
    "\"swa_kv_lora_rank\":3,\"swa_qk_nope_head_dim\":2,"
    "\"swa_qk_rope_head_dim\":2,\"swa_v_head_dim\":1,\"swa_head_dim\":4,"
    "\"index_n_heads\":1,\"index_head_dim\":4,\"index_topk\":2}";

static void remember(void *arg, const char *key, const char *reason)
{
    char *const heard = arg;
    const size_t used = strlen(heard);
    if (heard[0] == '\0' || used < 1900)
        (void)snprintf(heard + used, 2048 - used, "%s (%s) ", key, reason);
}

/* Config, open and load, whatever comes of it. `heard` may be NULL. */
static weft_status try_load(const char *dir, char *heard,
                            weft_model_config *config, weft_err *err)
{
    weft_checkpoint *checkpoint = NULL;
    weft_model *model = NULL;
    const weft_remark_fn remark = heard != NULL ? remember : NULL;
    *err = (weft_err){0};
    weft_status st = weft_model_config_read(dir, remark, heard, config, err);
    if (st == WEFT_OK)
        st = weft_checkpoint_open(dir, config, WEFT_EXACT, remark, heard,
                                  &checkpoint, err);
    if (st == WEFT_OK)
        st = weft_model_load(checkpoint, NULL, NULL, &model, err);
    weft_model_destroy(model);
    weft_checkpoint_close(checkpoint);
    return st;
}

static void expect_words(const char *text, const char *words)
{
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        ck_assert_msg(strstr(text, word) != NULL, "no \"%s\" in: %s", word,
                      text);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    synth_file_write(dir, name, text, (int64_t)strlen(text));
}

static void write_config(const char *dir, const char *id, const char *more)
{
    char *const json = synth_case_config(id, more);
    write_text(dir, "config.json", json);
    weft_mem_free(json);
}

/* Tensors made for one config, then told by another. */
static const struct {
    const char *made, *told;
    weft_status status;
    const char *words, *heard;
} contradictions[] = {
    {NULL, "{\"hidden_size\":40}", WEFT_INVALID_ARGUMENT,
     "model.safetensors model.embed_tokens.weight [97, 80] [97, 40]", NULL},
    {NULL, "{\"vocab_size\":96}", WEFT_INVALID_ARGUMENT,
     "model.embed_tokens.weight [96, 80]", NULL},
    {NULL, "{\"n_routed_experts\":64}", WEFT_INVALID_ARGUMENT,
     "model.layers.1.mlp.gate.weight [64, 80]", NULL},
    {NULL, "{\"moe_intermediate_size\":25}", WEFT_INVALID_ARGUMENT,
     "mlp.experts.0.gate_proj.weight [25, 80]", NULL},
    {NULL, "{\"intermediate_size\":71}", WEFT_INVALID_ARGUMENT,
     "model.layers.0.mlp.gate_proj.weight", NULL},
    {NULL, "{\"num_attention_heads\":2}", WEFT_INVALID_ARGUMENT,
     "model.layers.0.self_attn.q_b_proj.weight", NULL},
    {NULL, "{\"num_hidden_layers\":5}", WEFT_INVALID_ARGUMENT, "model.layers.5",
     NULL},
    {"{\"num_hidden_layers\":5}", "{}", WEFT_NOT_FOUND,
     "model.layers.5.input_layernorm.weight", NULL},
    {NULL, "{\"k_rope_only_layernorm\":false}", WEFT_INVALID_ARGUMENT,
     "k_rope_only_layernorm.weight nothing", NULL},
    {NULL, "{\"attention_gate_type\":\"none\"}", WEFT_INVALID_ARGUMENT,
     "self_attn.g_proj.weight nothing", NULL},
    {NULL, "{\"attention_gate_type\":\"elementwise\"}", WEFT_INVALID_ARGUMENT,
     "self_attn.g_proj.weight [80, 80]", NULL},
    {NULL, "{\"first_k_dense_replace\":2}", WEFT_NOT_FOUND,
     "model.layers.1.mlp.gate_proj.weight", NULL},
    {"{\"first_k_dense_replace\":2}", "{}", WEFT_NOT_FOUND,
     "model.layers.1.mlp.gate.weight", NULL},
    {"{\"use_dsa\":false}", "{}", WEFT_NOT_FOUND,
     "model.layers.0.self_attn.indexer.wq_b.weight", NULL},
    {"{\"tie_word_embeddings\":true}", "{}", WEFT_NOT_FOUND, "lm_head.weight",
     NULL},
    {"{\"topk_method\":\"greedy\"}", "{}", WEFT_OK, NULL,
     "e_score_correction_bias absent 5"},
    {NULL, "{\"use_dsa\":false}", WEFT_OK, NULL, "indexer 15 tensors"},
    {NULL, "{\"tie_word_embeddings\":true}", WEFT_OK, NULL,
     "lm_head.weight 1 tensors"},
    {NULL, "{\"topk_method\":\"greedy\"}", WEFT_OK, NULL,
     "e_score_correction_bias 5 tensors"},
    {NULL, "{\"num_nextn_predict_layers\":1}", WEFT_OK, NULL,
     "num_nextn_predict_layers"},
    {NULL, "{\"shared_experts_intermediate_size\":99}", WEFT_OK, NULL,
     "shared_experts_intermediate_size tensors"},
};

START_TEST(tensors_and_config_must_agree)
{
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions;
         i++) {
        char dir[64], heard[2048] = "";
        weft_err err;
        weft_model_config config;
        synth_folder_make(dir);
        synth_case_write(dir, "T02", contradictions[i].made, NULL);
        write_config(dir, "T02", contradictions[i].told);
        const weft_status st = try_load(dir, heard, &config, &err);
        ck_assert_msg(st == contradictions[i].status, "%s %s: %s (%s)",
                      contradictions[i].made, contradictions[i].told,
                      weft_status_name(st), err.text);
        if (st != WEFT_OK)
            expect_words(err.text, contradictions[i].words);
        else
            expect_words(heard, contradictions[i].heard);
        if (st == WEFT_OK) ck_assert_int_eq(config.n_nextn, 0);
        if (st == WEFT_OK)
            ck_assert_int_eq(config.shared_intermediate_size, 24);
        synth_folder_remove(dir);
    }
}
END_TEST

static void fill_with(void *arg, const char *key, double *values, int64_t n_row,
                      int64_t n_in)
{
    (void)n_row;
    (void)n_in;
    if (strcmp(key, arg) == 0) values[0] = NAN;
}

START_TEST(numbers_that_are_not_numbers)
{
    static char norm[] = "model.layers.2.input_layernorm";
    const synth_options options = {.edit = fill_with, .edit_arg = norm};
    char dir[64];
    weft_err err;
    weft_model_config config;
    synth_folder_make(dir);
    synth_case_write(dir, "T02", NULL, &options);
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "model.safetensors");
    expect_words(err.text, norm);
    synth_folder_remove(dir);
}
END_TEST

/* Puts `bytes` over the first place where `find` stands in a file. */
static void patch(const char *dir, const char *find, const char *bytes)
{
    char path[128];
    weft_buf file = {0};
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_int_eq(weft_file_read_all(path, 1 << 26, &file, NULL), WEFT_OK);
    char *const at = memmem(file.data, file.n, find, strlen(find));
    ck_assert_ptr_nonnull(at);
    for (size_t i = 0; bytes[i] != '\0'; i++) at[i] = bytes[i];
    synth_file_write(dir, "model.safetensors", file.data, (int64_t)file.n);
    weft_buf_deinit(&file);
}

/* Sets an element of a F8 tensor to the NaN code. */
static void poison_f8(const char *dir, const char *name, int64_t element)
{
    char path[128];
    weft_tensor_set set = {0};
    ck_assert_int_eq(weft_tensor_set_open(dir, NULL, NULL, &set, NULL),
                     WEFT_OK);
    const weft_tensor *const t = weft_tensor_set_find(&set, name);
    ck_assert_ptr_nonnull(t);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, "\xff", 1, (off_t)(t->offset + element)), 1);
    (void)close(fd);
    weft_tensor_set_deinit(&set);
}

START_TEST(nan_codes_of_f8)
{
    static const char *const names[] = {
        "model.layers.0.self_attn.kv_b_proj.weight",
        "model.layers.1.mlp.experts.2.down_proj.weight"};
    const synth_options f8 = {.f8 = true};
    for (int i = 0; i < 2; i++) {
        char dir[64];
        weft_err err;
        weft_model_config config;
        synth_folder_make(dir);
        synth_case_write(dir, "T09", NULL, &f8);
        ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_OK);
        poison_f8(dir, names[i], 12345);
        ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_DATA_LOSS);
        expect_words(err.text, "model.safetensors NaN element 12345");
        expect_words(err.text, names[i]);
        synth_folder_remove(dir);
    }
}
END_TEST

/* Types are judged by what a tensor is for; the header is patched so that the
 * sizes stay. */
START_TEST(types_that_do_not_fit)
{
    static const struct {
        const char *from, *to, *words;
    } rows[] = {
        {"\"model.norm.weight\":{\"dtype\":\"BF16\"",
         "\"model.norm.weight\":{\"dtype\":\"I16\" ", "model.norm.weight I16"},
        {"\"lm_head.weight\":{\"dtype\":\"BF16\"",
         "\"lm_head.weight\":{\"dtype\":\"U16\" ", "lm_head.weight U16"},
        {"\"model.embed_tokens.weight\":{\"dtype\":\"BF16\"",
         "\"model.embed_tokens.weight\":{\"dtype\":\"I16\" ",
         "model.embed_tokens.weight I16"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[64];
        weft_err err;
        weft_model_config config;
        synth_folder_make(dir);
        synth_case_write(dir, "T02", tiny, NULL);
        patch(dir, rows[i].from, rows[i].to);
        ck_assert_int_eq(try_load(dir, NULL, &config, &err),
                         WEFT_INVALID_ARGUMENT);
        expect_words(err.text, rows[i].words);
        synth_folder_remove(dir);
    }
}
END_TEST

START_TEST(f8_needs_its_scales)
{
    char dir[64];
    weft_err err;
    weft_model_config config;
    const synth_options f8 = {.f8 = true};
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &f8);
    patch(dir, "model.layers.1.self_attn.o_proj.weight_scale_inv",
          "model.layers.1.self_attn.o_proj.weight_scale_0nv");
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_NOT_FOUND);
    expect_words(err.text, "model.layers.1.self_attn.o_proj.weight_scale_inv");
    synth_folder_remove(dir);
}
END_TEST

/* With a wrapper's prefix it is the name of another tensor. */
START_TEST(one_name_in_two_spellings)
{
    char dir[64];
    weft_err err;
    weft_model_config config;
    const synth_options junk = {.junk = true};
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &junk);
    patch(dir, "model.layers.2.eh_proj.weight",
          "language_model.lm_head.weight");
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "lm_head.weight twice model.safetensors");
    synth_folder_remove(dir);
}
END_TEST

START_TEST(layouts_and_indices)
{
    char dir[64], heard[2048] = "";
    weft_err err;
    weft_model_config config;
    const synth_options odd = {.layout = "sideways"};
    const synth_options shards = {.n_shards = 2};
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &odd);
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_INVALID_ARGUMENT);
    expect_words(err.text, "indexer_rope_layout sideways");
    synth_folder_remove(dir);

    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &shards);
    write_text(dir, "model.safetensors", "decoy");
    ck_assert_int_eq(try_load(dir, heard, &config, &err), WEFT_OK);
    expect_words(heard, "model.safetensors index");
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "model-00001-of-00002.safetensors tensor index");
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_NOT_FOUND);
    expect_words(err.text, "gone.safetensors");
    synth_folder_remove(dir);
}
END_TEST

START_TEST(a_line_of_the_index_without_a_tensor)
{
    static const char line[] = "\"weight_map\":{\"model.zzz\":"
                               "\"model-00002-of-00002.safetensors\",";
    char dir[64], path[128];
    weft_err err;
    weft_model_config config;
    weft_buf index = {0}, more = {0};
    const synth_options shards = {.n_shards = 2};
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &shards);
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    ck_assert_int_eq(weft_file_read_all(path, 1 << 20, &index, NULL), WEFT_OK);
    const char *const at = strstr(index.data, "\"weight_map\":{");
    const size_t before = (size_t)(at - index.data);
    const size_t skip = strlen("\"weight_map\":{");
    ck_assert(weft_buf_add(&more, index.data, before, NULL) == WEFT_OK &&
              weft_buf_add(&more, line, strlen(line), NULL) == WEFT_OK &&
              weft_buf_add(&more, at + skip, index.n - before - skip, NULL) ==
                  WEFT_OK);
    synth_file_write(dir, "model.safetensors.index.json", more.data,
                     (int64_t)more.n);
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "model-00002-of-00002.safetensors model.zzz");
    weft_buf_deinit(&index);
    weft_buf_deinit(&more);
    synth_folder_remove(dir);
}
END_TEST

/* Cut NAME at every `step`-th byte from `from` on: never accepted, always
 * named. */
static void cut_everywhere(const char *dir, const char *name, int64_t from,
                           int64_t step, const char *words)
{
    char path[128];
    weft_buf file = {0};
    weft_err err;
    weft_model_config config;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_assert_int_eq(weft_file_read_all(path, 1 << 26, &file, NULL), WEFT_OK);
    for (int64_t n = from; n < (int64_t)file.n; n += step) {
        synth_file_write(dir, name, file.data, n);
        const weft_status st = try_load(dir, NULL, &config, &err);
        ck_assert_msg(st == WEFT_DATA_LOSS, "%s cut at %lld: %s", name,
                      (long long)n, weft_status_name(st));
        expect_words(err.text, words);
    }
    synth_file_write(dir, name, file.data, (int64_t)file.n);
    weft_buf_deinit(&file);
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_OK);
}

START_TEST(files_that_are_cut_short)
{
    char dir[64];
    const synth_options shards = {.n_shards = 2};
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, NULL);
    cut_everywhere(dir, "model.safetensors", 0, 1, "model.safetensors");
    cut_everywhere(dir, "config.json", 0, 1, "config.json");
    synth_folder_remove(dir);
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, &shards);
    cut_everywhere(dir, "model.safetensors.index.json", 0, 1,
                   "model.safetensors.index.json");
    cut_everywhere(dir, "model-00002-of-00002.safetensors", 0, 7,
                   "model-00002-of-00002.safetensors");
    synth_folder_remove(dir);
}
END_TEST

/* Any byte of the header may be anything: an answer, whichever. */
START_TEST(headers_with_wrong_bytes)
{
    static const unsigned char values[] = {0, '"', '9', '{', 0xff};
    char dir[64], path[128];
    weft_buf file = {0};
    weft_err err;
    weft_model_config config;
    int refused = 0;
    synth_folder_make(dir);
    synth_case_write(dir, "T02", tiny, NULL);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_int_eq(weft_file_read_all(path, 1 << 26, &file, NULL), WEFT_OK);
    uint64_t n = 0;
    memcpy(&n, file.data, sizeof n);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    for (uint64_t i = 0; i < 8 + n; i++) {
        ck_assert_int_eq(pwrite(fd, &values[i % sizeof values], 1, (off_t)i),
                         1);
        const weft_status st = try_load(dir, NULL, &config, &err);
        if (st != WEFT_OK) {
            refused++;
            ck_assert_uint_gt(strlen(err.text), 10);
        }
        ck_assert_int_eq(pwrite(fd, &file.data[i], 1, (off_t)i), 1);
    }
    ck_assert_int_gt(refused, (int)n / 2);
    (void)close(fd);
    weft_buf_deinit(&file);
    synth_folder_remove(dir);
}
END_TEST

START_TEST(a_file_that_shrinks_after_the_check)
{
    char dir[64], path[128];
    weft_err err = {0};
    weft_model_config config;
    weft_checkpoint *checkpoint = NULL;
    weft_model *model = NULL;
    synth_folder_make(dir);
    synth_case_write(dir, "T02", NULL, NULL);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_int_eq(weft_model_config_read(dir, NULL, NULL, &config, &err),
                     WEFT_OK);
    ck_assert_int_eq(weft_checkpoint_open(dir, &config, WEFT_EXACT, NULL, NULL,
                                          &checkpoint, &err),
                     WEFT_OK);
    ck_assert_int_eq(truncate(path, 100000), 0);
    ck_assert_int_eq(weft_model_load(checkpoint, NULL, NULL, &model, &err),
                     WEFT_DATA_LOSS);
    expect_words(err.text, "model.safetensors tensor");
    ck_assert_ptr_null(model);
    weft_checkpoint_close(checkpoint);
    synth_folder_remove(dir);
}
END_TEST

START_TEST(folders_that_are_none)
{
    char dir[64];
    weft_err err;
    weft_model_config config;
    ck_assert_int_eq(try_load("/no/such/folder", NULL, &config, &err),
                     WEFT_NOT_FOUND);
    expect_words(err.text, "/no/such/folder");
    synth_folder_make(dir);
    write_config(dir, "T02", NULL);
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_NOT_FOUND);
    expect_words(err.text, "model.safetensors");
    expect_words(err.text, dir);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* must not be waited for */
    ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_INVALID_ARGUMENT);
    expect_words(err.text, "model.safetensors regular");
    synth_folder_remove(dir);
}
END_TEST

static void *counted_new(size_t n)
{
    return weft_mem_new(n, 1);
}

/* jansson's allocations too are made to fail, one after the other. */
START_TEST(every_allocation_may_fail)
{
    const synth_options options[] = {{.f8 = true},
                                     {.n_shards = 2, .junk = true}};
    char dirs[2][64];
    for (int i = 0; i < 2; i++) {
        synth_folder_make(dirs[i]);
        synth_case_write(dirs[i], "T02", tiny, &options[i]);
    }
    json_set_alloc_funcs(counted_new, weft_mem_free);
    for (int i = 0; i < 2; i++) {
        const char *const dir = dirs[i];
        weft_err err;
        weft_model_config config;
        ck_assert_int_eq(try_load(dir, NULL, &config, &err), WEFT_OK);
        const long live = weft_mem_live();
        long n = 0, n_memory = 0;
        weft_status st = WEFT_INTERNAL;
        for (; st != WEFT_OK; n++) {
            weft_mem_fail_after(n);
            st = try_load(dir, NULL, &config, &err);
            weft_mem_fail_after(-1);
            ck_assert_int_eq(weft_mem_live(), live);
            if (st == WEFT_RESOURCE_EXHAUSTED) {
                expect_words(err.text, "memory");
                n_memory++;
            } else if (st != WEFT_OK) {
                /* jansson cannot always tell want of memory from bad text. */
                ck_assert_msg(st == WEFT_DATA_LOSS &&
                                  strstr(err.text, "not JSON") != NULL,
                              "allocation %ld: %s (%s)", n,
                              weft_status_name(st), err.text);
            }
        }
        ck_assert_int_gt(n, 500);
        ck_assert_int_gt(n_memory, 20);
        synth_folder_remove(dir);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {tensors_and_config_must_agree,
                                  numbers_that_are_not_numbers,
                                  nan_codes_of_f8,
                                  types_that_do_not_fit,
                                  f8_needs_its_scales,
                                  one_name_in_two_spellings,
                                  layouts_and_indices,
                                  a_line_of_the_index_without_a_tensor,
                                  files_that_are_cut_short,
                                  headers_with_wrong_bytes,
                                  a_file_that_shrinks_after_the_check,
                                  folders_that_are_none,
                                  every_allocation_may_fail};
    return WEFT_SUITE_RUN("load/weights_broken", tests);
}
