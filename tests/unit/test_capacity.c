/* weft plan's arithmetic against figures of an independent implementation of
 * the same formulas, for dots3-note on one device of 141 GB, 4.3 TB/s. */
#include "node/app/capacity.h"

#include <math.h>
#include <string.h>

#include "tests/support/suite.h"

static weft_model_config dots3(void)
{
    weft_model_config c = {.vocab_size = 152064,
                           .hidden_size = 5120,
                           .n_layer = 46,
                           .end_layer = 46,
                           .window = 513,
                           .dsa = true,
                           .index_n_head = 64,
                           .index_head_dim = 128,
                           .index_topk = 2048,
                           .intermediate_size = 13824,
                           .n_expert = 256,
                           .top_k = 8,
                           .moe_intermediate_size = 1536,
                           .shared_intermediate_size = 1536};
    c.geometry[WEFT_FULL] = (weft_geometry){.n_head = 128,
                                            .q_lora_rank = 1024,
                                            .kv_lora_rank = 512,
                                            .qk_nope_head_dim = 128,
                                            .qk_rope_head_dim = 64,
                                            .v_head_dim = 128,
                                            .gate = WEFT_GATE_HEADWISE};
    c.geometry[WEFT_WINDOW] = (weft_geometry){.n_head = 64,
                                              .q_lora_rank = 1024,
                                              .kv_lora_rank = 1024,
                                              .qk_nope_head_dim = 192,
                                              .qk_rope_head_dim = 64,
                                              .v_head_dim = 128,
                                              .gate = WEFT_GATE_HEADWISE};
    for (int32_t l = 0; l < c.n_layer; l++) {
        const bool full = l == 0 || l % 4 == 1;
        c.kind[l] = full ? WEFT_FULL : WEFT_WINDOW;
        c.n_kind[c.kind[l]]++;
        c.moe[l] = l > 0;
    }
    return c;
}

static const weft_capacity_device H200 = {.bytes = 141e9,
                                          .usable = 0.92,
                                          .reserve_bytes = 4e9,
                                          .bandwidth = 4.3e12,
                                          .bf16_flops = 790e12,
                                          .fp8_flops = 1550e12};

/* 128 + 4 bytes: the key in fp8 with its scale, as the figures count it. */
static weft_capacity_load load_of(int64_t context, int32_t sequences)
{
    return (weft_capacity_load){.context = context,
                                .sequences = sequences,
                                .expert_replicas = 1,
                                .fp8 = true,
                                .index_row_bytes = 132};
}

/* To the figure's last printed digit. */
static void is_near(double is, double wanted, double digit)
{
    ck_assert_msg(fabs(is - wanted) <= digit * 0.501, "%.9g is not %.9g", is,
                  wanted);
}

START_TEST(parameters)
{
    const weft_model_config c = dots3();
    weft_capacity_model m;
    const weft_capacity_load load = load_of(8192, 1);
    ck_assert_int_eq(c.n_kind[WEFT_FULL], 13);
    weft_capacity_measure(&c, &load, &m);
    ck_assert_int_eq(m.moe_layers, 45);
    is_near(m.experts / 1e9, 271.79, 0.01);
    is_near(m.attention / 1e9, 4.870, 0.001);
    is_near((m.experts + m.attention + m.shared + m.dense + m.router +
             2 * m.vocabulary) /
                1e9,
            279.55, 0.01);
    is_near(m.expert_bytes / 1e6, 23.59, 0.01);
    /* At batch 1 a step reads 16.31 GB: these, and eight experts a layer. */
    is_near((m.layer_bytes + 8 * 45 * m.expert_bytes) / 1e9, 16.31, 0.01);
}
END_TEST

