/* synth.c - which tensors a config asks for, and their values. The list is
 * written from model-spec 4.2 and not from the loader, which it tests. */
#include "tests/support/synth.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/matrix.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "shard/model/config.h"
#include "tests/support/synth_internal.h"

/* A name that does not fit is an error of the test. */
static void put(char *out, size_t n, const char *format, ...) WEFT_PRINTF(3, 4);

static void put(char *out, size_t n, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int used = vsnprintf(out, n, format, args);
    va_end(args);
    if (used < 0 || (size_t)used >= n) synth_die(out, "too long a name");
}

typedef struct maker {
    const synth_options *options;
    const weft_model_config *config;
    bool dots;
    synth_list list;
} maker;

static double unit(uint64_t hash, uint64_t i)
{
    return (double)(weft_hash_mix(hash + i) >> 11) * 0x1p-53 * 2 - 1;
}

static uint64_t hash_of(const char *key)
{
    return weft_hash_fnv(WEFT_FNV_START, key, strlen(key));
}

static double *values_of(const maker *m, const char *key, int64_t n_row,
                         int64_t n_in, double base, double factor)
{
    double *const values = synth_new((size_t)(n_row * n_in), sizeof *values);
    const uint64_t hash = hash_of(key);
    for (int64_t i = 0; i < n_row * n_in; i++)
        values[i] = base + factor * unit(hash, (uint64_t)i);
    if (m->options->edit != NULL)
        m->options->edit(m->options->edit_arg, key, values, n_row, n_in);
    return values;
}

static float rounded(double value)
{
    return weft_f32_of_bf16(weft_bf16_of_f32((float)value));
}

static const char *stored_name(const maker *m, const char *name, char out[160])
{
    static const char usual[] = "model.";
    if (m->options->prefix == NULL ||
        strncmp(name, usual, sizeof usual - 1) != 0)
        return name;
    put(out, 160, "%s%s", m->options->prefix, name + sizeof usual - 1);
    return out;
}

/* n values that BF16 can hold, stored as BF16 or F32. */
static void add_plain(maker *m, const char *name, const int64_t *dims,
                      int32_t n_dims, const double *values)
{
    char text[160];
    const bool wide = m->options->f32 || m->options->dequantised;
    const char *const stored = stored_name(m, name, text);
    synth_tensor *const t = synth_list_add(
        &m->list, stored, wide ? "F32" : "BF16", wide ? 4 : 2, dims, n_dims);
    const size_t n = t->n_bytes / (wide ? 4 : 2);
    for (size_t i = 0; i < n; i++) {
        if (wide)
            ((float *)t->bytes)[i] = rounded(values[i]);
        else
            ((uint16_t *)t->bytes)[i] = weft_bf16_of_f32((float)values[i]);
    }
}

static void add_vector(maker *m, const char *name, const char *key, int64_t n,
                       double base)
{
    double *const values = values_of(m, key, 1, n, base, 0.5);
    add_plain(m, name, &n, 1, values);
    weft_mem_free(values);
}

/* The code nearest to a value; ties go to the even code. Codes of one sign rise
 * with their values, so the place is found by halving. */
static uint8_t f8_of(float value)
{
    static float sizes[0x7f];
    if (sizes[1] == 0)
        for (uint8_t code = 0; code < 0x7f; code++)
            sizes[code] = weft_f32_of_f8(code);
    const float size = fabsf(value);
    uint8_t low = 0, high = 0x7e; /* sizes[low] <= size, unless it is beyond */
    while (high - low > 1) {
        const uint8_t middle = (uint8_t)((low + high) / 2);
        if (sizes[middle] <= size)
            low = middle;
        else
            high = middle;
    }
    const float below = size - sizes[low], above = sizes[high] - size;
    const bool up = above < below || (above == below && high % 2 == 0);
    const uint8_t best = up ? high : low;
    return value < 0 ? best | 0x80 : best;
}

