#include "shard/load/weights.h"

#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "shard/load/leftover.h"
#include "shard/load/loader.h"
#include "shard/model/partition.h"

/* Tensors of which bytes go into the hash, and how many at either end: enough
 * to tell two sets of weights apart, little enough to read on a cold disk. */
enum { HASHED_TENSORS = 1024, HASHED_BYTES = 64 };

struct weft_checkpoint {
    weft_tensor_set set;
    weft_model_config config;
    weft_profile profile;
    weft_memory memory;
    weft_part_of_model part;
    weft_checkpoint_stats stats;
    int64_t read_bytes;
    /* What single experts are read through: of this size once one was. */
    unsigned char *staging;
    size_t staging_bytes;
};

/* Lies at the front of the block that holds everything else. */
struct weft_model {
    weft_weights weights;
    weft_memory memory;
    void *device_block; /* tensors, with a device */
};

/* The shared expert's width is told in several ways that do not agree among
 * implementations; the tensor's own shape is the judge. */
static void settle_shared_width(const weft_tensor_set *set,
                                weft_model_config *config,
                                weft_remark_fn remark, void *arg)
{
    for (int32_t i = 0; i < config->n_layer; i++) {
        char name[96];
        if (!config->moe[i]) continue;
        (void)snprintf(name, sizeof name,
                       "model.layers.%d.mlp.shared_experts.gate_proj.weight",
                       (int)i);
        const weft_tensor *const t = weft_tensor_set_find(set, name);
        if (t == NULL || t->n_dims != 2 || t->dims[0] < 1 ||
            t->dims[0] > INT32_MAX / 2 ||
            t->dims[0] == config->shared_intermediate_size)
            return;
        config->shared_intermediate_size = (int32_t)t->dims[0];
        if (remark != NULL)
            remark(arg, "shared_experts_intermediate_size",
                   "the tensors' own width is taken");
        return;
    }
}

static weft_status settle_layout(const weft_tensor_set *set,
                                 weft_model_config *config,
                                 weft_remark_fn remark, void *arg,
                                 weft_err *err)
{
    const char *const layout = set->indexer_rope_layout;
    if (!config->dsa) return WEFT_OK;
    config->index_rope_tail = strcmp(layout, "tail") == 0;
    if (layout[0] == '\0' && remark != NULL)
        remark(arg, "indexer_rope_layout",
               "absent from the metadata: leading is taken");
    if (layout[0] == '\0' || config->index_rope_tail ||
        strcmp(layout, "leading") == 0)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "indexer_rope_layout in the safetensors metadata is "
                     "\"%s\"; known: leading tail",
                     layout);
}

/* What changes the answer and does not show in a tensor's shape. */
static uint64_t hash_config(uint64_t hash, const weft_model_config *c)
{
    const int64_t ints[] = {c->n_layer,          c->window,
                            c->yarn.on,          c->rescale,
                            c->rope_interleave,  c->dsa,
                            c->index_topk,       c->index_rope_interleave,
                            c->index_rope_tail,  c->top_k,
                            c->n_group,          c->topk_group,
                            (int64_t)c->scoring, (int64_t)c->topk_method,
                            c->norm_topk,        c->dynamic_rsf,
                            c->tie_embeddings};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        hash = weft_hash_int(hash, ints[i]);
    for (int32_t i = 0; i < c->n_layer; i++)
        hash = weft_hash_int(hash, (int64_t)c->kind[i] * 2 + c->moe[i]);
    const double reals[] = {(double)c->rms_norm_eps,
                            (double)c->routed_scaling,
                            c->yarn.factor,
                            c->yarn.beta_fast,
                            c->yarn.beta_slow,
                            c->yarn.original_context,
                            (double)c->yarn.cos_sin_factor};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        hash = weft_hash_real(hash, reals[i]);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        const weft_geometry *const g = &c->geometry[k];
        hash = weft_hash_int(hash, g->n_head * 4096 + g->qk_nope_head_dim);
        hash = weft_hash_int(hash, (int64_t)g->gate);
        hash = weft_hash_real(hash, g->rope_theta);
        hash = weft_hash_real(hash, (double)g->softmax_scale);
    }
    return hash;
}

