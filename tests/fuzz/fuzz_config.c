/* Any bytes as config.json and, after a zero byte, generation_config.json: a
 * config whose sizes can be computed with, or one line of error. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "shard/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_geometry(const weft_model_config *c, weft_kind kind)
{
    static float inv_freq[1 << 12];
    const weft_geometry *const g = &c->geometry[kind];
    if (c->n_kind[kind] == 0) return;
    WEFT_ASSERT(g->n_head > 0 && g->qk_rope_head_dim % 2 == 0);
    WEFT_ASSERT(weft_config_row_width(c, kind) > 0);
    WEFT_ASSERT(isfinite(g->softmax_scale) && g->softmax_scale > 0);
    WEFT_ASSERT((int64_t)g->n_head *
                    (g->qk_nope_head_dim + g->qk_rope_head_dim) <=
                INT32_MAX);
    weft_config_inv_freq(c, kind, inv_freq);
    for (int32_t i = 0; i < g->qk_rope_head_dim / 2; i++)
        WEFT_ASSERT(isfinite(inv_freq[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    weft_err err = {0};
    weft_model_config c;
    const uint8_t *const end = size > 0 ? memchr(data, 0, size) : NULL;
    weft_config_texts texts = {.config = (const char *)data,
                               .config_bytes = size};
    if (end != NULL) {
        texts.config_bytes = (size_t)(end - data);
        texts.generation = (const char *)end + 1;
        texts.generation_bytes = size - texts.config_bytes - 1;
    }
    if (weft_model_config_parse(&texts, NULL, NULL, &c, &err) != WEFT_OK) {
        WEFT_ASSERT(strlen(err.text) > 0 && strchr(err.text, '\n') == NULL);
        return 0;
    }
    WEFT_ASSERT(c.n_layer > 0 && c.n_layer <= WEFT_LAYERS_MAX);
    WEFT_ASSERT(c.n_kind[WEFT_FULL] + c.n_kind[WEFT_WINDOW] == c.n_layer);
    WEFT_ASSERT(c.top_k <= c.n_expert && c.n_expert % c.n_group == 0);
    WEFT_ASSERT((c.n_kind[WEFT_WINDOW] > 0) == (c.window > 0));
    WEFT_ASSERT(isfinite(c.yarn.cos_sin_factor));
    for (int32_t i = 0; i < c.n_stop_ids; i++)
        WEFT_ASSERT(c.stop_ids[i] >= 0 && c.stop_ids[i] < c.vocab_size);
    check_geometry(&c, WEFT_FULL);
    check_geometry(&c, WEFT_WINDOW);
    return 0;
}
