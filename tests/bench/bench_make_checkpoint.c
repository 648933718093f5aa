/* bench_make_checkpoint - a large checkpoint with dots3's structure, made from
 * a seed and streamed to disk.
 *
 *     bench_make_checkpoint --out DIR [--experts 64] [--context 32768] ...
 *
 * Sizes are flags (see `dims` below); the defaults give about 1.1 B parameters
 * in 14 layers (5 full, 9 sliding); --experts 64 is the larger dots3-mini. The
 * values are noise of the usual size: good for measuring, and for running long
 * prompts, not for saying anything.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/matrix.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "node/base/str.h"

enum { NAME_BYTES = 128, CHUNK_VALUES = 1 << 20 };

typedef struct dims {
    int64_t hidden, layers, heads, swa_heads, q_lora, kv_lora, swa_kv_lora;
    int64_t index_heads, index_dim, index_topk, window, experts, top_k;
    int64_t expert_width, dense_width, vocab, context, seed, f8;
} dims;

static dims d = {.hidden = 1536,
                 .layers = 14,
                 .heads = 32,
                 .swa_heads = 16,
                 .q_lora = 768,
                 .kv_lora = 512,
                 .swa_kv_lora = 1024,
                 .index_heads = 16,
                 .index_dim = 128,
                 .index_topk = 2048,
                 .window = 513,
                 .experts = 32,
                 .top_k = 8,
                 .expert_width = 384,
                 .dense_width = 4096,
                 .vocab = 32768,
                 .context = 32768,
                 .seed = 1,
                 .f8 = 0};

static const struct {
    const char *name;
    int64_t *value, min, max;
} flags[] = {
    {"--hidden", &d.hidden, 16, 65536},
    {"--layers", &d.layers, 1, 512},
    {"--heads", &d.heads, 1, 2048},
    {"--swa-heads", &d.swa_heads, 1, 2048},
    {"--q-lora", &d.q_lora, 1, 16384},
    {"--kv-lora", &d.kv_lora, 1, 16384},
    {"--swa-kv-lora", &d.swa_kv_lora, 1, 16384},
    {"--index-heads", &d.index_heads, 1, 2048},
    {"--index-dim", &d.index_dim, 64, 2048},
    {"--index-topk", &d.index_topk, 1, 1 << 24},
    {"--window", &d.window, 1, 1 << 24},
    {"--experts", &d.experts, 1, 8192},
    {"--top-k", &d.top_k, 1, 256},
    {"--expert-width", &d.expert_width, 1, 1 << 20},
    {"--dense-width", &d.dense_width, 1, 1 << 20},
    {"--vocab", &d.vocab, 16, 1 << 22},
    {"--context", &d.context, 1, 1 << 24},
    {"--seed", &d.seed, 0, INT64_MAX},
    {"--f8", &d.f8, 0, 1}, /* 1: linear layers in F8_E4M3 with scales */
};

/* Head widths are those of the release. */
enum { NOPE = 128, ROPE = 64, V = 128, SWA_NOPE = 192 };

typedef enum kind { MATRIX, EMBED, NORM, BIAS, CODES, SCALES } kind;

typedef struct tensor {
    char name[NAME_BYTES];
    kind kind;
    int64_t n_out, n_in; /* n_in 0: a vector */
} tensor;

static tensor *list;
static size_t n_list, capacity;

static void add(kind k, int64_t n_out, int64_t n_in, const char *format, ...)
    WEFT_PRINTF(4, 5);

static void add(kind k, int64_t n_out, int64_t n_in, const char *format, ...)
{
    if (n_list == capacity) {
        capacity = capacity == 0 ? 1024 : 2 * capacity;
        tensor *const grown = weft_mem_resize(list, capacity, sizeof *list);
        if (grown == NULL) {
            (void)fprintf(stderr, "no memory\n");
            weft_mem_free(list);
            list = NULL;
            n_list = capacity = 0;
            return;
        }
        list = grown;
    }
    tensor *const t = &list[n_list++];
    *t = (tensor){.kind = k, .n_out = n_out, .n_in = n_in};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(t->name, sizeof t->name, format, args);
    va_end(args);
}

