#include "tests/support/pool.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "shard/link/near_internal.h"
#include "tests/support/expect.h"
#include "tests/support/harness.h"
#include "tests/support/link_kit.h"

enum { MAX_ROWS = 64, LINKS_MAX = 8 };

/* One sequence: two prefills, the second against a cache, then decode. */
static const int32_t STEPS[] = {14, 6, 1, 1, 1};
enum { N_STEPS = 5 };

/* -- shards --------------------------------------------------------------- */

static weft_hello hello_of(const pool *p, weft_role role, const char *id)
{
    weft_hello hello = {
        .protocol_min = 1,
        .protocol_max = 1,
        .role = role,
        .incarnation = 1,
        .n_stages = role == WEFT_ROLE_LAYERS ? 1 : 0,
        .config_hash = weft_model_config_hash(&p->config),
    };
    (void)snprintf(hello.release, sizeof hello.release, "test");
    (void)snprintf(hello.cluster, sizeof hello.cluster, "pool");
    (void)snprintf(hello.id, sizeof hello.id, "%s", id);
    (void)snprintf(hello.identity, sizeof hello.identity, "cpu");
    if (role == WEFT_ROLE_LAYERS)
        (void)snprintf(hello.profile, sizeof hello.profile, "exact");
    return hello;
}

weft_link_options pool_asker_link(const pool *p)
{
    return (weft_link_options){.limits = weft_answer_limits(&p->config),
                               .name = "shard"};
}

weft_link_options pool_server_link(const pool *p)
{
    return (weft_link_options){.limits = weft_dispatch_limits(&p->config),
                               .name = "asker"};
}

static void take_link(void *arg, weft_link *link, const weft_hello *peer)
{
    pool_shard *const shard = arg;
    weft_err err = {0};
    (void)peer;
    ck_assert_int_eq(weft_expert_server_add_link(shard->server, link, &err),
                     WEFT_OK);
}

void pool_start_shard(pool *p, int32_t i, bool tcp)
{
    pool_shard *const shard = &p->shards[i];
    const bool on_host = weft_memory_is_host(&p->memory);
    ck_assert_ptr_null(shard->server);
    const weft_expert_server_options options = {
        .config = &shard->config,
        .store = shard->store,
        .ops = on_host ? harness_ops(NULL) : p->memory.api->ops,
        .memory = &p->memory,
        .profile = p->profile,
        .threads = 1,
        .max_rows = MAX_ROWS,
        .links_max = LINKS_MAX,
        .pulse = p->pulse,
    };
    OK(weft_expert_server_start(&options, &shard->server, &err));
    weft_expert_server_set_epochs(shard->server, 1, 1000000);
    shard->peer.incarnation++;
    if (!tcp) return;
    weft_hello own = hello_of(p, WEFT_ROLE_EXPERTS, shard->peer.id);
    own.incarnation = shard->peer.incarnation;
    const weft_link_server_options listening = {
        .listen = "127.0.0.1:0",
        .own = &own,
        .link = pool_server_link(p),
        .take = take_link,
        .arg = shard,
    };
    OK(weft_link_server_start(&listening, &shard->listener, &err));
    (void)snprintf(shard->peer.address, sizeof shard->peer.address, "%s",
                   weft_link_server_address(shard->listener));
}

void pool_stop_shard(pool *p, int32_t i)
{
    pool_shard *const shard = &p->shards[i];
    weft_link_server_stop(shard->listener);
    weft_expert_server_stop(shard->server);
    shard->listener = NULL;
    shard->server = NULL;
}

static void load_all(pool_shard *shard)
{
    for (int32_t l = 0; l < shard->config.n_layer; l++)
        for (int32_t e = 0; shard->config.moe[l] && e < shard->config.n_expert;
             e++) {
            uint64_t hash = 0;
            OK(weft_expert_store_load(shard->store, l, e, &hash, &err));
        }
}

