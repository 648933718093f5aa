/* KV rows in F8_E4M3: how large they are, and where their parts lie. */
#include <string.h>

#include "shard/kv/kv.h"
#include "shard/kv/store.h"
#include "tests/support/suite.h"

/* 13 full layers of 512 + 64 with index keys of 128, 33 window layers of
 * 1024 + 64, one of each in turn as long as both last. */
static weft_model_config dots3(void)
{
    weft_model_config config = {.n_layer = 46,
                                .end_layer = 46,
                                .window = 513,
                                .dsa = true,
                                .index_head_dim = 128};
    config.n_kind[WEFT_FULL] = 13;
    config.n_kind[WEFT_WINDOW] = 33;
    for (int32_t l = 0; l < config.n_layer; l++)
        config.kind[l] = l % 2 == 0 && l < 26 ? WEFT_FULL : WEFT_WINDOW;
    config.geometry[WEFT_FULL].kv_lora_rank = 512;
    config.geometry[WEFT_FULL].qk_rope_head_dim = 64;
    config.geometry[WEFT_WINDOW].kv_lora_rank = 1024;
    config.geometry[WEFT_WINDOW].qk_rope_head_dim = 64;
    return config;
}

static weft_kv_layout layout_of(const weft_model_config *config,
                                weft_dtype dtype, int32_t page_tokens)
{
    weft_kv_layout layout;
    ck_assert_int_eq(
        weft_kv_layout_make(config, dtype, page_tokens, &layout, NULL),
        WEFT_OK);
    return layout;
}

START_TEST(bytes_are_those_of_the_parts)
{
    const weft_model_config config = dots3();
    const weft_kv_layout l = layout_of(&config, WEFT_F8_E4M3, 64);
    ck_assert_int_eq(l.row_bytes[WEFT_FULL], 512 + 4 * 4 + 64 * 2);
    ck_assert_int_eq(l.row_bytes[WEFT_FULL], 656);
    ck_assert_int_eq(l.row_bytes[WEFT_WINDOW], 1024 + 8 * 4 + 64 * 2);
    ck_assert_int_eq(l.index_row_bytes, 132);
    ck_assert_int_eq(l.token_bytes[WEFT_FULL], 10244);
    ck_assert_int_eq(l.token_bytes[WEFT_WINDOW], INT64_C(33) * 1184);
    ck_assert_int_eq(l.index_token_bytes, INT64_C(13) * 132);
    ck_assert_int_eq(l.page_bytes[WEFT_FULL], INT64_C(64) * 10244);
    ck_assert_int_eq(l.scale_offset[WEFT_FULL], 512);
    ck_assert_int_eq(l.rope_offset[WEFT_FULL], 528);
    ck_assert_int_eq(l.scale_offset[WEFT_WINDOW], 1024);
    ck_assert_int_eq(l.rope_offset[WEFT_WINDOW], 1056);
    ck_assert_int_eq(l.index_scale_offset, 128);
}
END_TEST

START_TEST(other_dtypes_have_no_scales)
{
    const weft_model_config config = dots3();
    for (int32_t elem = 2; elem <= 4; elem += 2) {
        const weft_kv_layout l =
            layout_of(&config, elem == 2 ? WEFT_BF16 : WEFT_F32, 64);
        ck_assert_int_eq(l.row_bytes[WEFT_FULL], INT64_C(576) * elem);
        ck_assert_int_eq(l.rope_offset[WEFT_FULL], INT64_C(512) * elem);
        ck_assert_int_eq(l.rope_offset[WEFT_WINDOW], INT64_C(1024) * elem);
        ck_assert_int_eq(l.scale_offset[WEFT_FULL], -1);
        ck_assert_int_eq(l.scale_offset[WEFT_WINDOW], -1);
        ck_assert_int_eq(l.index_row_bytes, INT64_C(128) * elem);
        ck_assert_int_eq(l.index_scale_offset, -1);
        ck_assert_int_eq(l.page_bytes[WEFT_FULL],
                         INT64_C(64) * 13 * (576 + 128) * elem);
    }
}
END_TEST

