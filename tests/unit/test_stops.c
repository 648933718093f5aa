/* Stop strings against a search of the whole text after each push. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "router/text/stops.h"
#include "tests/support/suite.h"

enum { SEED = 5, STOPS_MAX = 6, STOP_BYTES_MAX = 6, ROUNDS = 20000 };

static uint64_t draws;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)(weft_rng_u64(SEED, draws++) % below);
}

/* What a stream of `text` must look like: -1 or the match of those that end in
 * (before, now], and how many bytes may be shown. */
typedef struct expected {
    int32_t matched;
    size_t shown;
} expected;

static bool ends_with(const char *text, size_t n, const char *stop, size_t k)
{
    return n >= k && memcmp(text + n - k, stop, k) == 0;
}

static expected search(const char *text, size_t before, size_t now,
                       const char *const *stops, size_t n, bool include)
{
    expected e = {.matched = -1, .shown = now};
    size_t best_start = 0, best_n = 0;
    for (size_t s = 0; s < n; s++) {
        const size_t k = strlen(stops[s]);
        for (size_t end = before + 1; end <= now; end++) {
            if (!ends_with(text, end, stops[s], k)) continue;
            const size_t start = end - k;
            if (e.matched >= 0 &&
                (start > best_start || (start == best_start && k <= best_n)))
                continue;
            e.matched = (int32_t)s;
            best_start = start;
            best_n = k;
        }
    }
    if (e.matched >= 0) {
        e.shown = best_start + (include ? best_n : 0);
        return e;
    }
    size_t held = 0;
    for (size_t s = 0; s < n; s++)
        for (size_t k = strlen(stops[s]) - 1; k > held; k--)
            if (ends_with(text, now, stops[s], k)) held = k;
    e.shown = now - held;
    return e;
}

static void draw_text(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + draw(2));
    text[n] = '\0';
}

/* One stream: letters a and b, so that strings overlap in every way. */
static void stream_once(void)
{
    char strings[STOPS_MAX][STOP_BYTES_MAX + 1], text[41];
    const char *stops[STOPS_MAX];
    const size_t n = draw(STOPS_MAX + 1);
    for (size_t i = 0; i < n; i++) {
        draw_text(strings[i], 1 + draw(STOP_BYTES_MAX) * (1 - draw(8) / 7));
        stops[i] = strings[i];
    }
    const bool include = draw(2) == 1;
    draw_text(text, sizeof text - 1);
    const size_t armed_from = draw(4) == 0 ? draw(20) : 0;
    weft_stops *s = NULL;
    ck_assert_int_eq(weft_stops_create(stops, n, include, &s, NULL), WEFT_OK);
    weft_buf out = {0};
    int32_t matched = -1;
    bool fine = true;
    size_t at = 0;
    while (at < sizeof text - 1 && matched < 0) {
        size_t piece = draw(7);
        if (piece > sizeof text - 1 - at) piece = sizeof text - 1 - at;
        const bool armed = at >= armed_from;
        fine =
            fine &&
            (armed
                 ? weft_stops_push(s, text + at, piece, &out, &matched, NULL)
                 : weft_stops_pass(s, text + at, piece, &out, NULL)) == WEFT_OK;
        const size_t before = at;
        at += piece;
        const expected e =
            search(text, armed ? before : at, at, stops, n, include);
        /* After a pass a whole stop string may still be held. */
        fine = fine && matched == e.matched &&
               (armed && piece > 0 ? out.n == e.shown : out.n <= e.shown) &&
               (out.n == 0 || memcmp(out.data, text, out.n) == 0);
        if (!fine) break;
    }
    const size_t shown = out.n;
    fine = fine && weft_stops_finish(s, &out, NULL) == WEFT_OK &&
           out.n == (matched >= 0 ? shown : at) &&
           (out.n == 0 || memcmp(out.data, text, out.n) == 0);
    ck_assert_msg(fine, "%lu draws: text %.*s, out %s, match %d",
                  (unsigned long)draws, (int)at, text,
                  out.n == 0 ? "" : out.data, matched);
    weft_buf_deinit(&out);
    weft_stops_destroy(s);
}

START_TEST(same_as_a_search)
{
    for (int i = 0; i < ROUNDS; i++) stream_once();
}
END_TEST

static void expect(const char *const *stops, size_t n, bool include,
                   const char *const *pieces, const char *const *shown,
                   int32_t match)
{
    weft_stops *s = NULL;
    int32_t matched = -1;
    ck_assert_int_eq(weft_stops_create(stops, n, include, &s, NULL), WEFT_OK);
    for (size_t i = 0; pieces[i] != NULL; i++) {
        weft_buf out = {0};
        ck_assert_int_eq(weft_stops_push(s, pieces[i], strlen(pieces[i]), &out,
                                         &matched, NULL),
                         WEFT_OK);
        ck_assert_str_eq(out.n == 0 ? "" : out.data, shown[i]);
        weft_buf_deinit(&out);
    }
    ck_assert_int_eq(matched, match);
    weft_stops_destroy(s);
}

