#include "node/app/rank_weights.h"

/* Counts that begin again with each rank, as one. */
typedef struct all_ranks {
    weft_progress_fn progress;
    void *arg;
    int64_t done_bytes, total_bytes; /* done: of ranks that are whole */
} all_ranks;

/* What is loaded or measured next is that rank's. */
static weft_status turn_to(weft_checkpoint *checkpoint,
                           const weft_backend *backend,
                           const weft_part_of_model *stage, int32_t rank,
                           weft_err *err)
{
    weft_part_of_model part = *stage;
    part.n_ranks = backend->n_ranks;
    part.rank = rank;
    part.embed = stage->embed && rank == 0;
    part.head = stage->head && rank == 0;
    const weft_status st = weft_checkpoint_set_part(checkpoint, &part, err);
    if (st != WEFT_OK && backend->n_ranks > 1)
        return WEFT_WRAP(err, st, "--tensor-parallel %d", backend->n_ranks);
    if (st != WEFT_OK) return st;
    return weft_checkpoint_set_memory(checkpoint,
                                      weft_backend_memory(backend, rank), err);
}

/* From the last rank to the first, where it is to end. */
weft_status weft_rank_weights_measure(weft_checkpoint *checkpoint,
                                      const weft_backend *backend,
                                      const weft_part_of_model *part,
                                      weft_rank_sizes *sizes_out, weft_err *err)
{
    weft_rank_sizes sizes = {0};
    const weft_checkpoint_stats *const stats =
        weft_checkpoint_get_stats(checkpoint);
    for (int32_t r = backend->n_ranks - 1; r >= 0; r--) {
        WEFT_TRY(turn_to(checkpoint, backend, part, r, err));
        sizes.host_bytes += stats->resident_bytes;
        sizes.file_bytes += stats->file_bytes;
        sizes.device_bytes[r] = stats->device_bytes;
        if (stats->staging_bytes > sizes.staging_bytes)
            sizes.staging_bytes = stats->staging_bytes;
    }
    *sizes_out = sizes;
    return WEFT_OK;
}

static void tell(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    const all_ranks *const all = arg;
    (void)total_bytes; /* of one rank */
    all->progress(all->arg, all->done_bytes + done_bytes, all->total_bytes);
}

static weft_status load_rank(weft_checkpoint *checkpoint,
                             const weft_backend *backend,
                             const weft_part_of_model *part, int32_t rank,
                             all_ranks *all, weft_rank_weights *weights,
                             weft_err *err)
{
    const weft_memory *const memory = weft_backend_memory(backend, rank);
    weft_model **const model = &weights->models[rank];
    WEFT_TRY(turn_to(checkpoint, backend, part, rank, err));
    WEFT_TRY(weft_memory_bind(memory, err));
    const weft_status st = weft_model_load(
        checkpoint, all->progress != NULL ? tell : NULL, all, model, err);
    if (st != WEFT_OK && backend->n_ranks > 1)
        return WEFT_WRAP(err, st, "rank %d of %d", rank, backend->n_ranks);
    if (st != WEFT_OK) return st;
    all->done_bytes += weft_checkpoint_get_stats(checkpoint)->file_bytes;
    if (rank == 0) return WEFT_OK;
    weights->others[rank - 1] = (weft_rank_parts){
        .weights = weft_model_weights(*model),
        .memory = backend->opened != NULL ? memory : NULL,
    };
    return WEFT_OK;
}

weft_status weft_rank_weights_load(weft_checkpoint *checkpoint,
                                   const weft_backend *backend,
                                   const weft_part_of_model *part,
                                   weft_progress_fn progress, void *arg,
                                   weft_rank_weights *weights_out,
                                   weft_err *err)
{
    weft_rank_sizes sizes;
    *weights_out = (weft_rank_weights){0};
    WEFT_TRY(weft_rank_weights_measure(checkpoint, backend, part, &sizes, err));
    all_ranks all = {
        .progress = progress, .arg = arg, .total_bytes = sizes.file_bytes};
    for (int32_t r = backend->n_ranks - 1; r >= 0; r--)
        WEFT_TRY(
            load_rank(checkpoint, backend, part, r, &all, weights_out, err));
    return WEFT_OK;
}

const weft_weights *weft_rank_weights_first(const weft_rank_weights *weights)
{
    return weft_model_weights(weights->models[0]);
}

void weft_rank_weights_destroy(weft_rank_weights *weights)
{
    for (int32_t r = 0; r < WEFT_RANKS_MAX; r++)
        weft_model_destroy(weights->models[r]);
    *weights = (weft_rank_weights){0};
}
