/* Oniguruma's spelling to PCRE2's, and what the patterns then match. */
#include <string.h>

#include "router/text/pattern.h"
#include "router/text/pattern_internal.h"
#include "tests/support/suite.h"

#define SPACE "\\p{White_Space}"
#define WORD  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

START_TEST(translations)
{
    static const char *const cases[][2] = {
        {"a|b+?c*+", "a|b+?c*+"},
        {"\\s\\S[\\s\\S]", SPACE "\\P{White_Space}[" SPACE "\\P{White_Space}]"},
        {"\\d\\D[\\d]", "\\p{Nd}\\P{Nd}[\\p{Nd}]"},
        {"\\w\\W[^\\w]", "[" WORD "][^" WORD "][^" WORD "]"},
        {"\\v\\r\\n\\t", "\\x{0B}\\r\\n\\t"},
        {"\\p{Han}\\P{hiragana}\\p{L}", "\\p{sc:Han}\\P{sc:hiragana}\\p{L}"},
        {"\\p{^Lu}\\P{^N}", "\\P{Lu}\\p{N}"},
        {"\\x41\\x{1F600}\\u00e9", "\\x{41}\\x{1F600}\\x{00e9}"},
        {"[!\\]\\\\-^]{1,3}", "[!\\]\\\\-^]{1,3}"},
        {"(?i)a(?:b)(?=c)(?<!d)(?>e)", "(?i)a(?:b)(?=c)(?<!d)(?>e)"},
        {"\\\xC3\xA9", "\xC3\xA9"},
        {"\\s+$", "(?<!" SPACE ")" SPACE "+$"},
        {"\\s+$|a", SPACE "+$|a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_buf out = {0};
        weft_err err = {0};
        ck_assert_msg(weft_pattern_translate(cases[i][0], strlen(cases[i][0]),
                                             &out, &err) == WEFT_OK,
                      "%s: %s", cases[i][0], err.text);
        ck_assert_str_eq(out.data, cases[i][1]);
        weft_buf_deinit(&out);
    }
}
END_TEST

static void expect_match(const char *regex, bool literal, const char *text,
                         int from, int start, int end)
{
    weft_pattern *pattern = NULL;
    weft_matcher *matcher = NULL;
    weft_err err = {0};
    weft_span match = {0};
    const weft_span piece = {.start = 1, .end = (uint32_t)strlen(text)};
    ck_assert_msg(weft_pattern_create(regex, strlen(regex), literal, &pattern,
                                      &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(weft_matcher_create(100, &matcher, &err), WEFT_OK);
    ck_assert_msg(weft_pattern_find(pattern, matcher, text, piece,
                                    (uint32_t)from, &match, &err) == WEFT_OK,
                  "%s", err.text);
    if (start < 0)
        ck_assert_uint_gt(match.start, match.end);
    else
        ck_assert_msg((int)match.start == start && (int)match.end == end,
                      "%s in %s: %u to %u", regex, text, match.start,
                      match.end);
    weft_matcher_destroy(matcher);
    weft_pattern_destroy(pattern);
}

/* The piece is the text without its first byte. */
START_TEST(matches)
{
    expect_match("a+", false, "abaab", 1, 2, 4);
    expect_match("^.", false, "abc", 1, 1, 2); /* the piece begins there */
    expect_match("(?<=a)b", false, "abc", 1, -1, 0); /* and nothing before */
    expect_match("(?<=a)b", false, "aab", 2, 2, 3);
    expect_match("x$", false, "-x\ny", 1, 1, 2); /* at each line */
    expect_match("\\s", false, "-\xE1\xA0\x8E \n", 1, 4, 5);
    expect_match("\\s+$", false, "-a  b  \n\n", 1, 5, 9);
    expect_match("(?i:'s)", false, "-'\xC5\xBF", 1, 1, 4);
    expect_match("a.b", true, "-aab a.b", 1, 5, 8);
}
END_TEST

/* Nested repeats that never match: the step limit ends it, as an error. */
START_TEST(step_limit)
{
    static char text[200];
    memset(text, 'a', sizeof text - 2);
    text[sizeof text - 2] = 'b';
    weft_pattern *pattern = NULL;
    weft_matcher *matcher = NULL;
    weft_err err = {0};
    weft_span match = {0};
    static const char regex[] = "(?:a|aa)+$(?=c)|(?:a+)+c";
    ck_assert_int_eq(
        weft_pattern_create(regex, sizeof regex - 1, false, &pattern, &err),
        WEFT_OK);
    ck_assert_int_eq(weft_matcher_create(sizeof text, &matcher, &err), WEFT_OK);
    text[sizeof text - 2] = 'c';
    text[sizeof text - 3] = 'b';
    ck_assert_int_eq(weft_pattern_find(pattern, matcher, text,
                                       (weft_span){.end = sizeof text - 1}, 0,
                                       &match, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, "(?:a|aa)+") != NULL &&
                      strstr(err.text, "limit") != NULL,
                  "%s", err.text);
    weft_matcher_destroy(matcher);
    weft_pattern_destroy(pattern);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {translations, matches, step_limit};
    return WEFT_SUITE_RUN("pattern", tests);
}
