/* config_rope.c - rotary embeddings: where the angles come from.
 *
 * A file says it in one of three ways: rope_theta (and swa_rope_theta) with
 * rope_scaling; one object rope_parameters; or rope_parameters with an object
 * for each kind of layer.
 */
#include "shard/model/config_internal.h"

#include <math.h>
#include <string.h>

#define THETA_MIN 1.0000001 /* below it inv_freq would not fall */
#define THETA_MAX 1e15
#define SCALE_MAX 1e6

typedef struct rope_spec {
    bool has_theta;
    double theta;
    weft_yarn yarn;
    double mscale, mscale_all_dim;
} rope_spec;

static weft_status read_theta(weft_fields *fields, const char *key,
                              rope_spec *spec, weft_err *err)
{
    if (!weft_fields_has(fields, key)) {
        (void)weft_fields_get(fields, key);
        return WEFT_OK;
    }
    const double before = spec->theta;
    const weft_real_field field = {key,       &spec->theta,       THETA_MIN,
                                   THETA_MAX, WEFT_REQUIRED_REAL, false};
    WEFT_TRY(weft_fields_real(fields, &field, err));
    if (spec->has_theta && before != spec->theta)
        return weft_fields_refuse(fields, key, NULL,
                                  "contradicts another rope_theta of the file",
                                  err);
    spec->has_theta = true;
    return WEFT_OK;
}

static weft_status read_yarn(weft_fields *fields, rope_spec *spec,
                             weft_err *err)
{
    weft_yarn *const yarn = &spec->yarn;
    const weft_real_field list[] = {
        {"factor", &yarn->factor, 1, SCALE_MAX, WEFT_REQUIRED_REAL, false},
        {"beta_fast", &yarn->beta_fast, 1e-3, SCALE_MAX, 32, false},
        {"beta_slow", &yarn->beta_slow, 1e-3, SCALE_MAX, 1, false},
        {"original_max_position_embeddings", &yarn->original_context, 1,
         WEFT_CONTEXT_MAX, WEFT_REQUIRED_REAL, false},
        /* Absent, they mean 1 and 0: the cosines are scaled, the softmax is
         * not. The library that re-saves these models reads a file with one
         * of the two keys otherwise; the serving engines agree on this. */
        {"mscale", &spec->mscale, 0, SCALE_MAX, 1, false},
        {"mscale_all_dim", &spec->mscale_all_dim, 0, SCALE_MAX, 0, false},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        WEFT_TRY(weft_fields_real(fields, &list[i], err));
    if (yarn->beta_slow > yarn->beta_fast)
        return weft_fields_refuse(fields, "beta_slow", NULL,
                                  "must not be above beta_fast", err);
    yarn->on = true;
    return WEFT_OK;
}

/* `type` and `rope_type` are two names of one thing. */
static weft_status read_type(weft_fields *fields, bool *yarn, weft_err *err)
{
    static const char *const names[] = {"default", "yarn", NULL};
    int32_t by_key[2] = {0, 0};
    const bool both =
        weft_fields_has(fields, "type") && weft_fields_has(fields, "rope_type");
    WEFT_TRY(
        weft_fields_choice(fields, "rope_type", names, 0, &by_key[0], err));
    WEFT_TRY(
        weft_fields_choice(fields, "type", names, by_key[0], &by_key[1], err));
    if (both && by_key[0] != by_key[1])
        return weft_fields_refuse(fields, "type", NULL,
                                  "contradicts rope_type beside it", err);
    *yarn = by_key[1] == 1;
    return WEFT_OK;
}

static weft_status read_object(const weft_fields *parent, const char *key,
                               json_t *value, rope_spec *spec, weft_err *err)
{
    static const weft_ignored_key ignored[] = {
        {"partial_rotary_factor", "qk_rope_head_dim says it"}, {NULL, NULL}};
    weft_fields fields;
    WEFT_TRY(weft_fields_init_nested(&fields, parent, key, value, err));
    bool yarn = false;
    weft_status st = read_type(&fields, &yarn, err);
    if (st == WEFT_OK) st = read_theta(&fields, "rope_theta", spec, err);
    if (st == WEFT_OK && yarn) st = read_yarn(&fields, spec, err);
    if (st == WEFT_OK) st = weft_fields_finish(&fields, ignored, err);
    weft_fields_deinit(&fields);
    return st;
}

static bool is_by_kind(json_t *parameters)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(parameters, key, value)
    {
        if (json_is_object(value)) return true;
    }
    return false;
}

static weft_status read_parameters(weft_fields *fields, json_t *value,
                                   rope_spec spec[WEFT_KINDS], weft_err *err)
{
    static const char *const full_names[] = {
        "full_attention", "deepseek_sparse_attention", "indexed_attention"};
    if (!json_is_object(value) || !is_by_kind(value))
        return read_object(fields, "rope_parameters", value, &spec[WEFT_FULL],
                           err);
    weft_fields inner;
    WEFT_TRY(
        weft_fields_init_nested(&inner, fields, "rope_parameters", value, err));
    weft_status st = WEFT_OK;
    for (size_t i = 0; st == WEFT_OK && i < 3; i++) {
        json_t *const part = weft_fields_get(&inner, full_names[i]);
        if (part != NULL)
            st =
                read_object(&inner, full_names[i], part, &spec[WEFT_FULL], err);
    }
    json_t *const part = weft_fields_get(&inner, "sliding_attention");
    if (st == WEFT_OK && part != NULL)
        st = read_object(&inner, "sliding_attention", part, &spec[WEFT_WINDOW],
                         err);
    if (st == WEFT_OK) st = weft_fields_finish(&inner, NULL, err);
    weft_fields_deinit(&inner);
    return st;
}

