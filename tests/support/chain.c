#include "tests/support/chain.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"

static const uint64_t WAIT_NS = UINT64_C(20) * 1000 * 1000 * 1000;

static weft_hello hello_of(int32_t stage, int32_t n_stages)
{
    weft_hello hello = {
        .protocol_min = WEFT_FRAME_VERSION,
        .protocol_max = WEFT_FRAME_VERSION,
        .release = "test",
        .cluster = "test",
        .role = WEFT_ROLE_LAYERS,
        .incarnation = 1,
        .group = CHAIN_GROUP,
        .stage = stage,
        .n_stages = n_stages,
        .config_hash = 1,
        .weights_hash = 2,
        .identity = "cpu",
        .profile = "exact",
    };
    (void)snprintf(hello.id, sizeof hello.id, "stage-%d", stage);
    return hello;
}

static weft_link_options link_options(const chain *c,
                                      const weft_engine_options *engine)
{
    return (weft_link_options){
        .limits = weft_stages_limits(&c->h->config, engine),
        .silence_ns = 4 * WEFT_SILENCE_NS,
        .name = "a stage",
    };
}

/* ---- links of the process ----------------------------------------------- */

static void connect_here(chain *c, const weft_engine_options *engine)
{
    const weft_link_options o = link_options(c, engine);
    for (int32_t i = 1; i < c->options.n_stages; i++) {
        weft_link *a = NULL, *b = NULL;
        OK(weft_link_create_local(&o, &o, &a, &b, &err));
        OK(weft_stages_add_link(c->lead, i, a, &err));
        OK(weft_stage_add_link(c->stages[i], 0, b, &err));
        if (i == 1) continue;
        OK(weft_link_create_local(&o, &o, &a, &b, &err));
        OK(weft_stage_set_next(c->stages[i - 1], a, &err));
        OK(weft_stage_add_link(c->stages[i], i - 1, b, &err));
    }
}

/* ---- dialled ------------------------------------------------------------ */

static void take(void *arg, weft_link *link, const weft_hello *peer)
{
    OK(weft_stage_add_link(arg, peer->stage, link, &err));
}

/* Nobody is woken: whoever owns peers looks for links now and then. */
static weft_peers *peers_of(chain *c, int32_t stage,
                            const weft_engine_options *engine)
{
    const weft_hello own = hello_of(stage, c->options.n_stages);
    const weft_peers_options o = {
        .own = &own,
        .link = link_options(c, engine),
        .peers_max = CHAIN_STAGES_MAX,
    };
    weft_peers *peers = NULL;
    OK(weft_peers_create(&o, &peers, &err));
    return peers;
}

static weft_peer peer_of(int32_t stage, const char *address)
{
    weft_peer peer = {.incarnation = 1};
    (void)snprintf(peer.id, sizeof peer.id, "stage-%d", stage);
    (void)snprintf(peer.address, sizeof peer.address, "%s", address);
    return peer;
}

static void listen_all(chain *c, const weft_engine_options *engine)
{
    for (int32_t i = 1; i < c->options.n_stages; i++) {
        const weft_hello own = hello_of(i, c->options.n_stages);
        const weft_link_server_options o = {
            .listen = "127.0.0.1:0",
            .own = &own,
            .link = link_options(c, engine),
            .take = take,
            .arg = c->stages[i],
        };
        OK(weft_link_server_start(&o, &c->servers[i], &err));
        const char *const at = weft_link_server_address(c->servers[i]);
        c->from_lead[i] = relay_open(at);
        if (i > 1) c->from_before[i] = relay_open(at);
    }
}

static void dial_all(chain *c)
{
    weft_peer all[CHAIN_STAGES_MAX];
    for (int32_t i = 1; i < c->options.n_stages; i++) {
        all[i - 1] = peer_of(i, relay_address(c->from_lead[i]));
        if (i == 1) continue;
        const weft_peer next = peer_of(i, relay_address(c->from_before[i]));
        OK(weft_stage_want(c->stages[i - 1], &next, &err));
    }
    OK(weft_stages_want(c->lead, all, &err));
}

/* ---- the whole ---------------------------------------------------------- */

static void create_lead(chain *c, const weft_engine_options *engine)
{
    const chain_options *const o = &c->options;
    if (o->tcp) c->peers[0] = peers_of(c, 0, engine);
    const weft_stages_options lead = {
        .n_stages = o->n_stages,
        .group = CHAIN_GROUP,
        .micro_batches = o->micro_batches,
        .micro_rows = o->micro_rows,
        .peers = c->peers[0],
        .pulse = c->pulse,
        .on_micro = o->on_micro[0],
        .on_micro_arg = o->on_micro_arg,
    };
    OK(weft_stages_create(&lead, &c->lead, &err));
}