static bool has_exponent_scales(const maker *m)
{
    const char *const type = m->options->scales;
    return type != NULL &&
           (strcmp(type, "F8_E8M0") == 0 || strcmp(type, "U8") == 0);
}

/* The nearest scale that the chosen type can hold; upwards for powers of two,
 * so that no element is clipped. */
static float as_scale(const maker *m, float scale)
{
    if (m->options->scales == NULL) return scale;
    return has_exponent_scales(m) ? exp2f(ceilf(log2f(scale))) : rounded(scale);
}

static void add_scales(maker *m, const char *name, const int64_t *dims,
                       int32_t n_dims, const float *grid)
{
    const char *const type =
        m->options->scales != NULL ? m->options->scales : "F32";
    const size_t item = has_exponent_scales(m)       ? 1
                        : m->options->scales != NULL ? 2
                                                     : 4;
    synth_tensor *const t =
        synth_list_add(&m->list, name, type, item, dims, n_dims);
    const size_t n = t->n_bytes / item;
    for (size_t i = 0; i < n; i++) {
        if (item == 1)
            ((uint8_t *)t->bytes)[i] = (uint8_t)(127 + ilogbf(grid[i]));
        else if (item == 2)
            ((uint16_t *)t->bytes)[i] = weft_bf16_of_f32(grid[i]);
        else
            ((float *)t->bytes)[i] = grid[i];
    }
}

/* Quantises [n_row, n_in] in blocks. The scales are stretched by factors of
 * their own, so that one taken from the wrong block shows. */
static void quantise(const maker *m, const char *key, const double *values,
                     int64_t n_row, int64_t n_in, uint8_t *codes, float *grid)
{
    const int64_t cols = (n_in + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
    const int64_t rows = (n_row + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
    char name[200];
    put(name, sizeof name, "%s:scales", key);
    for (int64_t b = 0; b < rows * cols; b++) {
        const int64_t r0 = b / cols * WEFT_SCALE_BLOCK;
        const int64_t c0 = b % cols * WEFT_SCALE_BLOCK;
        float most = 0;
        for (int64_t r = r0; r < n_row && r < r0 + WEFT_SCALE_BLOCK; r++)
            for (int64_t c = c0; c < n_in && c < c0 + WEFT_SCALE_BLOCK; c++)
                most = fmaxf(most, fabsf(rounded(values[r * n_in + c])));
        const double stretch = exp2(1 + unit(hash_of(name), (uint64_t)b));
        grid[b] = as_scale(m, most == 0 ? 1 : (float)(most / 448.0 * stretch));
    }
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t c = 0; c < n_in; c++) {
            const int64_t at = r * n_in + c;
            const float scale =
                grid[r / WEFT_SCALE_BLOCK * cols + c / WEFT_SCALE_BLOCK];
            codes[at] = f8_of(rounded(values[at]) / scale);
        }
    }
}

