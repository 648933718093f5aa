#include "router/text/normalize.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "node/base/mem.h"
#include "router/text/grow.h"

enum {
    /* Below U+0300 nothing combines with what is before it and everything is
     * its own NFC; U+0300 begins with this byte. */
    FIRST_ACTIVE_LEAD = 0xCC,
    DECOMPOSED_MAX = 8, /* the longest canonical decomposition has 4 */
    N_CLASSES = 256,
    NO_FINAL = 0x11A7,
};

/* One stretch, decomposed, and as much again to sort in. */
typedef struct stretch {
    utf8proc_int32_t *points, *sorted;
    size_t n, capacity, sorted_capacity;
} stretch;

static weft_status no_memory(size_t n, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to normalize %zu bytes of text", n);
}

static weft_status decompose(stretch *s, const char *text, size_t n,
                             weft_err *err)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    const utf8proc_uint8_t *const end = at + n;
    s->n = 0;
    while (at < end) {
        utf8proc_int32_t c = 0;
        const utf8proc_ssize_t used = utf8proc_iterate(at, end - at, &c);
        if (used <= 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "text is not UTF-8");
        at += used;
        void *const grown = weft_grow(s->points, &s->capacity,
                                      s->n + DECOMPOSED_MAX, sizeof *s->points);
        if (grown == NULL) return no_memory(n, err);
        s->points = grown;
        int boundary_class = 0; /* of grapheme breaks: not asked for */
        const utf8proc_ssize_t made = utf8proc_decompose_char(
            c, s->points + s->n, DECOMPOSED_MAX,
            UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary_class);
        if (made <= 0 || made > DECOMPOSED_MAX)
            return WEFT_FAIL(err, WEFT_INTERNAL, "U+%04X does not decompose",
                             (unsigned)c);
        s->n += (size_t)made;
    }
    return WEFT_OK;
}

static unsigned combining_class(utf8proc_int32_t c)
{
    const unsigned class = (unsigned)utf8proc_get_property(c)->combining_class;
    return class % N_CLASSES;
}

/* Stable, by combining class: points [from, to) are all non-starters. */
static void sort_marks(stretch *s, size_t from, size_t to)
{
    size_t place[N_CLASSES + 1] = {0};
    bool ordered = true;
    unsigned before = 0;
    for (size_t i = from; i < to; i++) {
        const unsigned class = combining_class(s->points[i]);
        ordered = ordered && class >= before;
        before = class;
        place[class + 1]++;
    }
    if (ordered) return;
    for (size_t c = 0; c < N_CLASSES; c++) place[c + 1] += place[c];
    for (size_t i = from; i < to; i++)
        s->sorted[place[combining_class(s->points[i])]++] = s->points[i];
    memcpy(s->points + from, s->sorted, (to - from) * sizeof *s->points);
}

static weft_status order(stretch *s, weft_err *err)
{
    void *const grown =
        weft_grow(s->sorted, &s->sorted_capacity, s->n, sizeof *s->sorted);
    if (grown == NULL) return no_memory(s->n, err);
    s->sorted = grown;
    size_t i = 0;
    while (i < s->n) {
        if (combining_class(s->points[i]) == 0) {
            i++;
            continue;
        }
        const size_t from = i;
        while (i < s->n && combining_class(s->points[i]) != 0) i++;
        if (i - from > 1) sort_marks(s, from, i);
    }
    return WEFT_OK;
}

static weft_status encode(const utf8proc_int32_t *points, utf8proc_ssize_t n,
                          weft_buf *out, weft_err *err)
{
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        utf8proc_uint8_t bytes[4];
        const utf8proc_ssize_t used = utf8proc_encode_char(points[i], bytes);
        WEFT_TRY(weft_buf_add(out, bytes, (size_t)used, err));
    }
    return WEFT_OK;
}

/* utf8proc 2.8 takes U+11A7, the place before the first final consonant, for
 * a final consonant that adds nothing, and swallows it after a syllable. It
 * composes with nothing on either side, so that text is composed in parts that
 * begin with it. */
static weft_status compose_parts(stretch *s, weft_buf *out, weft_err *err)
{
    size_t from = 0;
    while (from < s->n) {
        size_t to = from + 1;
        while (to < s->n && s->points[to] != NO_FINAL) to++;
        const utf8proc_ssize_t left = utf8proc_normalize_utf32(
            s->points + from, (utf8proc_ssize_t)(to - from),
            UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (left < 0)
            return WEFT_FAIL(err, WEFT_INTERNAL, "NFC: %s",
                             utf8proc_errmsg(left));
        WEFT_TRY(encode(s->points + from, left, out, err));
        from = to;
    }
    return WEFT_OK;
}

static weft_status compose(stretch *s, const char *text, size_t n,
                           weft_buf *out, weft_err *err)
{
    WEFT_TRY(decompose(s, text, n, err));
    WEFT_TRY(order(s, err));
    return compose_parts(s, out, err);
}

/* ASCII never combines with what is before it, so that every ASCII character
 * begins a stretch that can be normalized alone. */
static size_t stretch_end(const char *text, size_t n, size_t from,
                          bool *active_out)
{
    size_t i = from + 1;
    bool active = (uint8_t)text[from] >= FIRST_ACTIVE_LEAD;
    while (i < n && (uint8_t)text[i] >= 0x80) {
        active = active || (uint8_t)text[i] >= FIRST_ACTIVE_LEAD;
        i++;
    }
    *active_out = active;
    return i;
}

weft_status weft_nfc(const char *text, size_t n, weft_buf *out, weft_err *err)
{
    stretch s = {0};
    weft_status st = WEFT_OK;
    size_t plain = 0, i = 0; /* [plain, i) is copied as it is */
    while (i < n && st == WEFT_OK) {
        bool active = false;
        const size_t end = stretch_end(text, n, i, &active);
        if (active) {
            st = weft_buf_add(out, text + plain, i - plain, err);
            if (st == WEFT_OK) st = compose(&s, text + i, end - i, out, err);
            plain = end;
        }
        i = end;
    }
    if (st == WEFT_OK && n > plain)
        st = weft_buf_add(out, text + plain, n - plain, err);
    weft_mem_free(s.points);
    weft_mem_free(s.sorted);
    return st;
}
