/* config_ids.c - token ids that end, and ids that must never be; and what
 * generation_config.json adds. */
#include "shard/model/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shard/model/json.h"

static weft_status add_stop(const weft_fields *fields, const char *key,
                            const json_t *value, weft_model_config *config,
                            weft_err *err)
{
    int64_t id = 0;
    if (!weft_json_is_int(value, 0, INT32_MAX, &id))
        return weft_fields_refuse(fields, key, value,
                                  "must be a token id or a list of them", err);
    if (id >= config->vocab_size) {
        char reason[64];
        (void)snprintf(reason, sizeof reason,
                       "%ld is outside vocab_size: no token ends there",
                       (long)id);
        fields->remark(fields->arg, key, reason);
        return WEFT_OK;
    }
    for (int32_t i = 0; i < config->n_stop_ids; i++)
        if (config->stop_ids[i] == (int32_t)id) return WEFT_OK;
    if (config->n_stop_ids == WEFT_STOP_IDS_MAX) {
        char what[48];
        (void)snprintf(what, sizeof what, "more than %d ids",
                       (int)WEFT_STOP_IDS_MAX);
        return weft_fields_refuse(fields, key, NULL, what, err);
    }
    config->stop_ids[config->n_stop_ids++] = (int32_t)id;
    return WEFT_OK;
}

/* An id, a list of ids, null or nothing. */
static weft_status add_stops(weft_fields *fields, weft_model_config *config,
                             weft_err *err)
{
    static const char key[] = "eos_token_id";
    const json_t *const value = weft_fields_get(fields, key);
    if (value == NULL) return WEFT_OK;
    if (!json_is_array(value)) return add_stop(fields, key, value, config, err);
    for (size_t i = 0; i < json_array_size(value); i++)
        WEFT_TRY(add_stop(fields, key, json_array_get(value, i), config, err));
    return WEFT_OK;
}

static weft_status read_media(weft_fields *fields, weft_model_config *config,
                              weft_err *err)
{
    static const struct {
        const char *key;
        int32_t fallback;
    } media[] = {{"image_token_id", 151660},
                 {"video_token_id", 151680},
                 {"audio_token_id", 151720}};
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) {
        int32_t id = 0;
        const weft_int_field field = {
            media[i].key, NULL, &id, 0, INT32_MAX, media[i].fallback, false};
        WEFT_TRY(weft_fields_ints(fields, &field, 1, err));
        if (id < config->vocab_size)
            config->suppressed_ids[config->n_suppressed_ids++] = id;
    }
    return WEFT_OK;
}

weft_status weft_config_ids(weft_fields *fields, weft_family family,
                            weft_model_config *config, weft_err *err)
{
    WEFT_TRY(add_stops(fields, config, err));
    if (family == WEFT_DOTS3) WEFT_TRY(read_media(fields, config, err));
    return WEFT_OK;
}

/* Everything else in the file steers other programs' sampling; a client sets
 * such things in its request. */
static weft_status tell_rest(weft_fields *fields, weft_err *err)
{
    static const weft_ignored_key known[] = {
        {"transformers_version", "says who wrote the file"},
        {"_from_model_config", "says who wrote the file"},
        {"bos_token_id", "the tokenizer adds what a prompt begins with"},
        {"pad_token_id", "nothing is padded"},
        {"do_sample", "temperature says whether to sample"},
        {NULL, NULL}};
    const char *key = NULL;
    json_t *value = NULL;
    weft_fields rest = *fields;
    json_object_foreach(fields->inner, key, value)
    {
        bool listed = json_object_get(fields->left, key) == NULL;
        for (size_t i = 0; !listed && known[i].key != NULL; i++)
            listed = strcmp(known[i].key, key) == 0;
        if (listed) continue;
        char name[48] = "";
        (void)snprintf(name, sizeof name, "%.40s", key);
        for (char *c = name; *c != '\0'; c++)
            if ((unsigned char)*c < 0x20) *c = '?';
        rest.remark(rest.arg, name, "not a default of this server");
        (void)json_object_del(fields->left, key);
    }
    return weft_fields_finish(fields, known, err);
}

static weft_status read_sampling(weft_fields *fields, weft_model_config *config,
                                 weft_err *err)
{
    double temperature = 0, top_p = 0, penalty = 0;
    /* The ranges are those of requests (router/admit): a default outside them
     * would refuse every request that does not set its own. */
    const weft_real_field list[] = {
        {"temperature", &temperature, 0, 100, NAN, false},
        {"top_p", &top_p, 0, 1, NAN, false},
        {"repetition_penalty", &penalty, 0.01, 100, NAN, false},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        WEFT_TRY(weft_fields_real(fields, &list[i], err));
    const weft_int_field top_k = {
        "top_k", NULL, &config->top_k_sampling, -1, INT32_MAX, -1, false};
    WEFT_TRY(weft_fields_ints(fields, &top_k, 1, err));
    config->temperature = (float)temperature;
    config->top_p = (float)top_p;
    config->repetition_penalty = (float)penalty;
    return WEFT_OK;
}

weft_status weft_config_generation(const char *json, size_t n,
                                   weft_remark_fn remark, void *arg,
                                   weft_model_config *config, weft_err *err)
{
    json_t *root = NULL;
    WEFT_TRY(weft_json_read("generation_config.json", json, n, &root, err));
    weft_fields fields;
    weft_status st = weft_fields_init(&fields, "generation_config.json: ", root,
                                      NULL, remark, arg, err);
    if (st == WEFT_OK) {
        st = add_stops(&fields, config, err);
        if (st == WEFT_OK) st = read_sampling(&fields, config, err);
        if (st == WEFT_OK) st = tell_rest(&fields, err);
        weft_fields_deinit(&fields);
    }
    json_decref(root);
    return st;
}
