/* check.c - `weft check`: validate a checkpoint as serve would, without serving
 * it, and print what is used, what is ignored and why, the KV plan and the
 * memory that a start takes. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "node/app/backend.h"
#include "node/app/commands.h"
#include "node/app/inside.h"
#include "node/app/memory.h"
#include "node/app/model_open.h"
#include "node/app/rank_weights.h"
#include "node/base/mem.h"
#include "node/base/str.h"

enum { CONTEXTS = 4 };

static const char *const KIND_NAMES[WEFT_KINDS] = {"full", "window"};

/* Keys and tensors that are read and not used, as they are told. */
typedef struct remarks {
    json_t *list; /* of {"name", "reason"} */
} remarks;

/* JSON is UTF-8; a path or a text that was cut may be anything. */
static json_t *text_of(const char *text)
{
    char *const mended = weft_mem_copy_text(text, strlen(text));
    if (mended == NULL) return NULL;
    json_t *const string =
        json_stringn(mended, weft_utf8_mend(mended, strlen(text)));
    weft_mem_free(mended);
    return string;
}

static void remember(void *arg, const char *key, const char *reason)
{
    remarks *const r = arg;
    (void)json_array_append_new(r->list,
                                json_pack("{s:o, s:o}", "name", text_of(key),
                                          "reason", text_of(reason)));
}

/* What serve would start with. */
typedef struct found {
    weft_opened opened;
    weft_engine_options engine;
    weft_backend backend;
    weft_kv_layout layout;
    weft_checkpoint_stats stats; /* of the whole model */
    weft_rank_sizes sizes;
    weft_memory_plan memory;
} found;

static json_t *plan_kv(const weft_model_config *config,
                       const weft_engine_options *e,
                       const weft_kv_layout *layout)
{
    json_t *const kinds = json_object();
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (config->n_kind[k] == 0) continue;
        json_object_set_new(
            kinds, KIND_NAMES[k],
            json_pack("{s:i, s:I, s:I, s:I, s:i}", "layers", config->n_kind[k],
                      "row_bytes", (json_int_t)layout->row_bytes[k],
                      "bytes_per_token", (json_int_t)layout->token_bytes[k],
                      "page_bytes", (json_int_t)layout->page_bytes[k],
                      "pages_per_slab", layout->slab_pages[k]));
    }
    json_t *const sequences = json_array();
    const int64_t contexts[CONTEXTS] = {8192, 32768, 131072, e->max_context};
    for (int32_t i = 0; i < CONTEXTS; i++) {
        if (i < CONTEXTS - 1 && contexts[i] >= e->max_context) continue;
        (void)json_array_append_new(
            sequences,
            json_pack("{s:I, s:I}", "tokens", (json_int_t)contexts[i], "bytes",
                      (json_int_t)weft_kv_bytes_for(config, layout, contexts[i],
                                                    e->chunk_tokens)));
    }
    return json_pack("{s:s, s:i, s:I, s:f, s:I, s:o, s:o}", "dtype",
                     weft_dtype_name(layout->dtype), "page_tokens",
                     layout->page_tokens, "slab_bytes",
                     (json_int_t)layout->slab_bytes, "slab_waste",
                     layout->waste, "index_bytes_per_token",
                     (json_int_t)layout->index_token_bytes, "kinds", kinds,
                     "per_sequence", sequences);
}