static weft_status hash_bytes(const weft_tensor_set *set, const weft_tensor *t,
                              uint64_t *hash, weft_err *err)
{
    unsigned char bytes[HASHED_BYTES];
    const int64_t n = t->bytes < HASHED_BYTES ? t->bytes : HASHED_BYTES;
    WEFT_TRY(weft_tensor_set_read(set, t, 0, bytes, (size_t)n, err));
    *hash = weft_hash_fnv(*hash, bytes, (size_t)n);
    WEFT_TRY(weft_tensor_set_read(set, t, t->bytes - n, bytes, (size_t)n, err));
    *hash = weft_hash_fnv(*hash, bytes, (size_t)n);
    return WEFT_OK;
}

/* In name order and without file names, so that a model has one hash however
 * it is cut into files. */
static weft_status hash_weights(const weft_checkpoint *cp, uint64_t *hash_out,
                                weft_err *err)
{
    const int64_t every = cp->stats.n_used / HASHED_TENSORS + 1;
    uint64_t hash = hash_config(WEFT_FNV_START, &cp->config);
    int64_t i_used = 0;
    for (size_t i = 0; i < cp->set.n; i++) {
        const weft_tensor *const t = cp->set.tensors[i];
        if (!t->used) continue;
        hash = weft_hash_fnv(hash, t->name, strlen(t->name) + 1);
        hash = weft_hash_int(hash, (int64_t)t->dtype);
        for (int32_t d = 0; d < t->n_dims; d++)
            hash = weft_hash_int(hash, t->dims[d]);
        if (i_used++ % every == 0)
            WEFT_TRY(hash_bytes(&cp->set, t, &hash, err));
    }
    *hash_out = hash;
    return WEFT_OK;
}

static weft_loader loader_of(const weft_checkpoint *cp)
{
    return (weft_loader){.set = &cp->set,
                         .config = &cp->config,
                         .profile = cp->profile,
                         .memory = cp->memory,
                         .part = cp->part};
}

/* For single experts, which are whole whatever the ranks have. */
static weft_loader expert_loader_of(const weft_checkpoint *cp)
{
    weft_loader loader = loader_of(cp);
    loader.part.n_ranks = 1;
    loader.part.rank = 0;
    return loader;
}

/* What of a single expert's block has been handed out. */
static size_t placed(const weft_loader *loader)
{
    return weft_memory_is_host(&loader->memory) ? loader->used
                                                : loader->device_used;
}

/* Places what the block begins with, then all weights. */
static weft_status walk(weft_loader *loader, weft_model **out, weft_err *err)
{
    weft_model *const model = weft_loader_place(loader, sizeof *model);
    *out = model;
    return weft_loader_walk(loader, model != NULL ? &model->weights : NULL,
                            err);
}

static weft_status measure(weft_checkpoint *cp, weft_remark_fn remark,
                           void *arg, weft_err *err)
{
    weft_model *none = NULL;
    weft_loader loader = loader_of(cp);
    loader.counts = true;
    for (size_t i = 0; i < cp->set.n; i++) cp->set.tensors[i]->used = false;
    WEFT_TRY(walk(&loader, &none, err));
    cp->stats.n_used = loader.n_used;
    cp->stats.n_params = loader.n_params;
    cp->stats.file_bytes = loader.file_bytes;
    cp->stats.resident_bytes = (int64_t)loader.used;
    cp->stats.device_bytes = (int64_t)loader.device_used;
    cp->stats.staging_bytes = (int64_t)loader.staging_need;
    if (loader.n_biasless > 0 && remark != NULL) {
        char reason[96];
        (void)snprintf(reason, sizeof reason,
                       "absent in %lld layers: experts are chosen by score "
                       "alone",
                       (long long)loader.n_biasless);
        remark(arg, "e_score_correction_bias", reason);
    }
    return WEFT_OK;
}

static weft_status validate(weft_checkpoint *cp, weft_remark_fn remark,
                            void *arg, weft_err *err)
{
    weft_leftover left = {0};
    cp->part = (weft_part_of_model){.end_layer = cp->config.n_layer,
                                    .embed = true,
                                    .head = true,
                                    .experts = true,
                                    .n_ranks = 1};
    settle_shared_width(&cp->set, &cp->config, remark, arg);
    WEFT_TRY(settle_layout(&cp->set, &cp->config, remark, arg, err));
    WEFT_TRY(measure(cp, remark, arg, err));
    WEFT_TRY(
        weft_leftover_check(&cp->set, &cp->config, remark, arg, &left, err));
    if (left.n_mtp_layers == 0 && cp->config.n_nextn > 0 && remark != NULL)
        remark(arg, "num_nextn_predict_layers", "no such layer is stored");
    cp->config.n_nextn = left.n_mtp_layers;
    cp->stats.n_files = cp->set.n_files;
    cp->stats.n_tensors = (int64_t)cp->set.n;
    cp->stats.n_ignored = left.n_ignored;
    cp->stats.n_mtp_tensors = left.n_mtp;
    return hash_weights(cp, &cp->stats.weights_hash, err);
}

