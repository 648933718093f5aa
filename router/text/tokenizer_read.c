#include <string.h>

#include "node/base/file.h"
#include "node/base/mem.h"
#include "router/text/json_read.h"
#include "router/text/normalize.h"
#include "router/text/read_internal.h"

/* Published tokenizer.json files are below 40 MB. */
enum {
    FILE_BYTES_MAX = 256 << 20,
    CONFIG_BYTES_MAX = 16 << 20,
};

static const char *const ROOT_KEYS[] = {
    "version",       "truncation",     "padding", "added_tokens", "normalizer",
    "pre_tokenizer", "post_processor", "decoder", "model",        NULL};

/* Each added token goes to the set of the stage at which it is looked for. */
static weft_status fill_added_sets(weft_tokenizer *t, const bool *normalized,
                                   weft_err *err)
{
    weft_status st = WEFT_OK;
    weft_buf nfc = {0};
    for (size_t i = 0; i < t->n_added && st == WEFT_OK; i++) {
        weft_added_token token = t->added[i];
        if (token.n == 0) continue; /* would be found everywhere: never */
        if (normalized[i] && t->nfc) {
            weft_buf_clear(&nfc);
            st = weft_nfc(token.content, token.n, &nfc, err);
            if (st != WEFT_OK) break;
            token.content = nfc.data;
            token.n = (uint32_t)nfc.n;
        }
        if (token.n > t->longest_token_bytes) t->longest_token_bytes = token.n;
        st = weft_added_set_add(normalized[i] ? &t->normalized : &t->raw,
                                &token, err);
    }
    weft_buf_deinit(&nfc);
    weft_added_set_seal(&t->raw);
    weft_added_set_seal(&t->normalized);
    return st;
}

static weft_status read_added_sets(weft_tokenizer *t, const json_t *root,
                                   weft_err *err)
{
    weft_status st = WEFT_OK;
    bool *const normalized = weft_mem_new(t->n_added, sizeof *normalized);
    if (normalized == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu added tokens", t->n_added);
    const json_t *const list = json_object_get(root, "added_tokens");
    for (size_t i = 0; i < t->n_added && st == WEFT_OK; i++)
        st = weft_json_bool(json_array_get(list, i), "added_tokens",
                            "normalized", false, &normalized[i], err);
    if (st == WEFT_OK) st = fill_added_sets(t, normalized, err);
    weft_mem_free(normalized);
    return st;
}

static weft_status read_root(weft_tokenizer *t, json_t *root, weft_err *err)
{
    WEFT_TRY(weft_json_only(root, "the document", ROOT_KEYS, err));
    WEFT_TRY(weft_read_tokens(t, root, err));
    WEFT_TRY(weft_read_merges(t, json_object_get(root, "model"), err));
    WEFT_TRY(weft_read_normalizer(t, root, err));
    WEFT_TRY(weft_read_pretokenizer(t, root, err));
    WEFT_TRY(weft_read_post_processor(t, root, err));
    WEFT_TRY(weft_read_decoder(root, err));
    return read_added_sets(t, root, err);
}

weft_status weft_tokenizer_read_bytes(const char *name, const char *json,
                                      size_t n, int32_t vocab_limit,
                                      weft_tokenizer **tokenizer_out,
                                      weft_err *err)
{
    weft_status st = WEFT_OK;
    json_t *root = NULL;
    weft_tokenizer *t = NULL;
    if (n > FILE_BYTES_MAX) {
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%zu bytes, limit %d", n,
                       FILE_BYTES_MAX);
        goto done;
    }
    st = weft_json_parse(json, n, &root, err);
    if (st != WEFT_OK) goto done;
    t = weft_mem_new(1, sizeof *t);
    if (t == NULL) {
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no memory for a tokenizer");
        goto done;
    }
    t->vocab_limit = vocab_limit;
    st = read_root(t, root, err);
    if (st == WEFT_OK) {
        *tokenizer_out = t;
        t = NULL; /* the caller's */
    }

done:
    weft_tokenizer_destroy(t);
    json_decref(root);
    return st == WEFT_OK ? st : WEFT_WRAP(err, st, "%s", name);
}

weft_status weft_tokenizer_read(const char *path, int32_t vocab_limit,
                                weft_tokenizer **tokenizer_out, weft_err *err)
{
    weft_buf json = {0};
    weft_status st = weft_file_read_all(path, FILE_BYTES_MAX, &json, err);
    if (st == WEFT_OK)
        st = weft_tokenizer_read_bytes(path, json.n > 0 ? json.data : "",
                                       json.n, vocab_limit, tokenizer_out, err);
    weft_buf_deinit(&json);
    return st;
}

/* "eos_token" of a tokenizer_config.json. */
static weft_status resolve_eos(const weft_tokenizer *t, const json_t *root,
                               int32_t *id_out, weft_err *err)
{
    const json_t *eos = json_object_get(root, "eos_token");
    if (eos == NULL || json_is_null(eos)) {
        *id_out = -1;
        return WEFT_OK;
    }
    if (json_is_object(eos)) eos = json_object_get(eos, "content");
    if (!json_is_string(eos))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "eos_token: neither a string nor an object with a "
                         "string \"content\"");
    const int32_t id = weft_tokenizer_added_id(t, json_string_value(eos));
    if (id < 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "eos_token \"%s\" is not an added token of the "
                         "tokenizer",
                         weft_json_quote(json_string_value(eos)).text);
    *id_out = id;
    return WEFT_OK;
}

weft_status weft_tokenizer_eos_read(const weft_tokenizer *tokenizer,
                                    const char *path, int32_t *id_out,
                                    weft_err *err)
{
    weft_buf json = {0};
    json_t *root = NULL;
    weft_status st = weft_file_read_all(path, CONFIG_BYTES_MAX, &json, err);
    if (st != WEFT_OK) return st; /* names the file already */
    st = weft_json_parse(json.n > 0 ? json.data : "", json.n, &root, err);
    if (st == WEFT_OK) st = resolve_eos(tokenizer, root, id_out, err);
    json_decref(root);
    weft_buf_deinit(&json);
    return st == WEFT_OK ? st : WEFT_WRAP(err, st, "%s", path);
}
