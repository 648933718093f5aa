/* normalize.h - Unicode normalization form C.
 *
 * Linear in the text, whatever it holds: combining marks are put in order with
 * a counting sort, since an exchange sort over a text of nothing but marks
 * would take hours. Tables: utf8proc (Unicode 15).
 *
 * Threads: any.
 */
#ifndef WEFT_ROUTER_TEXT_NORMALIZE_H
#define WEFT_ROUTER_TEXT_NORMALIZE_H

#include "node/base/str.h"

/* Append the NFC of valid UTF-8 [text, text + n) to *out. Memory besides: 8
 * bytes for each code point of the longest stretch without ASCII.
 * RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_nfc(const char *text, size_t n, weft_buf *out,
                                     weft_err *err);

/* NFC of a text has at least 1 byte for this many of the text (U+1FEF, three
 * bytes, is U+0060; three Hangul letters of 9 bytes are one syllable of 3). */
enum { WEFT_NFC_SHRINK_MAX = 3 };

#endif
