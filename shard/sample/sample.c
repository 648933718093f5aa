#include "shard/sample/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/sample/select.h"

/* Logits carry rounding errors of 1e-6 and more. A draw at a temperature below
 * this would tell apart nothing else, and far below it the quotient leaves the
 * range of a float. */
#define GREEDY_BELOW 1e-5F

/* exp of less would be a subnormal; it weighs nothing beside the 1 of the
 * largest, since a draw has 53 bits. */
#define EXPONENT_MIN (-87.0F)
#define WEIGHT_MIN   2e-38F

enum {
    /* Up to here a heap beats a selection over the whole vocabulary. */
    TOP_K_HEAP_MAX = 1024,
};

struct weft_sampler {
    const weft_ops *ops;
    int32_t vocab;
    const int32_t *suppressed; /* the config's */
    int32_t n_suppressed;
    float *work;     /* [vocab] the row after bias, penalties, exclusions */
    float *weight;   /* [vocab] exp((work - max) / temperature) */
    uint64_t *keys;  /* [vocab] */
    int32_t *counts; /* [vocab] zero between calls */
};

weft_status weft_sampler_create(const weft_model_config *config,
                                const weft_ops *ops, weft_sampler **sampler_out,
                                weft_err *err)
{
    const size_t n = (size_t)config->vocab_size;
    weft_sampler *const s = weft_mem_new(1, sizeof *s);
    if (s == NULL) goto no_memory;
    s->ops = ops;
    s->vocab = config->vocab_size;
    s->suppressed = config->suppressed_ids;
    s->n_suppressed = config->n_suppressed_ids;
    s->work = weft_mem_new(n, sizeof *s->work);
    s->weight = weft_mem_new(n, sizeof *s->weight);
    s->keys = weft_mem_new(n, sizeof *s->keys);
    s->counts = weft_mem_new(n, sizeof *s->counts);
    if (s->work == NULL || s->weight == NULL || s->keys == NULL ||
        s->counts == NULL)
        goto destroy;
    *sampler_out = s;
    return WEFT_OK;

destroy:
    weft_sampler_destroy(s);
no_memory:
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to sample from %d tokens", config->vocab_size);
}

void weft_sampler_destroy(weft_sampler *sampler)
{
    if (sampler == NULL) return;
    weft_mem_free(sampler->work);
    weft_mem_free(sampler->weight);
    weft_mem_free(sampler->keys);
    weft_mem_free(sampler->counts);
    weft_mem_free(sampler);
}

/* ---- the row after bias, penalties and exclusions ----------------------- */

static bool in_vocab(const weft_sampler *s, int32_t id)
{
    return id >= 0 && id < s->vocab;
}

/* Extreme penalties leave the range of a float; an infinity would exclude a
 * token, or all others. */
static float to_finite(double x)
{
    if (x > (double)FLT_MAX) return FLT_MAX;
    if (x < -(double)FLT_MAX) return -FLT_MAX;
    return (float)x;
}

static void put(weft_sampler *s, int32_t id, double value)
{
    if (s->work[id] != -INFINITY) s->work[id] = to_finite(value);
}

static void add_bias(weft_sampler *s, const weft_sampling *p)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        const int32_t id = p->bias_ids[i];
        if (in_vocab(s, id))
            put(s, id, (double)s->work[id] + (double)p->bias[i]);
    }
}

/* Each token once, however often it occurs: Keskar et al., arXiv 1909.05858,
 * with the rule for negative logits that is in common use. */
static void add_repetition(weft_sampler *s, double penalty,
                           const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = tokens[i];
        if (!in_vocab(s, id) || s->counts[id] != 0) continue;
        s->counts[id] = 1;
        const double x = (double)s->work[id];
        put(s, id, x > 0.0 ? x / penalty : x * penalty);
    }
    for (int32_t i = 0; i < n; i++)
        if (in_vocab(s, tokens[i])) s->counts[tokens[i]] = 0;
}

