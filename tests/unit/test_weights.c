/* What is loaded is what the files hold: every element of every fixture against
 * a plain decoding, and all packings of one model against each other. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/load/tensors.h"
#include "shard/load/weights.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

typedef struct loaded {
    weft_model_config config;
    weft_checkpoint_stats stats;
    weft_model *model;
    const weft_weights *w;
} loaded;

/* Rises to the total and ends there. */
static void watch(void *arg, int64_t done, int64_t total)
{
    int64_t *const last = arg;
    ck_assert_int_gt(done, *last);
    ck_assert_int_le(done, total);
    *last = done;
}

static loaded load(const char *dir, weft_profile profile)
{
    loaded l;
    memset(&l, 0, sizeof l);
    weft_checkpoint *checkpoint = NULL;
    weft_err err = {0};
    int64_t progress = 0;
    weft_status st = weft_model_config_read(dir, NULL, NULL, &l.config, &err);
    if (st == WEFT_OK)
        st = weft_checkpoint_open(dir, &l.config, profile, NULL, NULL,
                                  &checkpoint, &err);
    ck_assert_msg(st == WEFT_OK, "%s: %s", dir, err.text);
    l.stats = *weft_checkpoint_get_stats(checkpoint);
    st = weft_model_load(checkpoint, watch, &progress, &l.model, &err);
    ck_assert_msg(st == WEFT_OK, "%s: %s", dir, err.text);
    weft_checkpoint_close(checkpoint);
    ck_assert_int_eq(progress, l.stats.file_bytes);
    ck_assert_int_eq(l.stats.n_used + l.stats.n_ignored, l.stats.n_tensors);
    l.w = weft_model_weights(l.model);
    return l;
}

/* A case of tests/support/synth, written, loaded and removed. */
static loaded load_case(const char *id, const char *more,
                        const synth_options *options, weft_profile profile)
{
    char dir[64];
    synth_folder_make(dir);
    synth_case_write(dir, id, more, options);
    const loaded l = load(dir, profile);
    synth_folder_remove(dir);
    return l;
}

/* A tensor decoded without the loader: fp32 of every element, by flat row. */
typedef struct plain {
    float *values;
    int64_t n_in;
} plain;

static plain decode(const weft_tensor_set *set, const char *name)
{
    char scale_name[300];
    const weft_tensor *const t = weft_tensor_set_find(set, name);
    ck_assert_msg(t != NULL, "%s is not there", name);
    const int64_t n = t->bytes / (int64_t)weft_stored_bytes(t->dtype);
    const int64_t n_in = t->dims[t->n_dims - 1];
    void *const raw = weft_mem_new((size_t)t->bytes, 1);
    float *const values = weft_mem_new((size_t)n, sizeof *values);
    ck_assert_int_eq(
        weft_tensor_set_read(set, t, 0, raw, (size_t)t->bytes, NULL), WEFT_OK);
    for (int64_t i = 0; i < n; i++)
        values[i] = weft_f32_of((weft_dtype)t->dtype, raw, i);
    weft_mem_free(raw);
    if (t->dtype != WEFT_STORED_F8_E4M3) return (plain){values, n_in};
    (void)snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    const plain grid = decode(set, scale_name);
    for (int64_t i = 0; i < n; i++)
        values[i] *= grid.values[i / n_in / WEFT_SCALE_BLOCK * grid.n_in +
                                 i % n_in / WEFT_SCALE_BLOCK];
    weft_mem_free(grid.values);
    return (plain){values, n_in};
}

/* ck_assert on every element of a model would take most of the time. */
#define EXPECT(cond, ...)                                                      \
    do {                                                                       \
        if (!(cond)) ck_abort_msg(__VA_ARGS__);                                \
    } while (0)

