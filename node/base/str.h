/* str.h - bytes and text: UTF-8 checks, numbers, a growing buffer.
 *
 * Threads: any; a buffer has one owner.
 */
#ifndef WEFT_NODE_BASE_STR_H
#define WEFT_NODE_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

/* Whether bytes [0, n) are well-formed UTF-8 (Unicode 15, table 3-7: no
 * surrogates, no overlong forms, nothing above U+10FFFF). NUL is allowed. */
bool weft_utf8_valid(const char *text, size_t n);

/* Length of the longest prefix that is well-formed and complete. A tail that
 * may still become a character (at most 3 bytes) is left out; *broken_out is
 * set if what follows the prefix can never become one. */
size_t weft_utf8_prefix(const char *text, size_t n, bool *broken_out);

/* Make text [0, n) well-formed in place: a byte that begins no character
 * becomes
 * '?', a character that the end cuts off is dropped. Its length. */
size_t weft_utf8_mend(char *text, size_t n);

/* A copy of `text` as it may stand in a message of one line: UTF-8, a control
 * character is '?', and what does not fit out [bytes, at least 4] is cut and
 * ends in "...". Returns out. */
const char *weft_text_line(const char *text, char *out, size_t bytes);

/* A growing byte buffer, always NUL-terminated once it holds anything.
 * {0} is an empty one. */
typedef struct weft_buf {
    char *data;
    size_t n, capacity;
} weft_buf;

WEFT_MUST_CHECK weft_status weft_buf_add(weft_buf *buf, const void *bytes,
                                         size_t n, weft_err *err);
WEFT_MUST_CHECK weft_status weft_buf_printf(weft_buf *buf, weft_err *err,
                                            const char *format, ...)
    WEFT_PRINTF(3, 4);
void weft_buf_clear(weft_buf *buf); /* keeps the memory */
void weft_buf_deinit(weft_buf *buf);

/* Whole-string numbers; false: malformed or out of [min, max]. No leading or
 * trailing anything. */
bool weft_parse_i64(const char *text, int64_t min, int64_t max,
                    int64_t *value_out);
bool weft_parse_u64(const char *text, uint64_t *value_out);
bool weft_parse_f64(const char *text, double *value_out); /* finite */
/* Digits, then nothing or one of K M G T (powers of 1024). */
bool weft_parse_bytes(const char *text, uint64_t *bytes_out);

#endif
