/* Rows of a step on a device: which are meant is told by lists that are
 * uploaded; the link packs and sends those that stay there, and answers are
 * moved to their places. */
#include <string.h>

#include "shard/expert/exchange_internal.h"

static weft_status create_lists(weft_exchange *ex, weft_exchange_lane *lane,
                                weft_err *err)
{
    const weft_memory *const memory = ex->options.memory;
    const int64_t bytes = 2 * (int64_t)ex->pairs_max * 4;
    void *host = NULL;
    void *ops = NULL;
    WEFT_TRY(memory->api->alloc_host(memory->device, bytes, &host, err));
    lane->x_rows = host;
    lane->y_rows = lane->x_rows + ex->pairs_max;
    WEFT_TRY(
        weft_memory_alloc(memory, bytes, "exchange: lists of rows", &ops, err));
    lane->x_rows_ops = ops;
    lane->y_rows_ops = lane->x_rows_ops + ex->pairs_max;
    return WEFT_OK;
}

weft_status weft_exchange_near_create(weft_exchange *ex, weft_err *err)
{
    const weft_memory *const memory = ex->options.memory;
    void *answer = NULL;
    ex->on_device = memory != NULL && !weft_memory_is_host(memory);
    if (!ex->on_device) return WEFT_OK;
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++)
        WEFT_TRY(create_lists(ex, &ex->lanes[i], err));
    WEFT_TRY(weft_memory_alloc(
        memory, (int64_t)WEFT_ANSWER_ROWS_MAX * ex->config->hidden_size * 4,
        "exchange: rows of an answer", &answer, err));
    ex->answer = answer;
    return WEFT_OK;
}

void weft_exchange_near_destroy(weft_exchange *ex)
{
    if (!ex->on_device) return;
    const weft_memory *const memory = ex->options.memory;
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++) {
        memory->api->free_host(memory->device, ex->lanes[i].x_rows);
        weft_memory_free(memory, ex->lanes[i].x_rows_ops);
    }
    weft_memory_free(memory, ex->answer);
}

bool weft_exchange_near_can(const weft_exchange *ex,
                            const weft_exchange_held *held)
{
    if (!ex->on_device) return false;
    for (int32_t i = 0; i < held->map->n_peers; i++) {
        if (held->slots[i] == WEFT_NO_SLOT) continue;
        const weft_exchange_slot *const slot = &ex->slots[held->slots[i]];
        if (weft_exchange_usable(slot, held->map->epoch) &&
            !weft_link_is_near(slot->link))
            return false;
    }
    return true;
}

int32_t weft_exchange_near_count(const weft_exchange *ex)
{
    int32_t n = 0;
    for (int32_t s = 0; s < ex->n_slots; s++)
        if (ex->slots[s].link != NULL && weft_link_is_near(ex->slots[s].link))
            n++;
    return n;
}

weft_status weft_exchange_near_send(weft_exchange *ex, weft_exchange_lane *lane,
                                    weft_exchange_piece *piece,
                                    const weft_frame *frame, weft_err *err)
{
    const weft_near_rows rows = {.x = lane->call.x_near,
                                 .x_rows = lane->x_rows_ops + piece->first};
    /* Tried again, it is the same list. */
    if (!piece->is_put)
        weft_memory_put(ex->options.memory, lane->x_rows_ops + piece->first,
                        lane->x_rows + piece->first,
                        (int64_t)frame->n_rows * 4);
    piece->is_put = true;
    return weft_link_send_near(ex->slots[piece->slot].link, frame, &rows, err);
}

/* Rows of the host, through the caller's `out`, where each place is used once
 * in a call as well, and through one block of the device: the next ones come
 * there behind the op that takes these away. */
static const float *put_rows(weft_exchange *ex, weft_exchange_lane *lane,
                             const weft_frame *frame, int32_t at)
{
    const int64_t width = ex->config->hidden_size;
    const int64_t bytes = frame->n_rows * width * 4;
    float *const host = lane->call.out + at * width;
    memcpy(host, frame->rows, (size_t)bytes);
    weft_memory_put(ex->options.memory, ex->answer, host, bytes);
    return ex->answer;
}

void weft_exchange_near_place(weft_exchange *ex, weft_exchange_lane *lane,
                              const weft_frame *frame, const uint32_t *pairs)
{
    const weft_memory *const memory = ex->options.memory;
    const int32_t n_pairs = lane->call.n_rows * lane->call.top_k;
    const int32_t at = n_pairs - lane->n_missing;
    for (int32_t i = 0; i < frame->n_rows; i++)
        lane->y_rows[at + i] = (int32_t)pairs[i];
    weft_memory_put(memory, lane->y_rows_ops + at, lane->y_rows + at,
                    (int64_t)frame->n_rows * 4);
    const weft_move move = {
        .x = frame->is_near ? frame->rows : put_rows(ex, lane, frame, at),
        .y = lane->call.out_near,
        .y_rows = lane->y_rows_ops + at,
        .x_stride = ex->config->hidden_size,
        .y_stride = ex->config->hidden_size,
        .n_row = frame->n_rows,
        .width = ex->config->hidden_size,
    };
    memory->api->ops->move(NULL, &move);
}

bool weft_exchange_near_sync(weft_exchange *ex)
{
    return weft_memory_sync(ex->options.memory, &ex->ops_err) == WEFT_OK;
}