weft_status weft_checkpoint_open(const char *dir, weft_model_config *config,
                                 weft_profile profile, weft_remark_fn remark,
                                 void *arg, weft_checkpoint **checkpoint_out,
                                 weft_err *err)
{
    weft_checkpoint *const cp = weft_mem_new(1, sizeof *cp);
    if (cp == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory to open a checkpoint");
    cp->config = *config;
    cp->profile = profile;
    weft_status st = weft_tensor_set_open(dir, remark, arg, &cp->set, err);
    if (st == WEFT_OK) st = validate(cp, remark, arg, err);
    if (st != WEFT_OK) {
        weft_checkpoint_close(cp);
        return st;
    }
    *config = cp->config;
    *checkpoint_out = cp;
    return WEFT_OK;
}

void weft_checkpoint_close(weft_checkpoint *checkpoint)
{
    if (checkpoint == NULL) return;
    weft_tensor_set_deinit(&checkpoint->set);
    weft_mem_free(checkpoint->staging);
    weft_mem_free(checkpoint);
}

const weft_checkpoint_stats *
weft_checkpoint_get_stats(const weft_checkpoint *checkpoint)
{
    return &checkpoint->stats;
}

int64_t weft_checkpoint_read_bytes(const weft_checkpoint *checkpoint)
{
    return checkpoint->read_bytes;
}

/* That its layers can be cut for so many ranks. */
static weft_status check_ranks(const weft_checkpoint *cp,
                               const weft_part_of_model *part, weft_err *err)
{
    weft_model_config here = cp->config, unused;
    here.first_layer = part->first_layer;
    here.end_layer = part->end_layer;
    for (int32_t k = 0; k < WEFT_KINDS; k++) here.n_kind[k] = 0;
    for (int32_t l = part->first_layer; l < part->end_layer; l++)
        here.n_kind[here.kind[l]]++;
    WEFT_TRY(weft_partition_rank(&here, part->n_ranks, &unused, err));
    if (part->rank >= 0 && part->rank < part->n_ranks) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "rank %d: of %d ranks the last is %d", part->rank,
                     part->n_ranks, part->n_ranks - 1);
}

weft_status weft_checkpoint_set_part(weft_checkpoint *checkpoint,
                                     const weft_part_of_model *part,
                                     weft_err *err)
{
    const int32_t n_layer = checkpoint->config.n_layer;
    if (part->first_layer < 0 || part->first_layer > part->end_layer ||
        part->end_layer > n_layer)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "layers %d to %d: the model has %d", part->first_layer,
                         part->end_layer, n_layer);
    weft_part_of_model taken = *part;
    if (taken.n_ranks == 0) taken.n_ranks = 1;
    WEFT_TRY(check_ranks(checkpoint, &taken, err));
    checkpoint->part = taken;
    return measure(checkpoint, NULL, NULL, err);
}

weft_status weft_checkpoint_set_memory(weft_checkpoint *checkpoint,
                                       const weft_memory *memory, weft_err *err)
{
    checkpoint->memory = *memory;
    return measure(checkpoint, NULL, NULL, err);
}

weft_memory weft_checkpoint_memory(const weft_checkpoint *checkpoint)
{
    return checkpoint->memory;
}

static weft_status check_expert(const weft_checkpoint *cp, int32_t layer,
                                int32_t expert, weft_err *err)
{
    const weft_model_config *const c = &cp->config;
    if (layer < 0 || layer >= c->n_layer || !c->moe[layer])
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "layer %d has no routed experts", layer);
    if (expert < 0 || expert >= c->n_expert)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "layer %d: expert %d, but there are %d", layer, expert,
                         c->n_expert);
    return WEFT_OK;
}