static void add_frequency(weft_sampler *s, const weft_sampling *p,
                          const int32_t *generated, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (in_vocab(s, generated[i])) s->counts[generated[i]]++;
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = generated[i];
        if (!in_vocab(s, id) || s->counts[id] == 0) continue;
        put(s, id,
            (double)s->work[id] -
                (double)p->frequency_penalty * (double)s->counts[id] -
                (double)p->presence_penalty);
        s->counts[id] = 0;
    }
}

static bool changes_logits(const weft_sampling *p)
{
    return p->n_bias > 0 || p->repetition_penalty != 1.0F ||
           p->frequency_penalty != 0.0F || p->presence_penalty != 0.0F;
}

static bool has_id(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static void exclude(weft_sampler *s, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (in_vocab(s, ids[i])) s->work[ids[i]] = -INFINITY;
}

static int32_t find_first(const float *row, int32_t n)
{
    int32_t first = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[first]) first = i;
    return first;
}

/* ---- the draw ----------------------------------------------------------- */

static void fill_weights(weft_sampler *s, const float *row, float max,
                         float temperature)
{
    /* Both ends of the range of a float may be in the row: the difference is
     * then -inf, which the bound takes care of. */
    const float scale = 1.0F / temperature;
    for (int32_t i = 0; i < s->vocab; i++) {
        const float x = (row[i] - max) * scale;
        s->weight[i] = x > EXPONENT_MIN ? x : EXPONENT_MIN;
    }
    s->ops->exp(s->weight, s->vocab);
    for (int32_t i = 0; i < s->vocab; i++)
        s->weight[i] = s->weight[i] < WEIGHT_MIN ? 0.0F : s->weight[i];
}

/* Keys of all that weigh `least` or more. */
static int32_t fill_keys(weft_sampler *s, const float *row, float least)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->vocab; i++)
        if (s->weight[i] >= least) s->keys[n++] = weft_key(row[i], i);
    return n;
}

static double sum_weights(const weft_sampler *s)
{
    double sum = 0.0;
    for (int32_t i = 0; i < s->vocab; i++) sum += (double)s->weight[i];
    return sum;
}

/* The key of the last candidate that top_k and top_p let through; 0: all. */
static uint64_t last_key(weft_sampler *s, const float *row,
                         const weft_sampling *p)
{
    const bool by_count = p->top_k > 0 && p->top_k < (uint32_t)s->vocab;
    const bool by_mass = p->top_p < 1.0F;
    if (!by_count && !by_mass) return 0;

    int32_t n = 0;
    double mass = 0.0;
    if (by_count) {
        const int32_t k = (int32_t)p->top_k;
        if (k <= TOP_K_HEAP_MAX) {
            n = weft_select_top(row, s->vocab, k, s->keys);
        } else {
            n = fill_keys(s, row, WEIGHT_MIN);
            n = weft_select_cut(s->keys, n, NULL, k);
        }
        for (int32_t i = 0; i < n; i++)
            mass += (double)s->weight[weft_key_id(s->keys[i])];
    } else {
        /* All that weigh less than this are together too light to matter: the
         * others reach top_p without them. */
        mass = sum_weights(s);
        const double least = (1.0 - (double)p->top_p) * mass / s->vocab;
        n = fill_keys(s, row,
                      least > (double)WEIGHT_MIN ? (float)least : WEIGHT_MIN);
    }
    if (by_mass)
        n = weft_select_cut(s->keys, n, s->weight, (double)p->top_p * mass);
    uint64_t last = UINT64_MAX;
    for (int32_t i = 0; i < n; i++)
        if (s->keys[i] < last) last = s->keys[i];
    return last;
}

static int32_t draw(weft_sampler *s, const float *row, int32_t first,
                    const weft_sampling *p, uint64_t position)
{
    fill_weights(s, row, row[first], p->temperature);
    const uint64_t last = last_key(s, row, p);
    const float least = p->min_p * s->weight[first];
    for (int32_t i = 0; (last > 0 || least > 0.0F) && i < s->vocab; i++)
        if (s->weight[i] < least || weft_key(row[i], i) < last)
            s->weight[i] = 0.0F;

    const double point = weft_rng_unit(p->seed, position) * sum_weights(s);
    double sum = 0.0;
    int32_t chosen = first;
    for (int32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] == 0.0F) continue;
        chosen = i;
        sum += (double)s->weight[i];
        if (sum > point) break;
    }
    return chosen;
}

