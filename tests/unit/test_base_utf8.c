/* The oracle goes the other way round: it encodes every scalar value and asks
 * what came out, so it shares no table with the code under test. */
#include <stdint.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/str.h"
#include "tests/support/suite.h"

enum { SCALARS_END = 0x110000 };

static size_t encode(uint32_t c, unsigned char *out)
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (unsigned char)(0x80 | (c & 0x3F));
    out[0] = (unsigned char)((0xF00U >> n & 0xFFU) | c);
    return n;
}

/* Which strings of 1, 2 and 3 bytes are a character, and which may become one
 * with more bytes. Index: the bytes as a big-endian number. */
typedef struct oracle {
    uint8_t *whole[4], *start[4]; /* [length][256^length] */
} oracle;

static void oracle_init(oracle *o)
{
    for (size_t n = 1; n <= 3; n++) {
        o->whole[n] = weft_mem_new((size_t)1 << (8 * n), 1);
        o->start[n] = weft_mem_new((size_t)1 << (8 * n), 1);
    }
    for (uint32_t c = 0; c < SCALARS_END; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        unsigned char bytes[4];
        const size_t n = encode(c, bytes);
        uint32_t index = 0;
        for (size_t i = 1; i <= n && i <= 3; i++) {
            index = index << 8 | bytes[i - 1];
            if (i == n) o->whole[i][index] = 1;
            if (i < n) o->start[i][index] = 1;
        }
    }
}

static void oracle_deinit(oracle *o)
{
    for (size_t n = 1; n <= 3; n++) {
        weft_mem_free(o->whole[n]);
        weft_mem_free(o->start[n]);
    }
}

/* Of text[at, n): bytes of its first character, 0 if there is none. */
static size_t oracle_char(const oracle *o, const unsigned char *text, size_t at,
                          size_t n)
{
    uint32_t index = 0;
    for (size_t i = at; i < n; i++) {
        index = index << 8 | text[i];
        if (o->whole[i - at + 1][index] != 0) return i - at + 1;
    }
    return 0;
}

static bool oracle_is_start(const oracle *o, const unsigned char *text,
                            size_t at, size_t n)
{
    uint32_t index = 0;
    for (size_t i = at; i < n; i++) index = index << 8 | text[i];
    return o->start[n - at][index] != 0;
}

static void check_against(const oracle *o, const unsigned char *text, size_t n)
{
    size_t want = 0;
    for (size_t step = 1; step != 0 && want < n; want += step)
        step = oracle_char(o, text, want, n);
    const bool want_broken = want < n && !oracle_is_start(o, text, want, n);
    bool broken = !want_broken;
    const size_t got = weft_utf8_prefix((const char *)text, n, &broken);
    const bool valid = weft_utf8_valid((const char *)text, n);
    if (got == want && broken == want_broken && valid == (want == n)) return;
    ck_abort_msg("%02x %02x %02x (%zu): prefix %zu, %zu is right; broken %d",
                 text[0], n > 1 ? text[1] : 0, n > 2 ? text[2] : 0, n, got,
                 want, broken);
}

START_TEST(all_strings_up_to_three_bytes)
{
    oracle o;
    oracle_init(&o);
    for (size_t n = 1; n <= 3; n++) {
        for (uint32_t v = 0; v < 1U << (8 * n); v++) {
            unsigned char text[3];
            for (size_t i = 0; i < n; i++)
                text[i] = (unsigned char)(v >> (8 * (n - 1 - i)));
            check_against(&o, text, n);
        }
    }
    oracle_deinit(&o);
}
END_TEST

START_TEST(every_scalar_value)
{
    for (uint32_t c = 0; c < SCALARS_END; c++) {
        const bool surrogate = c >= 0xD800 && c < 0xE000;
        unsigned char bytes[4];
        const size_t n = encode(c, bytes);
        const char *const text = (const char *)bytes;
        if (weft_utf8_valid(text, n) == surrogate)
            ck_abort_msg("U+%04X", (unsigned)c);
        for (size_t cut = 1; !surrogate && cut < n; cut++) {
            bool broken = true;
            if (weft_utf8_prefix(text, cut, &broken) != 0 || broken)
                ck_abort_msg("U+%04X cut to %zu", (unsigned)c, cut);
        }
    }
}
END_TEST