pool *pool_open(const char *dir, weft_profile profile,
                const pool_options *options)
{
    pool *const p = weft_mem_new(1, sizeof *p);
    p->n = options->n_shards;
    p->pulse = options->pulse;
    p->profile = profile;
    if (options->memory != NULL) p->memory = *options->memory;
    p->near = options->near;
    p->near_there = options->near_there;
    OK(weft_model_config_read(dir, NULL, NULL, &p->config, &err));
    p->hello = hello_of(p, WEFT_ROLE_LAYERS, "layers");
    for (int32_t i = 0; i < p->n; i++) {
        pool_shard *const shard = &p->shards[i];
        OK(weft_model_config_read(dir, NULL, NULL, &shard->config, &err));
        OK(weft_checkpoint_open(dir, &shard->config, profile, NULL, NULL,
                                &shard->checkpoint, &err));
        OK(weft_checkpoint_set_memory(shard->checkpoint, &p->memory, &err));
        OK(weft_expert_store_create(&shard->config, shard->checkpoint, 0,
                                    &shard->store, &err));
        (void)snprintf(shard->peer.id, sizeof shard->peer.id, "e%d", i);
        if (options->holds_all) load_all(shard);
        pool_start_shard(p, i, options->tcp);
    }
    return p;
}

void pool_close(pool *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        pool_stop_shard(p, i);
        weft_expert_store_destroy(p->shards[i].store);
        weft_checkpoint_close(p->shards[i].checkpoint);
    }
    weft_mem_free(p);
}

static void load_owned(pool *p, const weft_expert_map *map)
{
    for (int32_t l = 0; l < map->n_layer; l++)
        for (int32_t e = 0; p->config.moe[l] && e < map->n_expert; e++)
            for (int32_t r = 0; r < map->n_replicas; r++) {
                const uint16_t owner = weft_expert_map_owners(map, l, e)[r];
                uint64_t hash = 0;
                if (owner == WEFT_NO_OWNER) continue;
                const int32_t i = map->peers[owner].id[1] - '0';
                OK(weft_expert_store_load(p->shards[i].store, l, e, &hash,
                                          &err));
            }
}

weft_expert_map *pool_map(pool *p, uint64_t epoch, int32_t n_replicas,
                          uint32_t mask, int32_t turn)
{
    int32_t n = 0, who[POOL_SHARDS_MAX];
    for (int32_t i = 0; i < p->n; i++)
        if ((mask >> i & 1) != 0) who[n++] = i;
    weft_expert_map *map = NULL;
    OK(weft_expert_map_create(epoch, p->config.n_layer, p->config.n_expert,
                              n_replicas, n, &map, &err));
    for (int32_t i = 0; i < n; i++) map->peers[i] = p->shards[who[i]].peer;
    for (int32_t l = 0; l < map->n_layer; l++)
        for (int32_t e = 0; p->config.moe[l] && e < map->n_expert; e++)
            for (int32_t r = 0; r < n_replicas && r < n; r++)
                weft_expert_map_owners(map, l, e)[r] =
                    (uint16_t)((e + l + turn + r) % n);
    load_owned(p, map);
    return map;
}

/* -- the layer shard ------------------------------------------------------ */

static void hear_suspect(void *arg, const char *id, uint64_t incarnation,
                         const char *why)
{
    pool_heard *const heard = arg;
    ck_assert_uint_gt(incarnation, 0);
    heard->n_suspects++;
    (void)snprintf(heard->suspect, sizeof heard->suspect, "%s", id);
    (void)snprintf(heard->why, sizeof heard->why, "%s", why);
}

static void hear_cleared(void *arg, const char *id, uint64_t incarnation)
{
    pool_heard *const heard = arg;
    (void)id;
    ck_assert_uint_gt(incarnation, 0);
    heard->n_cleared++;
}