/* One candidate is left by definition, and it is the first of the order. */
static bool is_greedy(const weft_sampling *p)
{
    return p->temperature < GREEDY_BELOW || p->top_k == 1 || p->top_p <= 0.0F ||
           p->min_p >= 1.0F;
}

weft_status weft_sampler_choose(weft_sampler *sampler, const weft_job *job,
                                const int32_t *tokens, int32_t n_tokens,
                                const float *logits,
                                const weft_vocab_stat *stat, int32_t *token_out,
                                weft_err *err)
{
    weft_sampler *const s = sampler;
    const weft_sampling *const p = &job->sampling;
    if (stat->nan || stat->max == INFINITY)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the logits after position %d hold %s", n_tokens - 1,
                         stat->nan ? "NaN" : "infinity");

    const int32_t n_generated = n_tokens - job->n_prompt;
    const int32_t n_stop = n_generated < job->min_tokens ? job->n_stop_ids : 0;
    const bool changed = changes_logits(p);
    const float *row = logits;
    int32_t first = stat->argmax;
    /* Whether the largest is excluded is all that a greedy choice needs. */
    const bool stays = !changed &&
                       !has_id(s->suppressed, s->n_suppressed, first) &&
                       !has_id(job->stop_ids, n_stop, first);
    if (!stays || (!is_greedy(p) && n_stop + s->n_suppressed > 0)) {
        memcpy(s->work, logits, (size_t)s->vocab * sizeof *s->work);
        add_bias(s, p);
        if (p->repetition_penalty != 1.0F)
            add_repetition(s, (double)p->repetition_penalty, tokens, n_tokens);
        if (p->frequency_penalty != 0.0F || p->presence_penalty != 0.0F)
            add_frequency(s, p, tokens + job->n_prompt, n_generated);
        exclude(s, s->suppressed, s->n_suppressed);
        exclude(s, job->stop_ids, n_stop);
        row = s->work;
        first = find_first(row, s->vocab);
    }
    if (stat->max == -INFINITY || row[first] == -INFINITY)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "every token after position %d is excluded",
                         n_tokens - 1);
    *token_out =
        is_greedy(p) ? first : draw(s, row, first, p, (uint64_t)n_tokens);
    return WEFT_OK;
}

/* ---- logprobs ----------------------------------------------------------- */

weft_status weft_sampler_logprobs(weft_sampler *sampler, const float *logits,
                                  const weft_vocab_stat *stat, int32_t token,
                                  int32_t n_top, weft_event *event_io,
                                  weft_err *err)
{
    weft_sampler *const s = sampler;
    WEFT_ASSERT(in_vocab(s, token));
    if (stat->nan || isinf(stat->max))
        return WEFT_FAIL(
            err, WEFT_INTERNAL, "the logits before position %d hold %s",
            event_io->position, stat->nan ? "NaN" : "no finite largest");
    if (n_top > s->vocab) n_top = s->vocab;
    weft_logprob *top = NULL;
    if (n_top > 0) {
        top = weft_mem_new((size_t)n_top, sizeof *top);
        if (top == NULL)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for %d top logprobs", n_top);
        /* Logits that differ may have equal logarithms after rounding, and
         * those are what is ordered. */
        for (int32_t i = 0; i < s->vocab; i++)
            s->work[i] = logits[i] - stat->log_sum_exp;
        (void)weft_select_top(s->work, s->vocab, n_top, s->keys);
    }
    for (int32_t i = 0; i < n_top; i++) {
        const int32_t id = weft_key_id(s->keys[i]);
        top[i] = (weft_logprob){.value = s->work[id], .id = id};
    }
    event_io->logprob = logits[token] - stat->log_sum_exp;
    event_io->n_top = n_top > 0 ? n_top : 0;
    event_io->top = top;
    return WEFT_OK;
}