/* Lanes of the last panel that no output has, by matrix.h. */
static void expect_padding(const weft_matrix *m, const char *name)
{
    const size_t item = weft_dtype_bytes(m->dtype), n_in = (size_t)m->n_in;
    const size_t panel = (size_t)m->n_out / WEFT_PANEL_OUTS * WEFT_PANEL_OUTS;
    const size_t used = (size_t)m->n_out - panel;
    const size_t width = (used + WEFT_LANES - 1) / WEFT_LANES * WEFT_LANES;
    const unsigned char *const data = m->data;
    for (size_t i = 0; i < n_in; i++) {
        for (size_t j = used * item; j < width * item; j++)
            EXPECT(data[(panel * n_in + i * width) * item + j] == 0,
                   "%s: padding is not zero", name);
    }
}

static void expect_rows(const plain *p, int64_t row, const weft_matrix *m,
                        const char *name)
{
    ck_assert_int_eq(m->n_in, p->n_in);
    expect_padding(m, name);
    for (int32_t r = 0; r < m->n_out; r++)
        for (int32_t c = 0; c < m->n_in; c++)
            EXPECT(weft_matrix_at(m, r, c) ==
                       p->values[(row + r) * p->n_in + c],
                   "%s [%d, %d]", name, r, c);
}

static void expect_matrix(const weft_tensor_set *set, const weft_matrix *m,
                          const char *prefix, const char *part)
{
    char name[200];
    (void)snprintf(name, sizeof name, "%s%s.weight", prefix, part);
    const plain p = decode(set, name);
    expect_rows(&p, 0, m, name);
    weft_mem_free(p.values);
}

static void expect_vector(const weft_tensor_set *set, const float *v,
                          const char *prefix, const char *part)
{
    char name[200];
    (void)snprintf(name, sizeof name, "%s%s", prefix, part);
    const plain p = decode(set, name);
    for (int64_t i = 0; i < p.n_in; i++)
        EXPECT(v[i] == p.values[i], "%s [%d]", name, (int)i);
    weft_mem_free(p.values);
}

/* k_up is the transposed key part of each head, v_up its value part. */
static void expect_kv_b(const weft_tensor_set *set, const weft_geometry *g,
                        const weft_layer_weights *l, const char *prefix)
{
    char name[200];
    (void)snprintf(name, sizeof name, "%skv_b_proj.weight", prefix);
    const plain p = decode(set, name);
    for (int32_t h = 0; h < g->n_head; h++) {
        const int64_t row = (int64_t)h * (g->qk_nope_head_dim + g->v_head_dim);
        const weft_matrix *const k = &l->k_up[h];
        ck_assert_int_eq(k->n_out, g->kv_lora_rank);
        ck_assert_int_eq(k->n_in, g->qk_nope_head_dim);
        expect_padding(k, name);
        for (int32_t i = 0; i < k->n_out; i++)
            for (int32_t j = 0; j < k->n_in; j++)
                EXPECT(weft_matrix_at(k, i, j) ==
                           p.values[(row + j) * p.n_in + i],
                       "%s head %d", name, h);
        expect_rows(&p, row + g->qk_nope_head_dim, &l->v_up[h], name);
    }
    weft_mem_free(p.values);
}

static void expect_attention(const weft_tensor_set *set, const loaded *m,
                             int32_t layer)
{
    char p[64];
    const weft_layer_weights *const l = &m->w->layers[layer];
    const weft_kind kind = m->config.kind[layer];
    const weft_geometry *const g = &m->config.geometry[kind];
    (void)snprintf(p, sizeof p, "model.layers.%d.self_attn.", layer);
    if (g->q_lora_rank > 0) {
        expect_matrix(set, &l->q_a, p, "q_a_proj");
        expect_vector(set, l->q_a_norm, p, "q_a_layernorm.weight");
        expect_matrix(set, &l->q_b, p, "q_b_proj");
    } else {
        ck_assert_ptr_null(l->q_a.data);
        expect_matrix(set, &l->q_b, p, "q_proj");
    }
    expect_matrix(set, &l->kv_a, p, "kv_a_proj_with_mqa");
    expect_vector(set, l->kv_a_norm, p, "kv_a_layernorm.weight");
    expect_matrix(set, &l->o, p, "o_proj");
    expect_kv_b(set, g, l, p);
    if (m->config.k_rope_norm)
        expect_vector(set, l->k_rope_norm, p, "k_rope_only_layernorm.weight");
    if (g->gate != WEFT_GATE_NONE) expect_matrix(set, &l->g, p, "g_proj");
    ck_assert((l->g.data != NULL) == (g->gate != WEFT_GATE_NONE));
    const bool selects = m->config.dsa && kind == WEFT_FULL;
    ck_assert((l->index_q.data != NULL) == selects);
    if (!selects) return;
    expect_matrix(set, &l->index_q, p, "indexer.wq_b");
    expect_matrix(set, &l->index_k, p, "indexer.wk");
    expect_matrix(set, &l->index_w, p, "indexer.weights_proj");
    expect_vector(set, l->index_k_norm_w, p, "indexer.k_norm.weight");
    expect_vector(set, l->index_k_norm_b, p, "indexer.k_norm.bias");
}