static json_t *describe(const weft_options *options, const found *f,
                        json_t *ignored)
{
    const weft_opened *const o = &f->opened;
    const weft_model_config *const c = &o->config;
    const weft_checkpoint_stats *const s = &f->stats;
    const weft_memory_plan *const memory = &f->memory;
    char device[WEFT_IDENTITY_BYTES];
    weft_backend_device(&f->backend, device, sizeof device);
    int32_t n_moe = 0;
    for (int32_t l = 0; l < c->n_layer; l++) n_moe += c->moe[l];
    char hash[32];
    (void)snprintf(hash, sizeof hash, "%016llx",
                   (unsigned long long)s->weights_hash);
    json_t *const model = json_pack(
        "{s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}",
        "folder", text_of(options->model), "model_type", c->model_type,
        "weights_hash", hash, "layers", c->n_layer, "moe_layers", n_moe,
        "experts", c->n_expert, "experts_per_token", c->top_k, "hidden_size",
        c->hidden_size, "vocab_size", c->vocab_size, "window", c->window,
        "max_context", c->max_context, "tokenizer", o->tokenizer != NULL);
    json_t *const tensors = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "files", (json_int_t)s->n_files,
        "tensors", (json_int_t)s->n_tensors, "used", (json_int_t)s->n_used,
        "ignored", (json_int_t)s->n_ignored, "mtp_unused",
        (json_int_t)s->n_mtp_tensors, "parameters", (json_int_t)s->n_params,
        "file_bytes", (json_int_t)s->file_bytes);
    const json_int_t peak = memory->weights_bytes + memory->overhead_bytes +
                            memory->kv_bytes * memory->kv_copies +
                            memory->requests_bytes + f->sizes.staging_bytes;
    json_t *const bytes = json_pack(
        "{s:I, s:I, s:I, s:I, s:b, s:i, s:I, s:I, s:I, s:I}", "weights",
        (json_int_t)memory->weights_bytes, "overhead",
        (json_int_t)memory->overhead_bytes, "loading",
        (json_int_t)f->sizes.staging_bytes, "kv", (json_int_t)memory->kv_bytes,
        "kv_given", memory->kv_given, "ranks", f->backend.n_ranks, "requests",
        (json_int_t)memory->requests_bytes, "reserve",
        (json_int_t)memory->reserve_bytes, "available",
        (json_int_t)memory->available_bytes, "peak", peak);
    return json_pack("{s:b, s:o, s:o, s:o, s:o, s:s, s:O}", "ok", 1, "model",
                     model, "tensors", tensors, "kv",
                     plan_kv(c, &f->engine, &f->layout), "memory", bytes,
                     "device", device, "ignored", ignored);
}

