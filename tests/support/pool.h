/* pool.h - expert shards of a test: real servers over stores of a fixture, in
 * this process, over local links or TCP on loopback, and an exchange that a
 * model in a test computes with.
 *
 * What goes wrong in here ends the test with a message. */
#ifndef WEFT_TESTS_SUPPORT_POOL_H
#define WEFT_TESTS_SUPPORT_POOL_H

#include "shard/expert/exchange.h"
#include "shard/expert/server.h"
#include "shard/link/dial.h"
#include "shard/link/near.h"
#include "tests/support/split.h"

enum { POOL_SHARDS_MAX = 8, POOL_IDS = 23 };

/* -- shards --------------------------------------------------------------- */

typedef struct pool_shard {
    weft_peer peer;
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
    weft_expert_server *server; /* NULL: not running */
    weft_link_server *listener; /* over TCP */
} pool_shard;

typedef struct pool {
    weft_model_config config;
    weft_hello hello; /* of the layer shard */
    weft_profile profile;
    weft_memory memory; /* of the shards' experts */
    weft_near *near, *near_there;
    int32_t n;
    pool_shard shards[POOL_SHARDS_MAX];
    weft_pulse *pulse; /* NULL unless made by the test before pool_open */
} pool;

typedef struct pool_options {
    int32_t n_shards;
    bool tcp;
    bool holds_all;            /* every shard holds every expert */
    const weft_memory *memory; /* NULL: the host's; else the caller is bound */
    /* Of the exchange's device and of the shards': links over TCP that try to
     * become near (shard/link/near.h), in place of local ones. NULL: none. */
    weft_near *near, *near_there;
    weft_pulse *pulse;
} pool_options;

pool *pool_open(const char *dir, weft_profile profile,
                const pool_options *options);
void pool_close(pool *p);
/* Its server ends, and all links of it. */
void pool_stop_shard(pool *p, int32_t i);
/* Again, the same id with the next incarnation. */
void pool_start_shard(pool *p, int32_t i, bool tcp);

/* Expert e of layer l on shards (e + l + turn + r) % n of those in `mask`.
 * Every shard that is running loads what it has there. Epochs [1, 1000000] are
 * open.
 */
weft_expert_map *pool_map(pool *p, uint64_t epoch, int32_t n_replicas,
                          uint32_t mask, int32_t turn);

/* -- the layer shard ------------------------------------------------------ */

typedef struct pool_heard {
    int32_t n_suspects, n_cleared, n_switched;
    char suspect[WEFT_ID_BYTES], why[160];
    uint64_t epoch, exchanged_bytes;
    int64_t n_routed;
    bool in_step; /* the test says so; a switch in there is a failure */
} pool_heard;

/* Links to all running shards; the watch fills *heard. `base` may set
 * group, silence_ns, answer_ns, pulse, peers; may be NULL. */
weft_exchange *pool_exchange(pool *p, const weft_exchange_options *base,
                             pool_heard *heard);
/* A local link from the exchange to the shard. */
void pool_connect(pool *p, weft_exchange *exchange, int32_t shard);
/* The options of a link that the exchange owns, and of the other end. */
weft_link_options pool_asker_link(const pool *p);
weft_link_options pool_server_link(const pool *p);
/* For weft_peers_create; wakes the exchange at *exchange. */
weft_peers *pool_peers(pool *p, weft_exchange **exchange);

/* -- computing ------------------------------------------------------------ */

typedef struct pool_results {
    float *hidden, *logits; /* of all POOL_IDS positions */
    int64_t n_hidden, n_logits;
} pool_results;

pool_results pool_results_make(const weft_model_config *config);
void pool_results_drop(pool_results *results);
/* As one process computes it. */
pool_results pool_reference(const char *dir, weft_profile profile);
pool_results pool_reference_on(const char *dir, weft_profile profile,
                               const weft_memory *memory);
/* Ends the test where they differ in a bit. */
void pool_expect_same(const pool_results *want, const pool_results *got,
                      const char *what, int number);

/* A model whose experts are asked through the exchange. */
split_model *pool_model(const char *dir, weft_profile profile,
                        weft_exchange *exchange);
split_model *pool_model_on(const char *dir, weft_profile profile,
                           weft_exchange *exchange, const weft_memory *memory);
void pool_model_close(split_model *model);

typedef struct pool_run {
    int32_t cut;          /* of the first step into two lanes; 0: none */
    uint64_t deadline_ns; /* of all; 0: 60 s from its start */
    int32_t n_unavailable, n_failed; /* out: begins, steps that failed */
    pool_heard *heard;
    uint64_t epoch; /* for begin */
    /* Called before each begin; may be NULL. */
    void (*before)(void *arg, int32_t step, int32_t attempt);
    void *arg;
} pool_run;

/* All steps of the sequence, each again while it is UNAVAILABLE. Any other
 * failure is returned, as is UNAVAILABLE at the deadline. */
weft_status pool_compute(split_model *model, weft_exchange *exchange,
                         pool_run *run, pool_results *out, weft_err *err);

#endif