static void expect_mlp(const weft_tensor_set *set, const weft_mlp_weights *mlp,
                       const char *prefix)
{
    expect_matrix(set, &mlp->gate, prefix, "gate_proj");
    expect_matrix(set, &mlp->up, prefix, "up_proj");
    expect_matrix(set, &mlp->down, prefix, "down_proj");
}

static void expect_ffn(const weft_tensor_set *set, const loaded *m,
                       int32_t layer)
{
    char p[64], part[96];
    const weft_layer_weights *const l = &m->w->layers[layer];
    (void)snprintf(p, sizeof p, "model.layers.%d.mlp.", layer);
    ck_assert((l->experts != NULL) == m->config.moe[layer]);
    if (!m->config.moe[layer]) {
        expect_mlp(set, &l->mlp, p);
        return;
    }
    expect_matrix(set, &l->router, p, "gate");
    if (m->config.topk_method == WEFT_TOPK_NOAUX_TC)
        expect_vector(set, l->router_bias, p, "gate.e_score_correction_bias");
    for (int32_t e = 0; e < m->config.n_expert; e++) {
        (void)snprintf(part, sizeof part, "%sexperts.%d.", p, e);
        expect_mlp(set, &l->experts[e], part);
    }
    (void)snprintf(part, sizeof part, "%sshared_experts.", p);
    expect_mlp(set, &l->mlp, part);
}

static void expect_folder(const char *dir)
{
    weft_tensor_set set = {0};
    weft_err err = {0};
    ck_assert_msg(weft_tensor_set_open(dir, NULL, NULL, &set, &err) == WEFT_OK,
                  "%s", err.text);
    const loaded m = load(dir, WEFT_EXACT);
    const plain embed = decode(&set, "model.embed_tokens.weight");
    const int64_t n = (int64_t)m.config.vocab_size * m.config.hidden_size;
    for (int64_t i = 0; i < n; i++)
        EXPECT(weft_f32_of(m.w->embed_dtype, m.w->embed, i) == embed.values[i],
               "embedding [%lld]", (long long)i);
    weft_mem_free(embed.values);
    expect_vector(&set, m.w->final_norm, "model.", "norm.weight");
    expect_matrix(&set, &m.w->lm_head, "", "lm_head");
    for (int32_t i = 0; i < m.config.n_layer; i++) {
        char p[64];
        (void)snprintf(p, sizeof p, "model.layers.%d.", i);
        expect_vector(&set, m.w->layers[i].input_norm, p,
                      "input_layernorm.weight");
        expect_vector(&set, m.w->layers[i].post_norm, p,
                      "post_attention_layernorm.weight");
        expect_attention(&set, &m, i);
        expect_ffn(&set, &m, i);
    }
    weft_model_destroy(m.model);
    weft_tensor_set_deinit(&set);
}