START_TEST(experts_that_are_touched)
{
    const weft_model_config c = dots3();
    const double wanted[][2] = {{1, 8.0},    {4, 30.5},    {16, 102.0},
                                {64, 222.4}, {128, 251.6}, {512, 256.0}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        is_near(weft_capacity_touched(&c, wanted[i][0]), wanted[i][1], 0.1);
}
END_TEST

START_TEST(kv_that_is_read_and_held)
{
    const weft_model_config c = dots3();
    const double read_mb[][2] = {
        {8192, 81.6}, {32768, 123.7}, {131072, 292.4}, {524288, 967.2}};
    for (size_t i = 0; i < sizeof read_mb / sizeof read_mb[0]; i++) {
        const weft_capacity_load load = load_of((int64_t)read_mb[i][0], 1);
        weft_capacity_model m;
        weft_capacity_measure(&c, &load, &m);
        is_near(m.kv_read_bytes / 1e6, read_mb[i][1], 0.1);
        /* 16,692 bytes a token, and 36.8 MB of windows. */
        is_near(m.kv_bytes, 16692.0 * read_mb[i][0] + 33.0 * 2176 * 513, 1);
    }
}
END_TEST

START_TEST(floors_of_layers)
{
    const weft_model_config c = dots3();
    /* sequences, context, milliseconds */
    const double wanted[][3] = {
        {8, 8192, 1.97},   {8, 32768, 2.05},   {8, 131072, 2.36},
        {8, 524288, 3.62}, {32, 8192, 2.43},   {32, 131072, 3.99},
        {128, 8192, 4.25}, {128, 32768, 5.50}, {128, 131072, 10.52}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const weft_capacity_load load = load_of((int64_t)wanted[i][1], 1);
        is_near(
            1e3 * weft_capacity_layers_seconds(&c, &H200, &load, wanted[i][0]),
            wanted[i][2], 0.01);
    }
}
END_TEST

START_TEST(floors_of_experts)
{
    const weft_model_config c = dots3();
    const weft_capacity_load load = load_of(8192, 1);
    const double wanted[][2] = {{8, 14.2},   {32, 40.3},   {128, 62.1},
                                {256, 63.2}, {4096, 63.2}, {8192, 89.8}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        is_near(
            1e3 * weft_capacity_experts_seconds(&c, &H200, &load, wanted[i][0]),
            wanted[i][1], 0.1);
}
END_TEST

START_TEST(a_plan)
{
    const weft_model_config c = dots3();
    const weft_capacity_load load = load_of(8192, 256);
    weft_capacity_plan p;
    weft_err err = {0};
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, &err),
                     WEFT_OK);
    ck_assert_int_eq(p.stages, 1);
    ck_assert_int_eq(p.groups, 1);
    ck_assert_int_eq(p.group_sequences, 256);
    /* 272 GB in devices of 125.7 GB. */
    ck_assert_int_eq(p.experts_memory, 3);
    /* 63.2 ms of expert time beside one group's step. */
    ck_assert_int_eq(p.experts, p.experts_balance);
    ck_assert_int_ge(p.experts, p.experts_memory);
    ck_assert(p.experts_seconds / p.experts <= p.layers_seconds);
    ck_assert(p.experts_seconds / (p.experts - 1) > p.layers_seconds);
    ck_assert(p.layer_shard_bytes + p.kv_shard_bytes <=
              H200.bytes * H200.usable - H200.reserve_bytes);
    ck_assert(p.step_seconds == p.layers_seconds);
}
END_TEST

/* More sequences than a group has room for, on both sides of the edge. */
START_TEST(groups_follow_the_memory)
{
    const weft_model_config c = dots3();
    weft_capacity_load load = load_of(131072, 1);
    weft_capacity_plan p;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, NULL),
                     WEFT_OK);
    const int64_t fits = p.group_fits;
    ck_assert_int_gt(fits, 40);
    ck_assert_int_le(fits, 52);
    load.sequences = (int32_t)fits;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, NULL),
                     WEFT_OK);
    ck_assert_int_eq(p.groups, 1);
    load.sequences++;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, NULL),
                     WEFT_OK);
    ck_assert_int_eq(p.groups, 2);
    ck_assert_int_eq(p.group_sequences, (load.sequences + 1) / 2);
}
END_TEST

START_TEST(stages_follow_the_memory)
{
    const weft_model_config c = dots3();
    weft_capacity_device small = H200;
    const weft_capacity_load load = load_of(8192, 1);
    weft_capacity_plan p;
    small.bytes = 16e9;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &small, &load, &p, NULL),
                     WEFT_OK);
    ck_assert_int_eq(p.stages, 1);
    small.bytes = 10e9;
    small.reserve_bytes = 1e9;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &small, &load, &p, NULL),
                     WEFT_OK);
    ck_assert_int_eq(p.stages, 2);
    ck_assert(p.layer_shard_bytes + p.kv_shard_bytes <= 8.2e9);
}
END_TEST

START_TEST(replicas_double_the_pool)
{
    const weft_model_config c = dots3();
    weft_capacity_load load = load_of(8192, 1);
    weft_capacity_plan one, two;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &one, NULL),
                     WEFT_OK);
    load.expert_replicas = 2;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &two, NULL),
                     WEFT_OK);
    ck_assert_int_eq(one.experts_memory, 3);
    ck_assert_int_eq(two.experts_memory, 5);
}
END_TEST

