/* loader.h - one walk over a model's tensors, done twice.
 *
 * First without a base: every tensor is looked up, checked and added up. Then
 * with one: the same walk hands out the same places and fills them. Since both
 * are one code, what was promised is what is taken.
 *
 * Internal to shard/load. Threads: one owner.
 */
#ifndef WEFT_SHARD_LOAD_LOADER_H
#define WEFT_SHARD_LOAD_LOADER_H

#include "kernels/memory.h"
#include "node/base/hash.h"
#include "shard/load/tensors.h"
#include "shard/load/weights.h"

enum {
    WEFT_PLACE_BYTES = 64, /* alignment of every piece */
    WEFT_STAGING_BYTES = 4 << 20,
    WEFT_PROGRESS_BYTES = 64 << 20,
};

typedef struct weft_loader {
    const weft_tensor_set *set;
    const weft_model_config *config;
    weft_profile profile;
    weft_part_of_model part; /* what of the model is walked; n_ranks from 1 */

    unsigned char *base; /* NULL: only check and add up */
    size_t used;
    /* Of a device, whose memory holds tensors and nothing else: row-major
     * matrices, as kernels/device.h says. */
    weft_memory memory;
    unsigned char *device_base;
    size_t device_used;

    /* One buffer, through which everything is read. It must hold `fixed` bytes
     * at once somewhere, and otherwise as many rows as fit. */
    unsigned char *staging;
    size_t staging_need;

    bool counts; /* tensors are marked as used, and counted here */
    int64_t n_used, n_params, file_bytes;
    int64_t n_biasless;   /* routers without the bias their method wants */
    int64_t read_bytes;   /* that were read from files */
    weft_hash_wide *hash; /* of the bytes as read; NULL: none */
    weft_progress_fn progress;
    void *progress_arg;
    int64_t done_bytes, told_bytes, total_bytes;
} weft_loader;

/* The next n bytes of the block; NULL when only adding up. */
void *weft_loader_place(weft_loader *loader, size_t n);
/* The same of the block that the ops read: a device's, if there is one. */
void *weft_loader_place_data(weft_loader *loader, size_t n);
/* Bytes there: read in the order of calls, so `from` may change at once. */
WEFT_MUST_CHECK weft_status weft_loader_put(weft_loader *loader, void *to,
                                            const void *from, size_t n,
                                            weft_err *err);

/* The tensor, which must be there with exactly these dims, and counts as used.
 * NOT_FOUND, or INVALID_ARGUMENT where the shape contradicts. */
WEFT_MUST_CHECK weft_status
weft_loader_find(weft_loader *loader, const char *name, const int64_t *dims,
                 int32_t n_dims, const weft_tensor **out, weft_err *err);

/* Norms and biases: n values as fp32, stored as F32, BF16 or F16. tail > 0:
 * the last `tail` values come first. */
WEFT_MUST_CHECK weft_status weft_loader_vector(weft_loader *loader,
                                               const char *name, int32_t n,
                                               int32_t tail, const float **out,
                                               weft_err *err);

/* How the ranks of a stage share a matrix: all have it, or each has an equal
 * run of its outputs (rows) or inputs (columns), which they divide. */
typedef enum weft_cut {
    WEFT_CUT_NONE = 0,
    WEFT_CUT_OUTS,
    WEFT_CUT_INS,
} weft_cut;

/* A part of a stored matrix. Rows are those of one [n_row, n_in] matrix; a
 * tensor of three dimensions holds n_block of them. */
typedef struct weft_part {
    const char *name;
    int32_t n_block, block; /* n_block 0: the tensor has two dimensions */
    int32_t n_row, n_in;    /* of the stored matrix */
    int32_t row, n_out;     /* rows [row, row + n_out) are wanted */
    weft_cut cut;           /* of those rows */
    /* Where rope channels lie at the end of a head: rows come in heads of
     * `head` rows, and the last `tail` of each go to its front. 0: no, and the
     * only way of what is cut. */
    int32_t head, tail;
} weft_part;

/* This rank's of it, as stored; F8 whose scale blocks would not stay blocks on
 * every rank is expanded. */
WEFT_MUST_CHECK weft_status weft_loader_matrix(weft_loader *loader,
                                               const weft_part *part,
                                               weft_matrix *out, weft_err *err);

/* kv_b, [n_head (nope + v), rank], split by head: weights.h. n_head, which all
 * ranks have together, is cut by outputs. */
WEFT_MUST_CHECK weft_status weft_loader_kv_b(weft_loader *loader,
                                             const char *name,
                                             const weft_geometry *g,
                                             weft_layer_weights *out,
                                             weft_err *err);

/* The embedding: row-major, as stored. */
WEFT_MUST_CHECK weft_status weft_loader_table(weft_loader *loader,
                                              const char *name, int32_t n_row,
                                              int32_t width, const void **out,
                                              weft_dtype *dtype_out,
                                              weft_err *err);

/* One routed expert of a layer that has them. */
WEFT_MUST_CHECK weft_status weft_loader_expert(weft_loader *loader,
                                               int32_t layer, int32_t expert,
                                               weft_mlp_weights *out,
                                               weft_err *err);

/* The loader's part of the model. `out` NULL when only adding up; else it lies
 * in the block, with its arrays. */
WEFT_MUST_CHECK weft_status weft_loader_walk(weft_loader *loader,
                                             weft_weights *out, weft_err *err);

#endif
