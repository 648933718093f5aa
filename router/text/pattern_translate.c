#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "router/text/pattern_internal.h"

/* Rust's and Oniguruma's \s and \w; PCRE2's own add U+180E and leave out
 * marks. */
#define SPACE     "\\p{White_Space}"
#define NOT_SPACE "\\P{White_Space}"
#define WORD      "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

enum { PROPERTY_NAME_MAX = 40 };

typedef struct translation {
    const char *text;
    size_t n, i;
    bool in_class;
    weft_buf *out;
} translation;

static weft_status refuse(const translation *t, const char *what, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s at byte %zu is not supported", what, t->i);
}

static weft_status put(translation *t, const char *text, weft_err *err)
{
    return weft_buf_add(t->out, text, strlen(text), err);
}

static weft_status copy(translation *t, size_t n, weft_err *err)
{
    WEFT_TRY(weft_buf_add(t->out, t->text + t->i, n, err));
    t->i += n;
    return WEFT_OK;
}

static char at(const translation *t, size_t ahead)
{
    if (t->i + ahead >= t->n) return '\0';
    return t->text[t->i + ahead];
}

/* Scripts: PCRE2 takes a bare name as the script's extensions. */
static bool is_script(const char *name)
{
    static const char *const scripts[] = {
        "han",      "hiragana", "katakana",   "hangul",  "latin",
        "cyrillic", "greek",    "arabic",     "hebrew",  "thai",
        "bopomofo", "armenian", "devanagari", "bengali", "georgian",
        "tamil",    "telugu",   "ethiopic",   "khmer",   "tibetan"};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++)
        if (strcasecmp(name, scripts[i]) == 0) return true;
    return false;
}

/* General categories: one or two letters, the first of LMNPSZC. */
static bool is_category(const char *name)
{
    const size_t n = strlen(name);
    return (n == 1 || n == 2) && strchr("LMNPSZC", name[0]) != NULL &&
           (n == 1 || islower((unsigned char)name[1]));
}

/* \p{...} or \P{...}, from the backslash. */
static weft_status property(translation *t, weft_err *err)
{
    const bool negated_letter = at(t, 1) == 'P';
    if (at(t, 2) != '{') return refuse(t, "\\p without braces", err);
    const bool caret = at(t, 3) == '^';
    const size_t start = t->i + 3 + (caret ? 1 : 0);
    size_t end = start;
    while (end < t->n && t->text[end] != '}') end++;
    char name[PROPERTY_NAME_MAX];
    if (end >= t->n || end == start || end - start >= sizeof name)
        return refuse(t, "this \\p{...}", err);
    memcpy(name, t->text + start, end - start);
    name[end - start] = '\0';
    const bool script = is_script(name);
    if (!script && !is_category(name) && strcasecmp(name, "alphabetic") != 0 &&
        strcasecmp(name, "white_space") != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "property \\p{%s} at byte %zu is not supported", name,
                         t->i);
    t->i = end + 1;
    return weft_buf_printf(t->out, err, "\\%c{%s%s}",
                           negated_letter != caret ? 'P' : 'p',
                           script ? "sc:" : "", name);
}

/* \xHH, \x{H...}, \uHHHH, from the backslash. */
static weft_status code_point(translation *t, weft_err *err)
{
    const bool braces = at(t, 1) == 'x' && at(t, 2) == '{';
    const size_t start = t->i + (braces ? 3 : 2);
    const size_t most = braces ? 6 : at(t, 1) == 'u' ? 4 : 2;
    size_t digits = 0;
    while (digits < most && start + digits < t->n &&
           isxdigit((unsigned char)t->text[start + digits]))
        digits++;
    const bool closed =
        !braces || (start + digits < t->n && t->text[start + digits] == '}');
    if (digits == 0 || !closed || (!braces && digits != most))
        return refuse(t, "this \\x or \\u", err);
    WEFT_TRY(put(t, "\\x{", err));
    WEFT_TRY(weft_buf_add(t->out, t->text + start, digits, err));
    t->i = start + digits + (braces ? 1 : 0);
    return put(t, "}", err);
}

/* What replaces a one-letter escape; NULL: it is not one of these. */
static const char *class_escape(char letter, bool in_class)
{
    switch (letter) {
    case 's': return SPACE;
    case 'S': return NOT_SPACE;
    case 'd': return "\\p{Nd}";
    case 'D': return "\\P{Nd}";
    case 'w': return in_class ? WORD : "[" WORD "]";
    case 'W': return in_class ? NULL : "[^" WORD "]";
    case 'v': return "\\x{0B}";
    case 'A': return in_class ? NULL : "\\A";
    case 'z': return in_class ? NULL : "\\z";
    default: return NULL;
    }
}

