#include <stdint.h>
#include <string.h>

#include "node/base/pack.h"
#include "tests/support/suite.h"

/* Every kind once, at its ends. */
static void write_all(weft_pack *pack)
{
    static const int32_t ints[] = {INT32_MIN, -1, 0, INT32_MAX};
    static const float floats[] = {-0.0F, 1.5F};
    weft_pack_u8(pack, UINT8_MAX);
    weft_pack_u16(pack, 0x1234);
    weft_pack_u32(pack, UINT32_MAX);
    weft_pack_u64(pack, 0x0123456789abcdefU);
    weft_pack_i32(pack, INT32_MIN);
    weft_pack_i64(pack, INT64_MIN);
    weft_pack_f32(pack, -2.5F);
    weft_pack_raw(pack, "raw", 3);
    weft_pack_span(pack, "a\0b", 3);
    weft_pack_text(pack, "text");
    weft_pack_i32s(pack, ints, 4);
    weft_pack_f32s(pack, floats, 2);
}

enum { ALL_BYTES = 1 + 2 + 4 + 8 + 4 + 8 + 4 + 3 + 7 + 8 + 20 + 12 };

static void read_all(weft_unpack *unpack)
{
    int32_t ints[4];
    float floats[2];
    char text[8];
    ck_assert_uint_eq(weft_unpack_u8(unpack), UINT8_MAX);
    ck_assert_uint_eq(weft_unpack_u16(unpack), 0x1234);
    ck_assert_uint_eq(weft_unpack_u32(unpack), UINT32_MAX);
    ck_assert_uint_eq(weft_unpack_u64(unpack), 0x0123456789abcdefU);
    ck_assert_int_eq(weft_unpack_i32(unpack), INT32_MIN);
    ck_assert_int_eq(weft_unpack_i64(unpack), INT64_MIN);
    ck_assert_float_eq(weft_unpack_f32(unpack), -2.5F);
    ck_assert_mem_eq(weft_unpack_raw(unpack, 3), "raw", 3);
    const weft_span span = weft_unpack_span(unpack, 3);
    ck_assert_uint_eq(span.n, 3);
    ck_assert_mem_eq(span.data, "a\0b", 3);
    weft_unpack_text(unpack, text, sizeof text);
    ck_assert_str_eq(text, "text");
    ck_assert_int_eq(weft_unpack_count(unpack, 4, 4), 4);
    weft_unpack_i32s(unpack, ints, 4);
    ck_assert_int_eq(ints[0], INT32_MIN);
    ck_assert_int_eq(ints[3], INT32_MAX);
    ck_assert_int_eq(weft_unpack_count(unpack, 2, 4), 2);
    weft_unpack_f32s(unpack, floats, 2);
    ck_assert_mem_eq(floats, ((const float[]){-0.0F, 1.5F}), sizeof floats);
}

START_TEST(comes_back_as_it_was)
{
    unsigned char bytes[ALL_BYTES];
    weft_pack pack = weft_pack_into(bytes, sizeof bytes);
    write_all(&pack);
    ck_assert(!pack.full);
    ck_assert_uint_eq(pack.n, ALL_BYTES);
    weft_unpack unpack = weft_unpack_from(bytes, pack.n);
    read_all(&unpack);
    ck_assert(weft_unpack_done(&unpack));
}
END_TEST

START_TEST(is_little_endian)
{
    unsigned char bytes[16];
    weft_pack pack = weft_pack_into(bytes, sizeof bytes);
    weft_pack_u16(&pack, 0x0102);
    weft_pack_u32(&pack, 0x03040506);
    weft_pack_i32(&pack, -2);
    weft_pack_text(&pack, "x");
    static const unsigned char expected[] = {2,    1,    6, 5, 4, 3, 0xfe, 0xff,
                                             0xff, 0xff, 1, 0, 0, 0, 'x'};
    ck_assert_uint_eq(pack.n, sizeof expected);
    ck_assert_mem_eq(bytes, expected, sizeof expected);
}
END_TEST

/* In every storage that is too small something is left out, nothing is written
 * behind it, and later small values do not slip in. */
START_TEST(what_does_not_fit_is_remembered)
{
    for (size_t capacity = 0; capacity < ALL_BYTES; capacity++) {
        unsigned char bytes[ALL_BYTES + 1];
        memset(bytes, 0xAA, sizeof bytes);
        weft_pack pack = weft_pack_into(bytes, capacity);
        write_all(&pack);
        ck_assert(pack.full);
        ck_assert_uint_le(pack.n, capacity);
        const size_t n = pack.n;
        weft_pack_raw(&pack, "", 0);
        weft_pack_u8(&pack, 1);
        ck_assert_uint_eq(pack.n, n);
        for (size_t i = n; i < sizeof bytes; i++)
            ck_assert_uint_eq(bytes[i], 0xAA);
    }
    weft_pack nothing = weft_pack_into(NULL, 0);
    weft_pack_raw(&nothing, NULL, 0);
    ck_assert(!nothing.full);
}
END_TEST