static void add_linear(int64_t n_out, int64_t n_in, const char *prefix,
                       const char *part)
{
    if (d.f8) {
        add(CODES, n_out, n_in, "%s%s.weight", prefix, part);
        add(SCALES, (n_out + 127) / 128, (n_in + 127) / 128,
            "%s%s.weight_scale_inv", prefix, part);
        return;
    }
    add(MATRIX, n_out, n_in, "%s%s.weight", prefix, part);
}

static bool is_full(int64_t layer)
{
    return layer < 2 || layer % 4 == 1; /* the released pattern */
}

static void add_attention(int64_t layer)
{
    char p[64];
    const bool full = is_full(layer);
    const int64_t heads = full ? d.heads : d.swa_heads;
    const int64_t nope = full ? NOPE : SWA_NOPE;
    const int64_t rank = full ? d.kv_lora : d.swa_kv_lora;
    (void)snprintf(p, sizeof p, "model.layers.%" PRId64 ".self_attn.", layer);
    add_linear(d.q_lora, d.hidden, p, "q_a_proj");
    add(NORM, d.q_lora, 0, "%sq_a_layernorm.weight", p);
    add_linear(heads * (nope + ROPE), d.q_lora, p, "q_b_proj");
    add_linear(rank + ROPE, d.hidden, p, "kv_a_proj_with_mqa");
    add(NORM, rank, 0, "%skv_a_layernorm.weight", p);
    add_linear(heads * (nope + V), rank, p, "kv_b_proj");
    add(NORM, ROPE, 0, "%sk_rope_only_layernorm.weight", p);
    add_linear(heads, d.hidden, p, "g_proj");
    add_linear(d.hidden, heads * V, p, "o_proj");
    if (!full) return;
    add_linear(d.index_heads * d.index_dim, d.q_lora, p, "indexer.wq_b");
    add_linear(d.index_dim, d.hidden, p, "indexer.wk");
    add_linear(d.index_heads, d.hidden, p, "indexer.weights_proj");
    add(NORM, d.index_dim, 0, "%sindexer.k_norm.weight", p);
    add(BIAS, d.index_dim, 0, "%sindexer.k_norm.bias", p);
}

static void add_mlp(const char *prefix, int64_t width)
{
    add_linear(width, d.hidden, prefix, "gate_proj");
    add_linear(width, d.hidden, prefix, "up_proj");
    add_linear(d.hidden, width, prefix, "down_proj");
}

static void add_model(void)
{
    add(EMBED, d.vocab, d.hidden, "model.embed_tokens.weight");
    for (int64_t i = 0; i < d.layers; i++) {
        char p[64], part[160];
        (void)snprintf(p, sizeof p, "model.layers.%" PRId64 ".", i);
        add(NORM, d.hidden, 0, "%sinput_layernorm.weight", p);
        add_attention(i);
        add(NORM, d.hidden, 0, "%spost_attention_layernorm.weight", p);
        (void)snprintf(part, sizeof part, "%smlp.", p);
        if (i == 0) {
            add_mlp(part, d.dense_width);
            continue;
        }
        add(MATRIX, d.experts, d.hidden, "%smlp.gate.weight", p);
        add(BIAS, d.experts, 0, "%smlp.gate.e_score_correction_bias", p);
        for (int64_t e = 0; e < d.experts; e++) {
            (void)snprintf(part, sizeof part, "%smlp.experts.%" PRId64 ".", p,
                           e);
            add_mlp(part, d.expert_width);
        }
        (void)snprintf(part, sizeof part, "%smlp.shared_experts.", p);
        add_mlp(part, d.expert_width);
    }
    add(NORM, d.hidden, 0, "model.norm.weight");
    add(MATRIX, d.vocab, d.hidden, "lm_head.weight");
}

static int64_t count(const tensor *t)
{
    return t->n_in == 0 ? t->n_out : t->n_out * t->n_in;
}

static int64_t item_bytes(const tensor *t)
{
    return t->kind == CODES ? 1 : t->kind == SCALES ? 4 : 2;
}

