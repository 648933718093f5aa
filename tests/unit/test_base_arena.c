#include <stdint.h>
#include <string.h>

#include "node/base/arena.h"
#include "node/base/mem.h"
#include "tests/support/suite.h"

static weft_arena *arena_of(size_t bytes_max)
{
    weft_arena *arena = NULL;
    ck_assert_int_eq(weft_arena_create(bytes_max, &arena, NULL), WEFT_OK);
    return arena;
}

/* Pieces of many sizes: aligned, zeroed, and none overlaps another. */
START_TEST(pieces_are_apart)
{
    enum { PIECES = 400 };
    weft_arena *const arena = arena_of(8U << 20);
    unsigned char *pieces[PIECES];
    size_t n[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        n[i] = i * 37 % 199 * (i % 17 == 0 ? 50 : 1);
        pieces[i] = weft_arena_alloc(arena, n[i]);
        ck_assert_ptr_nonnull(pieces[i]);
        ck_assert_uint_eq((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < n[i]; k++) ck_assert_int_eq(pieces[i][k], 0);
        memset(pieces[i], (int)(i % 251) + 1, n[i]);
        weft_arena_ignore_free(arena, pieces[i]);
    }
    for (size_t i = 0; i < PIECES; i++)
        for (size_t k = 0; k < n[i]; k++)
            ck_assert_uint_eq(pieces[i][k], i % 251 + 1);
    weft_arena_destroy(arena);
    weft_arena_destroy(NULL);
}
END_TEST

START_TEST(small_pieces_share_a_block)
{
    weft_arena *const arena = arena_of(1U << 20);
    const long before = weft_mem_live();
    for (int i = 0; i < 100; i++)
        ck_assert_ptr_nonnull(weft_arena_alloc(arena, 16));
    ck_assert_int_eq(weft_mem_live(), before + 1);
    /* A large one in between does not waste what is left of it. */
    ck_assert_ptr_nonnull(weft_arena_alloc(arena, 100000));
    for (int i = 0; i < 100; i++)
        ck_assert_ptr_nonnull(weft_arena_alloc(arena, 16));
    ck_assert_int_eq(weft_mem_live(), before + 2);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(limit_is_exact)
{
    for (size_t limit = 0; limit <= 64; limit++) {
        weft_arena *const arena = arena_of(limit);
        size_t n = 0;
        while (weft_arena_alloc(arena, 9) != NULL) n++;
        ck_assert_uint_eq(n, limit / 16);
        ck_assert_uint_eq(weft_arena_used(arena), n * 16);
        ck_assert(weft_arena_limit_hit(arena));
        weft_arena_destroy(arena);
    }
    weft_arena *const arena = arena_of(10000);
    ck_assert_ptr_null(weft_arena_alloc(arena, 10001));
    ck_assert_ptr_null(weft_arena_alloc(arena, SIZE_MAX));
    ck_assert_ptr_null(weft_arena_alloc(arena, SIZE_MAX - 8));
    ck_assert_uint_eq(weft_arena_used(arena), 0);
    ck_assert_ptr_nonnull(weft_arena_alloc(arena, 10000));
    ck_assert_ptr_null(weft_arena_alloc(arena, 0));
    weft_arena_destroy(arena);
    weft_arena *const endless = arena_of(SIZE_MAX);
    ck_assert_ptr_null(weft_arena_alloc(endless, SIZE_MAX));
    ck_assert_ptr_null(weft_arena_alloc(endless, SIZE_MAX - 100));
    weft_arena_destroy(endless);
}
END_TEST

START_TEST(arrays_and_text)
{
    weft_arena *const arena = arena_of(1000);
    uint64_t *const items = weft_arena_new(arena, 5, sizeof *items);
    ck_assert_ptr_nonnull(items);
    ck_assert_ptr_null(weft_arena_new(arena, SIZE_MAX / 4, 8));
    ck_assert_str_eq(weft_arena_copy_text(arena, "hello", 4), "hell");
    ck_assert_str_eq(weft_arena_copy_text(arena, NULL, 0), "");
    ck_assert_ptr_null(weft_arena_copy_text(arena, "x", SIZE_MAX));
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(no_memory_is_not_the_limit)
{
    weft_arena *arena = NULL;
    weft_mem_fail_after(0);
    ck_assert_int_eq(weft_arena_create(1000, &arena, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_null(arena);
    weft_mem_fail_after(-1);
    arena = arena_of(1000);
    weft_mem_fail_after(0);
    ck_assert_ptr_null(weft_arena_alloc(arena, 8));
    ck_assert(!weft_arena_limit_hit(arena));
    ck_assert_uint_eq(weft_arena_used(arena), 0);
    weft_mem_fail_after(-1);
    ck_assert_ptr_nonnull(weft_arena_alloc(arena, 8));
    weft_arena_destroy(arena);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {pieces_are_apart, small_pieces_share_a_block,
                                  limit_is_exact, arrays_and_text,
                                  no_memory_is_not_the_limit};
    return WEFT_SUITE_RUN("base/arena", tests);
}