START_TEST(fixtures_are_loaded_as_they_are)
{
    static const char *const names[] = {"fixtures/dots3-defaults",
                                        "fixtures/dots3-dense",
                                        "fixtures/dots3-fp8",
                                        "fixtures/dots3-groups",
                                        "fixtures/dots3-mixed",
                                        "fixtures/dots3-resaved",
                                        "fixtures/dots3-sharded",
                                        "fixtures/v2-groups",
                                        "fixtures/v2-lite",
                                        "fixtures/v2-mscale",
                                        "fixtures/v2-nomscale",
                                        "fixtures/v2-resaved",
                                        "fixtures/v3",
                                        "fixtures/v3-fp8",
                                        "fixtures/v32",
                                        "tiny-model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[128];
        (void)snprintf(dir, sizeof dir, "tests/data/%s", names[i]);
        expect_folder(dir);
    }
}
END_TEST

/* The same values, perhaps in another element type. */
static void expect_same(const weft_matrix *a, const weft_matrix *b,
                        const char *what, int32_t layer)
{
    ck_assert_int_eq(a->n_out, b->n_out);
    ck_assert_int_eq(a->n_in, b->n_in);
    for (int32_t r = 0; r < a->n_out; r++)
        for (int32_t c = 0; c < a->n_in; c++)
            EXPECT(weft_matrix_at(a, r, c) == weft_matrix_at(b, r, c),
                   "%s of layer %d [%d, %d]", what, layer, r, c);
}

static void expect_same_mlp(const weft_mlp_weights *a,
                            const weft_mlp_weights *b, const char *what,
                            int32_t layer)
{
    expect_same(&a->gate, &b->gate, what, layer);
    expect_same(&a->up, &b->up, what, layer);
    expect_same(&a->down, &b->down, what, layer);
}

static void expect_same_layer(const weft_model_config *c,
                              const weft_layer_weights *a,
                              const weft_layer_weights *b, int32_t i)
{
    const weft_geometry *const g = &c->geometry[c->kind[i]];
    const size_t hidden = (size_t)c->hidden_size * sizeof(float);
    ck_assert_mem_eq(a->input_norm, b->input_norm, hidden);
    ck_assert_mem_eq(a->post_norm, b->post_norm, hidden);
    expect_same(&a->q_a, &b->q_a, "q_a", i);
    expect_same(&a->q_b, &b->q_b, "q_b", i);
    expect_same(&a->kv_a, &b->kv_a, "kv_a", i);
    expect_same(&a->o, &b->o, "o", i);
    expect_same(&a->g, &b->g, "g", i);
    for (int32_t h = 0; h < g->n_head; h++) {
        expect_same(&a->k_up[h], &b->k_up[h], "k_up", i);
        expect_same(&a->v_up[h], &b->v_up[h], "v_up", i);
    }
    expect_same(&a->index_q, &b->index_q, "index_q", i);
    expect_same(&a->index_k, &b->index_k, "index_k", i);
    expect_same(&a->index_w, &b->index_w, "index_w", i);
    expect_same_mlp(&a->mlp, &b->mlp, "mlp", i);
    expect_same(&a->router, &b->router, "router", i);
    for (int32_t e = 0; c->moe[i] && e < c->n_expert; e++)
        expect_same_mlp(&a->experts[e], &b->experts[e], "expert", i);
}

static void expect_same_model(const loaded *a, const loaded *b)
{
    const weft_model_config *const c = &a->config;
    const int64_t n = (int64_t)c->vocab_size * c->hidden_size;
    for (int64_t i = 0; i < n; i++)
        EXPECT(weft_f32_of(a->w->embed_dtype, a->w->embed, i) ==
                   weft_f32_of(b->w->embed_dtype, b->w->embed, i),
               "embedding [%lld]", (long long)i);
    expect_same(&a->w->lm_head, &b->w->lm_head, "lm_head", -1);
    for (int32_t i = 0; i < c->n_layer; i++)
        expect_same_layer(c, &a->w->layers[i], &b->w->layers[i], i);
}