/* Four bytes: the borders of each range of table 3-7 and their neighbours. */
START_TEST(four_byte_borders)
{
    static const unsigned char lead[] = {0xEF, 0xF0, 0xF1, 0xF3, 0xF4,
                                         0xF5, 0xF7, 0xF8, 0xFF};
    static const unsigned char next[] = {0x00, 0x7F, 0x80, 0x8F, 0x90,
                                         0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    enum { LEADS = sizeof lead, NEXTS = sizeof next };
    for (int i = 0; i < LEADS * NEXTS * NEXTS * NEXTS; i++) {
        const unsigned char text[4] = {lead[i / (NEXTS * NEXTS * NEXTS)],
                                       next[i / (NEXTS * NEXTS) % NEXTS],
                                       next[i / NEXTS % NEXTS],
                                       next[i % NEXTS]};
        const uint32_t c = (uint32_t)(text[0] & 7) << 18 |
                           (uint32_t)(text[1] & 0x3F) << 12 |
                           (uint32_t)(text[2] & 0x3F) << 6 | (text[3] & 0x3F);
        unsigned char again[4] = {0};
        bool want = c >= 0x10000 && c < SCALARS_END && encode(c, again) == 4 &&
                    memcmp(again, text, 4) == 0;
        /* A three-byte character and an ASCII one. */
        want = want || (text[0] == 0xEF && text[1] >= 0x80 && text[1] < 0xC0 &&
                        text[2] >= 0x80 && text[2] < 0xC0 && text[3] < 0x80);
        ck_assert_msg(weft_utf8_valid((const char *)text, 4) == want,
                      "%02x %02x %02x %02x", text[0], text[1], text[2],
                      text[3]);
    }
}
END_TEST

START_TEST(prefixes)
{
    static const struct {
        const char *text;
        size_t n, prefix;
        bool broken;
    } rows[] = {
        {"", 0, 0, false},
        {"a\0b", 3, 3, false},
        {"ab\xE2\x82", 4, 2, false},
        {"ab\xE2\x82\xAC", 5, 5, false},
        {"\xF0\x9F\x98", 3, 0, false},
        {"\xF0\x9F\x98\x80\xF0", 5, 4, false},
        {"ab\x80", 3, 2, true},
        {"ab\xE2\x28", 4, 2, true},
        {"ab\xE2\x82\x28", 5, 2, true},
        {"\xED\xA0", 2, 0, true},
        {"\xED\xA0\x80", 3, 0, true},
        {"\xF4\x90", 2, 0, true},
        {"\xC0\x80", 2, 0, true},
        {"x\xFF", 2, 1, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool broken = !rows[i].broken;
        ck_assert_uint_eq(weft_utf8_prefix(rows[i].text, rows[i].n, &broken),
                          rows[i].prefix);
        ck_assert_int_eq(broken, rows[i].broken);
    }
}
END_TEST

START_TEST(mend_leaves_what_is_good)
{
    static const struct {
        const char *text, *mended;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"cut \xe2\x82", "cut "},
        {"\xff\xfe"
         "a\x80",
         "??a?"},
        {"\xc3"
         "a\xed\xa0\x80\xf0\x9f\x99\x82",
         "?a???\xf0\x9f\x99\x82"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32] = "";
        const size_t n = strlen(cases[i].text);
        memcpy(text, cases[i].text, n);
        text[weft_utf8_mend(text, n)] = '\0';
        ck_assert_str_eq(text, cases[i].mended);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {all_strings_up_to_three_bytes,
                                  every_scalar_value, four_byte_borders,
                                  prefixes, mend_leaves_what_is_good};
    return WEFT_SUITE_RUN("base/utf8", tests);
}
