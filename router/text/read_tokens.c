/* The model's vocabulary, added tokens and merges. */
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "router/text/byte_level.h"
#include "router/text/json_read.h"
#include "router/text/read_internal.h"
#include "router/text/utf8_lossy.h"

static const char *const MODEL_KEYS[] = {"type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "vocab",
                                         "merges",
                                         NULL};

static const char *const ADDED_KEYS[] = {"id",      "content", "single_word",
                                         "lstrip",  "rstrip",  "normalized",
                                         "special", NULL};

/* Tokens by id while reading: text as the file writes it, borrowed from the
 * document. */
typedef struct by_id {
    const char **text;
    int32_t n;
} by_id;

static weft_status no_memory(const char *what, size_t n, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for %zu %s", n,
                     what);
}

/* A token's id from its JSON value. */
static weft_status read_id(const weft_tokenizer *t, const json_t *value,
                           const char *token, int32_t *id_out, weft_err *err)
{
    if (!json_is_integer(value))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "id of token \"%s\": %s, not an integer",
                         weft_json_quote(token).text, weft_json_kind(value));
    const json_int_t id = json_integer_value(value);
    if (id < 0 || id >= t->vocab_limit)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "token \"%s\" has id %lld, allowed are 0 to %d",
                         weft_json_quote(token).text, (long long)id,
                         t->vocab_limit - 1);
    *id_out = (int32_t)id;
    return WEFT_OK;
}

/* What makes BPE another algorithm than the one here. */
static weft_status check_model(json_t *model, weft_err *err)
{
    const char *type = NULL;
    WEFT_TRY(weft_json_type(model, "model", &type, err));
    if (strcmp(type, "BPE") != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model type \"%s\" is not supported, only BPE",
                         weft_json_quote(type).text);
    WEFT_TRY(weft_json_only(model, "model", MODEL_KEYS, err));
    static const char *const none[] = {"unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        const json_t *const value = json_object_get(model, none[i]);
        if (value == NULL || json_is_null(value)) continue;
        if (json_is_string(value) && json_string_length(value) == 0) continue;
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.%s is not supported", none[i]);
    }
    const json_t *const dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) <= 0.0))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.dropout is not supported");
    bool fallback = false, fuse = false;
    WEFT_TRY(weft_json_bool(model, "model", "fuse_unk", false, &fuse, err));
    WEFT_TRY(
        weft_json_bool(model, "model", "byte_fallback", false, &fallback, err));
    if (fallback)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.byte_fallback is not supported");
    return WEFT_OK;
}

static weft_status check_added_list(const json_t *list, size_t *n_out,
                                    weft_err *err)
{
    *n_out = 0;
    if (list == NULL || json_is_null(list)) return WEFT_OK;
    if (!json_is_array(list))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "added_tokens: %s, not an array",
                         weft_json_kind(list));
    *n_out = json_array_size(list);
    return WEFT_OK;
}

/* One entry of added_tokens, its content copied. */
static weft_status read_added(const weft_tokenizer *t, json_t *entry, size_t i,
                              weft_added_token *token_out, weft_err *err)
{
    char where[WEFT_JSON_WHERE_BYTES];
    (void)snprintf(where, sizeof where, "added_tokens[%zu]", i);
    if (!json_is_object(entry))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: %s, not an object",
                         where, weft_json_kind(entry));
    WEFT_TRY(weft_json_only(entry, where, ADDED_KEYS, err));
    weft_added_token token = {0};
    const char *content = NULL;
    WEFT_TRY(weft_json_string(entry, where, "content", &content, err));
    WEFT_TRY(read_id(t, json_object_get(entry, "id"), content, &token.id, err));
    WEFT_TRY(weft_json_bool(entry, where, "single_word", false,
                            &token.single_word, err));
    WEFT_TRY(weft_json_bool(entry, where, "lstrip", false, &token.lstrip, err));
    WEFT_TRY(weft_json_bool(entry, where, "rstrip", false, &token.rstrip, err));
    WEFT_TRY(
        weft_json_bool(entry, where, "special", false, &token.special, err));
    const size_t n = strlen(content);
    if (n > WEFT_ADDED_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: content of %zu bytes, limit %d", where, n,
                         WEFT_ADDED_BYTES_MAX);
    token.n = (uint32_t)n;
    token.content = weft_mem_copy_text(content, n);
    if (token.content == NULL) return no_memory("bytes", n, err);
    *token_out = token;
    return WEFT_OK;
}

static weft_status read_added_list(weft_tokenizer *t, const json_t *list,
                                   weft_err *err)
{
    size_t n = 0;
    WEFT_TRY(check_added_list(list, &n, err));
    t->added = weft_mem_new(n, sizeof *t->added);
    if (t->added == NULL) return no_memory("added tokens", n, err);
    for (size_t i = 0; i < n; i++) {
        WEFT_TRY(read_added(t, json_array_get(list, i), i, &t->added[i], err));
        t->n_added = i + 1;
    }
    return WEFT_OK;
}

