/* Streamed text against the text of the whole, and both against the rule of
 * maximal subparts, spelled out. */
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "node/base/span.h"
#include "router/text/detok.h"
#include "tests/support/suite.h"
#include "tests/support/tokens.h"

enum { TOKENS_MAX = 40, SEED = 11, ROUNDS = 20000 };

static weft_tokenizer *read_small(void)
{
    json_t *const document = tokens_document();
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    return t;
}

static uint64_t draws;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)(weft_rng_u64(SEED, draws++) % below);
}

/* Whether n bytes are the beginning of a character that is not complete. */
static bool begins_character(const char *bytes, size_t n)
{
    bool broken = false;
    return weft_utf8_prefix(bytes, n, &broken) == 0 && !broken;
}

/* U+FFFD for each longest run of bytes that begins a character and does not
 * complete it, or for one byte that begins none. */
static size_t lossy(const char *bytes, size_t n, char *out)
{
    static const char mark[] = {'\xEF', '\xBF', '\xBD'};
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        size_t whole = 1;
        while (whole <= 4 && i + whole <= n &&
               !weft_utf8_valid(bytes + i, whole))
            whole++;
        if (whole <= 4 && i + whole <= n) {
            memcpy(out + made, bytes + i, whole);
            made += whole;
            i += whole;
            continue;
        }
        size_t part = 1;
        while (part < 3 && i + part + 1 <= n &&
               begins_character(bytes + i, part + 1))
            part++;
        memcpy(out + made, mark, sizeof mark);
        made += sizeof mark;
        i += part;
    }
    return made;
}

/* Bytes at the edges of UTF-8's tables, halves of characters, tokens. */
static int32_t draw_id(void)
{
    static const uint8_t edges[] = {0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80,
                                    0xC0, 0xC1, 0xC2, 0xE0, 0xA0, 0x9F, 0xED,
                                    0xEF, 0xBF, 0xBD, 0xF4, 0x8F, 0x90, 0xF5,
                                    0xFF, 0x7F, 0x80, 0xBF, 0xE1, 0xF1, 0xF3};
    switch (draw(4)) {
    case 0: return (int32_t)draw(TOKENS_LIMIT);
    case 1: return (int32_t)draw(256);
    default: return edges[draw(sizeof edges)];
    }
}

/* What a stream must have told after n bytes: all but what may yet become a
 * character. */
static size_t told_by(const char *bytes, size_t n, char *out)
{
    size_t held = n < 3 ? n : 3;
    while (held > 0 && !begins_character(bytes + n - held, held)) held--;
    return lossy(bytes, n - held, out);
}

static void stream_once(const weft_tokenizer *t, bool skip_special)
{
    static char bytes[TOKENS_MAX * 8], want[TOKENS_MAX * 24];
    const size_t n = draw(TOKENS_MAX);
    int32_t ids[TOKENS_MAX];
    size_t n_bytes = 0, most = 0;
    weft_buf streamed = {0}, whole = {0};
    weft_detok detok;
    weft_detok_init(&detok, t, skip_special);
    bool fine = true;
    for (size_t i = 0; i < n; i++) {
        size_t token_n = 0;
        ids[i] = draw_id();
        const char *const token =
            weft_tokenizer_token_bytes(t, ids[i], &token_n);
        if (!skip_special || ids[i] != TOKENS_SPECIAL) {
            memcpy(bytes + n_bytes, token, token_n);
            n_bytes += token_n;
            most += weft_utf8_lossy_bytes_max(token, token_n);
        }
        fine =
            fine && weft_detok_push(&detok, ids[i], &streamed, NULL) == WEFT_OK;
        const size_t told = told_by(bytes, n_bytes, want);
        fine = fine && streamed.n == told &&
               (told == 0 || memcmp(streamed.data, want, told) == 0);
    }
    fine =
        fine && weft_detok_finish(&detok, &streamed, NULL) == WEFT_OK &&
        weft_tokenizer_decode(t, ids, n, skip_special, &whole, NULL) == WEFT_OK;
    const size_t told = lossy(bytes, n_bytes, want);
    fine = fine && told <= most && streamed.n == told && whole.n == told &&
           (told == 0 || (memcmp(streamed.data, want, told) == 0 &&
                          memcmp(whole.data, want, told) == 0));
    ck_assert_msg(fine, "after %lu draws: streamed \"%s\", whole \"%s\"",
                  (unsigned long)draws, streamed.n ? streamed.data : "",
                  whole.n ? whole.data : "");
    weft_buf_deinit(&streamed);
    weft_buf_deinit(&whole);
}