/* The arithmetic of a rank again, from the config's numbers. */
START_TEST(ranks_share_heads_and_widths)
{
    const weft_model_config c = dots3();
    weft_capacity_load load = load_of(8192, 128);
    weft_capacity_model one, two, eight;
    weft_capacity_measure(&c, &load, &one);
    load.ranks = 2;
    weft_capacity_measure(&c, &load, &two);
    load.ranks = 8;
    weft_capacity_measure(&c, &load, &eight);
    /* q_a, kv_a and the rope's key of 46 layers, 13 of them with an indexer. */
    const double full = 5120.0 * (1024 + 576), window = 5120.0 * (1024 + 1088);
    const double indexer = 1024.0 * 8192 + 5120.0 * (128 + 64);
    const double whole = 13 * (full + indexer) + 33 * window;
    is_near(one.latents, whole, 1);
    const double cut = one.attention - whole + one.shared + one.dense;
    is_near(one.layer_bytes - two.layer_bytes, cut / 2, 1);
    is_near(one.held_bytes - eight.held_bytes, cut * 7 / 8, 1);
    ck_assert(one.kv_bytes == eight.kv_bytes);
    ck_assert(one.attention == eight.attention);
    /* Bytes bound here: each N-th of what is cut takes an N-th of its time. */
    load = load_of(8192, 8);
    const double alone = weft_capacity_layers_seconds(&c, &H200, &load, 8);
    load.ranks = 2;
    const double shared = weft_capacity_layers_seconds(&c, &H200, &load, 8);
    is_near((alone - shared) * H200.bandwidth, cut / 2, 1e3);
}
END_TEST

START_TEST(ranks_bound_by_products)
{
    const weft_model_config c = dots3();
    weft_capacity_device slow = H200;
    weft_capacity_load load = load_of(8192, 512);
    slow.bf16_flops = slow.fp8_flops = 1e12;
    double seconds[3];
    for (int32_t i = 0; i < 3; i++) {
        load.ranks = 1 << i;
        seconds[i] = weft_capacity_layers_seconds(&c, &slow, &load, 512);
    }
    /* What is whole stays; products with what is cut, and with keys by heads.
     */
    weft_capacity_model m;
    weft_capacity_measure(&c, &load, &m);
    const double cut = m.attention - m.latents + m.shared + m.dense;
    const double keys =
        13.0 * 128 * 2048 * (576 + 512) + 33.0 * 64 * 513 * (1088 + 1024);
    const double half = 512 * 2 * (cut + keys) / 2 / 1e12;
    is_near((seconds[0] - seconds[1]) / half, 1, 1e-9);
    is_near((seconds[1] - seconds[2]) / half, 0.5, 1e-9);
}
END_TEST

START_TEST(ranks_of_a_plan)
{
    const weft_model_config c = dots3();
    weft_capacity_device small = H200;
    weft_capacity_load load = load_of(8192, 1);
    weft_capacity_plan p;
    weft_err err = {0};
    small.bytes = 10e9;
    small.reserve_bytes = 1e9;
    load.ranks = 2;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &small, &load, &p, &err),
                     WEFT_OK);
    ck_assert_int_eq(p.ranks, 2);
    ck_assert_int_eq(p.stages, 1); /* two without ranks */
    ck_assert(p.layer_shard_bytes + p.kv_shard_bytes <= 8.2e9);
    load.ranks = 3;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "num_attention_heads 128"));
}
END_TEST

START_TEST(refusals_name_the_value)
{
    const weft_model_config c = dots3();
    weft_capacity_plan p;
    weft_err err = {0};
    weft_capacity_load load = load_of(0, 1);
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "context 0"));
    load = load_of(8192, 0);
    ck_assert_int_eq(weft_capacity_plan_make(&c, &H200, &load, &p, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "sequences 0"));
    load = load_of(8192, 1);
    weft_capacity_device tiny = H200;
    tiny.bytes = 4.8e9;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &tiny, &load, &p, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "experts: one of each layer"));
    tiny.bytes = 1e9;
    ck_assert_int_eq(weft_capacity_plan_make(&c, &tiny, &load, &p, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "stay in reserve"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        parameters,
        experts_that_are_touched,
        kv_that_is_read_and_held,
        floors_of_layers,
        floors_of_experts,
        a_plan,
        groups_follow_the_memory,
        stages_follow_the_memory,
        replicas_double_the_pool,
        ranks_share_heads_and_widths,
        ranks_bound_by_products,
        ranks_of_a_plan,
        refusals_name_the_value,
    };
    return WEFT_SUITE_RUN("capacity", tests);
}
