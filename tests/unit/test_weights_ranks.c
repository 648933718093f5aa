/* The slices of weights that the ranks of a stage have: side by side they are
 * the whole, in the host's memory and in a device's, and take what was said. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "shard/load/weights.h"
#include "shard/model/partition.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

#define EVEN_HEADS "\"swa_num_attention_heads\":4"
/* In F8, heads and widths in whole blocks: routed experts' at degree two. The
 * dense width has more scales than any matrix that is expanded. */
#define BLOCKS                                                                 \
    "{" EVEN_HEADS ",\"qk_nope_head_dim\":112,\"v_head_dim\":128,"             \
    "\"swa_qk_nope_head_dim\":112,\"swa_v_head_dim\":128,"                     \
    "\"swa_head_dim\":128,\"intermediate_size\":2048,"                         \
    "\"moe_intermediate_size\":256,\"n_routed_experts\":4}"

/* Every packing, in both types that F8 can be expanded to; one with matrices
 * that go through the buffer in several steps, and would not fit into it with
 * what its block is rounded up to (node/base/mem.h). */
static const struct {
    const char *id, *more;
    synth_options options;
    weft_profile profile;
    bool keeps; /* F8 that every rank can keep, somewhere */
} CASES[] = {
    {"T10", NULL, {.f32 = true}, WEFT_EXACT, false},
    {"T02", "{" EVEN_HEADS "}", {0}, WEFT_EXACT, false},
    {"T06", "{" EVEN_HEADS "}", {.packed = true}, WEFT_EXACT, false},
    {"T12", NULL, {.f8 = true, .scales = "U8"}, WEFT_EXACT, false},
    {"T09", "{" EVEN_HEADS "}", {.f8 = true}, WEFT_PROFILE_BF16, true},
    {"T09", "{" EVEN_HEADS "}", {.f8 = true, .packed = true}, WEFT_EXACT, true},
    {"T09", BLOCKS, {.f8 = true}, WEFT_EXACT, true},
    {"T09",
     BLOCKS,
     {.f8 = true, .packed = true, .scales = "U8"},
     WEFT_PROFILE_BF16,
     true},
    {"T10",
     "{\"num_hidden_layers\":2,\"intermediate_size\":24576}",
     {.f32 = true},
     WEFT_EXACT,
     false},
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

/* A device whose memory is the process's own. */
struct weft_device {
    int64_t bytes;
};

static weft_status device_alloc(weft_device *device, int64_t bytes,
                                void **at_out, weft_err *err)
{
    *at_out = weft_mem_new_aligned(256, (size_t)bytes);
    device->bytes += bytes;
    if (*at_out != NULL) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
}

static void device_free(weft_device *device, void *at)
{
    (void)device;
    weft_mem_free(at);
}

static void device_upload(void *device_to, const void *host_from, int64_t bytes)
{
    memcpy(device_to, host_from, (size_t)bytes);
}

static weft_status device_sync(weft_err *err)
{
    (void)err;
    return WEFT_OK;
}

static const weft_device_api device_api = {.alloc = device_alloc,
                                           .free = device_free,
                                           .upload = device_upload,
                                           .sync = device_sync};

typedef struct opened {
    char dir[64];
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_checkpoint_stats stats; /* of the whole, on the host */
    weft_model *model;           /* the whole */
    const weft_weights *w;
    /* Blocks of scales that gate and up of a packed expert share are read for
     * both. */
    bool shares_scales;
} opened;

static opened open_folder(const char *id, const char *more,
                          const synth_options *options, weft_profile profile)
{
    opened o;
    memset(&o, 0, sizeof o);
    synth_folder_make(o.dir);
    synth_case_write(o.dir, id, more, options);
    OK(weft_model_config_read(o.dir, NULL, NULL, &o.config, &err));
    OK(weft_checkpoint_open(o.dir, &o.config, profile, NULL, NULL,
                            &o.checkpoint, &err));
    o.stats = *weft_checkpoint_get_stats(o.checkpoint);
    OK(weft_model_load(o.checkpoint, NULL, NULL, &o.model, &err));
    o.w = weft_model_weights(o.model);
    o.shares_scales = options != NULL && options->packed && options->f8;
    return o;
}

static opened open_case(int i)
{
    return open_folder(CASES[i].id, CASES[i].more, &CASES[i].options,
                       CASES[i].profile);
}

static void close_case(opened *o)
{
    weft_model_destroy(o->model);
    weft_checkpoint_close(o->checkpoint);
    synth_folder_remove(o->dir);
}

/* One rank's model against the whole. */
typedef struct held {
    const weft_model_config *config;
    weft_profile profile;
    int32_t n_ranks, rank;
    bool on_device;
    int64_t more_bytes; /* than the whole takes; of a cut, mostly less */
    int64_t n_params;   /* of what is cut, in this rank */
    int64_t n_whole;    /* in the whole */
    int32_t n_kept;     /* F8 that is cut and stays F8 */
} held;

static int64_t taken(const held *h, size_t bytes)
{
    const int64_t align = h->on_device ? 256 : 64;
    return ((int64_t)bytes + align - 1) / align * align;
}

static int64_t matrix_taken(const held *h, const weft_matrix *m)
{
    const size_t item = weft_dtype_bytes(m->dtype);
    const size_t blocks =
        (size_t)((m->n_out + 127) / 128) * (size_t)((m->n_in + 127) / 128);
    const size_t bytes = h->on_device
                             ? (size_t)m->n_out * (size_t)m->n_in * item
                             : weft_matrix_bytes(m->dtype, m->n_out, m->n_in);
    return taken(h, bytes) +
           (m->dtype == WEFT_F8_E4M3 ? taken(h, blocks * sizeof(float)) : 0);
}

/* Where an element is, by matrix.h. */
static const unsigned char *packed_at(const weft_matrix *m, int32_t out,
                                      int32_t in)
{
    const int32_t panel = out / 64 * 64;
    const int32_t left = (m->n_out - panel + 15) / 16 * 16;
    const int32_t width = left < 64 ? left : 64;
    const int64_t at =
        (int64_t)panel * m->n_in + (int64_t)in * width + out % 64;
    return (const unsigned char *)m->data +
           at * (int64_t)weft_dtype_bytes(m->dtype);
}

static void expect_scales(const weft_matrix *whole, const weft_matrix *m,
                          int32_t row, int32_t col)
{
    const int32_t across = (m->n_in + 127) / 128;
    ck_assert_ptr_nonnull(m->scales);
    for (int32_t r = 0; r < m->n_out; r += 128)
        for (int32_t c = 0; c < m->n_in; c += 128)
            ck_assert(
                m->scales[r / 128 * across + c / 128] ==
                whole->scales[(row + r) / 128 * ((whole->n_in + 127) / 128) +
                              (col + c) / 128]);
}

/* Elements [row, col) on of the whole, in m's type, row-major. */
static unsigned char *plain_slice(const weft_matrix *whole,
                                  const weft_matrix *m, int32_t row,
                                  int32_t col)
{
    const size_t item = weft_dtype_bytes(m->dtype);
    unsigned char *const rows =
        weft_mem_new((size_t)m->n_out * (size_t)m->n_in, item);
    unsigned char *to = rows;
    for (int32_t r = 0; r < m->n_out; r++)
        for (int32_t c = 0; c < m->n_in; c++, to += item) {
            const float value = weft_matrix_at(whole, row + r, col + c);
            const uint16_t half = weft_bf16_of_f32(value);
            if (whole->dtype == m->dtype)
                memcpy(to, packed_at(whole, row + r, col + c), item);
            else if (m->dtype == WEFT_F32)
                memcpy(to, &value, item);
            else
                memcpy(to, &half, item);
        }
    return rows;
}

/* m is the whole's rows and columns from there on, byte for byte, its padding
 * zero. */
static void expect_elements(const held *h, const weft_matrix *whole,
                            const weft_matrix *m, int32_t row, int32_t col)
{
    const size_t bytes = weft_matrix_bytes(m->dtype, m->n_out, m->n_in);
    unsigned char *const rows = plain_slice(whole, m, row, col);
    if (m->dtype == WEFT_F8_E4M3)
        expect_scales(whole, m, row, col);
    else
        ck_assert_ptr_null(m->scales);
    if (h->on_device) {
        ck_assert(memcmp(m->data, rows,
                         (size_t)m->n_out * (size_t)m->n_in *
                             weft_dtype_bytes(m->dtype)) == 0);
    } else {
        void *const packed = weft_mem_new(bytes, 1); /* zeros */
        weft_matrix_pack_rows(packed, m->dtype, m->n_out, m->n_in, rows, 0,
                              m->n_out);
        ck_assert(memcmp(m->data, packed, bytes) == 0);
        weft_mem_free(packed);
    }
    weft_mem_free(rows);
}

static void expect_same(held *h, const weft_matrix *whole, const weft_matrix *m)
{
    ck_assert((whole->data == NULL) == (m->data == NULL));
    ck_assert_int_eq(m->dtype, whole->dtype);
    ck_assert_int_eq(m->n_out, whole->n_out);
    ck_assert_int_eq(m->n_in, whole->n_in);
    if (m->data != NULL) expect_elements(h, whole, m, 0, 0);
}

static void expect_cut(held *h, const weft_matrix *whole, const weft_matrix *m,
                       bool by_outs)
{
    const int32_t n_out = by_outs ? whole->n_out / h->n_ranks : whole->n_out;
    const int32_t n_in = by_outs ? whole->n_in : whole->n_in / h->n_ranks;
    const bool stays = (by_outs ? n_out : n_in) % 128 == 0 || h->n_ranks == 1;
    ck_assert_ptr_nonnull(m->data);
    ck_assert_int_eq(m->n_out, n_out);
    ck_assert_int_eq(m->n_in, n_in);
    if (whole->dtype != WEFT_F8_E4M3 || stays)
        ck_assert_int_eq(m->dtype, whole->dtype);
    else
        ck_assert_int_eq(m->dtype,
                         h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16);
    expect_elements(h, whole, m, by_outs ? h->rank * n_out : 0,
                    by_outs ? 0 : h->rank * n_in);
    h->more_bytes += matrix_taken(h, m) - matrix_taken(h, whole);
    h->n_params += (int64_t)n_out * n_in;
    h->n_whole += (int64_t)whole->n_out * whole->n_in;
    h->n_kept += m->dtype == WEFT_F8_E4M3 && h->n_ranks > 1;
}

static void expect_mlp(held *h, const weft_mlp_weights *whole,
                       const weft_mlp_weights *w)
{
    expect_cut(h, &whole->gate, &w->gate, true);
    expect_cut(h, &whole->up, &w->up, true);
    expect_cut(h, &whole->down, &w->down, false);
}

static void expect_heads(held *h, const weft_geometry *g,
                         const weft_layer_weights *whole,
                         const weft_layer_weights *w)
{
    const int32_t n = g->n_head / h->n_ranks, first = n * h->rank;
    for (int32_t i = 0; i < g->n_head; i++) {
        const int64_t bytes =
            matrix_taken(h, &whole->k_up[i]) + matrix_taken(h, &whole->v_up[i]);
        const int64_t values =
            (int64_t)g->kv_lora_rank * (g->qk_nope_head_dim + g->v_head_dim);
        h->n_whole += values;
        if (i < first || i >= first + n) {
            h->more_bytes -= bytes;
            continue;
        }
        h->n_params += values;
        expect_same(h, &whole->k_up[i], &w->k_up[i - first]);
        expect_same(h, &whole->v_up[i], &w->v_up[i - first]);
    }
}

static void expect_layer(held *h, int32_t layer, const weft_layer_weights *a,
                         const weft_layer_weights *b)
{
    const weft_model_config *const c = h->config;
    const weft_geometry *const g = &c->geometry[c->kind[layer]];
    const weft_matrix *const of_a[] = {&a->q_a,     &a->kv_a,    &a->index_q,
                                       &a->index_k, &a->index_w, &a->router};
    const weft_matrix *const of_b[] = {&b->q_a,     &b->kv_a,    &b->index_q,
                                       &b->index_k, &b->index_w, &b->router};
    for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
        expect_same(h, of_a[i], of_b[i]);
    ck_assert(memcmp(a->input_norm, b->input_norm,
                     (size_t)c->hidden_size * sizeof(float)) == 0);
    expect_cut(h, &a->q_b, &b->q_b, true);
    if (g->gate == WEFT_GATE_NONE)
        expect_same(h, &a->g, &b->g);
    else
        expect_cut(h, &a->g, &b->g, true);
    expect_cut(h, &a->o, &b->o, false);
    expect_heads(h, g, a, b);
    ck_assert(a->mlp.gate.data != NULL);
    expect_mlp(h, &a->mlp, &b->mlp);
    ck_assert((b->experts != NULL) == c->moe[layer]);
    for (int32_t e = 0; b->experts != NULL && e < c->n_expert; e++)
        expect_mlp(h, &a->experts[e], &b->experts[e]);
    if (b->experts != NULL && h->on_device)
        ck_assert(memcmp(b->experts_ops, b->experts,
                         (size_t)c->n_expert * sizeof *b->experts) == 0);
}

static int64_t rounded(size_t bytes)
{
    return ((int64_t)bytes + 63) / 64 * 64;
}

/* The arrays of k_up and v_up, which are the host's. */
static int64_t arrays_more(const held *h)
{
    int64_t more = 0;
    for (int32_t l = 0; l < h->config->n_layer; l++) {
        const size_t n = (size_t)h->config->geometry[h->config->kind[l]].n_head;
        more += 2 * (rounded(n / (size_t)h->n_ranks * sizeof(weft_matrix)) -
                     rounded(n * sizeof(weft_matrix)));
    }
    return more;
}

/* What it takes, reads and counts. whole: in the same memory. */
static void expect_stats(const held *h, const opened *o,
                         const weft_checkpoint_stats *whole, int64_t read)
{
    const weft_checkpoint_stats *const s =
        weft_checkpoint_get_stats(o->checkpoint);
    const int64_t arrays = arrays_more(h);
    ck_assert(s->weights_hash == o->stats.weights_hash);
    ck_assert_int_eq(s->n_params, whole->n_params - h->n_whole + h->n_params);
    ck_assert_int_eq(s->resident_bytes, whole->resident_bytes + arrays +
                                            (h->on_device ? 0 : h->more_bytes));
    ck_assert_int_eq(s->device_bytes,
                     whole->device_bytes + (h->on_device ? h->more_bytes : 0));
    if (h->n_ranks > 1) ck_assert_int_lt(s->file_bytes, whole->file_bytes);
    ck_assert_int_ge(read, s->file_bytes);
    ck_assert_int_le(read, s->file_bytes +
                               (o->shares_scales ? s->file_bytes / 100 : 0));
}

static weft_part_of_model part_of(const opened *o, int32_t n_ranks,
                                  int32_t rank)
{
    return (weft_part_of_model){.end_layer = o->config.n_layer,
                                .embed = true,
                                .head = true,
                                .experts = true,
                                .n_ranks = n_ranks,
                                .rank = rank};
}

static void load_rank(const opened *o, held *h,
                      const weft_checkpoint_stats *whole, weft_device *device)
{
    weft_model *model = NULL;
    const weft_part_of_model part = part_of(o, h->n_ranks, h->rank);
    OK(weft_checkpoint_set_part(o->checkpoint, &part, &err));
    const int64_t before = weft_checkpoint_read_bytes(o->checkpoint);
    device->bytes = 0;
    OK(weft_model_load(o->checkpoint, NULL, NULL, &model, &err));
    const weft_weights *const w = weft_model_weights(model);
    for (int32_t l = 0; l < o->config.n_layer; l++)
        expect_layer(h, l, &o->w->layers[l], &w->layers[l]);
    expect_same(h, &o->w->lm_head, &w->lm_head);
    expect_stats(h, o, whole,
                 weft_checkpoint_read_bytes(o->checkpoint) - before);
    ck_assert_int_eq(device->bytes,
                     weft_checkpoint_get_stats(o->checkpoint)->device_bytes);
    weft_model_destroy(model);
}

START_TEST(the_slices_are_the_whole)
{
    static const int32_t degrees[] = {1, 2, 4};
    opened o = open_case(_i);
    for (int on_device = 0; on_device < 2; on_device++) {
        weft_device device = {0};
        const weft_memory memory = {&device_api, &device};
        const weft_part_of_model all = part_of(&o, 0, 0);
        int32_t n_kept = 0;
        OK(weft_checkpoint_set_part(o.checkpoint, &all, &err));
        if (on_device)
            OK(weft_checkpoint_set_memory(o.checkpoint, &memory, &err));
        const weft_checkpoint_stats whole =
            *weft_checkpoint_get_stats(o.checkpoint);
        for (size_t d = 0; d < sizeof degrees / sizeof *degrees; d++) {
            int64_t n_params = 0, n_whole = 0;
            for (int32_t r = 0; r < degrees[d]; r++) {
                held h = {.config = &o.config,
                          .profile = CASES[_i].profile,
                          .n_ranks = degrees[d],
                          .rank = r,
                          .on_device = on_device};
                load_rank(&o, &h, &whole, &device);
                n_params += h.n_params;
                n_whole = h.n_whole;
                n_kept += h.n_kept;
            }
            ck_assert_int_eq(n_params, n_whole);
        }
        ck_assert((n_kept > 0) == CASES[_i].keeps);
    }
    close_case(&o);
}
END_TEST

/* Its block ends with the scales of a matrix that is cut by inputs: what is
 * read for them must not go beyond. */
START_TEST(a_dense_layer_alone)
{
    opened o = open_case(6);
    ck_assert(!o.config.moe[0]);
    for (int32_t r = 0; r < 4; r++) {
        const weft_part_of_model part = {
            .end_layer = 1, .n_ranks = 4, .rank = r};
        held h = {.config = &o.config,
                  .profile = WEFT_EXACT,
                  .n_ranks = 4,
                  .rank = r};
        weft_model *model = NULL;
        OK(weft_checkpoint_set_part(o.checkpoint, &part, &err));
        /* Its codes, room to align, and all its scales: 2 by 16. */
        ck_assert_int_eq(weft_checkpoint_get_stats(o.checkpoint)->staging_bytes,
                         (4 << 20) + 2 * 64 +
                             INT64_C(2) * 16 * (int64_t)sizeof(float));
        OK(weft_model_load(o.checkpoint, NULL, NULL, &model, &err));
        const weft_layer_weights *const w = weft_model_weights(model)->layers;
        ck_assert_ptr_nonnull(w->mlp.down.scales);
        expect_layer(&h, 0, &o.w->layers[0], w);
        weft_model_destroy(model);
    }
    close_case(&o);
}
END_TEST

/* What load_expert makes of the last layer's expert 1, to be freed. */
static void *one_expert(const opened *o, int64_t *bytes_out, uint64_t *hash_out)
{
    const int32_t layer = o->config.n_layer - 1;
    weft_mlp_weights w;
    OK(weft_checkpoint_expert_bytes(o->checkpoint, layer, bytes_out, &err));
    void *const block = weft_mem_new_aligned(64, (size_t)*bytes_out);
    memset(block, 0, (size_t)*bytes_out);
    OK(weft_checkpoint_load_expert(o->checkpoint, layer, 1, block, *bytes_out,
                                   &w, hash_out, &err));
    ck_assert_int_eq(w.gate.n_out, o->config.moe_intermediate_size);
    ck_assert_int_eq(w.down.n_in, o->config.moe_intermediate_size);
    return block;
}

START_TEST(single_experts_are_whole)
{
    static const int cases[] = {1, 2, 4, 5};
    opened o = open_case(cases[_i]);
    const weft_part_of_model part = part_of(&o, 4, 3);
    int64_t bytes = 0, of_rank = 0;
    uint64_t hash = 0, hash_of_rank = 1;
    void *const a = one_expert(&o, &bytes, &hash);
    OK(weft_checkpoint_set_part(o.checkpoint, &part, &err));
    void *const b = one_expert(&o, &of_rank, &hash_of_rank);
    ck_assert_int_eq(of_rank, bytes);
    ck_assert(hash_of_rank == hash);
    ck_assert(memcmp(a, b, (size_t)bytes) == 0);
    weft_mem_free(a);
    weft_mem_free(b);
    close_case(&o);
}
END_TEST

static void expect_refused(opened *o, const weft_part_of_model *part,
                           const char *says)
{
    weft_err err = {0};
    ck_assert_int_eq(weft_checkpoint_set_part(o->checkpoint, part, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, says) != NULL, "no \"%s\" in: %s", says,
                  err.text);
}

START_TEST(what_cannot_be_cut_is_refused)
{
    opened o = open_folder("T02", NULL, NULL, WEFT_EXACT);
    static const struct {
        int32_t n_ranks, rank;
        const char *says;
    } wrong[] = {
        {-1, 0, "tensor-parallel degree -1: 1 to 8"},
        {9, 0, "tensor-parallel degree 9: 1 to 8"},
        {2, 2, "rank 2: of 2 ranks the last is 1"},
        {2, -1, "rank -1: of 2 ranks"},
        {1, 1, "rank 1: of 1 ranks"},
        {0, 1, "rank 1: of 1 ranks"},
        {3, 0,
         "num_attention_heads 4 is not a multiple of tensor-parallel degree "
         "3"},
        {4, 0,
         "swa_num_attention_heads 2 is not a multiple of tensor-parallel "
         "degree 4"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const weft_part_of_model part =
            part_of(&o, wrong[i].n_ranks, wrong[i].rank);
        expect_refused(&o, &part, wrong[i].says);
    }
    ck_assert(memcmp(weft_checkpoint_get_stats(o.checkpoint), &o.stats,
                     sizeof o.stats) == 0);
    /* Layers 0 and 1 are of the full geometry, which has four heads. */
    weft_part_of_model full = part_of(&o, 4, 3);
    full.end_layer = 2;
    OK(weft_checkpoint_set_part(o.checkpoint, &full, &err));
    full.end_layer = 3;
    expect_refused(&o, &full, "swa_num_attention_heads");
    close_case(&o);
}
END_TEST

/* Widths of layers that are not here do not matter. */
START_TEST(only_the_layers_here_are_cut)
{
    static const struct {
        const char *more, *says; /* of layers 0 and 1 */
        int32_t layer;           /* that has no such width */
    } widths[] = {
        {"{\"moe_intermediate_size\":22}", "moe_intermediate_size 22 is", 0},
        {"{\"intermediate_size\":74}", "intermediate_size 74 is", 1}};
    for (int i = 0; i < 2; i++) {
        opened o = open_folder("T02", widths[i].more, NULL, WEFT_EXACT);
        weft_part_of_model part = part_of(&o, 4, 3);
        part.first_layer = widths[i].layer;
        part.end_layer = part.first_layer + 1;
        OK(weft_checkpoint_set_part(o.checkpoint, &part, &err));
        part.first_layer = 0;
        part.end_layer = 2;
        expect_refused(&o, &part, widths[i].says);
        close_case(&o);
    }
}
END_TEST

/* Memory that was not written must not look like zeros, as in test_weights. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "max_malloc_fill_size=1073741824:malloc_fill_byte=255";
}

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, the_slices_are_the_whole, 0, N_CASES);
    tcase_add_test(tests, a_dense_layer_alone);
    tcase_add_loop_test(tests, single_experts_are_whole, 0, 4);
    tcase_add_test(tests, what_cannot_be_cut_is_refused);
    tcase_add_test(tests, only_the_layers_here_are_cut);
}

int main(void)
{
    (void)mallopt(M_PERTURB, 1);
    return weft_suite_run_added("load/weights_ranks", add_tests);
}
