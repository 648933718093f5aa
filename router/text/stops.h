/* stops.h - stop strings over a stream of text.
 *
 * Text goes in as the detokenizer gives it, a token's worth at a time; out
 * comes what may be shown. Text that could be the beginning of a stop string
 * is held back until that is decided. Of the strings that are complete with
 * one push, the one that starts first wins, then the longest; a string that
 * would have started earlier but is not complete yet does not count. The text
 * is cut where the match begins, or, with include, where it ends; what follows
 * in the same push is dropped.
 *
 * An Aho-Corasick automaton: Aho and Corasick, "Efficient string matching",
 * CACM 18(6), 1975.
 *
 * Cost, for S bytes of stop strings in all: memory 24 bytes for each of S,
 * taken at create; then O(1) a byte of text, amortised, times at most the
 * number of different bytes with which stop strings go on at one place (256);
 * held text is at most the longest string. How many and how long strings may
 * be is the caller's limit, up to 512 MiB in all.
 *
 * Threads: one owner.
 */
#ifndef WEFT_ROUTER_TEXT_STOPS_H
#define WEFT_ROUTER_TEXT_STOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/str.h"

typedef struct weft_stops weft_stops;

/* The strings are copied. None at all is fine, and lets everything through.
 * The caller's, to end with weft_stops_destroy.
 * INVALID_ARGUMENT: a string is empty or not UTF-8; the error says which.
 * RESOURCE_EXHAUSTED: no memory, or more than 512 MiB. */
WEFT_MUST_CHECK weft_status weft_stops_create(const char *const *strings,
                                              size_t n, bool include,
                                              weft_stops **stops_out,
                                              weft_err *err);
/* NULL is fine. */
void weft_stops_destroy(weft_stops *stops);

/* Take text in, append what may be shown. *matched_out is the index of the
 * matched string (the first of equal ones), or -1. After a match everything is
 * swallowed, and the match told again. RESOURCE_EXHAUSTED: no memory; the
 * stream cannot go on. */
WEFT_MUST_CHECK weft_status weft_stops_push(weft_stops *stops, const char *text,
                                            size_t n, weft_buf *out,
                                            int32_t *matched_out,
                                            weft_err *err);

/* The same for text in which no match may end, as before min_tokens. A match
 * may begin in it. */
WEFT_MUST_CHECK weft_status weft_stops_pass(weft_stops *stops, const char *text,
                                            size_t n, weft_buf *out,
                                            weft_err *err);

/* The stream ends without a match: append what is held back. After a match:
 * nothing. */
WEFT_MUST_CHECK weft_status weft_stops_finish(weft_stops *stops, weft_buf *out,
                                              weft_err *err);

#endif