/* One linear layer, or with n_block > 0 a pack of them. */
static void add_linear(maker *m, const char *name, const char *key,
                       const int64_t *dims, int32_t n_dims,
                       const double *values)
{
    if (!m->options->f8 && !m->options->dequantised) {
        add_plain(m, name, dims, n_dims, values);
        return;
    }
    const int64_t n_block = n_dims == 3 ? dims[0] : 1;
    const int64_t n_row = dims[n_dims - 2], n_in = dims[n_dims - 1];
    const int64_t cols = (n_in + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
    const int64_t rows = (n_row + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
    const int64_t n = n_block * n_row * n_in;
    uint8_t *const codes = synth_new((size_t)n, 1);
    float *const grid =
        synth_new((size_t)(n_block * rows * cols), sizeof *grid);
    for (int64_t b = 0; b < n_block; b++)
        quantise(m, key, values + b * n_row * n_in, n_row, n_in,
                 codes + b * n_row * n_in, grid + b * rows * cols);
    char text[160], scale_name[180];
    const char *const stored = stored_name(m, name, text);
    if (m->options->f8) {
        synth_tensor *const t =
            synth_list_add(&m->list, stored, "F8_E4M3", 1, dims, n_dims);
        memcpy(t->bytes, codes, (size_t)n);
        const int64_t grid_dims[] = {n_block, rows, cols};
        put(scale_name, sizeof scale_name, "%s_scale_inv", stored);
        add_scales(m, scale_name, n_dims == 3 ? grid_dims : grid_dims + 1,
                   n_dims, grid);
    } else {
        synth_tensor *const t =
            synth_list_add(&m->list, stored, "F32", 4, dims, n_dims);
        for (int64_t i = 0; i < n; i++) {
            const int64_t r = i / n_in % n_row, c = i % n_in;
            ((float *)t->bytes)[i] =
                weft_f32_of_f8(codes[i]) *
                grid[i / (n_row * n_in) * rows * cols +
                     r / WEFT_SCALE_BLOCK * cols + c / WEFT_SCALE_BLOCK];
        }
    }
    weft_mem_free(grid);
    weft_mem_free(codes);
}

static double factor_of(int64_t n_in, double gain)
{
    return sqrt(3.0 / (double)n_in) * gain;
}

/* `key` is the name without ".weight". plain: never in F8. */
static void add_matrix(maker *m, const char *key, int64_t n_out, int64_t n_in,
                       double gain, bool plain)
{
    char name[160];
    const int64_t dims[] = {n_out, n_in};
    put(name, sizeof name, "%s.weight", key);
    double *const values =
        values_of(m, key, n_out, n_in, 0, factor_of(n_in, gain));
    if (plain)
        add_plain(m, name, dims, 2, values);
    else
        add_linear(m, name, key, dims, 2, values);
    weft_mem_free(values);
}

static void add_norm(maker *m, const char *key, int64_t n)
{
    char name[160];
    put(name, sizeof name, "%s.weight", key);
    add_vector(m, name, key, n, 1.0);
}

typedef char key_text[128];

static const char *join(key_text out, const char *prefix, const char *rest)
{
    put(out, sizeof(key_text), "%s%s", prefix, rest);
    return out;
}

static void add_indexer(maker *m, const char *prefix)
{
    key_text key, name;
    const weft_model_config *const c = m->config;
    const int32_t rank = c->geometry[WEFT_FULL].q_lora_rank;
    add_matrix(m, join(key, prefix, "indexer.wq_b"),
               (int64_t)c->index_n_head * c->index_head_dim, rank, 1, false);
    add_matrix(m, join(key, prefix, "indexer.wk"), c->index_head_dim,
               c->hidden_size, 1, false);
    add_matrix(m, join(key, prefix, "indexer.weights_proj"), c->index_n_head,
               c->hidden_size, 1, !m->dots);
    add_vector(m, join(name, prefix, "indexer.k_norm.weight"),
               join(key, prefix, "indexer.k_norm.w"), c->index_head_dim, 1);
    add_vector(m, join(name, prefix, "indexer.k_norm.bias"),
               join(key, prefix, "indexer.k_norm.b"), c->index_head_dim, 0);
}

static void add_attention(maker *m, const char *prefix, weft_kind kind)
{
    key_text key;
    const weft_model_config *const c = m->config;
    const weft_geometry *const g = &c->geometry[kind];
    const int64_t q =
        (int64_t)g->n_head * (g->qk_nope_head_dim + g->qk_rope_head_dim);
    const int64_t out = (int64_t)g->n_head * g->v_head_dim;
    if (g->q_lora_rank == 0) {
        add_matrix(m, join(key, prefix, "q_proj"), q, c->hidden_size, 1.5,
                   false);
    } else {
        add_matrix(m, join(key, prefix, "q_a_proj"), g->q_lora_rank,
                   c->hidden_size, 1, false);
        add_norm(m, join(key, prefix, "q_a_layernorm"), g->q_lora_rank);
        add_matrix(m, join(key, prefix, "q_b_proj"), q, g->q_lora_rank, 1.5,
                   false);
    }
    add_matrix(m, join(key, prefix, "kv_a_proj_with_mqa"),
               g->kv_lora_rank + g->qk_rope_head_dim, c->hidden_size, 1, false);
    add_norm(m, join(key, prefix, "kv_a_layernorm"), g->kv_lora_rank);
    add_matrix(m, join(key, prefix, "kv_b_proj"),
               (int64_t)g->n_head * (g->qk_nope_head_dim + g->v_head_dim),
               g->kv_lora_rank, 1.5, false);
    add_matrix(m, join(key, prefix, "o_proj"), c->hidden_size, out, 1, false);
    if (c->k_rope_norm)
        add_norm(m, join(key, prefix, "k_rope_only_layernorm"),
                 g->qk_rope_head_dim);
    if (g->gate != WEFT_GATE_NONE)
        add_matrix(m, join(key, prefix, "g_proj"),
                   g->gate == WEFT_GATE_HEADWISE ? g->n_head : out,
                   c->hidden_size, 2, false);
    if (c->dsa && kind == WEFT_FULL) add_indexer(m, prefix);
}

static void add_mlp(maker *m, const char *prefix, int64_t width)
{
    key_text key;
    const int64_t hidden = m->config->hidden_size;
    add_matrix(m, join(key, prefix, "gate_proj"), width, hidden, 1, false);
    add_matrix(m, join(key, prefix, "up_proj"), width, hidden, 1, false);
    add_matrix(m, join(key, prefix, "down_proj"), hidden, width, 1, false);
}

/* Part `part` of every expert, one after the other, at its place in a pack of
 * rows_in_pack rows an expert. */
static void fill_pack(const maker *m, const char *prefix, const char *part,
                      int64_t n_out, int64_t n_in, int64_t rows_in_pack,
                      int64_t row, double *pack)
{
    for (int32_t e = 0; e < m->config->n_expert; e++) {
        key_text key;
        put(key, sizeof key, "%sexperts.%d.%s", prefix, (int)e, part);
        double *const values =
            values_of(m, key, n_out, n_in, 0, factor_of(n_in, 1));
        memcpy(pack + (e * rows_in_pack + row) * n_in, values,
               (size_t)(n_out * n_in) * sizeof *values);
        weft_mem_free(values);
    }
}

static void add_packs(maker *m, const char *prefix)
{
    key_text name;
    const int64_t n = m->config->n_expert, hidden = m->config->hidden_size;
    const int64_t width = m->config->moe_intermediate_size;
    double *const pack =
        synth_new((size_t)(n * 2 * width * hidden), sizeof *pack);
    fill_pack(m, prefix, "gate_proj", width, hidden, 2 * width, 0, pack);
    fill_pack(m, prefix, "up_proj", width, hidden, 2 * width, width, pack);
    const int64_t gate_up[] = {n, 2 * width, hidden};
    add_linear(m, join(name, prefix, "experts.gate_up_proj"), name, gate_up, 3,
               pack);
    fill_pack(m, prefix, "down_proj", hidden, width, hidden, 0, pack);
    const int64_t down[] = {n, hidden, width};
    add_linear(m, join(name, prefix, "experts.down_proj"), name, down, 3, pack);
    weft_mem_free(pack);
}

static void add_router_bias(maker *m, const char *prefix)
{
    key_text key, name;
    char text[160];
    const int64_t n = m->config->n_expert;
    const bool given = m->options->bias_amp != 0;
    double *const values = values_of(m, join(key, prefix, "bias"), 1, n,
                                     given ? m->options->bias_base : 0,
                                     given ? m->options->bias_amp : 0.3);
    synth_tensor *const t = synth_list_add(
        &m->list,
        stored_name(m, join(name, prefix, "gate.e_score_correction_bias"),
                    text),
        "F32", 4, &n, 1);
    for (int64_t i = 0; i < n; i++) ((float *)t->bytes)[i] = (float)values[i];
    weft_mem_free(values);
}

static void add_moe(maker *m, const char *prefix)
{
    key_text key;
    const weft_model_config *const c = m->config;
    add_matrix(m, join(key, prefix, "gate"), c->n_expert, c->hidden_size, 2,
               true);
    if (c->topk_method == WEFT_TOPK_NOAUX_TC) add_router_bias(m, prefix);
    if (m->options->packed) add_packs(m, prefix);
    for (int32_t e = 0; !m->options->packed && e < c->n_expert; e++) {
        put(key, sizeof key, "%sexperts.%d.", prefix, (int)e);
        add_mlp(m, key, c->moe_intermediate_size);
    }
    if (c->shared_intermediate_size > 0)
        add_mlp(m, join(key, prefix, "shared_experts."),
                c->shared_intermediate_size);
}

static void add_layer(maker *m, int32_t layer, weft_kind kind, bool moe)
{
    key_text prefix, key;
    put(prefix, sizeof prefix, "model.layers.%d.", (int)layer);
    add_norm(m, join(key, prefix, "input_layernorm"), m->config->hidden_size);
    add_norm(m, join(key, prefix, "post_attention_layernorm"),
             m->config->hidden_size);
    add_attention(m, join(key, prefix, "self_attn."), kind);
    join(key, prefix, "mlp.");
    if (moe)
        add_moe(m, key);
    else
        add_mlp(m, key, m->config->intermediate_size);
}

/* What a text model without drafts walks past. */
static void add_junk(maker *m)
{
    key_text prefix, key;
    const int64_t hidden = m->config->hidden_size;
    const int32_t layer = m->config->n_layer;
    add_matrix(m, "vision_encoder.blocks.0.attn.qkv", 12, 4, 1, true);
    add_norm(m, "vision_encoder.blocks.0.router_bias", 4);
    add_matrix(m, "audio_encoder.conv1", 8, 3, 1, true);
    add_vector(m, "model.layers.0.self_attn.rotary_emb.inv_freq", "inv_freq", 8,
               1);
    add_matrix(m, "model.mtp.embed_tokens", m->config->vocab_size, hidden,
               sqrt((double)hidden), true);
    put(prefix, sizeof prefix, "model.layers.%d.", (int)layer);
    add_norm(m, join(key, prefix, "enorm"), hidden);
    add_norm(m, join(key, prefix, "hnorm"), hidden);
    add_matrix(m, join(key, prefix, "eh_proj"), hidden, 2 * hidden, 1, false);
    add_norm(m, join(key, prefix, "shared_head.norm"), hidden);
    add_layer(m, layer,
              m->config->n_kind[WEFT_WINDOW] > 0 ? WEFT_WINDOW : WEFT_FULL,
              false);
}

void synth_write(const char *dir, const char *config_json,
                 const synth_options *options)
{
    weft_err err;
    weft_model_config config;
    const weft_config_texts texts = {.config = config_json,
                                     .config_bytes = strlen(config_json)};
    synth_must(weft_model_config_parse(&texts, NULL, NULL, &config, &err),
               &err);
    maker m = {.options = options,
               .config = &config,
               .dots = strncmp(config.model_type, "dots3", 5) == 0};
    const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
    add_matrix(&m, "model.embed_tokens", vocab, hidden, sqrt((double)hidden),
               true);
    add_norm(&m, "model.norm", hidden);
    if (!config.tie_embeddings)
        add_matrix(&m, "lm_head", vocab, hidden, 1, true);
    for (int32_t i = 0; i < config.n_layer; i++)
        add_layer(&m, i, config.kind[i], config.moe[i]);
    if (options->junk) add_junk(&m);
    synth_list_write(&m.list, dir, options);
    synth_file_write(dir, "config.json", config_json,
                     (int64_t)strlen(config_json));
    synth_list_free(&m.list);
}

void synth_prompt(int32_t *ids_out, int32_t n)
{
    for (int32_t i = 0; i < n; i++) ids_out[i] = (7 * i * i + 3 * i + 11) % 97;
}
