/* Parts of a model: what they hold is what the whole holds, they read their own
 * bytes and no others, and together they are the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "shard/load/tensors.h"
#include "shard/load/weights.h"
#include "shard/model/partition.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

/* Every packing there is, in both types that F8 can be expanded to. */
static const struct {
    const char *id, *more;
    synth_options options;
    weft_profile profile;
} CASES[] = {
    {"T02", NULL, {.n_shards = 0}, WEFT_EXACT},
    {"T02", "{\"tie_word_embeddings\": true}", {.n_shards = 0}, WEFT_EXACT},
    {"T05b", NULL, {.n_shards = 4, .junk = true}, WEFT_PROFILE_BF16},
    {"T02", NULL, {.packed = true}, WEFT_EXACT},
    {"T09", NULL, {.f8 = true}, WEFT_EXACT},
    {"T09", NULL, {.f8 = true, .packed = true}, WEFT_PROFILE_BF16},
    {"T10", NULL, {.f32 = true, .n_shards = 3}, WEFT_EXACT},
    {"T12", NULL, {.f8 = true, .scales = "U8"}, WEFT_EXACT},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

typedef struct opened {
    char dir[64];
    /* Blocks of scales that gate and up of a packed expert share are read for
     * both. */
    bool shares_scales;
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_checkpoint_stats stats; /* of the whole */
    weft_model *model;           /* the whole */
    const weft_weights *w;
} opened;

static opened open_case(int i)
{
    opened o;
    memset(&o, 0, sizeof o);
    o.shares_scales = CASES[i].options.packed && CASES[i].options.f8;
    synth_folder_make(o.dir);
    synth_case_write(o.dir, CASES[i].id, CASES[i].more, &CASES[i].options);
    OK(weft_model_config_read(o.dir, NULL, NULL, &o.config, &err));
    OK(weft_checkpoint_open(o.dir, &o.config, CASES[i].profile, NULL, NULL,
                            &o.checkpoint, &err));
    o.stats = *weft_checkpoint_get_stats(o.checkpoint);
    OK(weft_model_load(o.checkpoint, NULL, NULL, &o.model, &err));
    o.w = weft_model_weights(o.model);
    return o;
}

static void close_case(opened *o)
{
    weft_model_destroy(o->model);
    weft_checkpoint_close(o->checkpoint);
    synth_folder_remove(o->dir);
}

/* Bytes that this process has read from files, as the kernel counts them; -1:
 * it does not say. */
static int64_t bytes_read(void)
{
    static const char name[] = "rchar: ";
    FILE *const file = fopen("/proc/self/io", "r");
    char line[64];
    int64_t n = -1;
    if (file == NULL) return -1;
    if (fgets(line, sizeof line, file) != NULL &&
        strncmp(line, name, sizeof name - 1) == 0)
        n = strtoll(line + sizeof name - 1, NULL, 10);
    (void)fclose(file);
    return n;
}

static void expect_matrix(const weft_matrix *a, const weft_matrix *b)
{
    ck_assert((a->data == NULL) == (b->data == NULL));
    if (a->data == NULL) return;
    ck_assert_int_eq(a->dtype, b->dtype);
    ck_assert_int_eq(a->n_out, b->n_out);
    ck_assert_int_eq(a->n_in, b->n_in);
    ck_assert(memcmp(a->data, b->data,
                     weft_matrix_bytes(a->dtype, a->n_out, a->n_in)) == 0);
    ck_assert((a->scales == NULL) == (b->scales == NULL));
    if (a->scales == NULL) return;
    const size_t blocks =
        (size_t)((a->n_out + 127) / 128) * (size_t)((a->n_in + 127) / 128);
    ck_assert(memcmp(a->scales, b->scales, blocks * sizeof(float)) == 0);
}

static void expect_mlp(const weft_mlp_weights *a, const weft_mlp_weights *b)
{
    expect_matrix(&a->gate, &b->gate);
    expect_matrix(&a->up, &b->up);
    expect_matrix(&a->down, &b->down);
}

static void expect_vector(const float *a, const float *b, int32_t n)
{
    ck_assert((a == NULL) == (b == NULL));
    if (a != NULL) ck_assert(memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

static void expect_layer(const weft_model_config *c, int32_t layer,
                         const weft_layer_weights *a,
                         const weft_layer_weights *b, bool experts)
{
    const weft_geometry *const g = &c->geometry[c->kind[layer]];
    expect_vector(a->input_norm, b->input_norm, c->hidden_size);
    expect_vector(a->post_norm, b->post_norm, c->hidden_size);
    expect_vector(a->kv_a_norm, b->kv_a_norm, g->kv_lora_rank);
    expect_vector(a->router_bias, b->router_bias, c->n_expert);
    expect_vector(a->index_k_norm_w, b->index_k_norm_w, c->index_head_dim);
    const weft_matrix *const of_a[] = {&a->q_a,     &a->q_b,     &a->kv_a,
                                       &a->o,       &a->g,       &a->index_q,
                                       &a->index_k, &a->index_w, &a->router};
    const weft_matrix *const of_b[] = {&b->q_a,     &b->q_b,     &b->kv_a,
                                       &b->o,       &b->g,       &b->index_q,
                                       &b->index_k, &b->index_w, &b->router};
    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        expect_matrix(of_a[i], of_b[i]);
    for (int32_t h = 0; h < g->n_head; h++) {
        expect_matrix(&a->k_up[h], &b->k_up[h]);
        expect_matrix(&a->v_up[h], &b->v_up[h]);
    }
    expect_mlp(&a->mlp, &b->mlp);
    ck_assert((b->experts != NULL) == (experts && c->moe[layer]));
    for (int32_t e = 0; b->experts != NULL && e < c->n_expert; e++)
        expect_mlp(&a->experts[e], &b->experts[e]);
}

static void expect_no_matrix(const weft_matrix *m)
{
    ck_assert_ptr_null(m->data);
    ck_assert_ptr_null(m->scales);
    ck_assert_int_eq((int)m->dtype, 0);
    ck_assert_int_eq(m->n_out, 0);
    ck_assert_int_eq(m->n_in, 0);
}

static void expect_no_layer(const weft_layer_weights *w)
{
    const void *const pointers[] = {
        w->input_norm,     w->post_norm,   w->q_a_norm, w->kv_a_norm,
        w->k_rope_norm,    w->k_up,        w->v_up,     w->index_k_norm_w,
        w->index_k_norm_b, w->router_bias, w->experts};
    const weft_matrix *const matrices[] = {
        &w->q_a,    &w->q_b,      &w->kv_a,    &w->o,
        &w->g,      &w->index_q,  &w->index_k, &w->index_w,
        &w->router, &w->mlp.gate, &w->mlp.up,  &w->mlp.down};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        ck_assert_ptr_null(pointers[i]);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        expect_no_matrix(matrices[i]);
}

static void expect_part(const opened *o, const weft_part_of_model *part,
                        const weft_weights *w)
{
    for (int32_t l = 0; l < o->config.n_layer; l++) {
        if (l >= part->first_layer && l < part->end_layer)
            expect_layer(&o->config, l, &o->w->layers[l], &w->layers[l],
                         part->experts);
        else
            expect_no_layer(&w->layers[l]);
    }
    ck_assert((w->embed != NULL) == part->embed);
    if (part->embed)
        ck_assert(memcmp(w->embed, o->w->embed,
                         (size_t)o->config.vocab_size *
                             (size_t)o->config.hidden_size *
                             weft_dtype_bytes(w->embed_dtype)) == 0);
    ck_assert((w->lm_head.data != NULL) == part->head);
    ck_assert((w->final_norm != NULL) == part->head);
    if (part->head) expect_matrix(&w->lm_head, &o->w->lm_head);
}

/* A tied head and an embedding are one tensor, counted once and read twice. */
static int64_t twice_read(const opened *o, const weft_part_of_model *part)
{
    if (!o->config.tie_embeddings || !part->embed || !part->head) return 0;
    return (int64_t)o->config.vocab_size * o->config.hidden_size *
           (int64_t)weft_dtype_bytes(o->w->embed_dtype);
}

static void expect_read(const opened *o, int64_t read, int64_t stored)
{
    ck_assert_int_ge(read, stored);
    ck_assert_int_le(read, stored + (o->shares_scales ? stored / 1000 : 0));
}

/* Loads it, holds it against the whole; bytes of the files that it has. */
static weft_checkpoint_stats load_part(const opened *o,
                                       const weft_part_of_model *part)
{
    weft_model *model = NULL;
    OK(weft_checkpoint_set_part(o->checkpoint, part, &err));
    const weft_checkpoint_stats stats =
        *weft_checkpoint_get_stats(o->checkpoint);
    ck_assert(stats.weights_hash == o->stats.weights_hash);
    const int64_t before = weft_checkpoint_read_bytes(o->checkpoint);
    const int64_t io_before = bytes_read();
    OK(weft_model_load(o->checkpoint, NULL, NULL, &model, &err));
    const int64_t io_after = bytes_read();
    const int64_t read = weft_checkpoint_read_bytes(o->checkpoint) - before;
    expect_read(o, read, stats.file_bytes + twice_read(o, part));
    if (io_before >= 0) /* and a page of /proc/self/io itself */
        ck_assert_int_le(io_after - io_before, read + 4096);
    expect_part(o, part, weft_model_weights(model));
    weft_model_destroy(model);
    return stats;
}

/* All routed experts, one by one: their bytes in the files. */
static int64_t load_experts(const opened *o)
{
    const weft_model_config *const c = &o->config;
    const int64_t before = weft_checkpoint_read_bytes(o->checkpoint);
    for (int32_t l = 0; l < c->n_layer; l++) {
        int64_t bytes = 0;
        if (!c->moe[l]) continue;
        OK(weft_checkpoint_expert_bytes(o->checkpoint, l, &bytes, &err));
        unsigned char *const block =
            weft_mem_new_aligned(64, (size_t)bytes + 64);
        for (int32_t e = 0; e < c->n_expert; e++) {
            weft_mlp_weights w;
            uint64_t hash = 0;
            memset(block, 0xa5, (size_t)bytes + 64);
            OK(weft_checkpoint_load_expert(o->checkpoint, l, e, block, bytes,
                                           &w, &hash, &err));
            expect_mlp(&o->w->layers[l].experts[e], &w);
            for (int32_t i = 0; i < 64; i++)
                ck_assert_int_eq(block[bytes + i], 0xa5);
        }
        weft_mem_free(block);
    }
    return weft_checkpoint_read_bytes(o->checkpoint) - before;
}

START_TEST(the_parts_are_the_whole)
{
    opened o = open_case(_i);
    const int64_t experts = load_experts(&o);
    ck_assert_int_gt(experts, 0);
    for (int32_t n = 1; n <= o.config.n_layer; n++) {
        int64_t file = 0, params = 0, used = 0;
        for (int32_t s = 0; s < n; s++) {
            weft_part_of_model part = {.embed = s == 0, .head = s == 0};
            OK(weft_partition_stage(&o.config, n, s, &part.first_layer,
                                    &part.end_layer, &err));
            const weft_checkpoint_stats stats = load_part(&o, &part);
            file += stats.file_bytes;
            params += stats.n_params;
            used += stats.n_used;
        }
        expect_read(&o, file + experts, o.stats.file_bytes);
        ck_assert_int_lt(params, o.stats.n_params);
        ck_assert_int_lt(used, o.stats.n_used);
    }
    /* With experts, and with single pieces; then the whole again. */
    const int32_t n_layer = o.config.n_layer;
    const weft_part_of_model parts[] = {
        {.first_layer = 1, .end_layer = n_layer, .experts = true},
        {.embed = true},
        {.head = true},
        {.first_layer = n_layer, .end_layer = n_layer},
        {.end_layer = n_layer, .embed = true, .head = true, .experts = true}};
    enum { N_PARTS = sizeof parts / sizeof parts[0] };
    weft_checkpoint_stats last = {0};
    for (int i = 0; i < N_PARTS; i++) last = load_part(&o, &parts[i]);
    ck_assert(memcmp(&last, &o.stats, sizeof last) == 0);
    close_case(&o);
}
END_TEST

/* Of the bytes as stored: gate, up, down; with F8 the scales before each. */
static uint64_t plain_hash(const weft_tensor_set *set, int32_t layer,
                           int32_t expert, bool f8)
{
    static const char *const names[] = {"gate", "up", "down"};
    weft_hash_wide hash;
    weft_hash_wide_begin(&hash);
    for (int i = 0; i < 3; i++)
        for (int scale = f8; scale >= 0; scale--) {
            char name[160];
            (void)snprintf(name, sizeof name,
                           "model.layers.%d.mlp.experts.%d.%s_proj.weight%s",
                           layer, expert, names[i], scale ? "_scale_inv" : "");
            const weft_tensor *const t = weft_tensor_set_find(set, name);
            ck_assert_msg(t != NULL, "%s", name);
            void *const bytes = weft_mem_new((size_t)t->bytes, 1);
            OK(weft_tensor_set_read(set, t, 0, bytes, (size_t)t->bytes, &err));
            weft_hash_wide_add(&hash, bytes, (size_t)t->bytes);
            weft_mem_free(bytes);
        }
    return weft_hash_wide_end(&hash);
}

START_TEST(the_hash_is_of_the_stored_bytes)
{
    static const int cases[] = {0, 2, 4};
    for (size_t i = 0; i < 3; i++) {
        opened o = open_case(cases[i]);
        weft_tensor_set set = {0};
        uint64_t last = 0;
        OK(weft_tensor_set_open(o.dir, NULL, NULL, &set, &err));
        for (int32_t e = 0; e < o.config.n_expert; e++) {
            const int32_t layer = o.config.n_layer - 1;
            int64_t bytes = 0;
            uint64_t hash = 0;
            weft_mlp_weights w;
            OK(weft_checkpoint_expert_bytes(o.checkpoint, layer, &bytes, &err));
            void *const block = weft_mem_new_aligned(64, (size_t)bytes);
            OK(weft_checkpoint_load_expert(o.checkpoint, layer, e, block, bytes,
                                           &w, &hash, &err));
            ck_assert(hash ==
                      plain_hash(&set, layer, e, CASES[cases[i]].options.f8));
            ck_assert(hash != last);
            last = hash;
            weft_mem_free(block);
        }
        weft_tensor_set_deinit(&set);
        close_case(&o);
    }
}
END_TEST

START_TEST(what_is_out_of_range_is_refused)
{
    opened o = open_case(0);
    const int32_t n = o.config.n_layer, e = o.config.n_expert;
    const weft_part_of_model wrong[] = {{.first_layer = -1, .end_layer = n},
                                        {.end_layer = n + 1},
                                        {.first_layer = 2, .end_layer = 1}};
    weft_err err = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_int_eq(
            weft_checkpoint_set_part(o.checkpoint, &wrong[i], &err),
            WEFT_INVALID_ARGUMENT);
    /* Nothing has changed by it. */
    ck_assert(memcmp(weft_checkpoint_get_stats(o.checkpoint), &o.stats,
                     sizeof o.stats) == 0);
    ck_assert(!o.config.moe[0] && o.config.moe[n - 1]);
    static unsigned char block[1 << 16];
    const struct {
        int32_t layer, expert;
        const char *says;
    } bad[] = {{-1, 0, "layer -1"},
               {n, 0, "no routed"},
               {0, 0, "layer 0 has no routed"},
               {n - 1, -1, "expert -1"},
               {n - 1, e, "there are"}};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weft_mlp_weights w;
        uint64_t hash = 0;
        ck_assert_int_eq(weft_checkpoint_load_expert(
                             o.checkpoint, bad[i].layer, bad[i].expert, block,
                             sizeof block, &w, &hash, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, bad[i].says) != NULL, "%s", err.text);
        if (bad[i].layer != n - 1)
            ck_assert_int_eq(weft_checkpoint_expert_bytes(
                                 o.checkpoint, bad[i].layer, &bytes, &err),
                             WEFT_INVALID_ARGUMENT);
    }
    ck_assert_int_eq(
        weft_checkpoint_expert_bytes(o.checkpoint, n - 1, &bytes, &err),
        WEFT_OK);
    weft_mlp_weights w;
    uint64_t hash = 0;
    ck_assert_int_eq(weft_checkpoint_load_expert(o.checkpoint, n - 1, 0, block,
                                                 bytes - 1, &w, &hash, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "bytes"));
    weft_mem_fail_after(0);
    const weft_status st = weft_checkpoint_load_expert(
        o.checkpoint, n - 1, 0, block, bytes, &w, &hash, &err);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    close_case(&o);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, the_parts_are_the_whole, 0, N_CASES);
    tcase_add_test(tests, the_hash_is_of_the_stored_bytes);
    tcase_add_test(tests, what_is_out_of_range_is_refused);
}

int main(void)
{
    return weft_suite_run_added("load/weights_part", add_tests);
}
