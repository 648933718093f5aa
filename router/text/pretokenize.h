/* pretokenize.h - text to words: the pre_tokenizer of tokenizer.json.
 *
 * A chain of splits, each of which sees one piece of the one before it at a
 * time and nothing around it; then, as ByteLevel asks, a space in front of each
 * piece and a split into words by GPT-2's pattern. Splits and their behaviours
 * are those of Hugging Face tokenizers.
 *
 * Memory: 8 bytes a piece, twice; that is up to 16 bytes a byte of text where
 * every character is a piece of its own.
 *
 * Threads: a pretokenizer is read-only once made; pieces have one owner.
 */
#ifndef WEFT_ROUTER_TEXT_PRETOKENIZE_H
#define WEFT_ROUTER_TEXT_PRETOKENIZE_H

#include "node/base/str.h"
#include "router/text/pattern.h"

typedef enum weft_split_behavior {
    WEFT_SPLIT_ISOLATED,
    WEFT_SPLIT_REMOVED,
    WEFT_SPLIT_CONTIGUOUS,
    WEFT_SPLIT_MERGED_WITH_PREVIOUS,
    WEFT_SPLIT_MERGED_WITH_NEXT,
} weft_split_behavior;

typedef struct weft_split {
    weft_pattern *pattern;
    weft_split_behavior behavior;
    bool invert; /* what does not match is the delimiter */
} weft_split;

enum { WEFT_SPLITS_MAX = 32 };

/* {0} splits nothing. */
typedef struct weft_pretokenizer {
    weft_split splits[WEFT_SPLITS_MAX];
    int n_splits;
    bool add_prefix_space;
    weft_pattern *words; /* NULL: ByteLevel without its own pattern */
} weft_pretokenizer;

void weft_pretokenizer_deinit(weft_pretokenizer *pretokenizer);

/* Whether it can lose text, so that fewer words come out than went in. */
bool weft_pretokenizer_removes(const weft_pretokenizer *pretokenizer);

/* The result of a run, and what it needs. {0} is an empty one. */
typedef struct weft_pieces {
    const char *text; /* what the pieces are of: the input, or `spaced` */
    weft_span *spans; /* [n], in order, none empty */
    size_t n, capacity;
    weft_span *spare;
    size_t spare_capacity;
    weft_buf spaced;
} weft_pieces;

void weft_pieces_deinit(weft_pieces *pieces);

/* Cut [text, text + n), valid UTF-8 of at most INT32_MAX bytes. *pieces is
 * overwritten and good until the next run or the end of `text`.
 * INVALID_ARGUMENT: a pattern gave up on this text. RESOURCE_EXHAUSTED: no
 * memory. */
WEFT_MUST_CHECK weft_status weft_pretokenizer_run(
    const weft_pretokenizer *pretokenizer, weft_matcher *matcher,
    const char *text, size_t n, weft_pieces *pieces, weft_err *err);

#endif