START_TEST(packings_are_one_model)
{
    static const synth_options packings[] = {
        {.f32 = true},
        {.packed = true},
        {.n_shards = 3},
        {.junk = true},
        {.prefix = "model.language_model."},
        {.prefix = "language_model.model."},
        {.prefix = "model.language_model.model."},
        {.packed = true,
         .n_shards = 2,
         .junk = true,
         .layout = "leading",
         .prefix = "model.language_model."}};
    const loaded usual = load_case("T02", NULL, NULL, WEFT_EXACT);
    ck_assert_int_eq(usual.stats.n_mtp_tensors, 0);
    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++) {
        const loaded other = load_case("T02", NULL, &packings[i], WEFT_EXACT);
        expect_same_model(&usual, &other);
        ck_assert_int_eq(other.stats.n_params, usual.stats.n_params);
        ck_assert_int_eq(other.stats.n_files,
                         packings[i].n_shards > 1 ? packings[i].n_shards : 1);
        ck_assert((other.stats.n_ignored > 0) == packings[i].junk);
        ck_assert((other.stats.n_mtp_tensors > 0) == packings[i].junk);
        ck_assert_int_eq(other.config.n_nextn, packings[i].junk);
        weft_model_destroy(other.model);
    }
    weft_model_destroy(usual.model);
}
END_TEST

/* F8 with ragged scale grids, heads and packed experts across scale blocks: the
 * values are those of the file that holds the products. */
START_TEST(f8_is_its_products)
{
    static const synth_options packings[] = {
        {.f8 = true},
        {.f8 = true, .packed = true},
        {.f8 = true, .layout = "tail"},
        {.f8 = true, .scales = "BF16"},
        {.f8 = true, .scales = "F8_E8M0"},
        {.f8 = true, .scales = "U8", .packed = true}};
    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++) {
        const synth_options f8 = packings[i];
        synth_options wide = f8;
        wide.f8 = false;
        wide.dequantised = true;
        const loaded a = load_case("T09", NULL, &f8, WEFT_EXACT);
        const loaded b = load_case("T09", NULL, &wide, WEFT_EXACT);
        ck_assert_int_eq(a.w->layers[1].q_b.dtype, WEFT_F8_E4M3);
        ck_assert_int_eq(a.w->layers[1].k_up[0].dtype, WEFT_F32);
        ck_assert_int_lt(a.stats.file_bytes, b.stats.file_bytes / 2);
        expect_same_model(&a, &b);
        weft_model_destroy(a.model);
        weft_model_destroy(b.model);
    }
}
END_TEST

/* In profile bf16 the expanded parts are rounded once, the rest is as stored.
 */
START_TEST(profile_bf16_expands_to_bf16)
{
    const synth_options f8 = {.f8 = true};
    const loaded a = load_case("T09", NULL, &f8, WEFT_EXACT);
    const loaded b = load_case("T09", NULL, &f8, WEFT_PROFILE_BF16);
    ck_assert_int_lt(b.stats.resident_bytes, a.stats.resident_bytes);
    ck_assert_int_eq(b.w->layers[2].o.dtype, WEFT_F8_E4M3);
    for (int32_t i = 0; i < a.config.n_layer; i++) {
        const weft_matrix *const x = &a.w->layers[i].k_up[1];
        const weft_matrix *const y = &b.w->layers[i].k_up[1];
        ck_assert_int_eq(y->dtype, WEFT_BF16);
        for (int32_t r = 0; r < x->n_out; r++)
            for (int32_t c = 0; c < x->n_in; c++)
                ck_assert(weft_f32_of_bf16(weft_bf16_of_f32(weft_matrix_at(
                              x, r, c))) == weft_matrix_at(y, r, c));
    }
    weft_model_destroy(a.model);
    weft_model_destroy(b.model);
}
END_TEST

