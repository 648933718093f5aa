/* synth.h - checkpoint folders with deterministic weights (model-spec 8.2), for
 * any config that the loader knows, in any of the packings that it reads.
 *
 * The values are a function of a tensor's name and an index alone, so another
 * program with the same rule has the same model: the reference's goldens of
 * model-spec 8.4 hold for these folders.
 *
 * Test support: whatever fails ends the program with a message.
 */
#ifndef WEFT_TESTS_SUPPORT_SYNTH_H
#define WEFT_TESTS_SUPPORT_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

/* How a folder is packed; {0} is one file in BF16. */
typedef struct synth_options {
    bool f32; /* everything in F32 */
    bool f8;  /* linear layers in F8 with fp32 scales, the rest in BF16 */
    /* What F8 would hold, as F32 of value * scale: the same model, wider. */
    bool dequantised;
    bool packed;      /* experts.gate_up_proj and experts.down_proj */
    bool junk;        /* vision, audio, MTP and inv_freq tensors beside */
    int32_t n_shards; /* above 0: that many files, and an index */
    /* Type of the scales: NULL is F32; BF16, F8_E8M0, U8 (powers of two). */
    const char *scales;
    /* In place of "model.", such as "model.language_model." */
    const char *prefix;
    const char *layout; /* indexer_rope_layout in the metadata; NULL: absent */
    double bias_base, bias_amp; /* e_score_correction_bias; amp 0: 0 and 0.3 */
    /* May change a tensor's values before they are rounded. `key` is the name
     * by which they were made (model-spec 8.2). */
    void (*edit)(void *arg, const char *key, double *values, int64_t n_row,
                 int64_t n_in);
    void *edit_arg;
} synth_options;

/* config.json text: a base ("dots3" is config B of model-spec 8.3, "v2", "v3"
 * and "v32" the style of T10 to T12) with the keys of `edits` (a JSON object,
 * or NULL) laid over it; a key whose value is the text "absent" is taken out.
 * End with weft_mem_free. */
char *synth_config(const char *base, const char *edits);

/* Write config.json and the tensors that it asks for into the folder `dir`. */
void synth_write(const char *dir, const char *config_json,
                 const synth_options *options);

/* The named configs of model-spec 8.4: T01, T02, T05a, T05b, T06 to T12. `more`
 * is laid over the case's own edits (NULL: nothing). options may be NULL. */
char *synth_case_config(const char *id, const char *more);
void synth_case_write(const char *dir, const char *id, const char *more,
                      const synth_options *options);

/* The standard prompt: ids[i] = (7 i^2 + 3 i + 11) mod 97. */
void synth_prompt(int32_t *ids_out, int32_t n);

/* A new folder, and its removal with the files in it. */
void synth_folder_make(char path_out[64]);
void synth_folder_remove(const char *path);

/* Write `n` bytes as DIR/NAME. */
void synth_file_write(const char *dir, const char *name, const void *bytes,
                      int64_t n);

#endif
