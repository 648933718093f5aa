#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/suite.h"

START_TEST(new_is_zeroed_and_counted)
{
    unsigned char *const mem = weft_mem_new(1000, 3);
    ck_assert_ptr_nonnull(mem);
    for (int i = 0; i < 3000; i++) ck_assert_int_eq(mem[i], 0);
    ck_assert_int_eq(weft_mem_live(), 1);
    void *const nothing = weft_mem_new(0, 8);
    ck_assert_ptr_nonnull(nothing);
    ck_assert_int_eq(weft_mem_live(), 2);
    weft_mem_free(nothing);
    weft_mem_free(mem);
    weft_mem_free(NULL);
    ck_assert_int_eq(weft_mem_live(), 0);
}
END_TEST

START_TEST(products_that_overflow_fail)
{
    ck_assert_ptr_null(weft_mem_new(SIZE_MAX / 2, 3));
    ck_assert_ptr_null(weft_mem_resize(NULL, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(weft_mem_new_aligned(64, SIZE_MAX - 8));
    ck_assert_int_eq(weft_mem_live(), 0);
}
END_TEST

START_TEST(resize_keeps_the_bytes)
{
    char *mem = weft_mem_resize(NULL, 4, 1);
    ck_assert_ptr_nonnull(mem);
    for (int i = 0; i < 4; i++) mem[i] = (char)('a' + i);
    mem = weft_mem_resize(mem, 100000, 1);
    ck_assert_mem_eq(mem, "abcd", 4);
    weft_mem_fail_after(0);
    ck_assert_ptr_null(weft_mem_resize(mem, 200000, 1));
    weft_mem_fail_after(-1);
    ck_assert_mem_eq(mem, "abcd", 4);
    mem = weft_mem_resize(mem, 2, 1);
    ck_assert_mem_eq(mem, "ab", 2);
    ck_assert_int_eq(weft_mem_live(), 1);
    weft_mem_free(mem);
}
END_TEST

START_TEST(aligned_is_aligned)
{
    static const size_t bytes[] = {0, 1, 63, 64, 65, 4U << 20, (4U << 20) + 1};
    for (size_t align = 16; align <= 4096; align *= 2) {
        for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
            unsigned char *const mem = weft_mem_new_aligned(align, bytes[i]);
            ck_assert_ptr_nonnull(mem);
            ck_assert_uint_eq((uintptr_t)mem % align, 0);
            memset(mem, 1, bytes[i]);
            weft_mem_free(mem);
        }
    }
}
END_TEST

START_TEST(copy_text_ends_with_nul)
{
    char *const copy = weft_mem_copy_text("abcdef", 3);
    ck_assert_str_eq(copy, "abc");
    weft_mem_free(copy);
    char *const empty = weft_mem_copy_text(NULL, 0);
    ck_assert_str_eq(empty, "");
    weft_mem_free(empty);
}
END_TEST

START_TEST(fail_after_counts)
{
    weft_mem_fail_after(2);
    void *const a = weft_mem_new(1, 1);
    void *const b = weft_mem_new_aligned(64, 64);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
    for (int i = 0; i < 3; i++) { /* and all later ones */
        ck_assert_ptr_null(weft_mem_new(1, 1));
        ck_assert_ptr_null(weft_mem_new_aligned(64, 64));
        ck_assert_ptr_null(weft_mem_resize(NULL, 1, 1));
        ck_assert_ptr_null(weft_mem_copy_text("a", 1));
    }
    ck_assert_int_eq(weft_mem_live(), 2);
    weft_mem_fail_after(-1);
    void *const c = weft_mem_new(1, 1);
    ck_assert_ptr_nonnull(c);
    weft_mem_free(a);
    weft_mem_free(b);
    weft_mem_free(c);
}
END_TEST

static void *churn(void *arg)
{
    for (int i = 0; i < 2000; i++) weft_mem_free(weft_mem_new(8, 8));
    return arg;
}

START_TEST(counters_hold_between_threads)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < 4; i++) (void)pthread_join(threads[i], NULL);
    ck_assert_int_eq(weft_mem_live(), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        new_is_zeroed_and_counted,    products_that_overflow_fail,
        resize_keeps_the_bytes,       aligned_is_aligned,
        copy_text_ends_with_nul,      fail_after_counts,
        counters_hold_between_threads};
    return WEFT_SUITE_RUN("base/mem", tests);
}
