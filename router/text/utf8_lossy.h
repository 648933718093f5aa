/* utf8_lossy.h - bytes that may not be UTF-8, piece by piece, to text that is.
 *
 * Ill-formed input becomes U+FFFD, one for each maximal subpart (Unicode 15,
 * section 3.9, "U+FFFD Substitution of Maximal Subparts"), as Python's
 * "replace" and Rust's from_utf8_lossy do it. A byte sequence that may yet
 * become a character is held back, at most 3 bytes of it, and nothing else is.
 *
 * However the bytes are cut into pieces, the concatenated output is the same.
 *
 * Threads: any; a decoder has one owner.
 */
#ifndef WEFT_ROUTER_TEXT_UTF8_LOSSY_H
#define WEFT_ROUTER_TEXT_UTF8_LOSSY_H

#include <stddef.h>
#include <stdint.h>

#include "node/base/str.h"

/* {0} is one that has seen nothing. Owns no memory. */
typedef struct weft_utf8_lossy {
    uint8_t held[4];
    uint8_t n_held, n_needed;   /* bytes so far; bytes of the character */
    uint8_t next_min, next_max; /* bounds of the next byte */
} weft_utf8_lossy;

/* Append what is certain. RESOURCE_EXHAUSTED: no memory; the decoder and `out`
 * are then in between, and only fit to be dropped. */
WEFT_MUST_CHECK weft_status weft_utf8_lossy_push(weft_utf8_lossy *decoder,
                                                 const void *bytes, size_t n,
                                                 weft_buf *out, weft_err *err);

/* The end: what is held back becomes one U+FFFD. The decoder is as at first. */
WEFT_MUST_CHECK weft_status weft_utf8_lossy_finish(weft_utf8_lossy *decoder,
                                                   weft_buf *out,
                                                   weft_err *err);

/* The most bytes of text that bytes [0, n) can become, whatever comes before
 * and after them. */
size_t weft_utf8_lossy_bytes_max(const char *bytes, size_t n);

#endif
