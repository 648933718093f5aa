/* Which steps run as graphs, and under which key.
 *
 * Where experts are elsewhere each part between two questions is a graph of its
 * own; the shared expert between a question and its answer is not.
 *
 * A graph keeps numbers as they were, so whatever the host decides by is
 * rounded up to one of a few values, and the key says which: the number of
 * rows, and the bound of positions, by which ops cut their work. Rows that fill
 * a step up are of no sequence: they store nothing and see no keys, and all of
 * them take the same experts, at most top_k that no other row needs. */
#include "shard/model/forward_internal.h"

/* Products take rows in tiles of 8 and 16, so that up to a multiple of these a
 * row more costs nothing. Beyond the last a device is longer busy with a step
 * than the host with its launches. */
static const int32_t ROWS[] = {1, 2, 4, 8, 16, 24, 32, 48, 64};
enum {
    N_ROWS = sizeof ROWS / sizeof ROWS[0],
    /* Of positions, doubled until it is enough: blocks for positions that no
     * row has end at once. */
    POSITIONS_MIN = 256,
};

static bool takes_graphs(const weft_forward *f)
{
    const weft_forward_hooks *const h = &f->hooks;
    return !weft_memory_is_host(&f->memory) && h->layer_out == NULL &&
           h->route == NULL && h->select == NULL;
}

void weft_forward_begin_plain(weft_forward *f, const weft_batch *batch)
{
    f->n_rows = f->n_filled = batch->n_rows;
    f->n_positions = 0;
    for (int32_t r = 0; r < batch->n_rows; r++)
        if (batch->positions[r] >= f->n_positions)
            f->n_positions = batch->positions[r] + 1;
    f->graph_key = 0;
}

void weft_forward_begin_graph(weft_forward *f, const weft_batch *batch)
{
    weft_forward_begin_plain(f, batch);
    if (!takes_graphs(f)) return;
    uint64_t rows = 0, doublings = 0;
    while (rows < N_ROWS && ROWS[rows] < f->n_rows) rows++;
    if (rows == N_ROWS) return;
    int64_t positions = POSITIONS_MIN;
    for (; positions < f->n_positions; positions *= 2) doublings++;
    const int32_t most = f->options.max_rows, end = f->options.max_context;
    f->n_filled = ROWS[rows] < most ? ROWS[rows] : most;
    f->n_positions = positions < end ? (int32_t)positions : end;
    f->graph_key = (uint64_t)f->id << 32 |
                   (uint64_t)(batch->hidden != NULL) << 31 | rows << 8 |
                   doublings;
}

bool weft_forward_replay(weft_forward *f, int32_t part)
{
    if (f->graph_key == 0) return false;
    const bool is_replay =
        f->memory.api->graph_begin(f->graph_key | (uint64_t)part << 16);
    if (is_replay) f->graphs.n_replayed++;
    return is_replay;
}

bool weft_forward_keep(weft_forward *f)
{
    if (f->graph_key == 0) return true;
    if (!f->memory.api->graph_end()) return false;
    f->graphs.n_computed++;
    return true;
}