/* Rope channels at the tail of a head come to its front. */
START_TEST(the_tail_layout_is_turned)
{
    const loaded a = load_case("T02", NULL, NULL, WEFT_EXACT);
    const loaded b = load_case("T05b", NULL, NULL, WEFT_EXACT);
    const int32_t head = a.config.index_head_dim;
    const int32_t rope = a.config.geometry[WEFT_FULL].qk_rope_head_dim;
    const weft_layer_weights *const x = &a.w->layers[5], *const y =
                                                             &b.w->layers[5];
    ck_assert(b.config.index_rope_tail && !a.config.index_rope_tail);
    for (int32_t r = 0; r < x->index_q.n_out; r++) {
        const int32_t from = r / head * head + (r % head + head - rope) % head;
        for (int32_t c = 0; c < x->index_q.n_in; c++)
            ck_assert(weft_matrix_at(&y->index_q, r, c) ==
                      weft_matrix_at(&x->index_q, from, c));
    }
    for (int32_t r = 0; r < head; r++) {
        const int32_t from = (r + head - rope) % head;
        ck_assert(weft_matrix_at(&y->index_k, r, 3) ==
                  weft_matrix_at(&x->index_k, from, 3));
        ck_assert(y->index_k_norm_w[r] == x->index_k_norm_w[from]);
        ck_assert(y->index_k_norm_b[r] == x->index_k_norm_b[from]);
    }
    expect_same(&x->index_w, &y->index_w, "index_w", 5);
    weft_model_destroy(a.model);
    weft_model_destroy(b.model);
}
END_TEST

START_TEST(a_tied_head_is_the_embedding)
{
    const loaded a =
        load_case("T02", "{\"tie_word_embeddings\":true}", NULL, WEFT_EXACT);
    const weft_matrix *const head = &a.w->lm_head;
    for (int32_t r = 0; r < head->n_out; r++)
        for (int32_t c = 0; c < head->n_in; c++)
            ck_assert(weft_matrix_at(head, r, c) ==
                      weft_f32_of(a.w->embed_dtype, a.w->embed,
                                  (int64_t)r * head->n_in + c));
    weft_model_destroy(a.model);
}
END_TEST

static uint64_t hash_of(const char *id, const char *more,
                        const synth_options *options, weft_profile profile)
{
    const loaded l = load_case(id, more, options, profile);
    weft_model_destroy(l.model);
    return l.stats.weights_hash;
}

static void change(void *arg, const char *key, double *values, int64_t n_row,
                   int64_t n_in)
{
    (void)arg;
    if (strcmp(key, "model.layers.3.mlp.experts.5.up_proj") == 0)
        values[n_row * n_in - 1] += 0.5;
}

START_TEST(the_hash_is_of_the_model)
{
    const synth_options shards = {.n_shards = 2, .junk = true};
    const synth_options f32 = {.f32 = true}, changed = {.edit = change};
    const uint64_t usual = hash_of("T02", NULL, NULL, WEFT_EXACT);
    ck_assert(hash_of("T02", NULL, NULL, WEFT_PROFILE_BF16) == usual);
    ck_assert(hash_of("T02", NULL, &shards, WEFT_EXACT) == usual);
    ck_assert(hash_of("T02", NULL, &f32, WEFT_EXACT) != usual);
    ck_assert(hash_of("T02", NULL, &changed, WEFT_EXACT) != usual);
    ck_assert(hash_of("T02", "{\"sliding_window_size\":6}", NULL, WEFT_EXACT) !=
              usual);
    ck_assert(hash_of("T02", "{\"rope_theta\":1000001}", NULL, WEFT_EXACT) !=
              usual);
}
END_TEST

/* Memory that was not written must not look like zeros: the padding of packed
 * matrices has to be cleared by the loader. Asks the sanitizer, where there is
 * one, and the C library otherwise. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "max_malloc_fill_size=1073741824:malloc_fill_byte=255";
}

int main(void)
{
    (void)mallopt(M_PERTURB, 1);
    const TTest *const tests[] = {fixtures_are_loaded_as_they_are,
                                  packings_are_one_model,
                                  f8_is_its_products,
                                  profile_bf16_expands_to_bf16,
                                  the_tail_layout_is_turned,
                                  a_tied_head_is_the_embedding,
                                  the_hash_is_of_the_model};
    return WEFT_SUITE_RUN("load/weights", tests);
}