START_TEST(known_streams)
{
    /* The earliest start of those complete with one token, then the longest. */
    static const char *const two[] = {"world", "lo w", "lo wo"};
    static const char *const once[] = {"hello world!", "more", NULL};
    static const char *const cut[] = {"hel", ""};
    static const char *const kept[] = {"hello wo", ""};
    expect(two, 3, false, once, cut, 2);
    expect(two, 3, true, once, kept, 2);
    /* Complete with an earlier token wins over an earlier start. */
    static const char *const late[] = {"abcdef", "cd"};
    static const char *const split[] = {"xab", "cd", "ef", NULL};
    static const char *const parts[] = {"x", "ab", ""};
    expect(late, 2, false, split, parts, 1);
    /* Held text is given back once it cannot be a stop string. */
    static const char *const end[] = {"\n\nUser:"};
    static const char *const talk[] = {"a\n",  "\nUs", "\n\n",
                                       "User", ":",    NULL};
    static const char *const back[] = {"a", "", "\n\nUs", "", ""};
    expect(end, 1, false, talk, back, 0);
    /* Equal strings: the first is told. */
    static const char *const equal[] = {"q", "x", "x"};
    static const char *const one[] = {"x", NULL}, *const none[] = {""};
    expect(equal, 3, false, one, none, 1);
}
END_TEST

START_TEST(refused_strings)
{
    static const char *const empty[] = {"a", ""};
    static const char *const broken[] = {"a", "b", "\xC3"};
    weft_stops *s = NULL;
    weft_err err = {0};
    ck_assert_int_eq(weft_stops_create(empty, 2, false, &s, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, "stop[1]") != NULL, "%s", err.text);
    ck_assert_int_eq(weft_stops_create(broken, 3, false, &s, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(err.text, "stop[2]") != NULL, "%s", err.text);
    ck_assert_ptr_null(s);
}
END_TEST

/* Ten thousand strings, and a 100 kB one that nearly matches all the time. */
START_TEST(many_and_long)
{
    enum { MANY = 10000, LONG = 100 * 1000, PIECES = 200 };
    static char strings[MANY][20], one[LONG + 1], piece[4001];
    static const char *stops[MANY + 1];
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(strings[i], sizeof strings[i], "stop%da", i);
        stops[i] = strings[i];
    }
    memset(one, 'a', LONG - 1);
    one[LONG - 1] = 'b';
    stops[MANY] = one;
    memset(piece, 'a', sizeof piece - 1);
    weft_stops *s = NULL;
    weft_buf out = {0};
    int32_t matched = -1;
    ck_assert_int_eq(weft_stops_create(stops, MANY + 1, false, &s, NULL),
                     WEFT_OK);
    for (int i = 0; i < PIECES; i++)
        ck_assert_int_eq(
            weft_stops_push(s, piece, sizeof piece - 1, &out, &matched, NULL),
            WEFT_OK);
    ck_assert_int_eq(matched, -1);
    ck_assert_uint_eq(out.n, PIECES * (sizeof piece - 1) - (LONG - 1));
    ck_assert_int_eq(weft_stops_push(s, "b", 1, &out, &matched, NULL), WEFT_OK);
    ck_assert_int_eq(matched, MANY);
    ck_assert_uint_eq(out.n, PIECES * (sizeof piece - 1) - (LONG - 1));
    weft_buf_deinit(&out);
    weft_stops_destroy(s);
}
END_TEST

START_TEST(no_memory)
{
    static const char *const stops[] = {"hello", "low"};
    bool done = false;
    int failed = 0;
    for (long n = 0; !done; n++) {
        weft_stops *s = NULL;
        weft_buf out = {0};
        int32_t matched = -1;
        weft_mem_fail_after(n);
        weft_status st = weft_stops_create(stops, 2, false, &s, NULL);
        if (st == WEFT_OK)
            st = weft_stops_push(s, "well hell", 9, &out, &matched, NULL);
        if (st == WEFT_OK)
            st = weft_stops_push(s, "o", 1, &out, &matched, NULL);
        weft_mem_fail_after(-1);
        done = st == WEFT_OK;
        failed += !done;
        ck_assert(done || st == WEFT_RESOURCE_EXHAUSTED);
        if (done) ck_assert_int_eq(matched, 0);
        weft_buf_deinit(&out);
        weft_stops_destroy(s);
        ck_assert_int_eq(weft_mem_live(), 0);
    }
    ck_assert_int_ge(failed, 4);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {same_as_a_search, known_streams,
                                  refused_strings, many_and_long, no_memory};
    return WEFT_SUITE_RUN("stops", tests);
}
