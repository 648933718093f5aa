#include "node/rpc/pending.h"

#include "node/base/check.h"

enum { KEEP_BYTES = 4096 }; /* of each buffer, once sent */

size_t weft_pending_bytes(const weft_pending *p)
{
    return p->ids.n + p->text.n + p->values.n + p->value_ids.n + p->n_top.n +
           p->top_values.n + p->top_ids.n;
}

static size_t top_entries(const weft_logprobs *logprobs)
{
    size_t n = 0;
    for (size_t i = 0; logprobs->n_top != NULL && i < logprobs->n_tokens; i++)
        n += (size_t)logprobs->n_top[i];
    return n;
}

static weft_status add_logprobs(weft_pending *p, const weft_logprobs *l,
                                size_t n_entries, weft_err *err)
{
    const size_t n = l->n_tokens;
    if (n == 0) return WEFT_OK;
    /* A request asks for top entries of all its tokens or of none. */
    WEFT_ASSERT(p->values.n == 0 || (l->n_top != NULL) == (p->n_top.n > 0));
    WEFT_TRY(weft_buf_add(&p->values, l->values, n * sizeof *l->values, err));
    WEFT_TRY(weft_buf_add(&p->value_ids, l->ids, n * sizeof *l->ids, err));
    if (l->n_top == NULL) return WEFT_OK;
    WEFT_TRY(weft_buf_add(&p->n_top, l->n_top, n * sizeof *l->n_top, err));
    if (n_entries == 0) return WEFT_OK;
    WEFT_TRY(weft_buf_add(&p->top_values, l->top_values,
                          n_entries * sizeof *l->top_values, err));
    return weft_buf_add(&p->top_ids, l->top_ids, n_entries * sizeof *l->top_ids,
                        err);
}

weft_status weft_pending_add(weft_pending *p, const weft_chunk *chunk,
                             size_t bytes_max, weft_err *err)
{
    const size_t n_entries = top_entries(&chunk->logprobs);
    const size_t bytes = chunk->n_ids * sizeof *chunk->ids + chunk->text.n +
                         chunk->logprobs.n_tokens * 12 + n_entries * 8;
    const size_t waiting = weft_pending_bytes(p);
    if (bytes > bytes_max || waiting > bytes_max - bytes)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "the client does not read: %zu bytes wait for it "
                         "(allowed: at most %zu)",
                         waiting + bytes, bytes_max);

    p->any = true;
    p->prompt_tokens = chunk->prompt_tokens;
    p->completion_tokens = chunk->completion_tokens;
    p->cached_tokens = chunk->cached_tokens;
    if (chunk->n_ids > 0)
        WEFT_TRY(weft_buf_add(&p->ids, chunk->ids,
                              chunk->n_ids * sizeof *chunk->ids, err));
    if (chunk->text.n > 0)
        WEFT_TRY(weft_buf_add(&p->text, chunk->text.data, chunk->text.n, err));
    return add_logprobs(p, &chunk->logprobs, n_entries, err);
}

/* Buffers come from the allocator, so they are aligned for any number. */
static const void *start_of(const weft_buf *buf)
{
    return buf->n > 0 ? buf->data : NULL;
}

weft_chunk weft_pending_chunk(const weft_pending *p)
{
    return (weft_chunk){
        .ids = start_of(&p->ids),
        .n_ids = p->ids.n / sizeof(int32_t),
        .text = {start_of(&p->text), p->text.n},
        .prompt_tokens = p->prompt_tokens,
        .completion_tokens = p->completion_tokens,
        .cached_tokens = p->cached_tokens,
        .logprobs = {.n_tokens = p->values.n / sizeof(float),
                     .values = start_of(&p->values),
                     .ids = start_of(&p->value_ids),
                     .n_top = start_of(&p->n_top),
                     .top_values = start_of(&p->top_values),
                     .top_ids = start_of(&p->top_ids)},
    };
}

static void buffers(weft_pending *p, void (*act)(weft_buf *buf))
{
    weft_buf *const all[] = {&p->ids,       &p->text,  &p->values,
                             &p->value_ids, &p->n_top, &p->top_values,
                             &p->top_ids};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) act(all[i]);
}

static void clear(weft_buf *buf)
{
    if (buf->capacity > KEEP_BYTES)
        weft_buf_deinit(buf);
    else
        weft_buf_clear(buf);
}

void weft_pending_clear(weft_pending *p)
{
    p->any = false;
    buffers(p, clear);
}

void weft_pending_deinit(weft_pending *p)
{
    p->any = false;
    buffers(p, weft_buf_deinit);
}