/* 0.1 k ln(s) + 1; YaRN, arXiv 2309.00071, 3.4, with DeepSeek's k. */
static double mscale(double factor, double k)
{
    return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1;
}

static void set_scales(const rope_spec *spec, weft_model_config *config)
{
    for (int32_t kind = 0; kind < WEFT_KINDS; kind++) {
        weft_geometry *const g = &config->geometry[kind];
        const int32_t width = g->qk_nope_head_dim + g->qk_rope_head_dim;
        if (width == 0) continue; /* the model has no such layer */
        double scale = 1 / sqrt((double)width);
        if (kind == WEFT_FULL && spec->yarn.on && spec->mscale_all_dim != 0) {
            const double m = mscale(spec->yarn.factor, spec->mscale_all_dim);
            scale *= m * m;
        }
        g->softmax_scale = (float)scale;
    }
    config->yarn = spec->yarn;
    config->yarn.cos_sin_factor =
        !spec->yarn.on
            ? 1.0F
            : (float)(mscale(spec->yarn.factor, spec->mscale) /
                      mscale(spec->yarn.factor, spec->mscale_all_dim));
}

static weft_status take_theta(const weft_fields *fields, const char *key,
                              const rope_spec *spec, double fallback,
                              weft_geometry *g, weft_err *err)
{
    g->rope_theta = spec->has_theta ? spec->theta : fallback;
    if (!spec->has_theta)
        fields->remark(fields->arg, key, "absent: the family's value is taken");
    if (g->qk_rope_head_dim % 2 != 0)
        return weft_fields_refuse(fields, "qk_rope_head_dim", NULL,
                                  "must be even", err);
    return WEFT_OK;
}

weft_status weft_config_rope(weft_fields *fields, weft_family family,
                             weft_model_config *config, weft_err *err)
{
    rope_spec spec[WEFT_KINDS];
    memset(spec, 0, sizeof spec);
    const bool dots = family == WEFT_DOTS3;
    WEFT_TRY(read_theta(fields, "rope_theta", &spec[WEFT_FULL], err));
    if (dots)
        WEFT_TRY(read_theta(fields, "swa_rope_theta", &spec[WEFT_WINDOW], err));
    json_t *const scaling = weft_fields_get(fields, "rope_scaling");
    json_t *const parameters = weft_fields_get(fields, "rope_parameters");
    if (scaling != NULL && parameters != NULL)
        return weft_fields_refuse(fields, "rope_scaling", NULL,
                                  "rope_parameters says it too", err);
    if (scaling != NULL)
        WEFT_TRY(read_object(fields, "rope_scaling", scaling, &spec[WEFT_FULL],
                             err));
    if (parameters != NULL)
        WEFT_TRY(read_parameters(fields, parameters, spec, err));
    if (spec[WEFT_WINDOW].yarn.on || (dots && spec[WEFT_FULL].yarn.on))
        return weft_fields_refuse(fields, "rope_scaling", NULL,
                                  "yarn is not known for this model_type", err);
    WEFT_TRY(take_theta(fields, "rope_theta", &spec[WEFT_FULL],
                        dots ? 80e6 : 10e3, &config->geometry[WEFT_FULL], err));
    if (config->n_kind[WEFT_WINDOW] > 0)
        WEFT_TRY(take_theta(fields, "swa_rope_theta", &spec[WEFT_WINDOW], 50e3,
                            &config->geometry[WEFT_WINDOW], err));
    WEFT_TRY(weft_fields_bool(fields, "rope_interleave", true,
                              &config->rope_interleave, err));
    set_scales(&spec[WEFT_FULL], config);
    return WEFT_OK;
}

/* The channel at which n turns fit into the original context. */
static double yarn_channel(const weft_yarn *yarn, double theta, double width,
                           double n_turns)
{
    const double two_pi = 6.283185307179586476925286766559;
    return width * log(yarn->original_context / (n_turns * two_pi)) /
           (2 * log(theta));
}

void weft_config_inv_freq(const weft_model_config *config, weft_kind kind,
                          float *inv_freq_out)
{
    const weft_geometry *const g = &config->geometry[kind];
    const weft_yarn *const yarn = &config->yarn;
    const double width = g->qk_rope_head_dim;
    const bool scaled = kind == WEFT_FULL && yarn->on;
    double low = 0, high = 1;
    if (scaled) { /* model-spec 1.2 */
        low = fmax(
            floor(yarn_channel(yarn, g->rope_theta, width, yarn->beta_fast)),
            0);
        high = fmin(
            ceil(yarn_channel(yarn, g->rope_theta, width, yarn->beta_slow)),
            width - 1);
        if (low == high) high += 0.001;
    }
    for (int32_t i = 0; i < g->qk_rope_head_dim / 2; i++) {
        double f = pow(g->rope_theta, -2.0 * i / width);
        if (scaled) {
            const double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            f = f / yarn->factor * ramp + f * (1 - ramp);
        }
        inv_freq_out[i] = (float)f;
    }
}
