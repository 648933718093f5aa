/* What of the memory goes where, at a start: the parts add up, the reserve is
 * kept whether or not the KV budget was given, and what does not fit is refused
 * with needed and available bytes. */
#include <string.h>

#include "node/app/memory.h"
#include "tests/support/suite.h"

static const int64_t MIB = INT64_C(1) << 20;

static weft_model_config small_config(void)
{
    weft_model_config c = {
        .vocab_size = 100,
        .hidden_size = 64,
        .n_layer = 1,
        .end_layer = 1,
        .max_context = 4096,
        .intermediate_size = 64,
    };
    c.n_kind[WEFT_FULL] = 1;
    c.geometry[WEFT_FULL] = (weft_geometry){.n_head = 2,
                                            .q_lora_rank = 16,
                                            .kv_lora_rank = 32,
                                            .qk_nope_head_dim = 16,
                                            .qk_rope_head_dim = 16,
                                            .v_head_dim = 16};
    return c;
}

static weft_engine_options small_options(void)
{
    return (weft_engine_options){
        .page_tokens = 64,
        .chunk_tokens = 64,
        .max_seqs = 64,
        .max_waiting = 64,
        .max_context = 4096,
        .threads = 1,
        .profile = WEFT_EXACT,
    };
}

static weft_status plan(int64_t available, int64_t kv, int64_t weights,
                        weft_memory_plan *out, weft_err *err)
{
    const weft_model_config config = small_config();
    const weft_engine_options options = small_options();
    return weft_memory_plan_within(&config, &options, available, kv, weights,
                                   out, err);
}

/* Bytes that are taken before the first byte of KV. */
static int64_t fixed_bytes(int64_t available, int64_t weights)
{
    weft_memory_plan p = {0};
    weft_err err = {0};
    ck_assert_msg(plan(available, 0, weights, &p, &err) == WEFT_OK, "%s",
                  err.text);
    return p.weights_bytes + p.overhead_bytes + p.requests_bytes +
           p.reserve_bytes;
}

START_TEST(reserve_has_a_floor_and_a_share)
{
    weft_memory_plan p = {0};
    weft_err err = {0};
    ck_assert_int_eq(plan(1024 * MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.reserve_bytes, 256 * MIB);
    ck_assert_int_eq(p.requests_bytes, 256 * MIB);
    ck_assert_int_eq(plan(16384 * MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.reserve_bytes, 1024 * MIB);
    ck_assert_int_eq(p.requests_bytes, 1024 * MIB);
    ck_assert_int_eq(plan(8192 * MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.requests_bytes, 512 * MIB);
    ck_assert_int_eq(plan(65536 * MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.requests_bytes, 1024 * MIB);
}
END_TEST

START_TEST(the_rest_is_the_budget_as_far_as_it_is_of_use)
{
    const int64_t fixed = fixed_bytes(1024 * MIB, MIB);
    weft_memory_plan p = {0};
    weft_err err = {0};
    ck_assert_int_eq(plan(fixed + MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.kv_bytes, MIB);
    ck_assert(!p.kv_given);
    /* 64 sequences of 4096 rows of 48 floats, and at most a slab more. */
    const int64_t useful = INT64_C(64) * 4096 * 48 * 4;
    ck_assert_int_eq(plan(16384 * MIB, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_ge(p.kv_bytes, useful);
    ck_assert_int_le(p.kv_bytes, useful + 2 * MIB);
}
END_TEST

START_TEST(a_given_budget_leaves_the_reserve)
{
    const int64_t fixed = fixed_bytes(1024 * MIB, MIB);
    const int64_t left = 1024 * MIB - fixed;
    weft_memory_plan p = {0};
    weft_err err = {0};
    ck_assert_int_eq(plan(1024 * MIB, left, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.kv_bytes, left);
    ck_assert(p.kv_given);
    ck_assert_int_eq(plan(1024 * MIB, left + 1, MIB, &p, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "kv-bytes"));
}
END_TEST

START_TEST(a_budget_below_one_slab_is_refused)
{
    weft_memory_plan p = {0};
    weft_err err = {0};
    /* One page of 64 rows of 48 floats. */
    const int64_t slab = INT64_C(64) * 48 * 4;
    ck_assert_int_eq(plan(1024 * MIB, slab, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(plan(1024 * MIB, slab - 1, MIB, &p, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "kv-bytes"));
}
END_TEST

/* On the host every rank holds the same rows; on devices each has its own
 * memory. */
START_TEST(each_rank_has_pages_of_its_own)
{
    const weft_model_config config = small_config();
    weft_engine_options o = small_options();
    const weft_memory somewhere = {0};
    weft_memory_plan p = {0};
    weft_err err = {0};
    o.n_ranks = 4;
    ck_assert_int_eq(
        weft_memory_plan_within(&config, &o, 1024 * MIB, 0, MIB, &p, &err),
        WEFT_OK);
    ck_assert_int_eq(p.kv_copies, 4);
    const int64_t fixed =
        p.weights_bytes + p.overhead_bytes + p.requests_bytes + p.reserve_bytes;
    const int64_t left = 40 * MIB;
    const int64_t have = fixed + left;
    ck_assert_int_eq(
        weft_memory_plan_within(&config, &o, have, 0, MIB, &p, &err), WEFT_OK);
    ck_assert_int_eq(p.kv_bytes, 10 * MIB);
    ck_assert_int_eq(
        weft_memory_plan_within(&config, &o, have, 10 * MIB, MIB, &p, &err),
        WEFT_OK);
    ck_assert_int_eq(
        weft_memory_plan_within(&config, &o, have, 10 * MIB + 1, MIB, &p, &err),
        WEFT_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(err.text, "10485760 are left for each of 4 ranks") !=
                      NULL,
                  "%s", err.text);
    o.memory = &somewhere;
    ck_assert_int_eq(
        weft_memory_plan_within(&config, &o, 1024 * MIB, 0, MIB, &p, &err),
        WEFT_OK);
    ck_assert_int_eq(p.kv_copies, 1);
}
END_TEST

START_TEST(weights_that_do_not_fit_are_refused)
{
    weft_memory_plan p = {.kv_bytes = -7};
    weft_err err = {0};
    ck_assert_int_eq(plan(1024 * MIB, 0, 600 * MIB, &p, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "629145600"));
    ck_assert_ptr_nonnull(strstr(err.text, "1073741824"));
    ck_assert_int_eq(p.kv_bytes, -7);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        reserve_has_a_floor_and_a_share,
        the_rest_is_the_budget_as_far_as_it_is_of_use,
        a_given_budget_leaves_the_reserve,
        a_budget_below_one_slab_is_refused,
        each_rank_has_pages_of_its_own,
        weights_that_do_not_fit_are_refused,
    };
    return WEFT_SUITE_RUN("app/memory", tests);
}
