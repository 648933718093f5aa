/* pattern.h - a regular expression of tokenizer.json, run by PCRE2.
 *
 * tokenizer.json is written for Oniguruma (Ruby syntax). Where both dialects
 * agree the text goes through; where they differ in spelling it is rewritten
 * (\s is White_Space, \w is Alphabetic, marks, decimal digits and connectors,
 * \p{Han} means the script, not its extensions, ^ and $ are at lines); where
 * the meaning would differ silently it is refused by name: back references,
 * \b, \h, \K, set operations inside brackets, possessive intervals, options
 * other than i, or set in the middle.
 *
 * Cost: with the patterns of published tokenizers, linear in the text. A
 * pattern may be quadratic by its nature (x+y over a text of x); one match
 * attempt is then bounded by a step limit in proportion to the text, the sum of
 * attempts is not. The one such pattern in wide use, \s+$ (DeepSeek-V2), is
 * linear under PCRE2's JIT, but not where the interpreter has to do; it is
 * given a look-behind that makes it linear there too and changes no match.
 *
 * Threads: a pattern is read-only once made; a matcher has one owner.
 */
#ifndef WEFT_ROUTER_TEXT_PATTERN_H
#define WEFT_ROUTER_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

/* A piece of text, by its bytes. */
typedef struct weft_span {
    uint32_t start, end;
} weft_span;

typedef struct weft_pattern weft_pattern;
typedef struct weft_matcher weft_matcher;

/* What PCRE2 needs to run a pattern: match memory and a JIT stack of its own.
 * The caller's, to end with weft_matcher_destroy. text_bytes_max scales the
 * step limit. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_matcher_create(size_t text_bytes_max,
                                                weft_matcher **matcher_out,
                                                weft_err *err);
void weft_matcher_destroy(weft_matcher *matcher);

/* Compile `text` (n bytes of UTF-8), as an expression or, if literal, as the
 * text itself. The caller's, to end with weft_pattern_destroy.
 * INVALID_ARGUMENT: malformed, or outside of what is supported; the error
 * quotes the pattern. */
WEFT_MUST_CHECK weft_status weft_pattern_create(const char *text, size_t n,
                                                bool literal,
                                                weft_pattern **pattern_out,
                                                weft_err *err);
void weft_pattern_destroy(weft_pattern *pattern);

/* The first match in `piece` of `text` that begins at `from` or later. The
 * pattern sees the piece alone, and of it also what is before `from`. The text
 * is valid UTF-8 and not checked again. Places are counted from `text`. No
 * match: match_out->start is above match_out->end.
 * INVALID_ARGUMENT: the step limit or the stack is used up; the error quotes
 * the pattern. */
WEFT_MUST_CHECK weft_status weft_pattern_find(
    const weft_pattern *pattern, weft_matcher *matcher, const char *text,
    weft_span piece, uint32_t from, weft_span *match_out, weft_err *err);

#endif
