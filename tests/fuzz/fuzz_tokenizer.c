/* Fuzzes the tokenizer. The first byte of the input says as what the rest is
 * taken: a tokenizer.json; text for a fixed tokenizer, which must come back as
 * it was; or token ids, whose stream must be the text of the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "router/text/byte_level.h"
#include "router/text/detok.h"
#include "router/text/stops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { LIMIT = 300 };

static const char BEFORE[] =
    "{\"added_tokens\": [{\"id\": 262, \"content\": \"<|end|>\", "
    "\"special\": true}, {\"id\": 263, \"content\": \"</t>\"}], "
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\p{N}{1,3}|\\\\s+$\"},"
    "\"behavior\": \"MergedWithPrevious\"}, {\"type\": \"ByteLevel\", "
    "\"add_prefix_space\": false}]}, \"decoder\": {\"type\": \"ByteLevel\"}, "
    "\"model\": {\"type\": \"BPE\", \"merges\": [\"a a\", \"aa a\", \"aa aa\","
    "\"\xC3\xA2 \xC4\xA4\"], \"vocab\": {";
static const char AFTER[] = "\"aa\": 256, \"aaa\": 257, \"aaaa\": 258, "
                            "\"\xC3\xA2\xC4\xA4\": 259}}}";

static weft_tokenizer *fixed(void)
{
    static weft_tokenizer *tokenizer;
    if (tokenizer != NULL) return tokenizer;
    weft_buf json = {0};
    weft_status st = weft_buf_add(&json, BEFORE, sizeof BEFORE - 1, NULL);
    for (int byte = 0; byte < 256 && st == WEFT_OK; byte++) {
        char text[3];
        weft_byte_level_encode((uint8_t)byte, text);
        const char *const escape = byte == '"' || byte == '\\' ? "\\" : "";
        st = weft_buf_printf(&json, NULL, "\"%s%s\": %d, ", escape, text, byte);
    }
    if (st == WEFT_OK) st = weft_buf_add(&json, AFTER, sizeof AFTER - 1, NULL);
    weft_err err = {0};
    if (st == WEFT_OK)
        st = weft_tokenizer_read_bytes("fixed", json.data, json.n, LIMIT,
                                       &tokenizer, &err);
    if (st != WEFT_OK) (void)fprintf(stderr, "%s\n", err.text);
    WEFT_ASSERT(st == WEFT_OK);
    weft_buf_deinit(&json);
    return tokenizer;
}

static void round_trip(const weft_tokenizer *t, const char *text, size_t n,
                       bool exact)
{
    for (int i = 0; i < 2; i++) {
        weft_ids ids = {0};
        weft_buf back = {0};
        const weft_encode_options options = {.add_special = !exact,
                                             .parse_special = i == 1};
        const weft_status st =
            weft_tokenizer_encode(t, text, n, options, &ids, NULL);
        if (exact) WEFT_ASSERT((st == WEFT_OK) == weft_utf8_valid(text, n));
        WEFT_ASSERT(weft_tokenizer_decode(t, ids.data, ids.n, false, &back,
                                          NULL) == WEFT_OK);
        WEFT_ASSERT(weft_utf8_valid(back.data, back.n));
        if (st == WEFT_OK && exact)
            WEFT_ASSERT(back.n == n &&
                        (n == 0 || memcmp(back.data, text, n) == 0));
        weft_ids_deinit(&ids);
        weft_buf_deinit(&back);
    }
}

static void as_document(const char *json, size_t n)
{
    static const char text[] = "Hello  w\xC3\xB6rld 123\r\n <|end|> e\xCC\x81";
    weft_tokenizer *t = NULL;
    if (weft_tokenizer_read_bytes("fuzz", json, n, LIMIT, &t, NULL) != WEFT_OK)
        return;
    round_trip(t, text, sizeof text - 1, false);
    weft_tokenizer_destroy(t);
}

static void as_ids(const uint8_t *data, size_t n)
{
    static const char *const strings[] = {"aa", "ab\xE2\x82\xAC", "<|end|>"};
    const weft_tokenizer *const t = fixed();
    const bool skip = n > 0 && data[0] % 2 == 1;
    weft_detok detok;
    weft_detok_init(&detok, t, skip);
    weft_stops *stops = NULL;
    WEFT_ASSERT(weft_stops_create(strings, 3, true, &stops, NULL) == WEFT_OK);
    weft_ids ids = {0};
    weft_buf streamed = {0}, whole = {0}, shown = {0};
    for (size_t i = 0; i + 1 < n; i += 2) {
        const int32_t id = (data[i] + 256 * data[i + 1]) % LIMIT;
        const size_t before = streamed.n;
        int32_t matched = -1;
        WEFT_ASSERT(weft_ids_add(&ids, &id, 1, NULL) == WEFT_OK);
        WEFT_ASSERT(weft_detok_push(&detok, id, &streamed, NULL) == WEFT_OK);
        WEFT_ASSERT(weft_utf8_valid(streamed.data, streamed.n));
        if (streamed.n > before)
            WEFT_ASSERT(weft_stops_push(stops, streamed.data + before,
                                        streamed.n - before, &shown, &matched,
                                        NULL) == WEFT_OK);
        WEFT_ASSERT(weft_utf8_valid(shown.data, shown.n));
    }
    WEFT_ASSERT(weft_detok_finish(&detok, &streamed, NULL) == WEFT_OK);
    WEFT_ASSERT(weft_tokenizer_decode(t, ids.data, ids.n, skip, &whole, NULL) ==
                WEFT_OK);
    WEFT_ASSERT(
        streamed.n == whole.n &&
        (whole.n == 0 || memcmp(streamed.data, whole.data, whole.n) == 0));
    WEFT_ASSERT(
        shown.n <= streamed.n &&
        (shown.n == 0 || memcmp(shown.data, streamed.data, shown.n) == 0));
    weft_ids_deinit(&ids);
    weft_buf_deinit(&streamed);
    weft_buf_deinit(&whole);
    weft_buf_deinit(&shown);
    weft_stops_destroy(stops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const char *const rest = (const char *)data + 1;
    switch (data[0] % 3) {
    case 0: as_document(rest, n - 1); break;
    case 1: round_trip(fixed(), rest, n - 1, true); break;
    default: as_ids(data + 1, n - 1); break;
    }
    return 0;
}
