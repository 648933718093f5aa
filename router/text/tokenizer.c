#include "router/text/tokenizer.h"

#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "router/text/normalize.h"
#include "router/text/tokenizer_internal.h"
#include "router/text/utf8_lossy.h"

/* Places in text are 32 bits; NFC can make a text up to three times as long,
 * a space before each piece at most twice. */
enum { TEXT_BYTES_MAX = 1 << 28 };

void weft_tokenizer_destroy(weft_tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    weft_pretokenizer_deinit(&tokenizer->pretokenizer);
    weft_added_set_deinit(&tokenizer->raw);
    weft_added_set_deinit(&tokenizer->normalized);
    for (size_t i = 0; i < tokenizer->n_added; i++)
        weft_mem_free(tokenizer->added[i].content);
    weft_mem_free(tokenizer->added);
    weft_bpe_deinit(&tokenizer->bpe);
    weft_ids_deinit(&tokenizer->front);
    weft_ids_deinit(&tokenizer->after);
    weft_mem_free(tokenizer->words);
    weft_mem_free(tokenizer->kinds);
    weft_mem_free(tokenizer->start);
    weft_mem_free(tokenizer->bytes);
    weft_mem_free(tokenizer);
}

/* One call of encode. */
typedef struct encoding {
    const weft_tokenizer *tokenizer;
    bool parse_special;
    weft_matcher *matcher;
    weft_pieces pieces;
    weft_buf normal;
    weft_bpe_scratch scratch;
    weft_ids *ids;
} encoding;

static weft_status encode_word(encoding *e, const char *word, size_t n,
                               weft_err *err)
{
    const weft_tokenizer *const t = e->tokenizer;
    const int32_t id =
        t->words == NULL ? -1 : weft_tokenizer_word_id(t, word, n);
    if (id >= 0) return weft_ids_add(e->ids, &id, 1, err);
    return weft_bpe_encode(&t->bpe, &e->scratch, word, n, e->ids, err);
}

/* Text without added tokens, normalized. */
static weft_status encode_words(encoding *e, const char *text, size_t n,
                                weft_err *err)
{
    if (n == 0) return WEFT_OK;
    WEFT_TRY(weft_pretokenizer_run(&e->tokenizer->pretokenizer, e->matcher,
                                   text, n, &e->pieces, err));
    for (size_t i = 0; i < e->pieces.n; i++) {
        const weft_span span = e->pieces.spans[i];
        WEFT_TRY(encode_word(e, e->pieces.text + span.start,
                             span.end - span.start, err));
    }
    return WEFT_OK;
}

/* Text without the added tokens that are looked for as written. */
static weft_status encode_plain(encoding *e, const char *text, size_t n,
                                weft_err *err)
{
    if (n == 0) return WEFT_OK;
    if (e->tokenizer->nfc) {
        weft_buf_clear(&e->normal);
        WEFT_TRY(weft_nfc(text, n, &e->normal, err));
        text = e->normal.data;
        n = e->normal.n;
    }
    weft_added_scan scan = {.text = text, .n = n, .specials = e->parse_special};
    int32_t id = 0;
    size_t done = 0, start = 0;
    while (
        weft_added_scan_next(&e->tokenizer->normalized, &scan, &start, &id)) {
        WEFT_TRY(encode_words(e, text + done, start - done, err));
        WEFT_TRY(weft_ids_add(e->ids, &id, 1, err));
        done = scan.done;
    }
    return encode_words(e, text + done, n - done, err);
}

static weft_status encode_all(encoding *e, const char *text, size_t n,
                              weft_err *err)
{
    weft_added_scan scan = {.text = text, .n = n, .specials = e->parse_special};
    int32_t id = 0;
    size_t done = 0, start = 0;
    while (weft_added_scan_next(&e->tokenizer->raw, &scan, &start, &id)) {
        WEFT_TRY(encode_plain(e, text + done, start - done, err));
        WEFT_TRY(weft_ids_add(e->ids, &id, 1, err));
        done = scan.done;
    }
    return encode_plain(e, text + done, n - done, err);
}

