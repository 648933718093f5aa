/* synth_internal.h - the tensors of a synthetic checkpoint, between their
 * making (synth.c) and their writing (synth_file.c). */
#ifndef WEFT_TESTS_SUPPORT_SYNTH_INTERNAL_H
#define WEFT_TESTS_SUPPORT_SYNTH_INTERNAL_H

#include <stddef.h>

#include "node/base/err.h"
#include "tests/support/synth.h"

typedef struct synth_tensor {
    char name[160];
    const char *dtype; /* as safetensors spells it */
    int64_t dims[3];
    int32_t n_dims;
    void *bytes;
    size_t n_bytes;
} synth_tensor;

typedef struct synth_list {
    synth_tensor *items;
    size_t n, capacity;
} synth_list;

/* A new tensor at the end of the list, with zeroed bytes. */
synth_tensor *synth_list_add(synth_list *list, const char *name,
                             const char *dtype, size_t item_bytes,
                             const int64_t *dims, int32_t n_dims);
void synth_list_free(synth_list *list);

/* model.safetensors, or shards with an index. */
void synth_list_write(synth_list *list, const char *dir,
                      const synth_options *options);

void synth_die(const char *what, const char *detail) __attribute__((noreturn));
/* Ends the program unless st is WEFT_OK. */
void synth_must(weft_status st, const weft_err *err);
void *synth_new(size_t n, size_t item_bytes);

#endif