static json_int_t number(json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double gib(json_int_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

static void print_kv(json_t *kv)
{
    printf("kv        %s rows, %lld tokens a page, slabs of %lld bytes, waste "
           "%.2f %%\n",
           json_string_value(json_object_get(kv, "dtype")),
           number(kv, "page_tokens"), number(kv, "slab_bytes"),
           json_real_value(json_object_get(kv, "slab_waste")) * 100.0);
    const char *name = NULL;
    json_t *kind = NULL;
    json_object_foreach(json_object_get(kv, "kinds"), name, kind)
    {
        printf("  %-7s %lld layers, %lld bytes a row and layer, %lld bytes a "
               "token\n",
               name, number(kind, "layers"), number(kind, "row_bytes"),
               number(kind, "bytes_per_token"));
    }
    if (number(kv, "index_bytes_per_token") > 0)
        printf("  index   %lld bytes a token, counted in full\n",
               number(kv, "index_bytes_per_token"));
    size_t i = 0;
    json_t *sequence = NULL;
    json_array_foreach(json_object_get(kv, "per_sequence"), i, sequence)
    {
        printf("  one sequence of %lld tokens takes %lld bytes\n",
               number(sequence, "tokens"), number(sequence, "bytes"));
    }
}

static void print_text(json_t *report)
{
    json_t *const model = json_object_get(report, "model");
    json_t *const tensors = json_object_get(report, "tensors");
    json_t *const memory = json_object_get(report, "memory");
    printf("model     %s, %lld layers (%lld with experts: %lld, %lld a token), "
           "hidden %lld, vocabulary %lld, context %lld\n",
           json_string_value(json_object_get(model, "model_type")),
           number(model, "layers"), number(model, "moe_layers"),
           number(model, "experts"), number(model, "experts_per_token"),
           number(model, "hidden_size"), number(model, "vocab_size"),
           number(model, "max_context"));
    printf("tensors   %lld used and %lld ignored in %lld files, %lld "
           "parameters, %lld bytes\n",
           number(tensors, "used"), number(tensors, "ignored"),
           number(tensors, "files"), number(tensors, "parameters"),
           number(tensors, "file_bytes"));
    print_kv(json_object_get(report, "kv"));
    char each[32] = "";
    if (number(memory, "ranks") > 1)
        (void)snprintf(each, sizeof each, " for each of %lld ranks",
                       number(memory, "ranks"));
    printf(
        "memory    weights %.3f GiB, step buffers %.3f GiB, kv %.3f GiB "
        "(%s)%s, requests %.3f GiB, %.3f GiB while loading: at most %.3f GiB "
        "of %.3f GiB available, of which %.3f GiB stay in reserve\n",
        gib(number(memory, "weights")), gib(number(memory, "overhead")),
        gib(number(memory, "kv")),
        json_is_true(json_object_get(memory, "kv_given")) ? "as given"
                                                          : "default",
        each, gib(number(memory, "requests")), gib(number(memory, "loading")),
        gib(number(memory, "peak")), gib(number(memory, "available")),
        gib(number(memory, "reserve")));
    printf("device    %s\n",
           json_string_value(json_object_get(report, "device")));
    size_t i = 0;
    json_t *entry = NULL;
    json_array_foreach(json_object_get(report, "ignored"), i, entry)
    {
        printf("%s%s: %s\n", i == 0 ? "ignored   " : "          ",
               json_string_value(json_object_get(entry, "name")),
               json_string_value(json_object_get(entry, "reason")));
    }
    printf("ok        serve would start\n");
}

/* What a start takes of the memory of host and devices. */
static weft_status plan_start(const weft_options *options, found *f,
                              weft_err *err)
{
    const weft_opened *const o = &f->opened;
    const bool on_device = f->backend.opened != NULL;
    const weft_part_of_model whole = weft_model_whole(&o->config);
    f->stats = *weft_checkpoint_get_stats(o->checkpoint);
    WEFT_TRY(weft_rank_weights_measure(o->checkpoint, &f->backend, &whole,
                                       &f->sizes, err));
    WEFT_TRY(weft_engine_kv_layout(&o->config, &f->engine, &f->layout, err));
    WEFT_TRY(weft_memory_plan_make(&o->config, &f->engine,
                                   on_device ? 0 : options->kv_bytes,
                                   f->sizes.host_bytes, &f->memory, err));
    if (on_device)
        WEFT_TRY(weft_backend_plan(
            &f->backend, &o->config, &f->engine, options->kv_bytes,
            f->sizes.device_bytes,
            weft_inside_device_bytes(options, &o->config, &f->engine),
            &f->memory.kv_bytes, err));
    f->memory.kv_given = options->kv_bytes > 0;
    return WEFT_OK;
}

/* Everything that serve does before it loads, in its order. */
static weft_status examine(const weft_options *options, json_t *ignored,
                           json_t **report_out, weft_doing *doing_out,
                           weft_err *err)
{
    found f = {0};
    remarks r = {.list = ignored};
    *doing_out = WEFT_DOING_LOAD;
    WEFT_TRY(weft_model_open(options->model, options->profile, remember, &r,
                             &f.opened, err));
    *doing_out = WEFT_DOING_START;
    weft_status st =
        weft_model_engine_options(options, &f.opened.config, &f.engine, err);
    if (st == WEFT_OK) st = weft_backend_open(options, &f.backend, err);
    weft_backend_apply(&f.backend, &f.engine);
    if (st == WEFT_OK) st = plan_start(options, &f, err);
    if (st == WEFT_OK) *report_out = describe(options, &f, ignored);
    if (st == WEFT_OK && *report_out == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "report: out of memory");
    weft_model_close(&f.opened);
    weft_backend_close(&f.backend);
    return st;
}

static void print_json(json_t *report)
{
    (void)json_dumpf(report, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    (void)putchar('\n');
}

int weft_command_check(const weft_options *options)
{
    weft_err err = {0};
    json_t *report = NULL;
    json_t *const ignored = json_array();
    weft_doing doing = WEFT_DOING_LOAD;
    const weft_status st = examine(options, ignored, &report, &doing, &err);
    int code = WEFT_EXIT_DONE;
    if (st == WEFT_OK) {
        if (options->json)
            print_json(report);
        else
            print_text(report);
    } else {
        if (options->json) {
            report =
                json_pack("{s:b, s:s, s:o}", "ok", 0, "status",
                          weft_status_name(st), "refused", text_of(err.text));
            if (report != NULL) print_json(report);
        }
        code = weft_fail_with(weft_exit_of(st, doing), &err);
    }
    if (code == WEFT_EXIT_DONE) code = weft_output_end();
    json_decref(report);
    json_decref(ignored);
    return code;
}
