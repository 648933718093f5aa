#include "node/base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"

/* Unicode 15, table 3-7: the first byte decides the length and the range of
 * the second; later bytes are always 80..BF. 0: not a first byte. */
static size_t lead_bytes(unsigned char lead, unsigned char *lo,
                         unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *lo = 0xA0; /* shorter forms exist below */
        if (lead == 0xED) *hi = 0x9F; /* surrogates above */
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *lo = 0x90;
    if (lead == 0xF4) *hi = 0x8F; /* U+10FFFF */
    return 4;
}

/* Bytes of the character at text[0, n): > 0 complete; 0 with *broken_out set
 * if it can never be one, else it is cut off by the end. */
static size_t char_bytes(const unsigned char *text, size_t n, bool *broken_out)
{
    unsigned char lo = 0;
    unsigned char hi = 0;
    const size_t want = lead_bytes(text[0], &lo, &hi);
    *broken_out = want == 0;
    for (size_t i = 1; i < want; i++) {
        if (i == n) return 0;
        if (text[i] < lo || text[i] > hi) {
            *broken_out = true;
            return 0;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    return want;
}

size_t weft_utf8_prefix(const char *text, size_t n, bool *broken_out)
{
    size_t done = 0;
    *broken_out = false;
    while (done < n) {
        const size_t bytes = char_bytes((const unsigned char *)text + done,
                                        n - done, broken_out);
        if (bytes == 0) break;
        done += bytes;
    }
    return done;
}

bool weft_utf8_valid(const char *text, size_t n)
{
    bool broken = false;
    return weft_utf8_prefix(text, n, &broken) == n;
}

size_t weft_utf8_mend(char *text, size_t n)
{
    size_t good = 0;
    for (;;) {
        bool broken = false;
        good += weft_utf8_prefix(text + good, n - good, &broken);
        if (!broken) return good;
        text[good++] = '?';
    }
}

const char *weft_text_line(const char *text, char *out, size_t bytes)
{
    static const char cut[] = "...";
    const size_t whole = strlen(text);
    const bool fits = whole < bytes;
    size_t n = fits ? whole : bytes - sizeof cut;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        out[i] = (char)(c < 0x20 || c == 0x7F ? '?' : text[i]);
    }
    n = weft_utf8_mend(out, n);
    memcpy(out + n, fits ? "" : cut, fits ? 1 : sizeof cut);
    return out;
}

/* Room for n more bytes and the NUL. */
static weft_status reserve(weft_buf *buf, size_t n, weft_err *err)
{
    enum { START_BYTES = 64 };
    if (n >= SIZE_MAX / 2 - buf->n)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "a buffer of %zu bytes cannot grow by %zu", buf->n, n);
    const size_t need = buf->n + n + 1;
    if (need <= buf->capacity) return WEFT_OK;
    size_t capacity = buf->capacity < START_BYTES ? START_BYTES : buf->capacity;
    while (capacity < need) capacity *= 2;
    char *const data = weft_mem_resize(buf->data, capacity, 1);
    if (data == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu bytes", capacity);
    buf->data = data;
    buf->capacity = capacity;
    return WEFT_OK;
}

weft_status weft_buf_add(weft_buf *buf, const void *bytes, size_t n,
                         weft_err *err)
{
    WEFT_TRY(reserve(buf, n, err));
    if (n > 0) memcpy(buf->data + buf->n, bytes, n);
    buf->n += n;
    buf->data[buf->n] = '\0';
    return WEFT_OK;
}

weft_status weft_buf_printf(weft_buf *buf, weft_err *err, const char *format,
                            ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        return WEFT_FAIL(err, WEFT_INTERNAL, "cannot format \"%s\"", format);
    WEFT_TRY(reserve(buf, (size_t)n, err));
    va_start(args, format);
    (void)vsnprintf(buf->data + buf->n, (size_t)n + 1, format, args);
    va_end(args);
    buf->n += (size_t)n;
    return WEFT_OK;
}

void weft_buf_clear(weft_buf *buf)
{
    buf->n = 0;
    if (buf->data != NULL) buf->data[0] = '\0';
}

void weft_buf_deinit(weft_buf *buf)
{
    weft_mem_free(buf->data);
    *buf = (weft_buf){0};
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits from text; *end_out is the first byte that is none. */
static bool parse_digits(const char *text, uint64_t *value_out,
                         const char **end_out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; is_digit(*at); at++) {
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    }
    *value_out = value;
    *end_out = at;
    return at > text;
}

bool weft_parse_u64(const char *text, uint64_t *value_out)
{
    uint64_t value = 0;
    const char *end = NULL;
    if (!parse_digits(text, &value, &end) || *end != '\0') return false;
    *value_out = value;
    return true;
}

bool weft_parse_i64(const char *text, int64_t min, int64_t max,
                    int64_t *value_out)
{
    const bool minus = *text == '-';
    uint64_t size = 0;
    if (!weft_parse_u64(text + (minus ? 1 : 0), &size)) return false;
    int64_t value = 0;
    if (minus) {
        if (size > (uint64_t)INT64_MAX + 1) return false;
        value = size > (uint64_t)INT64_MAX ? INT64_MIN : -(int64_t)size;
    } else {
        if (size > (uint64_t)INT64_MAX) return false;
        value = (int64_t)size;
    }
    if (value < min || value > max) return false;
    *value_out = value;
    return true;
}

/* digits [. digits] [e [sign] digits], with a digit on at least one side of
 * the point: what strtod takes besides (blanks, hex, nan, inf) is refused. */
static bool is_decimal(const char *at)
{
    if (*at == '-' || *at == '+') at++;
    const char *const whole = at;
    while (is_digit(*at)) at++;
    bool digits = at > whole;
    if (*at == '.') {
        at++;
        digits = digits || is_digit(*at);
        while (is_digit(*at)) at++;
    }
    if (!digits) return false;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '-' || *at == '+') at++;
        if (!is_digit(*at)) return false;
        while (is_digit(*at)) at++;
    }
    return *at == '\0';
}

bool weft_parse_f64(const char *text, double *value_out)
{
    if (!is_decimal(text)) return false;
    /* The program never calls setlocale, so the point is a point. */
    const double value = strtod(text, NULL);
    if (!isfinite(value)) return false;
    *value_out = value;
    return true;
}

bool weft_parse_bytes(const char *text, uint64_t *bytes_out)
{
    static const char units[] = "KMGT";
    uint64_t value = 0;
    const char *end = NULL;
    if (!parse_digits(text, &value, &end)) return false;
    if (*end != '\0') {
        const char *const unit = strchr(units, *end);
        if (unit == NULL || end[1] != '\0') return false;
        const unsigned shift = 10U * ((unsigned)(unit - units) + 1U);
        if (value > UINT64_MAX >> shift) return false;
        value <<= shift;
    }
    *bytes_out = value;
    return true;
}
