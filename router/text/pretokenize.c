#include "router/text/pretokenize.h"

#include "node/base/mem.h"
#include "router/text/grow.h"

void weft_pretokenizer_deinit(weft_pretokenizer *pretokenizer)
{
    for (int i = 0; i < pretokenizer->n_splits; i++)
        weft_pattern_destroy(pretokenizer->splits[i].pattern);
    weft_pattern_destroy(pretokenizer->words);
    *pretokenizer = (weft_pretokenizer){0};
}

bool weft_pretokenizer_removes(const weft_pretokenizer *pretokenizer)
{
    for (int i = 0; i < pretokenizer->n_splits; i++)
        if (pretokenizer->splits[i].behavior == WEFT_SPLIT_REMOVED) return true;
    return false;
}

void weft_pieces_deinit(weft_pieces *pieces)
{
    weft_mem_free(pieces->spans);
    weft_mem_free(pieces->spare);
    weft_buf_deinit(&pieces->spaced);
    *pieces = (weft_pieces){0};
}

/* What one split makes of one piece, in the making. */
typedef struct cutting {
    const weft_split *split;
    weft_pieces *pieces;
    size_t first;      /* pieces->spans from here are of this piece */
    bool after_match;  /* the part before was a delimiter */
    bool pending;      /* a delimiter waits to be merged with what follows */
    weft_span waiting; /* that delimiter */
} cutting;

static weft_status push(weft_pieces *pieces, weft_span span, weft_err *err)
{
    void *const grown = weft_grow(pieces->spans, &pieces->capacity,
                                  pieces->n + 1, sizeof *pieces->spans);
    if (grown == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu pieces of text", pieces->n + 1);
    pieces->spans = grown;
    pieces->spans[pieces->n++] = span;
    return WEFT_OK;
}

/* Join with the part before, if there is one. */
static weft_status extend(cutting *cut, weft_span span, weft_err *err)
{
    weft_pieces *const pieces = cut->pieces;
    if (pieces->n == cut->first) return push(pieces, span, err);
    pieces->spans[pieces->n - 1].end = span.end;
    return WEFT_OK;
}

/* Only a delimiter directly before a part that is none is merged into it. */
static weft_status merge_with_next(cutting *cut, weft_span span, bool match,
                                   weft_err *err)
{
    if (match) {
        if (cut->pending) WEFT_TRY(push(cut->pieces, cut->waiting, err));
        cut->pending = true;
        cut->waiting = span;
        return WEFT_OK;
    }
    if (cut->pending) span.start = cut->waiting.start;
    cut->pending = false;
    return push(cut->pieces, span, err);
}

static weft_status add(cutting *cut, uint32_t start, uint32_t end, bool match,
                       weft_err *err)
{
    const weft_span span = {.start = start, .end = end};
    if (cut->split->invert) match = !match;
    const bool after_match = cut->after_match;
    cut->after_match = match;
    switch (cut->split->behavior) {
    case WEFT_SPLIT_REMOVED:
        return match ? WEFT_OK : push(cut->pieces, span, err);
    case WEFT_SPLIT_CONTIGUOUS:
        return match == after_match ? extend(cut, span, err)
                                    : push(cut->pieces, span, err);
    case WEFT_SPLIT_MERGED_WITH_PREVIOUS:
        return match && !after_match ? extend(cut, span, err)
                                     : push(cut->pieces, span, err);
    case WEFT_SPLIT_MERGED_WITH_NEXT:
        return merge_with_next(cut, span, match, err);
    case WEFT_SPLIT_ISOLATED: break;
    }
    return push(cut->pieces, span, err);
}

static void drop_empty(weft_pieces *pieces, size_t first)
{
    size_t kept = first;
    for (size_t i = first; i < pieces->n; i++)
        if (pieces->spans[i].start < pieces->spans[i].end)
            pieces->spans[kept++] = pieces->spans[i];
    pieces->n = kept;
}

static uint32_t next_character(const char *text, uint32_t at, uint32_t end)
{
    at++;
    while (at < end && ((unsigned char)text[at] & 0xC0) == 0x80) at++;
    return at;
}

/* All matches in `piece`, and what lies between them. An empty match counts,
 * but not right after a match; then the search goes on one character later. */
static weft_status cut_piece(const weft_split *split, weft_matcher *matcher,
                             const char *text, weft_span piece,
                             weft_pieces *pieces, weft_err *err)
{
    cutting cut = {.split = split, .pieces = pieces, .first = pieces->n};
    uint32_t done = piece.start, from = piece.start;
    bool matched = false;
    while (from <= piece.end) {
        weft_span m = {0};
        WEFT_TRY(weft_pattern_find(split->pattern, matcher, text, piece, from,
                                   &m, err));
        if (m.start > m.end) break;
        if (m.start == m.end && matched && m.end == done) {
            from = next_character(text, from, piece.end);
            continue;
        }
        if (done != m.start) WEFT_TRY(add(&cut, done, m.start, false, err));
        WEFT_TRY(add(&cut, m.start, m.end, true, err));
        from = done = m.end;
        matched = true;
    }
    if (done != piece.end) WEFT_TRY(add(&cut, done, piece.end, false, err));
    if (cut.pending) WEFT_TRY(push(pieces, cut.waiting, err));
    drop_empty(pieces, cut.first);
    return WEFT_OK;
}

/* Every piece through one split. */
static weft_status cut_all(const weft_split *split, weft_matcher *matcher,
                           weft_pieces *pieces, weft_err *err)
{
    weft_span *const before = pieces->spans;
    const size_t n_before = pieces->n, capacity = pieces->capacity;
    pieces->spans = pieces->spare;
    pieces->capacity = pieces->spare_capacity;
    pieces->n = 0;
    pieces->spare = before;
    pieces->spare_capacity = capacity;
    for (size_t i = 0; i < n_before; i++)
        WEFT_TRY(
            cut_piece(split, matcher, pieces->text, before[i], pieces, err));
    return WEFT_OK;
}

/* A space in front of each piece that does not begin with one. */
static weft_status add_spaces(weft_pieces *pieces, weft_err *err)
{
    weft_buf_clear(&pieces->spaced);
    for (size_t i = 0; i < pieces->n; i++) {
        const weft_span span = pieces->spans[i];
        const size_t start = pieces->spaced.n;
        if (pieces->text[span.start] != ' ')
            WEFT_TRY(weft_buf_add(&pieces->spaced, " ", 1, err));
        WEFT_TRY(weft_buf_add(&pieces->spaced, pieces->text + span.start,
                              span.end - span.start, err));
        pieces->spans[i] = (weft_span){.start = (uint32_t)start,
                                       .end = (uint32_t)pieces->spaced.n};
    }
    pieces->text = pieces->spaced.data;
    return WEFT_OK;
}

weft_status weft_pretokenizer_run(const weft_pretokenizer *pretokenizer,
                                  weft_matcher *matcher, const char *text,
                                  size_t n, weft_pieces *pieces, weft_err *err)
{
    pieces->n = 0;
    pieces->text = text;
    if (n == 0) return WEFT_OK;
    WEFT_TRY(push(pieces, (weft_span){.start = 0, .end = (uint32_t)n}, err));
    for (int i = 0; i < pretokenizer->n_splits; i++)
        WEFT_TRY(cut_all(&pretokenizer->splits[i], matcher, pieces, err));
    if (pretokenizer->add_prefix_space && pieces->n > 0)
        WEFT_TRY(add_spaces(pieces, err));
    if (pretokenizer->words == NULL) return WEFT_OK;
    const weft_split words = {.pattern = pretokenizer->words};
    return cut_all(&words, matcher, pieces, err);
}