/* The largest id and one. */
static weft_status count_ids(weft_tokenizer *t, json_t *vocab, weft_err *err)
{
    const char *token = NULL;
    json_t *value = NULL;
    json_object_foreach(vocab, token, value)
    {
        int32_t id = 0;
        WEFT_TRY(read_id(t, value, token, &id, err));
        if (id >= t->n_ids) t->n_ids = id + 1;
    }
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].id >= t->n_ids) t->n_ids = t->added[i].id + 1;
    return WEFT_OK;
}

static weft_status claim(const by_id *tokens, int32_t id, const char *token,
                         weft_err *err)
{
    if (tokens->text[id] != NULL && strcmp(tokens->text[id], token) != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "id %d is of two tokens, \"%s\" and \"%s\"", id,
                         weft_json_quote(tokens->text[id]).text,
                         weft_json_quote(token).text);
    tokens->text[id] = token;
    return WEFT_OK;
}

static weft_status claim_added(weft_tokenizer *t, const by_id *tokens,
                               const json_t *vocab, weft_err *err)
{
    for (size_t i = 0; i < t->n_added; i++) {
        const weft_added_token *const token = &t->added[i];
        const json_t *const other = json_object_get(vocab, token->content);
        if (other != NULL && json_integer_value(other) != token->id)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "token \"%s\" has two ids, %lld in model.vocab "
                             "and %d in added_tokens",
                             weft_json_quote(token->content).text,
                             (long long)json_integer_value(other), token->id);
        WEFT_TRY(claim(tokens, token->id, token->content, err));
        if (t->kinds[token->id] & WEFT_TOKEN_ADDED)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "id %d (token \"%s\") is twice in added_tokens",
                             token->id, weft_json_quote(token->content).text);
        t->kinds[token->id] |=
            (uint8_t)(WEFT_TOKEN_PRESENT | WEFT_TOKEN_ADDED |
                      (token->special ? WEFT_TOKEN_SPECIAL : 0));
    }
    return WEFT_OK;
}

static weft_status collect(weft_tokenizer *t, const by_id *tokens,
                           json_t *vocab, weft_err *err)
{
    const char *token = NULL;
    json_t *value = NULL;
    json_object_foreach(vocab, token, value)
    {
        const int32_t id = (int32_t)json_integer_value(value);
        WEFT_TRY(claim(tokens, id, token, err));
        t->kinds[id] = WEFT_TOKEN_PRESENT | WEFT_TOKEN_MODEL;
    }
    return claim_added(t, tokens, vocab, err);
}

/* Each token's bytes: what its characters stand for, or, if one of them is not
 * of the byte alphabet, its own UTF-8. */
static weft_status fill_bytes(weft_tokenizer *t, const by_id *tokens,
                              weft_err *err)
{
    size_t total = 0;
    for (int32_t id = 0; id < tokens->n; id++)
        if (tokens->text[id] != NULL) total += strlen(tokens->text[id]);
    t->bytes = weft_mem_new(total + 1, 1);
    t->start = weft_mem_new((size_t)t->n_ids + 1, sizeof *t->start);
    if (t->bytes == NULL || t->start == NULL || total > UINT32_MAX)
        return no_memory("bytes of tokens", total, err);
    size_t used = 0;
    for (int32_t id = 0; id < tokens->n; id++) {
        t->start[id] = (uint32_t)used;
        const char *const text = tokens->text[id];
        if (text == NULL) continue;
        const size_t n = strlen(text);
        size_t made = 0;
        if (weft_byte_level_decode(text, n, t->bytes + used, &made)) {
            t->kinds[id] |= WEFT_TOKEN_BYTES;
        } else {
            memcpy(t->bytes + used, text, n);
            made = n;
        }
        const size_t shown = weft_utf8_lossy_bytes_max(t->bytes + used, made);
        used += made;
        if (made > t->longest_token_bytes) t->longest_token_bytes = made;
        if (shown > t->longest_text_bytes) t->longest_text_bytes = shown;
    }
    t->start[t->n_ids] = (uint32_t)used;
    return WEFT_OK;
}

/* A byte that valid UTF-8 can hold must have a token: otherwise text would be
 * lost on the way in. */
static weft_status find_byte_tokens(weft_tokenizer *t, const json_t *vocab,
                                    weft_err *err)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[3];
        weft_byte_level_encode((uint8_t)byte, text);
        const json_t *const id = json_object_get(vocab, text);
        const bool possible = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
        if (id == NULL && possible)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "model.vocab: no token \"%s\" for byte %d; not "
                             "a byte-level vocabulary",
                             text, byte);
        t->bpe.byte_ids[byte] =
            id == NULL ? -1 : (int32_t)json_integer_value(id);
    }
    return WEFT_OK;
}