/* Experts of a layer may be stored in different types; the largest counts. */
weft_status weft_checkpoint_expert_bytes(weft_checkpoint *checkpoint,
                                         int32_t layer, int64_t *bytes_out,
                                         weft_err *err)
{
    size_t most = 0;
    WEFT_TRY(check_expert(checkpoint, layer, 0, err));
    for (int32_t e = 0; e < checkpoint->config.n_expert; e++) {
        weft_loader loader = expert_loader_of(checkpoint);
        weft_mlp_weights unused;
        WEFT_TRY(weft_loader_expert(&loader, layer, e, &unused, err));
        if (placed(&loader) > most) most = placed(&loader);
    }
    *bytes_out = (int64_t)most;
    return WEFT_OK;
}

static weft_status grow_staging(weft_checkpoint *cp, size_t n, weft_err *err)
{
    if (n <= cp->staging_bytes) return WEFT_OK;
    unsigned char *const staging = weft_mem_new_aligned(WEFT_PLACE_BYTES, n);
    if (staging == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu bytes to read an expert through",
                         n);
    weft_mem_free(cp->staging);
    cp->staging = staging;
    cp->staging_bytes = n;
    return WEFT_OK;
}

weft_status weft_checkpoint_load_expert(weft_checkpoint *checkpoint,
                                        int32_t layer, int32_t expert,
                                        void *block, int64_t bytes,
                                        weft_mlp_weights *out,
                                        uint64_t *hash_out, weft_err *err)
{
    const bool on_host = weft_memory_is_host(&checkpoint->memory);
    weft_loader sizes = expert_loader_of(checkpoint);
    weft_loader loader = sizes;
    weft_hash_wide hash;
    weft_hash_wide_begin(&hash);
    WEFT_TRY(check_expert(checkpoint, layer, expert, err));
    WEFT_TRY(weft_loader_expert(&sizes, layer, expert, out, err));
    if (bytes < (int64_t)placed(&sizes))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "layer %d: expert %d takes %zu bytes, given are %lld",
                         layer, expert, placed(&sizes), (long long)bytes);
    WEFT_TRY(grow_staging(checkpoint, sizes.staging_need, err));
    loader.base = on_host ? block : NULL;
    loader.device_base = on_host ? NULL : block;
    loader.staging = checkpoint->staging;
    loader.hash = &hash;
    const weft_status st = weft_loader_expert(&loader, layer, expert, out, err);
    checkpoint->read_bytes += loader.read_bytes;
    *hash_out = weft_hash_wide_end(&hash);
    return st;
}

static void tell_end(const weft_loader *loader)
{
    if (loader->progress != NULL && loader->told_bytes != loader->total_bytes)
        loader->progress(loader->progress_arg, loader->total_bytes,
                         loader->total_bytes);
}

weft_status weft_model_load(weft_checkpoint *checkpoint,
                            weft_progress_fn progress, void *arg,
                            weft_model **model_out, weft_err *err)
{
    const weft_checkpoint_stats *const stats = &checkpoint->stats;
    weft_model *model = NULL;
    weft_loader loader = loader_of(checkpoint);
    loader.progress = progress;
    loader.progress_arg = arg;
    loader.total_bytes = stats->file_bytes;
    loader.staging =
        weft_mem_new_aligned(WEFT_PLACE_BYTES, (size_t)stats->staging_bytes);
    loader.base =
        weft_mem_new_aligned(WEFT_PLACE_BYTES, (size_t)stats->resident_bytes);
    void *device_block = NULL;
    weft_status st = WEFT_OK;
    if (loader.staging == NULL || loader.base == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no memory for %lld bytes of weights",
                       (long long)stats->resident_bytes);
    if (st == WEFT_OK && stats->device_bytes > 0)
        st = weft_memory_alloc(&loader.memory, stats->device_bytes, "weights",
                               &device_block, err);
    loader.device_base = device_block;
    if (st == WEFT_OK) st = walk(&loader, &model, err);
    checkpoint->read_bytes += loader.read_bytes;
    weft_mem_free(loader.staging);
    if (st != WEFT_OK) {
        weft_memory_free(&loader.memory, device_block);
        weft_mem_free(loader.base);
        return st;
    }
    WEFT_ASSERT(loader.used == (size_t)stats->resident_bytes &&
                loader.device_used == (size_t)stats->device_bytes);
    model->memory = loader.memory;
    model->device_block = device_block;
    tell_end(&loader);
    *model_out = model;
    return WEFT_OK;
}

void weft_model_destroy(weft_model *model)
{
    if (model == NULL) return;
    weft_memory_free(&model->memory, model->device_block);
    weft_mem_free(model);
}

const weft_weights *weft_model_weights(const weft_model *model)
{
    return &model->weights;
}
