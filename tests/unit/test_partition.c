/* Which layers a stage computes, what a rank has of them, and the number that
 * two processes compare. */
#include <stdio.h>
#include <string.h>

#include "shard/load/weights.h"
#include "shard/model/partition.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

#define FIXTURES "tests/data/fixtures/"

static const char *const CASES[] = {"dots3-mixed",  "dots3-defaults",
                                    "dots3-groups", "dots3-dense",
                                    "v2-lite",      "v3",
                                    "v32"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

static weft_model_config read_config(const char *name)
{
    char path[256];
    weft_model_config config;
    (void)snprintf(path, sizeof path, FIXTURES "%s", name);
    OK(weft_model_config_read(path, NULL, NULL, &config, &err));
    return config;
}

/* A model of n equal layers, or of layers that the caller makes dearer. */
static weft_model_config model_of(int32_t n_layer)
{
    weft_model_config c;
    memset(&c, 0, sizeof c);
    c.vocab_size = 1000;
    c.hidden_size = 64;
    c.n_layer = c.end_layer = n_layer;
    c.n_kind[WEFT_FULL] = n_layer;
    c.intermediate_size = 128;
    c.geometry[WEFT_FULL] = (weft_geometry){.n_head = 2,
                                            .kv_lora_rank = 32,
                                            .qk_nope_head_dim = 16,
                                            .qk_rope_head_dim = 16,
                                            .v_head_dim = 16};
    return c;
}

static void expect_covered(const weft_model_config *c, int32_t n)
{
    int32_t at = 0, n_kind[WEFT_KINDS] = {0};
    for (int32_t s = 0; s < n; s++) {
        int32_t first = -1, end = -1;
        weft_model_config part;
        OK(weft_partition_stage(c, n, s, &first, &end, &err));
        ck_assert_int_eq(first, at);
        ck_assert_int_lt(first, end);
        at = end;
        OK(weft_partition_cut(c, n, s, &part, &err));
        ck_assert_int_eq(part.first_layer, first);
        ck_assert_int_eq(part.end_layer, end);
        ck_assert_int_eq(part.n_layer, c->n_layer);
        ck_assert_int_eq(part.n_kind[0] + part.n_kind[1], end - first);
        for (int k = 0; k < WEFT_KINDS; k++) n_kind[k] += part.n_kind[k];
    }
    ck_assert_int_eq(at, c->n_layer);
    for (int k = 0; k < WEFT_KINDS; k++)
        ck_assert_int_eq(n_kind[k], c->n_kind[k]);
}

START_TEST(every_layer_has_one_stage)
{
    for (int i = 0; i < N_CASES; i++) {
        const weft_model_config c = read_config(CASES[i]);
        for (int32_t n = 1; n <= c.n_layer; n++) expect_covered(&c, n);
    }
    const weft_model_config one = model_of(1), many = model_of(61),
                            most = model_of(WEFT_LAYERS_MAX);
    expect_covered(&one, 1);
    for (int32_t n = 1; n <= 61; n += 6) expect_covered(&many, n);
    expect_covered(&most, 3);
    int32_t first = 0, end = 0;
    OK(weft_partition_stage(&most, WEFT_STAGES_MAX, WEFT_STAGES_MAX - 1, &first,
                            &end, &err));
    ck_assert_int_eq(end, WEFT_LAYERS_MAX);
}
END_TEST

/* What a stage reads, counted by the loader. */
static int64_t read_of(weft_checkpoint *checkpoint, int32_t first, int32_t end)
{
    const weft_part_of_model part = {
        .first_layer = first, .end_layer = end, .head = first == 0};
    OK(weft_checkpoint_set_part(checkpoint, &part, &err));
    return weft_checkpoint_get_stats(checkpoint)->n_params;
}

typedef struct extremes {
    int64_t most, least;
} extremes;

/* Over all cuts of [first, n_layer) into n stages: the least that the largest
 * can be, and of those cuts the most that the smallest can be. */
static extremes best_cut(int64_t cost[16][17], int32_t n_layer, int32_t first,
                         int32_t n)
{
    extremes best = {INT64_MAX, 0};
    if (n == 1) return (extremes){cost[first][n_layer], cost[first][n_layer]};
    for (int32_t end = first + 1; end <= n_layer - (n - 1); end++) {
        const int64_t mine = cost[first][end];
        extremes e = best_cut(cost, n_layer, end, n - 1);
        if (mine > e.most) e.most = mine;
        if (mine < e.least) e.least = mine;
        if (e.most < best.most || (e.most == best.most && e.least > best.least))
            best = e;
    }
    return best;
}

/* Norms and biases, which the cut does not count, are below a fiftieth. */
START_TEST(the_largest_stage_is_as_small_as_can_be)
{
    char path[256];
    weft_model_config c;
    weft_checkpoint *checkpoint = NULL;
    int64_t cost[16][17] = {{0}};
    (void)snprintf(path, sizeof path, FIXTURES "%s", CASES[_i]);
    OK(weft_model_config_read(path, NULL, NULL, &c, &err));
    OK(weft_checkpoint_open(path, &c, WEFT_EXACT, NULL, NULL, &checkpoint,
                            &err));
    ck_assert_int_lt(c.n_layer, 16);
    for (int32_t f = 0; f < c.n_layer; f++)
        for (int32_t e = f + 1; e <= c.n_layer; e++)
            cost[f][e] = read_of(checkpoint, f, e);
    for (int32_t n = 1; n <= c.n_layer; n++) {
        const extremes want = best_cut(cost, c.n_layer, 0, n);
        int64_t most = 0, least = INT64_MAX;
        for (int32_t s = 0; s < n; s++) {
            int32_t first = 0, end = 0;
            OK(weft_partition_stage(&c, n, s, &first, &end, &err));
            if (cost[first][end] > most) most = cost[first][end];
            if (cost[first][end] < least) least = cost[first][end];
        }
        ck_assert_int_ge(least, want.least - want.least / 50);
        ck_assert_msg(most <= want.most + want.most / 50,
                      "%s, %d stages: the largest has %lld elements, could "
                      "have %lld",
                      CASES[_i], n, (long long)most, (long long)want.most);
    }
    weft_checkpoint_close(checkpoint);
}
END_TEST

static void expect_ends(const weft_model_config *c, int32_t n,
                        const int32_t *ends)
{
    for (int32_t s = 0; s < n; s++) {
        int32_t first = 0, end = 0;
        OK(weft_partition_stage(c, n, s, &first, &end, &err));
        ck_assert_msg(end == ends[s], "stage %d of %d ends at %d, not at %d", s,
                      n, end, ends[s]);
    }
}

START_TEST(stages_are_equal_where_they_can_be)
{
    weft_model_config c = model_of(12);
    c.vocab_size = 0; /* a head that costs nothing */
    static const int32_t two[] = {6, 12}, five[] = {3, 6, 8, 10, 12},
                         twelve[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    expect_ends(&c, 2, two);
    expect_ends(&c, 5, five); /* never 3, 3, 3, 2, 1 */
    expect_ends(&c, 12, twelve);
    /* A layer of this model: q, kv_a, kv_b, o, then the dense part. */
    const int32_t layer = 64 * 64 + 64 * 48 + 64 * 32 + 64 * 32 + 3 * 64 * 128;
    c.vocab_size = 4 * layer / 64; /* a head of four layers */
    static const int32_t headed[] = {4, 12}, four[] = {1, 5, 9, 12};
    expect_ends(&c, 2, headed);
    ck_assert_int_eq(layer % 16, 0);
    expect_ends(&c, 4, four);
    /* A head dearer than all layers: one layer goes with it. */
    c.vocab_size = 100 * layer / 64;
    static const int32_t alone[] = {1, 12};
    int32_t first = 0, end = 0;
    OK(weft_partition_stage(&c, 2, 1, &first, &end, &err));
    ck_assert_int_eq(end, alone[1]);
}
END_TEST

START_TEST(what_is_out_of_range_is_refused)
{
    const weft_model_config c = model_of(4), many = model_of(100);
    static const struct {
        int32_t n, stage;
        const char *says;
    } wrong[] = {{0, 0, "1 to 4"},           {-1, 0, "1 to 4"},
                 {5, 0, "1 to 4"},           {INT32_MAX, 0, "1 to 4"},
                 {4, 4, "the last is 3"},    {4, -1, "the last is 3"},
                 {1, INT32_MIN, "last is 0"}};
    weft_model_config part;
    weft_err err = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(
            weft_partition_cut(&c, wrong[i].n, wrong[i].stage, &part, &err),
            WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.text, wrong[i].says));
    }
    ck_assert_int_eq(
        weft_partition_cut(&many, WEFT_STAGES_MAX + 1, 0, &part, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_partition_cut(&many, WEFT_STAGES_MAX, 0, &part, &err),
                     WEFT_OK);
}
END_TEST

/* By its bytes: both are copies of one that was parsed. */
static bool is_same(const weft_model_config *a, const weft_model_config *b)
{
    const unsigned char *const x = (const void *)a, *const y = (const void *)b;
    for (size_t i = 0; i < sizeof *a; i++)
        if (x[i] != y[i]) return false;
    return true;
}

/* What ranks share is shared, and nothing else differs. */
START_TEST(a_rank_has_its_share)
{
    const weft_model_config c = read_config("dots3-mixed");
    weft_model_config rank;
    OK(weft_partition_rank(&c, 1, &rank, &err));
    ck_assert(is_same(&rank, &c));
    OK(weft_partition_rank(&c, 2, &rank, &err));
    ck_assert_int_eq(rank.geometry[WEFT_FULL].n_head, 2);
    ck_assert_int_eq(rank.geometry[WEFT_WINDOW].n_head, 1);
    ck_assert_int_eq(rank.intermediate_size, 36);
    ck_assert_int_eq(rank.moe_intermediate_size, 12);
    ck_assert_int_eq(rank.shared_intermediate_size, 12);
    for (int k = 0; k < WEFT_KINDS; k++) rank.geometry[k].n_head *= 2;
    rank.intermediate_size *= 2;
    rank.moe_intermediate_size *= 2;
    rank.shared_intermediate_size *= 2;
    ck_assert(is_same(&rank, &c));
    const weft_model_config dense = model_of(4);
    OK(weft_partition_rank(&dense, 2, &rank, &err));
    ck_assert_int_eq(rank.geometry[WEFT_FULL].n_head, 1);
    ck_assert_int_eq(rank.intermediate_size, 64);
}
END_TEST

/* Layer 0 is dense and of the full geometry, layer 1 neither. */
static weft_model_config two_of_each(void)
{
    weft_model_config c = model_of(2);
    c.kind[1] = WEFT_WINDOW;
    c.n_kind[WEFT_FULL] = c.n_kind[WEFT_WINDOW] = 1;
    c.geometry[WEFT_WINDOW] = c.geometry[WEFT_FULL];
    c.geometry[WEFT_FULL].n_head = c.geometry[WEFT_WINDOW].n_head = 8;
    c.moe[1] = true;
    c.intermediate_size = c.moe_intermediate_size = 64;
    c.shared_intermediate_size = 64;
    return c;
}

static void expect_refused(const weft_model_config *c, int32_t n_ranks,
                           const char *text)
{
    weft_model_config unused;
    weft_err err = {0};
    ck_assert_int_eq(weft_partition_rank(c, n_ranks, &unused, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, text) != NULL, "no \"%s\" in: %s", text,
                  err.text);
}

/* A width that does not divide is refused by its key where a layer has it, and
 * left alone where none has. */
START_TEST(a_degree_that_does_not_divide_is_refused)
{
    static const char *const keys[] = {
        "num_attention_heads", "swa_num_attention_heads", "intermediate_size",
        "moe_intermediate_size", "shared_experts_intermediate_size"};
    static const int32_t layers[] = {0, 1, 0, 1, 1};
    weft_model_config rank;
    for (int i = 0; i < 5; i++) {
        char text[128];
        weft_model_config c = two_of_each();
        int32_t *const widths[] = {
            &c.geometry[WEFT_FULL].n_head, &c.geometry[WEFT_WINDOW].n_head,
            &c.intermediate_size, &c.moe_intermediate_size,
            &c.shared_intermediate_size};
        OK(weft_partition_rank(&c, 4, &rank, &err));
        *widths[i] = 6;
        (void)snprintf(text, sizeof text,
                       "%s 6 is not a multiple of tensor-parallel degree 4",
                       keys[i]);
        expect_refused(&c, 4, text);
        c.first_layer = 1 - layers[i]; /* the other layer alone */
        c.end_layer = c.first_layer + 1;
        c.n_kind[c.kind[layers[i]]] = 0;
        const int32_t full = c.geometry[WEFT_FULL].n_head;
        OK(weft_partition_rank(&c, 4, &rank, &err));
        ck_assert_int_eq(rank.geometry[WEFT_FULL].n_head,
                         c.first_layer == 0 ? full / 4 : full);
        ck_assert_int_eq(rank.moe_intermediate_size,
                         c.first_layer == 1 ? c.moe_intermediate_size / 4
                                            : c.moe_intermediate_size);
    }
    const weft_model_config c = two_of_each();
    expect_refused(&c, 0, "degree 0: 1 to 8");
    expect_refused(&c, -1, "degree -1: 1 to 8");
    expect_refused(&c, WEFT_RANKS_MAX + 1, "degree 9: 1 to 8");
    OK(weft_partition_rank(&c, WEFT_RANKS_MAX, &rank, &err));
}
END_TEST

/* Every field that says something about the answer changes the number. */
START_TEST(the_hash_hears_every_word)
{
    const weft_model_config c = read_config("dots3-mixed");
    const uint64_t hash = weft_model_config_hash(&c);
    ck_assert(hash == weft_model_config_hash(&c));
#define HEARS(change)                                                          \
    do {                                                                       \
        weft_model_config other = c;                                           \
        change;                                                                \
        ck_assert_msg(weft_model_config_hash(&other) != hash, "%s", #change);  \
    } while (0)
    HEARS(other.model_type[0] ^= 1);
    HEARS(other.vocab_size++);
    HEARS(other.hidden_size++);
    HEARS(other.max_context++);
    HEARS(other.rms_norm_eps *= 2);
    HEARS(other.kind[1] ^= 1);
    HEARS(other.moe[2] ^= true);
    HEARS(other.geometry[0].n_head++);
    HEARS(other.geometry[0].q_lora_rank++);
    HEARS(other.geometry[0].kv_lora_rank++);
    HEARS(other.geometry[1].qk_nope_head_dim++);
    HEARS(other.geometry[1].qk_rope_head_dim++);
    HEARS(other.geometry[1].v_head_dim++);
    HEARS(other.geometry[1].rope_theta++);
    HEARS(other.geometry[1].softmax_scale *= 2);
    HEARS(other.geometry[1].gate ^= 1);
    HEARS(other.window++);
    HEARS(other.yarn.on ^= true);
    HEARS(other.yarn.factor++);
    HEARS(other.yarn.beta_fast++);
    HEARS(other.yarn.beta_slow++);
    HEARS(other.yarn.original_context++);
    HEARS(other.yarn.cos_sin_factor++);
    HEARS(other.rescale ^= true);
    HEARS(other.k_rope_norm ^= true);
    HEARS(other.rope_interleave ^= true);
    HEARS(other.dsa ^= true);
    HEARS(other.index_n_head++);
    HEARS(other.index_head_dim++);
    HEARS(other.index_topk++);
    HEARS(other.index_rope_interleave ^= true);
    HEARS(other.intermediate_size++);
    HEARS(other.n_expert++);
    HEARS(other.top_k++);
    HEARS(other.n_group++);
    HEARS(other.topk_group++);
    HEARS(other.moe_intermediate_size++);
    HEARS(other.scoring ^= 1);
    HEARS(other.topk_method ^= 1);
    HEARS(other.norm_topk ^= true);
    HEARS(other.dynamic_rsf ^= true);
    HEARS(other.routed_scaling *= 2);
    HEARS(other.tie_embeddings ^= true);
    HEARS(other.suppressed_ids[other.n_suppressed_ids++] = 3);
#undef HEARS
}
END_TEST

START_TEST(the_hash_is_of_the_model_not_of_a_part)
{
    const weft_model_config c = read_config("dots3-mixed");
    const uint64_t hash = weft_model_config_hash(&c);
    weft_model_config other;
    OK(weft_partition_cut(&c, 3, 1, &other, &err));
    ck_assert(weft_model_config_hash(&other) == hash);
    /* What tensors may correct, and what is only a default or for sampling. */
    other = c;
    other.n_nextn++;
    other.shared_intermediate_size++;
    other.index_rope_tail ^= true;
    other.stop_ids[0]++;
    other.temperature = 0.25F;
    ck_assert(weft_model_config_hash(&other) == hash);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, every_layer_has_one_stage);
    tcase_add_loop_test(tests, the_largest_stage_is_as_small_as_can_be, 0,
                        N_CASES);
    tcase_add_test(tests, stages_are_equal_where_they_can_be);
    tcase_add_test(tests, what_is_out_of_range_is_refused);
    tcase_add_test(tests, a_rank_has_its_share);
    tcase_add_test(tests, a_degree_that_does_not_divide_is_refused);
    tcase_add_test(tests, the_hash_hears_every_word);
    tcase_add_test(tests, the_hash_is_of_the_model_not_of_a_part);
}

int main(void)
{
    return weft_suite_run_added("model/partition", add_tests);
}