weft_status weft_tokenizer_encode(const weft_tokenizer *tokenizer,
                                  const char *text, size_t n,
                                  weft_encode_options options, weft_ids *ids,
                                  weft_err *err)
{
    if (n > TEXT_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "text of %zu bytes, limit %d", n, TEXT_BYTES_MAX);
    if (!weft_utf8_valid(text, n))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "text is not UTF-8");
    const size_t n_before = ids->n;
    encoding e = {.tokenizer = tokenizer,
                  .parse_special = options.parse_special,
                  .ids = ids};
    weft_status st = weft_matcher_create(n, &e.matcher, err);
    if (st == WEFT_OK && options.add_special)
        st = weft_ids_add(ids, tokenizer->front.data, tokenizer->front.n, err);
    if (st == WEFT_OK) st = encode_all(&e, text, n, err);
    if (st == WEFT_OK && options.add_special)
        st = weft_ids_add(ids, tokenizer->after.data, tokenizer->after.n, err);
    if (st != WEFT_OK) ids->n = n_before;
    weft_matcher_destroy(e.matcher);
    weft_pieces_deinit(&e.pieces);
    weft_buf_deinit(&e.normal);
    weft_bpe_scratch_deinit(&e.scratch);
    return st;
}

weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer,
                                  const int32_t *ids, size_t n,
                                  bool skip_special, weft_buf *out,
                                  weft_err *err)
{
    weft_status st = WEFT_OK;
    const size_t n_before = out->n;
    weft_utf8_lossy decoder = {0};
    for (size_t i = 0; i < n && st == WEFT_OK; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->vocab_limit) {
            st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                           "token id %d at place %zu, limit %d", ids[i], i,
                           tokenizer->vocab_limit);
            break;
        }
        if (skip_special && weft_tokenizer_is_special(tokenizer, ids[i]))
            continue;
        size_t bytes = 0;
        const char *const token =
            weft_tokenizer_token_bytes(tokenizer, ids[i], &bytes);
        st = weft_utf8_lossy_push(&decoder, token, bytes, out, err);
    }
    if (st == WEFT_OK) st = weft_utf8_lossy_finish(&decoder, out, err);
    if (st != WEFT_OK && out->n > n_before) {
        out->n = n_before;
        out->data[n_before] = '\0';
    }
    return st;
}

bool weft_tokenizer_has(const weft_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->n_ids &&
           (tokenizer->kinds[id] & WEFT_TOKEN_PRESENT) != 0;
}

bool weft_tokenizer_is_special(const weft_tokenizer *tokenizer, int32_t id)
{
    return weft_tokenizer_has(tokenizer, id) &&
           (tokenizer->kinds[id] & WEFT_TOKEN_SPECIAL) != 0;
}

const char *weft_tokenizer_token_bytes(const weft_tokenizer *tokenizer,
                                       int32_t id, size_t *n_out)
{
    *n_out = 0;
    if (!weft_tokenizer_has(tokenizer, id)) return "";
    *n_out = tokenizer->start[id + 1] - tokenizer->start[id];
    return tokenizer->bytes + tokenizer->start[id];
}

int32_t weft_tokenizer_vocab_limit(const weft_tokenizer *tokenizer)
{
    return tokenizer->vocab_limit;
}

int32_t weft_tokenizer_added_id(const weft_tokenizer *tokenizer,
                                const char *content)
{
    const size_t n = strlen(content);
    for (size_t i = 0; i < tokenizer->n_added; i++)
        if (tokenizer->added[i].n == n &&
            memcmp(tokenizer->added[i].content, content, n) == 0)
            return tokenizer->added[i].id;
    return -1;
}

int32_t weft_tokenizer_word_id(const weft_tokenizer *tokenizer,
                               const char *bytes, size_t n)
{
    const size_t mask = tokenizer->n_word_slots - 1;
    size_t i = (size_t)weft_hash_fnv(WEFT_FNV_START, bytes, n) & mask;
    for (; tokenizer->words[i] >= 0; i = (i + 1) & mask) {
        size_t token_n = 0;
        const char *const token = weft_tokenizer_token_bytes(
            tokenizer, tokenizer->words[i], &token_n);
        if (token_n == n && memcmp(token, bytes, n) == 0)
            return tokenizer->words[i];
    }
    return -1;
}

size_t weft_tokenizer_longest_text_bytes(const weft_tokenizer *tokenizer)
{
    return tokenizer->longest_text_bytes;
}

/* White space of any length may go with a token that strips. */
static bool strips(const weft_added_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->tokens[i].lstrip || set->tokens[i].rstrip) return true;
    return false;
}

size_t weft_tokenizer_tokens_at_least(const weft_tokenizer *tokenizer, size_t n)
{
    if (tokenizer->longest_token_bytes == 0 ||
        weft_pretokenizer_removes(&tokenizer->pretokenizer) ||
        strips(&tokenizer->raw) || strips(&tokenizer->normalized))
        return 0;
    if (tokenizer->nfc) n /= WEFT_NFC_SHRINK_MAX;
    return n / tokenizer->longest_token_bytes + tokenizer->front.n +
           tokenizer->after.n;
}