static weft_status index_words(weft_tokenizer *t, weft_err *err)
{
    size_t n_slots = 2;
    while (n_slots < 2 * (size_t)t->n_ids) n_slots *= 2;
    t->words = weft_mem_new(n_slots, sizeof *t->words);
    if (t->words == NULL) return no_memory("words", n_slots, err);
    t->n_word_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) t->words[i] = -1;
    const uint8_t wanted = WEFT_TOKEN_MODEL | WEFT_TOKEN_BYTES;
    for (int32_t id = 0; id < t->n_ids; id++) {
        if ((t->kinds[id] & wanted) != wanted) continue;
        size_t n = 0;
        const char *const bytes = weft_tokenizer_token_bytes(t, id, &n);
        size_t slot = (size_t)weft_hash_fnv(WEFT_FNV_START, bytes, n);
        while (t->words[slot & (n_slots - 1)] >= 0) slot++;
        t->words[slot & (n_slots - 1)] = id;
    }
    return WEFT_OK;
}

weft_status weft_read_tokens(weft_tokenizer *t, const json_t *root,
                             weft_err *err)
{
    json_t *const model = json_object_get(root, "model");
    const json_t *const added = json_object_get(root, "added_tokens");
    WEFT_TRY(check_model(model, err));
    json_t *const vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.vocab: %s, not an object",
                         weft_json_kind(vocab));
    bool ignore_merges = false;
    WEFT_TRY(weft_json_bool(model, "model", "ignore_merges", false,
                            &ignore_merges, err));
    WEFT_TRY(read_added_list(t, added, err));
    WEFT_TRY(count_ids(t, vocab, err));
    t->kinds = weft_mem_new((size_t)t->n_ids, sizeof *t->kinds);
    if (t->kinds == NULL) return no_memory("tokens", (size_t)t->n_ids, err);
    by_id tokens = {.n = t->n_ids};
    tokens.text = weft_mem_new((size_t)t->n_ids, sizeof *tokens.text);
    if (tokens.text == NULL) return no_memory("tokens", (size_t)t->n_ids, err);
    weft_status st = collect(t, &tokens, vocab, err);
    if (st == WEFT_OK) st = fill_bytes(t, &tokens, err);
    weft_mem_free(tokens.text);
    if (st == WEFT_OK) st = find_byte_tokens(t, vocab, err);
    if (st == WEFT_OK && ignore_merges) st = index_words(t, err);
    return st;
}

/* The two sides of entry i: a pair of strings, or one with a space between. */
static weft_status merge_sides(const json_t *entry, size_t i, weft_buf *sides,
                               size_t *left_n_out, weft_err *err)
{
    weft_buf_clear(sides);
    if (json_is_array(entry) && json_array_size(entry) == 2 &&
        json_is_string(json_array_get(entry, 0)) &&
        json_is_string(json_array_get(entry, 1))) {
        const char *const left = json_string_value(json_array_get(entry, 0));
        const char *const right = json_string_value(json_array_get(entry, 1));
        *left_n_out = strlen(left);
        return weft_buf_printf(sides, err, "%s%c%s", left, '\0', right);
    }
    const char *const text = json_string_value(entry);
    const char *const space = text == NULL ? NULL : strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.merges[%zu]: neither a pair of strings nor "
                         "two tokens with a space between",
                         i);
    *left_n_out = (size_t)(space - text);
    WEFT_TRY(weft_buf_add(sides, text, strlen(text), err));
    sides->data[*left_n_out] = '\0';
    return WEFT_OK;
}

static weft_status token_id(const json_t *vocab, const char *token, size_t i,
                            int32_t *id_out, weft_err *err)
{
    const json_t *const id = json_object_get(vocab, token);
    if (id == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model.merges[%zu]: token \"%s\" is not in "
                         "model.vocab",
                         i, weft_json_quote(token).text);
    *id_out = (int32_t)json_integer_value(id);
    return WEFT_OK;
}

static weft_status add_merge(weft_tokenizer *t, const json_t *vocab,
                             const json_t *entry, size_t i, weft_buf *sides,
                             weft_err *err)
{
    size_t left_n = 0;
    int32_t left = 0, right = 0, joined = 0;
    WEFT_TRY(merge_sides(entry, i, sides, &left_n, err));
    const size_t right_n = sides->n - left_n - 1;
    WEFT_TRY(token_id(vocab, sides->data, i, &left, err));
    WEFT_TRY(token_id(vocab, sides->data + left_n + 1, i, &right, err));
    memmove(sides->data + left_n, sides->data + left_n + 1, right_n + 1);
    WEFT_TRY(token_id(vocab, sides->data, i, &joined, err));
    weft_bpe_add(&t->bpe, left, right, (uint32_t)i, joined);
    return WEFT_OK;
}

weft_status weft_read_merges(weft_tokenizer *t, const json_t *model,
                             weft_err *err)
{
    json_t *merges = NULL;
    WEFT_TRY(weft_json_array(model, "model", "merges", &merges, err));
    const json_t *const vocab = json_object_get(model, "vocab");
    const size_t n = json_array_size(merges);
    WEFT_TRY(weft_bpe_reserve(&t->bpe, n, err));
    weft_status st = WEFT_OK;
    weft_buf sides = {0};
    for (size_t i = 0; i < n && st == WEFT_OK; i++)
        st = add_merge(t, vocab, json_array_get(merges, i), i, &sides, err);
    weft_buf_deinit(&sides);
    return st;
}