/* What is not there reads as zero, and stays bad though later reads would fit.
 */
START_TEST(what_is_not_there_is_remembered)
{
    unsigned char bytes[ALL_BYTES];
    weft_pack pack = weft_pack_into(bytes, sizeof bytes);
    write_all(&pack);
    weft_unpack unpack = weft_unpack_from(bytes, 3);
    ck_assert_uint_eq(weft_unpack_u32(&unpack), 0);
    ck_assert(unpack.bad);
    ck_assert_uint_eq(weft_unpack_u8(&unpack), 0);
    ck_assert_ptr_null(weft_unpack_raw(&unpack, 0));
    ck_assert(!weft_unpack_done(&unpack));

    unpack = weft_unpack_from(bytes, 3);
    (void)weft_unpack_u16(&unpack);
    ck_assert(!weft_unpack_done(&unpack)); /* something is left */
    (void)weft_unpack_u8(&unpack);
    ck_assert(weft_unpack_done(&unpack));
    ck_assert_ptr_nonnull(weft_unpack_raw(&unpack, 0));
    ck_assert(weft_unpack_done(&unpack));
}
END_TEST

/* A span of three bytes. */
static weft_unpack three(unsigned char bytes[8], const char *text)
{
    weft_pack pack = weft_pack_into(bytes, 8);
    weft_pack_span(&pack, text, 3);
    return weft_unpack_from(bytes, pack.n);
}

START_TEST(a_span_has_its_limit)
{
    unsigned char bytes[8];
    weft_unpack unpack = three(bytes, "abc");
    ck_assert_uint_eq(weft_unpack_span(&unpack, 3).n, 3);
    ck_assert(weft_unpack_done(&unpack));
    unpack = three(bytes, "abc");
    const weft_span longer = weft_unpack_span(&unpack, 2);
    ck_assert(unpack.bad && longer.n == 0 && longer.data == NULL);
    /* Longer than what is there, by one. */
    unpack = three(bytes, "abc");
    unpack.end--;
    ck_assert_uint_eq(weft_unpack_span(&unpack, 100).n, 0);
    ck_assert(unpack.bad);
    unpack = three(bytes, "abc");
    memset(bytes, 0xff, 4);
    ck_assert_uint_eq(weft_unpack_span(&unpack, SIZE_MAX).n, 0);
    ck_assert(unpack.bad);
}
END_TEST

START_TEST(a_text_has_its_limit)
{
    unsigned char bytes[8];
    char text[8];
    weft_unpack unpack = three(bytes, "abc");
    weft_unpack_text(&unpack, text, 4);
    ck_assert(weft_unpack_done(&unpack));
    ck_assert_str_eq(text, "abc");
    unpack = three(bytes, "abc");
    weft_unpack_text(&unpack, text, 3);
    ck_assert(unpack.bad);
    ck_assert_str_eq(text, "");
    unpack = three(bytes, "a\0c");
    weft_unpack_text(&unpack, text, sizeof text);
    ck_assert(unpack.bad);
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(a_count_has_its_limits)
{
    unsigned char bytes[4 + 12];
    static const int32_t values[3] = {1, 2, 3};
    weft_pack pack = weft_pack_into(bytes, sizeof bytes);
    weft_pack_i32s(&pack, values, 3);
    weft_unpack unpack = weft_unpack_from(bytes, sizeof bytes);
    ck_assert_int_eq(weft_unpack_count(&unpack, 3, 4), 3);
    ck_assert(!unpack.bad);
    unpack = weft_unpack_from(bytes, sizeof bytes);
    ck_assert_int_eq(weft_unpack_count(&unpack, 2, 4), 0); /* above the most */
    ck_assert(unpack.bad);
    unpack = weft_unpack_from(bytes, sizeof bytes - 1);
    ck_assert_int_eq(weft_unpack_count(&unpack, 3, 4), 0); /* not all there */
    ck_assert(unpack.bad);
    memset(bytes, 0xff, 4);
    unpack = weft_unpack_from(bytes, sizeof bytes);
    ck_assert_int_eq(weft_unpack_count(&unpack, INT32_MAX, 1), 0);
    ck_assert(unpack.bad);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {comes_back_as_it_was,
                                  is_little_endian,
                                  what_does_not_fit_is_remembered,
                                  what_is_not_there_is_remembered,
                                  a_span_has_its_limit,
                                  a_text_has_its_limit,
                                  a_count_has_its_limits};
    return WEFT_SUITE_RUN("pack", tests);
}
