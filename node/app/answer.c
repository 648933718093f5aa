#include "node/app/answer.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

static void add_count(json_t *object, const char *key, uint32_t count)
{
    (void)json_object_set_new(object, key, json_integer(count));
}

static void add_text(json_t *object, const char *key, weft_span text)
{
    if (text.n > 0)
        (void)json_object_set_new(object, key, json_stringn(text.data, text.n));
}

static void add_ids(json_t *object, const char *key, const int32_t *ids,
                    size_t n)
{
    if (n == 0) return;
    json_t *const list = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_integer(ids[i]));
    (void)json_object_set_new(object, key, list);
}

static json_t *chunk_object(const weft_chunk *chunk)
{
    json_t *const o = json_object();
    add_ids(o, "token_ids", chunk->ids, chunk->n_ids);
    add_count(o, "prompt_tokens", chunk->prompt_tokens);
    add_count(o, "completion_tokens", chunk->completion_tokens);
    add_count(o, "cached_tokens", chunk->cached_tokens);
    add_text(o, "text", chunk->text);
    return o;
}

static json_t *complete_object(const weft_complete *complete)
{
    json_t *const o = json_object();
    add_ids(o, "output_ids", complete->ids, complete->n_ids);
    add_text(o, "finish_reason", complete->finish_reason);
    add_count(o, "prompt_tokens", complete->prompt_tokens);
    add_count(o, "completion_tokens", complete->completion_tokens);
    add_count(o, "cached_tokens", complete->cached_tokens);
    if (complete->matched == WEFT_MATCHED_TOKEN)
        (void)json_object_set_new(o, "matched_token_id",
                                  json_integer(complete->matched_token));
    if (complete->matched == WEFT_MATCHED_STRING)
        add_text(o, "matched_stop_str", complete->matched_string);
    add_text(o, "text", complete->text);
    return o;
}

static weft_status show_json(weft_answer *answer,
                             const weft_generate_response *m, weft_err *err)
{
    json_t *const line =
        m->is_complete
            ? json_pack("{s:o}", "complete", complete_object(&m->complete))
            : json_pack("{s:o}", "chunk", chunk_object(&m->chunk));
    const bool shown =
        line != NULL && json_dumpf(line, answer->out, JSON_COMPACT) == 0;
    json_decref(line);
    if (!shown)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "a message cannot be shown as JSON");
    (void)fputc('\n', answer->out);
    return WEFT_OK;
}

static void show_text(weft_answer *answer, const weft_generate_response *m)
{
    if (m->is_complete) {
        if (answer->last_byte != '\n') (void)fputc('\n', answer->out);
        return;
    }
    const weft_span text = m->chunk.text;
    if (text.n == 0) return;
    (void)fwrite(text.data, 1, text.n, answer->out);
    answer->last_byte = text.data[text.n - 1];
}

static void show_ids(weft_answer *answer, const weft_generate_response *m)
{
    if (m->is_complete) {
        (void)fputc('\n', answer->out);
        return;
    }
    for (size_t i = 0; i < m->chunk.n_ids; i++) {
        (void)fprintf(answer->out, answer->any ? " %d" : "%d", m->chunk.ids[i]);
        answer->any = true;
    }
}

weft_status weft_answer_show(weft_answer *answer,
                             const weft_generate_response *message,
                             weft_err *err)
{
    switch (answer->form) {
    case WEFT_ANSWER_TEXT: show_text(answer, message); break;
    case WEFT_ANSWER_IDS: show_ids(answer, message); break;
    case WEFT_ANSWER_JSON: WEFT_TRY(show_json(answer, message, err)); break;
    }
    answer->is_complete = message->is_complete;
    if (fflush(answer->out) != 0 || ferror(answer->out))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the output: %s",
                         strerror(errno));
    return WEFT_OK;
}