static void hear_switched(void *arg, uint64_t epoch)
{
    pool_heard *const heard = arg;
    ck_assert_msg(!heard->in_step, "epoch %d inside a step", (int)epoch);
    ck_assert_uint_gt(epoch, heard->epoch);
    heard->epoch = epoch;
    heard->n_switched++;
}

static void hear_exchanged(void *arg, const char *id, uint64_t ns,
                           uint64_t bytes)
{
    pool_heard *const heard = arg;
    (void)id;
    ck_assert_uint_gt(ns, 0);
    heard->exchanged_bytes += bytes;
}

static void hear_routed(void *arg, int32_t layer, const int32_t *experts,
                        int32_t n_pairs)
{
    pool_heard *const heard = arg;
    (void)layer;
    ck_assert_int_ge(experts[n_pairs - 1], 0);
    heard->n_routed += n_pairs;
}

void pool_connect(pool *p, weft_exchange *exchange, int32_t shard)
{
    weft_link_options a = pool_asker_link(p), b = pool_server_link(p);
    weft_link *here = NULL, *there = NULL;
    a.near = p->near;
    b.near = p->near_there;
    kit_open(p->near == NULL ? KIT_LOCAL : KIT_TCP, &a, &b, &here, &there);
    if (p->near != NULL) {
        weft_near_attach(here, true);
        weft_near_attach(there, false);
    }
    OK(weft_expert_server_add_link(p->shards[shard].server, there, &err));
    OK(weft_exchange_add_link(exchange, &p->shards[shard].peer, here, &err));
}

weft_exchange *pool_exchange(pool *p, const weft_exchange_options *base,
                             pool_heard *heard)
{
    weft_exchange_options options = {0};
    if (base != NULL) options = *base;
    options.config = &p->config;
    options.max_rows = MAX_ROWS;
    options.watch = (weft_exchange_watch){
        .suspect = hear_suspect,
        .cleared = hear_cleared,
        .switched = hear_switched,
        .exchanged = hear_exchanged,
        .routed = hear_routed,
        .arg = heard,
    };
    weft_exchange *exchange = NULL;
    OK(weft_exchange_create(&options, &exchange, &err));
    for (int32_t i = 0; options.peers == NULL && i < p->n; i++)
        if (p->shards[i].server != NULL) pool_connect(p, exchange, i);
    return exchange;
}

static void wake_exchange(void *arg)
{
    weft_exchange **const exchange = arg;
    if (*exchange != NULL) weft_exchange_wake(*exchange);
}

weft_peers *pool_peers(pool *p, weft_exchange **exchange)
{
    const weft_peers_options options = {
        .own = &p->hello,
        .link = pool_asker_link(p),
        .peers_max = POOL_SHARDS_MAX,
        .ready = wake_exchange,
        .arg = exchange,
    };
    weft_peers *peers = NULL;
    OK(weft_peers_create(&options, &peers, &err));
    return peers;
}

/* -- computing ------------------------------------------------------------ */

pool_results pool_results_make(const weft_model_config *c)
{
    pool_results r = {.n_hidden = (int64_t)POOL_IDS * c->hidden_size,
                      .n_logits = (int64_t)POOL_IDS * c->vocab_size};
    r.hidden = weft_mem_new((size_t)r.n_hidden, sizeof *r.hidden);
    r.logits = weft_mem_new((size_t)r.n_logits, sizeof *r.logits);
    return r;
}

void pool_results_drop(pool_results *r)
{
    weft_mem_free(r->hidden);
    weft_mem_free(r->logits);
}

void pool_expect_same(const pool_results *want, const pool_results *got,
                      const char *what, int number)
{
    ck_assert_msg(memcmp(want->hidden, got->hidden,
                         (size_t)want->n_hidden * sizeof(float)) == 0,
                  "%s %d: hidden rows differ", what, number);
    ck_assert_msg(memcmp(want->logits, got->logits,
                         (size_t)want->n_logits * sizeof(float)) == 0,
                  "%s %d: logits differ", what, number);
}