static void start_stage(chain *c, int32_t i, const weft_engine_options *engine)
{
    const chain_options *const o = &c->options;
    weft_stage_options stage = {
        .config = &c->config[i],
        .weights = weft_model_weights(c->h->model),
        .engine = *engine,
        .stage = i,
        .n_stages = o->n_stages,
        .group = CHAIN_GROUP,
        .exchange = o->exchanges[i],
        .peers = c->peers[i],
        .pulse = c->pulse,
        .on_micro = o->on_micro[i],
        .on_micro_arg = o->on_micro_arg,
    };
    stage.engine.stages = NULL;
    stage.engine.kv_bytes = c->kv_bytes[i];
    stage.engine.experts = o->fakes ? &c->experts[i]->seam : NULL;
    if (o->change != NULL) o->change(i, &stage.engine);
    OK(weft_stage_start(&stage, &c->stages[i], &err));
}

chain *chain_open(const harness *h, const chain_options *options,
                  weft_engine_options *engine)
{
    chain *const c = weft_mem_new(1, sizeof *c);
    c->options = *options;
    c->h = h;
    if (c->options.experts_of == NULL) c->options.experts_of = h;
    engine->pair_rows = options->pair_rows;
    if (options->n_stages == 1) {
        c->config[0] = h->config;
        engine->exchange = options->exchanges[0];
        if (!options->fakes) return c;
        c->experts[0] = fake_experts_open(c->options.experts_of);
        engine->experts = &c->experts[0]->seam;
        return c;
    }
    OK(weft_pulse_start(WEFT_PULSE_NS, &c->pulse, &err));
    for (int32_t i = 0; i < options->n_stages; i++) {
        OK(weft_partition_cut(&h->config, options->n_stages, i, &c->config[i],
                              &err));
        if (options->fakes)
            c->experts[i] = fake_experts_open(c->options.experts_of);
        c->kv_bytes[i] =
            options->kv_bytes[i] > 0 ? options->kv_bytes[i] : engine->kv_bytes;
    }
    create_lead(c, engine);
    for (int32_t i = 1; i < options->n_stages; i++) {
        if (options->tcp) c->peers[i] = peers_of(c, i, engine);
        start_stage(c, i, engine);
    }
    if (options->tcp) {
        listen_all(c, engine);
        dial_all(c);
    } else {
        connect_here(c, engine);
    }
    OK(weft_stages_wait(c->lead, weft_clock_now_ns() + WAIT_NS, &c->kv_bytes[1],
                        &err));
    engine->kv_bytes = c->kv_bytes[0];
    engine->stages = c->lead;
    engine->exchange = options->exchanges[0];
    engine->stage_kv_bytes = &c->kv_bytes[1];
    engine->experts = options->fakes ? &c->experts[0]->seam : NULL;
    return c;
}

void chain_close(chain *c)
{
    weft_stages_destroy(c->lead);
    for (int32_t i = 0; i < CHAIN_STAGES_MAX; i++)
        weft_link_server_stop(c->servers[i]);
    for (int32_t i = 0; i < CHAIN_STAGES_MAX; i++)
        weft_stage_stop(c->stages[i]);
    for (int32_t i = 0; i < CHAIN_STAGES_MAX; i++) {
        weft_peers_destroy(c->peers[i]);
        relay_close(c->from_lead[i]);
        relay_close(c->from_before[i]);
        fake_experts_close(c->experts[i]);
    }
    weft_pulse_stop(c->pulse);
    weft_mem_free(c);
}

int64_t chain_bytes(const harness *h, int32_t n_stages, int32_t stage,
                    int32_t page_tokens, int32_t chunk_tokens, int32_t n_tokens)
{
    weft_model_config cut;
    weft_kv_layout layout;
    OK(weft_partition_cut(&h->config, n_stages, stage, &cut, &err));
    OK(weft_kv_layout_make(&cut,
                           h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
                           page_tokens, &layout, &err));
    int64_t slabs = 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (cut.n_kind[k] == 0) continue;
        const int64_t pages = weft_kv_pages_for(&cut, &layout, (weft_kind)k,
                                                n_tokens, chunk_tokens);
        slabs += (pages + layout.slab_pages[k] - 1) / layout.slab_pages[k];
    }
    return slabs * layout.slab_bytes;
}
