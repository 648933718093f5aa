/* fleet_kit.h - routers, fleets, fronts and engines in one process, over local
 * links, for tests of what happens when some of them go.
 *
 * Engines run a small model (T02 of model-spec 8.4). A lead may be held between
 * two steps, so that a test can act in the middle of streams. */
#ifndef WEFT_TESTS_SUPPORT_FLEET_KIT_H
#define WEFT_TESTS_SUPPORT_FLEET_KIT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "node/fleet/fleet.h"
#include "node/fleet/front.h"
#include "router/router.h"
#include "tests/support/harness.h"

enum {
    KIT_LEADS = 2,
    KIT_VOCAB = 97,
    KIT_CONTEXT = 256,
    KIT_SEQS = 4,
    KIT_QUEUE = 12,
};

typedef struct kit_lead {
    weft_front *front; /* NULL: not running */
    weft_engine *engine;
    atomic_bool whole;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int32_t steps_left; /* -1: as many as it likes */
} kit_lead;

typedef struct kit {
    harness model;
    weft_pulse *pulse;
    kit_lead leads[KIT_LEADS];
    int64_t memory_bytes; /* of a front's jobs; 0: as many as there may be */
} kit;

kit *fleet_kit_open(void);
void fleet_kit_close(kit *k); /* leads that run are ended */

/* jobs_max 0: all that the engine takes. It begins whole and unheld. */
void fleet_kit_lead_start(kit *k, int32_t at, int32_t jobs_max);
/* The same, held after so many steps. */
void fleet_kit_lead_start_held(kit *k, int32_t at, int32_t steps);
/* As a process that is killed: its links break off. */
void fleet_kit_lead_kill(kit *k, int32_t at);
/* So many steps more; -1: no limit. */
void fleet_kit_lead_allow(kit *k, int32_t at, int32_t steps);
/* Waits until it holds no job and no page. */
void fleet_kit_lead_wait_idle(kit *k, int32_t at);

typedef struct kit_router {
    kit *k;
    weft_router *router;
    weft_fleet *fleet; /* NULL: straight to the engine of lead 0 */
    weft_engine *direct;
    atomic_bool closed;   /* the router's ring takes nothing */
    atomic_int n_refused; /* events that were not taken */
    sem_t changed;        /* posted when a group's state has changed */
} kit_router;

/* n_groups 0: straight to the engine of lead 0, which must not run. */
kit_router *fleet_kit_router_open(kit *k, int32_t n_groups);
void fleet_kit_router_close(kit_router *r);
/* A link from the router to a lead that runs; waits until its state is told. */
void fleet_kit_connect(kit_router *r, int32_t at);
/* Waits until `is` says true of that group's state. */
void fleet_kit_wait_state(kit_router *r, uint32_t group,
                          bool (*is)(const weft_group_state *state));

typedef struct kit_client {
    weft_request request;
    uint32_t prompt[64];
    int32_t n_ids;
    int32_t ids[KIT_CONTEXT];
    float logprobs[KIT_CONTEXT];
    int32_t n_prompt_logprobs;
    float prompt_logprobs[64];
    int32_t n_ends;
    weft_status status;
    weft_stream_end end;
    char why[WEFT_ERR_TEXT_BYTES];
    uint64_t handle;
    sem_t told, ended; /* told: once a token, and at the end */
} kit_client;

/* A request that differs by salt: greedy if it is even, sampled if odd; with
 * logprobs, every third with the prompt's. */
void fleet_kit_client_init(kit_client *c, int32_t salt, uint32_t max_tokens);
void fleet_kit_client_deinit(kit_client *c);
/* What weft_router_generate says. */
weft_status fleet_kit_ask(kit_router *r, kit_client *c);
void fleet_kit_wait_tokens(kit_client *c, int32_t n);
void fleet_kit_wait_end(kit_client *c);
/* Complete, and to the byte what the other was told. */
void fleet_kit_expect_same(const kit_client *c, const kit_client *known);
/* What one engine alone answers to the same requests. */
void fleet_kit_know(kit_client *known, int32_t n, uint32_t max_tokens);

#endif