static bool write_header(FILE *file, int64_t *params)
{
    static const char *const names[] = {"BF16", "BF16",    "BF16",
                                        "BF16", "F8_E4M3", "F32"};
    weft_buf header = {0};
    weft_err err;
    int64_t at = 0;
    weft_status st = weft_buf_printf(
        &header, &err,
        "{\"__metadata__\":{\"indexer_rope_layout\":\"leading\"}");
    *params = 0;
    for (size_t i = 0; st == WEFT_OK && i < n_list; i++) {
        const tensor *const t = &list[i];
        const int64_t end = at + count(t) * item_bytes(t);
        st = weft_buf_printf(&header, &err,
                             ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64,
                             t->name, names[t->kind], t->n_out);
        if (st == WEFT_OK && t->n_in > 0)
            st = weft_buf_printf(&header, &err, ",%" PRId64, t->n_in);
        if (st == WEFT_OK)
            st = weft_buf_printf(
                &header, &err, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
                at, end);
        at = end;
        if (t->kind != SCALES) *params += count(t);
    }
    if (st == WEFT_OK) st = weft_buf_add(&header, "}", 1, &err);
    while (st == WEFT_OK && header.n % 8 != 0)
        st = weft_buf_add(&header, " ", 1, &err);
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(header.n >> (8 * i));
    const bool good = st == WEFT_OK && fwrite(length, 8, 1, file) == 1 &&
                      fwrite(header.data, header.n, 1, file) == 1;
    weft_buf_deinit(&header);
    return good;
}

/* Four values from each 64 random bits. Every tensor has a stream of its own,
 * by its place in the list. */
static void fill(const tensor *t, uint64_t seed, int64_t first, int64_t n,
                 void *out)
{
    const float amp = t->kind == NORM || t->kind == BIAS ? 0.1F
                      : t->kind == EMBED                 ? 1.7F
                                         : sqrtf(3.0F / (float)t->n_in);
    const float base = t->kind == NORM ? 1.0F : 0.0F;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = (uint64_t)(first + i);
        const uint64_t bits = weft_hash_mix(seed + at / 4) >> (at % 4 * 16);
        if (t->kind == CODES) { /* magnitudes 0.5 to 1.875 of either sign */
            ((uint8_t *)out)[i] =
                (uint8_t)((bits & 0x80) | 0x30 | (bits & 0x0f));
        } else if (t->kind == SCALES) {
            ((float *)out)[i] = (1.0F + (float)(bits & 0xff) / 256.0F) * 0.4F /
                                sqrtf(128.0F * (float)t->n_in);
        } else {
            const float u = (float)(int16_t)(bits & 0xffff) / 32768.0F;
            ((uint16_t *)out)[i] = weft_bf16_of_f32(base + amp * u);
        }
    }
}

static bool write_data(FILE *file)
{
    void *const chunk = weft_mem_new(CHUNK_VALUES, sizeof(float));
    bool good = chunk != NULL;
    for (size_t i = 0; good && i < n_list; i++) {
        const tensor *const t = &list[i];
        const uint64_t seed =
            weft_hash_mix((uint64_t)d.seed * 0x10001 + (uint64_t)i);
        for (int64_t done = 0; good && done < count(t); done += CHUNK_VALUES) {
            const int64_t left = count(t) - done;
            const int64_t n = left < CHUNK_VALUES ? left : CHUNK_VALUES;
            fill(t, seed, done, n, chunk);
            good = fwrite(chunk, (size_t)item_bytes(t), (size_t)n, file) ==
                   (size_t)n;
        }
    }
    weft_mem_free(chunk);
    return good;
}

static bool write_config(const char *dir)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *const file = fopen(path, "w");
    if (file == NULL) return false;