static weft_status compute_step(split_model *m, weft_exchange *exchange,
                                pool_run *run, int32_t i, int32_t first,
                                pool_results *out, weft_err *err)
{
    const weft_model_config *const c = &m->stages[0].config;
    int32_t ids[POOL_IDS];
    for (int32_t k = 0; k < POOL_IDS; k++)
        ids[k] = (7 * k * k + 3 * k + 11) % 97;
    const int32_t n = STEPS[i];
    const int32_t cut =
        run->cut == 0 || n == 1 ? 0 : (run->cut - 1) % (n - 1) + 1;
    for (int32_t attempt = 0;; attempt++) {
        weft_status st = WEFT_OK;
        if (run->before != NULL) run->before(run->arg, i, attempt);
        if (exchange != NULL) {
            uint64_t epoch = 0;
            st = m->experts.begin(m->experts.arg, (uint64_t)i + 1,
                                  (uint32_t)attempt, run->epoch, &epoch, err);
            run->n_unavailable += st == WEFT_UNAVAILABLE;
        }
        if (st == WEFT_OK) {
            if (run->heard != NULL) run->heard->in_step = true;
            st = split_step(m, ids, first, n, cut,
                            out->hidden + (int64_t)first * c->hidden_size,
                            out->logits + (int64_t)first * c->vocab_size, err);
            if (run->heard != NULL) run->heard->in_step = false;
            run->n_failed += st == WEFT_UNAVAILABLE;
        } else if (st == WEFT_UNAVAILABLE) {
            m->experts.idle(m->experts.arg, weft_clock_now_ns() + 100000000U);
        }
        if (st != WEFT_UNAVAILABLE || weft_clock_now_ns() >= run->deadline_ns)
            return st;
    }
}

weft_status pool_compute(split_model *m, weft_exchange *exchange, pool_run *run,
                         pool_results *out, weft_err *err)
{
    if (run->deadline_ns == 0)
        run->deadline_ns = weft_clock_now_ns() + UINT64_C(60000000000);
    split_forget(m);
    memset(out->hidden, 0xff, (size_t)out->n_hidden * sizeof *out->hidden);
    memset(out->logits, 0xff, (size_t)out->n_logits * sizeof *out->logits);
    int32_t first = 0;
    for (int32_t i = 0; i < N_STEPS; first += STEPS[i++]) {
        const weft_status st =
            compute_step(m, exchange, run, i, first, out, err);
        if (st != WEFT_OK) return st;
    }
    return WEFT_OK;
}

pool_results pool_reference(const char *dir, weft_profile profile)
{
    return pool_reference_on(dir, profile, NULL);
}

pool_results pool_reference_on(const char *dir, weft_profile profile,
                               const weft_memory *memory)
{
    split_model *const m =
        split_open_on(dir, profile, 1, NULL, POOL_IDS, memory);
    pool_results want = pool_results_make(&m->stages[0].config);
    pool_run run = {0};
    OK(pool_compute(m, NULL, &run, &want, &err));
    for (int64_t k = 0; k < want.n_logits; k++)
        ck_assert(want.logits[k] == want.logits[k]);
    split_close(m);
    return want;
}

split_model *pool_model(const char *dir, weft_profile profile,
                        weft_exchange *exchange)
{
    return pool_model_on(dir, profile, exchange, NULL);
}

split_model *pool_model_on(const char *dir, weft_profile profile,
                           weft_exchange *exchange, const weft_memory *memory)
{
    /* Only says that experts are elsewhere; it is never asked. */
    split_experts *const elsewhere = weft_mem_new(1, sizeof *elsewhere);
    split_model *const m =
        split_open_on(dir, profile, 1, elsewhere, POOL_IDS, memory);
    weft_mem_free(elsewhere);
    m->experts = weft_exchange_experts(exchange);
    return m;
}

void pool_model_close(split_model *m)
{
    split_close(m);
}