/* Parts do not meet and are aligned, with ranks of every kind; and so are rows
 * and keys in every page of a slab. */
START_TEST(rows_are_aligned_wherever_they_are)
{
    static const int32_t ranks[] = {1, 3, 4, 127, 128, 129, 255, 257, 512, 700};
    for (int32_t i = 0; i < 60; i++) {
        weft_model_config config = dots3();
        const int32_t rank = ranks[i % 10], rope = 2 * (1 + i % 7);
        config.geometry[WEFT_FULL].kv_lora_rank = rank;
        config.geometry[WEFT_FULL].qk_rope_head_dim = rope;
        config.index_head_dim = 4 * (1 + i % 9);
        const weft_kv_layout l = layout_of(&config, WEFT_F8_E4M3, 1 + i % 5);
        const int64_t scales = l.scale_offset[WEFT_FULL];
        const int64_t n_scale = (rank + 127) / 128;
        const int64_t end = l.rope_offset[WEFT_FULL] + rope * INT64_C(2);
        ck_assert(scales >= rank && scales < rank + 4 && scales % 4 == 0);
        ck_assert_int_eq(l.rope_offset[WEFT_FULL], scales + 4 * n_scale);
        ck_assert(end <= l.row_bytes[WEFT_FULL]);
        ck_assert(l.row_bytes[WEFT_FULL] < end + 16);
        ck_assert_int_eq(l.index_row_bytes, config.index_head_dim + 4);
        ck_assert_int_eq(l.index_scale_offset, config.index_head_dim);
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t tokens = l.token_bytes[k] * l.page_tokens;
            ck_assert_int_eq(l.row_bytes[k] % 16, 0);
            ck_assert_int_eq(l.page_bytes[k] % 16, 0);
            ck_assert(l.page_bytes[k] >= tokens);
            ck_assert(l.page_bytes[k] < tokens + 16);
        }
        for (int32_t layer = 0; layer < config.n_layer; layer++) {
            ck_assert_int_eq(l.layer_offset[layer] % 16, 0);
            if (config.kind[layer] != WEFT_FULL) continue;
            ck_assert_int_eq(l.index_offset[layer] % 4, 0);
            ck_assert(l.index_offset[layer] +
                          l.page_tokens * l.index_row_bytes <=
                      l.page_bytes[WEFT_FULL]);
        }
        /* Offsets of pages are multiples of a page in a slab: both. */
        ck_assert_int_eq(l.slab_bytes % 16, 0);
    }
}
END_TEST

START_TEST(index_keys_come_in_fours)
{
    weft_model_config config = dots3();
    weft_kv_layout layout;
    weft_err err = {0};
    config.index_head_dim = 126;
    ck_assert_int_eq(
        weft_kv_layout_make(&config, WEFT_F8_E4M3, 64, &layout, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_str_eq(err.text, "index_head_dim is 126, F8_E4M3 index keys take "
                               "multiples of 4");
    (void)layout_of(&config, WEFT_BF16, 64);
    config.dsa = false;
    (void)layout_of(&config, WEFT_F8_E4M3, 64);
}
END_TEST

/* The layout is known; memory whose rows nothing reads is not. */
START_TEST(a_store_of_them_is_refused)
{
    const weft_model_config config = dots3();
    const weft_kv_layout layout = layout_of(&config, WEFT_F8_E4M3, 64);
    weft_kv_store *store = NULL;
    weft_err err = {0};
    ck_assert_int_eq(
        weft_kv_store_create(&layout, layout.slab_bytes, NULL, &store, &err),
        WEFT_UNIMPLEMENTED);
    ck_assert_ptr_null(store);
    ck_assert_str_eq(err.text, "kv store: rows of F8_E4M3 are not supported, "
                               "attention reads F32 and BF16");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        bytes_are_those_of_the_parts, other_dtypes_have_no_scales,
        rows_are_aligned_wherever_they_are, index_keys_come_in_fours,
        a_store_of_them_is_refused};
    return WEFT_SUITE_RUN("kv_f8", tests);
}