static weft_status escape(translation *t, weft_err *err)
{
    const char letter = at(t, 1);
    if (t->i + 1 >= t->n) return refuse(t, "a backslash at the end", err);
    if (letter == 'p' || letter == 'P') return property(t, err);
    if (letter == 'x' || letter == 'u') return code_point(t, err);
    if (strchr("rntfae", letter) != NULL) return copy(t, 2, err);
    const char *const other = class_escape(letter, t->in_class);
    if (other != NULL) {
        t->i += 2;
        return put(t, other, err);
    }
    if (isalnum((unsigned char)letter)) {
        char what[] = "escape \\?";
        what[sizeof what - 2] = letter;
        return refuse(t, what, err);
    }
    if ((unsigned char)letter >= 0x80) {
        t->i++; /* an escaped character beyond ASCII is itself */
        return WEFT_OK;
    }
    return copy(t, 2, err);
}

/* From "[" to its "]". */
static weft_status bracket(translation *t, weft_err *err)
{
    t->in_class = true;
    WEFT_TRY(copy(t, at(t, 1) == '^' ? 2 : 1, err));
    if (at(t, 0) == ']') return refuse(t, "] as the first of a class", err);
    while (t->i < t->n && t->text[t->i] != ']') {
        const char c = t->text[t->i];
        if (c == '[') return refuse(t, "a class inside a class", err);
        if (c == '&' && at(t, 1) == '&')
            return refuse(t, "an intersection of classes", err);
        WEFT_TRY(c == '\\' ? escape(t, err) : copy(t, 1, err));
    }
    if (t->i >= t->n) return refuse(t, "a class without end", err);
    t->in_class = false;
    return copy(t, 1, err);
}

/* From "(": what may follow "(?". */
static weft_status group(translation *t, weft_err *err)
{
    static const char *const kinds[] = {
        "(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (at(t, 1) == '*') return refuse(t, "(*", err);
    if (at(t, 1) != '?') return copy(t, 1, err);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const size_t n = strlen(kinds[i]);
        if (t->n - t->i >= n && memcmp(t->text + t->i, kinds[i], n) == 0)
            return copy(t, n, err);
    }
    /* In front of everything both dialects apply it to the whole. */
    if (t->i == 0 && t->n >= 4 && memcmp(t->text, "(?i)", 4) == 0)
        return copy(t, 4, err);
    return refuse(t, "this kind of group", err);
}

/* From "{": {n}, {n,}, {n,m}, and nothing that is read differently. */
static weft_status interval(translation *t, weft_err *err)
{
    size_t ahead = 1;
    while (isdigit((unsigned char)at(t, ahead))) ahead++;
    const bool has_low = ahead > 1;
    if (at(t, ahead) == ',') ahead++;
    while (isdigit((unsigned char)at(t, ahead))) ahead++;
    if (!has_low || at(t, ahead) != '}') return refuse(t, "this use of {", err);
    const char after = at(t, ahead + 1);
    if (after == '+' || after == '?')
        return refuse(t, "an interval followed by + or ?", err);
    return copy(t, ahead + 1, err);
}

weft_status weft_pattern_translate(const char *text, size_t n, weft_buf *out,
                                   weft_err *err)
{
    static const char trailing_space[] = "\\s+$";
    if (n == sizeof trailing_space - 1 &&
        memcmp(text, trailing_space, n) == 0) {
        /* A run of spaces that reaches no line end from its first place does
         * not from a later one either: tried once, not from each place. */
        static const char linear[] = "(?<!" SPACE ")" SPACE "+$";
        return weft_buf_add(out, linear, sizeof linear - 1, err);
    }
    translation t = {.text = text, .n = n, .out = out};
    while (t.i < n) {
        switch (text[t.i]) {
        case '\\': WEFT_TRY(escape(&t, err)); break;
        case '[': WEFT_TRY(bracket(&t, err)); break;
        case '(': WEFT_TRY(group(&t, err)); break;
        case '{': WEFT_TRY(interval(&t, err)); break;
        default: WEFT_TRY(copy(&t, 1, err)); break;
        }
    }
    return WEFT_OK;
}
