/* plan.c - `weft plan`: how many shards of each role a load needs, and the
 * floors below which no step of it can be (capacity.h). */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "node/app/capacity.h"
#include "node/app/commands.h"
#include "node/base/mem.h"

/* Of a device's memory: what is left to the driver and its allocator, and what
 * step buffers and NCCL take. */
static const double USABLE = 0.92, RESERVE_BYTES = 4e9;

static weft_capacity_device device_of(const weft_options *o)
{
    return (weft_capacity_device){
        .bytes = (double)o->device_bytes,
        .usable = USABLE,
        .reserve_bytes = RESERVE_BYTES,
        .bandwidth = o->device_bandwidth * 1e12,
        .bf16_flops = o->bf16_tflops * 1e12,
        .fp8_flops = o->fp8_tflops * 1e12,
    };
}

static weft_capacity_load load_of(const weft_options *o)
{
    return (weft_capacity_load){
        .context = o->context,
        .sequences = o->sequences,
        .expert_replicas = o->expert_replicas,
        .ranks = o->tensor_parallel,
        .fp8 = strcmp(o->weights, "fp8") == 0,
    };
}

static json_t *describe(const weft_options *o, const weft_capacity_plan *p)
{
    const weft_capacity_model *const m = &p->model;
    json_t *const load =
        json_pack("{s:i, s:i, s:i, s:s}", "context", o->context, "sequences",
                  o->sequences, "expert_replicas", o->expert_replicas,
                  "weights", o->weights);
    json_t *const layers = json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f}", "groups", p->groups,
        "stages", p->stages, "tensor_parallel", p->ranks, "sequences",
        p->group_sequences, "fits", (json_int_t)p->group_fits, "weight_bytes",
        p->layer_shard_bytes, "kv_bytes", p->kv_shard_bytes, "step_seconds",
        p->layers_seconds);
    json_t *const experts = json_pack(
        "{s:i, s:i, s:i, s:f, s:f, s:f}", "shards", p->experts, "for_memory",
        p->experts_memory, "for_balance", p->experts_balance, "weight_bytes",
        p->expert_shard_bytes, "device_seconds", p->experts_seconds,
        "join_bytes", p->join_bytes);
    json_t *const sequence = json_pack("{s:f, s:f}", "kv_bytes", m->kv_bytes,
                                       "kv_read_bytes", m->kv_read_bytes);
    return json_pack("{s:o, s:o, s:o, s:o, s:f, s:f, s:f}", "load", load,
                     "layers", layers, "experts", experts, "sequence", sequence,
                     "step_seconds_min", p->step_seconds,
                     "tokens_per_second_max", p->tokens_per_second,
                     "network_bytes_per_step", p->rows_bytes);
}

static double gb(double bytes)
{
    return bytes / 1e9;
}

static void print_text(const weft_options *o, const weft_capacity_plan *p)
{
    printf("load      %d sequences of %d tokens, weights in %s\n", o->sequences,
           o->context, o->weights);
    printf("layers    %d shards: %d groups of %d stages; each group %d "
           "sequences, with room for %lld\n",
           p->groups * p->stages, p->groups, p->stages, p->group_sequences,
           (long long)p->group_fits);
    if (p->ranks > 1)
        printf("          a shard is %d devices that share each layer\n",
               p->ranks);
    const bool shared = p->ranks > 1;
    printf("          a %s: weights %.3g GB, KV %.3g GB; a step takes %.3f "
           "ms or more\n",
           shared ? "device" : "shard", gb(p->layer_shard_bytes),
           gb(p->kv_shard_bytes), p->layers_seconds * 1e3);
    if (p->experts > 0) {
        printf("experts   %d shards: %d hold them (%d owners each), %d keep "
               "up with the layers\n",
               p->experts, p->experts_memory, o->expert_replicas,
               p->experts_balance);
        printf("          a shard: weights %.3g GB, which one that joins "
               "reads; a step takes %.3f ms or more\n",
               gb(p->expert_shard_bytes),
               p->experts_seconds / p->experts * 1e3);
    }
    printf("sequence  holds %.3g GB of KV, reads %.3g MB of it a token\n",
           gb(p->model.kv_bytes), p->model.kv_read_bytes / 1e6);
    printf("floor     %.3f ms a token, %.0f tokens a second; %.3g MB cross "
           "the network in a step\n",
           p->step_seconds * 1e3, p->tokens_per_second, p->rows_bytes / 1e6);
}

static int print(const weft_options *options, const weft_capacity_plan *plan)
{
    if (!options->json) {
        print_text(options, plan);
        return weft_output_end();
    }
    json_t *const report = describe(options, plan);
    if (report == NULL) {
        weft_err err = {0};
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "plan: out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    (void)json_dumpf(report, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    (void)putchar('\n');
    json_decref(report);
    return weft_output_end();
}

int weft_command_plan(const weft_options *options)
{
    weft_err err = {0};
    weft_model_config *const config = weft_mem_new(1, sizeof *config);
    weft_capacity_plan plan;
    if (config == NULL) {
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "plan: out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    const weft_capacity_device device = device_of(options);
    const weft_capacity_load load = load_of(options);
    weft_doing doing = WEFT_DOING_LOAD;
    weft_status st =
        weft_model_config_read(options->model, NULL, NULL, config, &err);
    if (st == WEFT_OK) {
        st = weft_capacity_plan_make(config, &device, &load, &plan, &err);
        doing =
            st == WEFT_INVALID_ARGUMENT ? WEFT_DOING_USAGE : WEFT_DOING_START;
    }
    weft_mem_free(config);
    if (st != WEFT_OK) return weft_fail_with(weft_exit_of(st, doing), &err);
    return print(options, &plan);
}
