/* packed.h - what tests of the codec share: bytes, spans, arenas. */
#ifndef WEFT_TESTS_SUPPORT_PACKED_H
#define WEFT_TESTS_SUPPORT_PACKED_H

#include <check.h>
#include <string.h>

#include "proto/codec.h"

enum { ROOM = 1 << 20 };

static inline weft_arena *new_arena(size_t bytes)
{
    weft_arena *arena;
    ck_assert_int_eq(weft_arena_create(bytes, &arena, NULL), WEFT_OK);
    return arena;
}

/* Packs into memory of the test. */
struct packed {
    char bytes[65536];
    size_t n;
};

static inline void *place_packed(void *arg, size_t n)
{
    struct packed *packed = arg;
    ck_assert_uint_le(n, sizeof packed->bytes);
    packed->n = n;
    return packed->bytes;
}

static inline weft_place into(struct packed *packed)
{
    return (weft_place){place_packed, packed};
}

static inline weft_span span_of(const struct packed *packed)
{
    return (weft_span){packed->bytes, packed->n};
}

static inline weft_span text(const char *literal)
{
    return (weft_span){literal, strlen(literal)};
}

static inline void ck_span(weft_span seen, const char *wanted, size_t n)
{
    ck_assert_uint_eq(seen.n, n);
    if (n > 0) ck_assert_int_eq(memcmp(seen.data, wanted, n), 0);
}

/* A string literal with its length, NULs included. */
#define BYTES(literal)                                                         \
    {                                                                          \
        (literal), sizeof(literal) - 1                                         \
    }

#endif