#define NUMBER(key, value) "\"" key "\": %" PRId64 ",\n", (int64_t)(value)
    (void)fprintf(file, "{\n\"model_type\": \"dots3_note\",\n"
                        "\"architectures\": [\"Dots3NoteForCausalLM\"],\n");
    (void)fprintf(file, NUMBER("hidden_size", d.hidden));
    (void)fprintf(file, NUMBER("num_hidden_layers", d.layers));
    (void)fprintf(file, NUMBER("vocab_size", d.vocab));
    (void)fprintf(file, NUMBER("intermediate_size", d.dense_width));
    (void)fprintf(file, NUMBER("moe_intermediate_size", d.expert_width));
    (void)fprintf(file, NUMBER("n_routed_experts", d.experts));
    (void)fprintf(file, NUMBER("num_experts_per_tok", d.top_k));
    (void)fprintf(file, NUMBER("n_shared_experts", 1));
    (void)fprintf(file, NUMBER("first_k_dense_replace", 1));
    (void)fprintf(file, NUMBER("num_attention_heads", d.heads));
    (void)fprintf(file, NUMBER("q_lora_rank", d.q_lora));
    (void)fprintf(file, NUMBER("kv_lora_rank", d.kv_lora));
    (void)fprintf(file, NUMBER("qk_nope_head_dim", NOPE));
    (void)fprintf(file, NUMBER("qk_rope_head_dim", ROPE));
    (void)fprintf(file, NUMBER("v_head_dim", V));
    (void)fprintf(file, NUMBER("swa_num_attention_heads", d.swa_heads));
    (void)fprintf(file, NUMBER("swa_q_lora_rank", d.q_lora));
    (void)fprintf(file, NUMBER("swa_kv_lora_rank", d.swa_kv_lora));
    (void)fprintf(file, NUMBER("swa_qk_nope_head_dim", SWA_NOPE));
    (void)fprintf(file, NUMBER("swa_qk_rope_head_dim", ROPE));
    (void)fprintf(file, NUMBER("swa_v_head_dim", V));
    (void)fprintf(file, NUMBER("sliding_window_size", d.window));
    (void)fprintf(file, NUMBER("index_n_heads", d.index_heads));
    (void)fprintf(file, NUMBER("index_head_dim", d.index_dim));
    (void)fprintf(file, NUMBER("index_topk", d.index_topk));
    (void)fprintf(file, NUMBER("max_position_embeddings", d.context));
#undef NUMBER
    if (d.f8)
        (void)fprintf(file, "\"quantization_config\": {\"quant_method\": "
                            "\"fp8\", \"fmt\": \"e4m3\", "
                            "\"activation_scheme\": \"dynamic\", "
                            "\"weight_block_size\": [128, 128]},\n");
    (void)fprintf(file, "\"rope_theta\": 80000000, \"swa_rope_theta\": 50000,\n"
                        "\"apply_mla_qkv_lora_rescale\": true,\n"
                        "\"rms_norm_eps\": 1e-5, \"eos_token_id\": 0\n}\n");
    const bool good = ferror(file) == 0;
    return fclose(file) == 0 && good;
}

static bool parse(int argc, char **argv, const char **dir)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        bool known = strcmp(argv[i], "--out") == 0;
        if (known) *dir = argv[i + 1];
        for (size_t f = 0; !known && f < sizeof flags / sizeof *flags; f++) {
            if (strcmp(argv[i], flags[f].name) != 0) continue;
            known = weft_parse_i64(argv[i + 1], flags[f].min, flags[f].max,
                                   flags[f].value);
            if (known) break;
            (void)fprintf(stderr, "%s: %" PRId64 " to %" PRId64 "\n", argv[i],
                          flags[f].min, flags[f].max);
            return false;
        }
        if (!known) {
            (void)fprintf(stderr, "unknown flag %s\n", argv[i]);
            return false;
        }
    }
    if (*dir != NULL && argc % 2 == 1) return true;
    (void)fprintf(stderr, "usage: bench_make_checkpoint --out DIR");
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
        (void)fprintf(stderr, " [%s %" PRId64 "]", flags[f].name,
                      *flags[f].value);
    (void)fprintf(stderr, "\n");
    return false;
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    char path[4096];
    int64_t params = 0;
    if (!parse(argc, argv, &dir)) return 2;
    if (mkdir(dir, 0755) != 0 && errno != EEXIST) {
        (void)fprintf(stderr, "%s: %s\n", dir, strerror(errno));
        return 4;
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *const file = fopen(path, "wb");
    add_model();
    bool good = file != NULL && n_list > 0 && write_header(file, &params) &&
                write_data(file);
    if (file != NULL) good = fclose(file) == 0 && good;
    good = good && write_config(dir);
    if (!good) (void)fprintf(stderr, "%s: %s\n", dir, strerror(errno));
    if (good)
        (void)printf(
            "{\"folder\":\"%s\",\"tensors\":%zu,\"parameters\":%" PRId64
            ",\"dtype\":\"%s\",\"context\":%" PRId64 ",\"seed\":%" PRId64 "}\n",
            dir, n_list, params, d.f8 ? "f8" : "bf16", d.context, d.seed);
    weft_mem_free(list);
    return good ? 0 : 1;
}
