#include "tests/support/link_frames.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that tell where they are from, eight at a time. */
static uint64_t word_of(uint64_t name, size_t word)
{
    return (name + 1) * 0x9E3779B97F4A7C15U + word * 0xD6E8FEB86659FD93U;
}

void kit_fill(unsigned char *bytes, size_t n, uint64_t name)
{
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t word = word_of(name, i / 8);
        memcpy(bytes + i, &word, n - i < 8 ? n - i : 8);
    }
}

static void check_bytes(const void *bytes, size_t n, uint64_t name)
{
    const unsigned char *const at = bytes;
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t word = word_of(name, i / 8);
        if (memcmp(at + i, &word, n - i < 8 ? n - i : 8) != 0)
            ck_abort_msg("byte %zu of %zu of %llu is wrong", i, n,
                         (unsigned long long)name);
    }
}

kit_frame kit_build(uint64_t step, size_t body_bytes, int32_t n_rows,
                    uint32_t row_bytes, bool apart)
{
    const size_t stride = row_bytes + (apart ? 24 : 0);
    kit_frame it = {.frame = {.type = WEFT_FRAME_DISPATCH,
                              .epoch = step + 1,
                              .step = step,
                              .layer = (int32_t)step - 3,
                              .attempt = 5,
                              .group = 6,
                              .tag = 7,
                              .body_bytes = body_bytes,
                              .n_rows = n_rows,
                              .row_bytes = row_bytes}};
    it.body = malloc(body_bytes + 1);
    it.memory = malloc((size_t)n_rows * stride + 1);
    it.rows = malloc(((size_t)n_rows + 1) * sizeof *it.rows);
    ck_assert(it.body != NULL && it.memory != NULL && it.rows != NULL);
    kit_fill(it.body, body_bytes, step);
    for (int32_t i = 0; i < n_rows; i++) {
        it.rows[i] = it.memory + (size_t)i * stride;
        kit_fill(it.memory + (size_t)i * stride, row_bytes,
                 step * 1000 + (uint64_t)i);
    }
    it.frame.body = it.body;
    return it;
}

void kit_drop(kit_frame *it)
{
    free(it->body);
    free(it->memory);
    free(it->rows);
}

void kit_check(const weft_frame *got, const weft_frame *sent)
{
    ck_assert_int_eq(got->type, sent->type);
    ck_assert_uint_eq(got->epoch, sent->epoch);
    ck_assert_uint_eq(got->step, sent->step);
    ck_assert_int_eq(got->layer, sent->layer);
    ck_assert_uint_eq(got->attempt, sent->attempt);
    ck_assert_uint_eq(got->group, sent->group);
    ck_assert_uint_eq(got->tag, sent->tag);
    ck_assert_uint_eq(got->body_bytes, sent->body_bytes);
    ck_assert_int_eq(got->n_rows, sent->n_rows);
    ck_assert_uint_eq(got->row_bytes, sent->row_bytes);
    check_bytes(got->body, got->body_bytes, sent->step);
    if (got->n_rows == 0) {
        ck_assert_ptr_null(got->rows);
        return;
    }
    ck_assert_uint_eq((uintptr_t)got->rows % 64, 0);
    for (int32_t i = 0; i < got->n_rows; i++)
        check_bytes((const char *)got->rows + (size_t)i * got->row_bytes,
                    got->row_bytes, sent->step * 1000 + (uint64_t)i);
}