START_TEST(pieces_make_the_whole)
{
    weft_tokenizer *const t = read_small();
    for (int i = 0; i < ROUNDS; i++) stream_once(t, i % 2 == 1);
    weft_tokenizer_destroy(t);
}
END_TEST

static void expect_pieces(const int32_t *ids, size_t n, bool skip,
                          const char *const *pieces)
{
    weft_tokenizer *const t = read_small();
    weft_detok detok;
    weft_detok_init(&detok, t, skip);
    for (size_t i = 0; i <= n; i++) {
        weft_buf out = {0};
        ck_assert_int_eq(i < n ? weft_detok_push(&detok, ids[i], &out, NULL)
                               : weft_detok_finish(&detok, &out, NULL),
                         WEFT_OK);
        ck_assert_str_eq(out.n == 0 ? "" : out.data, pieces[i]);
        weft_buf_deinit(&out);
    }
    weft_tokenizer_destroy(t);
}

START_TEST(bytes_at_most)
{
    static const struct {
        weft_span bytes;
        size_t most;
    } table[] = {
        {{"", 0}, 0},
        {{"plain", 5}, 5},
        {{"\xE2\x82\xAC", 3}, 3},
        {{"\xE2\x82", 2}, 6}, /* may be cut, and its end come alone */
        {{"\x82\xAC", 2}, 6},
        {{"a\xFF\xC3\xA9", 4}, 6},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        ck_assert_uint_eq(
            weft_utf8_lossy_bytes_max(table[i].bytes.data, table[i].bytes.n),
            table[i].most);
}
END_TEST

START_TEST(known_pieces)
{
    /* A character in three tokens; the start of one, cut off by a letter. */
    static const int32_t euro[] = {0xE2, 0x82, 0xAC, 0xE2, 0x82, 'a', 0xF0};
    static const char *const euro_text[] = {
        "", "", "\xE2\x82\xAC", "", "", "\xEF\xBF\xBD\x61", "", "\xEF\xBF\xBD"};
    expect_pieces(euro, 7, false, euro_text);
    /* A special token inside a character, told and skipped. */
    static const int32_t inside[] = {0xC3, TOKENS_SPECIAL, 0xA9, 259};
    static const char *const told[] = {"", "\xEF\xBF\xBD<|end|>",
                                       "\xEF\xBF\xBD", "hello", ""};
    static const char *const skipped[] = {"", "", "\xC3\xA9", "hello", ""};
    expect_pieces(inside, 4, false, told);
    expect_pieces(inside, 4, true, skipped);
}
END_TEST

START_TEST(unknown_ids)
{
    weft_tokenizer *const t = read_small();
    weft_detok detok;
    weft_detok_init(&detok, t, false);
    weft_buf out = {0};
    weft_err err = {0};
    ck_assert_int_eq(weft_detok_push(&detok, 0xC3, &out, &err), WEFT_OK);
    ck_assert_int_eq(weft_detok_push(&detok, TOKENS_LIMIT, &out, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, "270") != NULL, "%s", err.text);
    ck_assert_int_eq(weft_detok_push(&detok, -1, &out, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_detok_push(&detok, TOKENS_IDS, &out, &err), WEFT_OK);
    ck_assert_int_eq(weft_detok_push(&detok, 0xA9, &out, &err), WEFT_OK);
    ck_assert_str_eq(out.data, "\xC3\xA9");
    weft_mem_fail_after(0);
    const weft_status st = weft_detok_push(&detok, 'a', &(weft_buf){0}, &err);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    weft_buf_deinit(&out);
    weft_tokenizer_destroy(t);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {pieces_make_the_whole, bytes_at_most,
                                  known_pieces, unknown_ids};
    return WEFT_SUITE_RUN("detok", tests);
}
