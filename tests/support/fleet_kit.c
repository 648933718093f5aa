#include "tests/support/fleet_kit.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/app/service.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"
#include "tests/support/synth.h"

enum { WAIT_SECONDS = 60, POLL_NS = 1000000 };

static void wait_for(sem_t *sem)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_SECONDS;
    while (sem_timedwait(sem, &until) != 0)
        ck_assert_msg(errno == EINTR, "nothing came");
}

/* -- leads ------------------------------------------------------------------
 */

kit *fleet_kit_open(void)
{
    kit *const k = weft_mem_new(1, sizeof *k);
    char dir[64];
    synth_folder_make(dir);
    synth_case_write(dir, "T02", NULL, NULL);
    k->model = harness_open(dir, WEFT_EXACT);
    synth_folder_remove(dir);
    OK(weft_pulse_start(WEFT_PULSE_NS, &k->pulse, &err));
    for (int32_t i = 0; i < KIT_LEADS; i++) {
        (void)pthread_mutex_init(&k->leads[i].lock, NULL);
        (void)pthread_cond_init(&k->leads[i].moved, NULL);
    }
    return k;
}

void fleet_kit_close(kit *k)
{
    for (int32_t i = 0; i < KIT_LEADS; i++) {
        fleet_kit_lead_kill(k, i);
        (void)pthread_mutex_destroy(&k->leads[i].lock);
        (void)pthread_cond_destroy(&k->leads[i].moved);
    }
    weft_pulse_stop(k->pulse);
    harness_close(&k->model);
    weft_mem_free(k);
}

static void hold(void *arg, uint64_t ns, int32_t n_rows)
{
    kit_lead *const lead = arg;
    (void)ns;
    (void)n_rows;
    (void)pthread_mutex_lock(&lead->lock);
    if (lead->steps_left > 0) lead->steps_left--;
    while (lead->steps_left == 0)
        (void)pthread_cond_wait(&lead->moved, &lead->lock);
    (void)pthread_mutex_unlock(&lead->lock);
}

void fleet_kit_lead_allow(kit *k, int32_t at, int32_t steps)
{
    kit_lead *const lead = &k->leads[at];
    (void)pthread_mutex_lock(&lead->lock);
    lead->steps_left = steps;
    (void)pthread_cond_broadcast(&lead->moved);
    (void)pthread_mutex_unlock(&lead->lock);
}

static void describe(void *arg, weft_group_state *state)
{
    const kit_lead *const lead = arg;
    state->whole = atomic_load(&lead->whole);
    if (!state->whole)
        (void)snprintf(state->reason, sizeof state->reason,
                       "experts are missing");
}

static weft_engine_options engine_options(const kit *k)
{
    weft_engine_options o = {
        .page_tokens = 4,
        .chunk_tokens = 8,
        .max_seqs = KIT_SEQS,
        .max_waiting = KIT_QUEUE,
        .max_context = KIT_CONTEXT,
        .threads = 1,
        .profile = WEFT_EXACT,
        .ops = harness_ops(NULL),
    };
    weft_kv_layout layout;
    OK(weft_kv_layout_make(&k->model.config, WEFT_F32, o.page_tokens, &layout,
                           &err));
    o.kv_bytes = (KIT_SEQS + 1) * weft_kv_bytes_for(&k->model.config, &layout,
                                                    KIT_CONTEXT, 8) +
                 4 * layout.slab_bytes;
    return o;
}

static weft_engine *make_engine(const kit *k, weft_event_sink sink,
                                kit_lead *lead)
{
    weft_engine *engine = NULL;
    const weft_engine_options o = engine_options(k);
    OK(weft_engine_create(&k->model.config, weft_model_weights(k->model.model),
                          &o, sink, lead == NULL ? NULL : hold, lead, &engine,
                          &err));
    return engine;
}

static void start_lead(kit *k, int32_t at, int32_t jobs_max, int32_t steps)
{
    kit_lead *const lead = &k->leads[at];
    weft_front_options o = {
        .jobs_max = jobs_max > 0 ? jobs_max : KIT_SEQS + KIT_QUEUE,
        .vocab_size = KIT_VOCAB,
        .memory_bytes_max = k->memory_bytes,
        .pulse = k->pulse,
        .own = {.group = (uint32_t)at,
                .max_seqs = KIT_SEQS,
                .max_context = KIT_CONTEXT,
                .weights_hash = 42},
        .describe = describe,
        .describe_arg = lead,
    };
    (void)snprintf(o.own.id, sizeof o.own.id, "lead-%d", at);
    atomic_store(&lead->whole, true);
    lead->steps_left = steps;
    OK(weft_front_create(&o, &lead->front, &err));
    lead->engine = make_engine(k, weft_front_sink(lead->front), lead);
    OK(weft_engine_start(lead->engine, &err));
    OK(weft_front_start(lead->front, lead->engine, &err));
}

void fleet_kit_lead_start(kit *k, int32_t at, int32_t jobs_max)
{
    start_lead(k, at, jobs_max, -1);
}

void fleet_kit_lead_start_held(kit *k, int32_t at, int32_t steps)
{
    start_lead(k, at, 0, steps);
}

void fleet_kit_lead_kill(kit *k, int32_t at)
{
    kit_lead *const lead = &k->leads[at];
    if (lead->front == NULL) return;
    weft_front_stop(lead->front);
    fleet_kit_lead_allow(k, at, -1);
    weft_engine_stop(lead->engine);
    weft_engine_destroy(lead->engine);
    weft_front_destroy(lead->front);
    lead->front = NULL;
    lead->engine = NULL;
}

static bool is_idle(const kit_lead *lead)
{
    weft_engine_load load;
    weft_engine_get_load(lead->engine, &load);
    return weft_front_live(lead->front) == 0 && load.sched.n_running == 0 &&
           load.sched.n_waiting == 0 && load.kv.slabs_free == load.kv.slabs;
}

void fleet_kit_lead_wait_idle(kit *k, int32_t at)
{
    const uint64_t until_ns =
        weft_clock_now_ns() + WAIT_SECONDS * UINT64_C(1000000000);
    while (!is_idle(&k->leads[at])) {
        const struct timespec pause = {.tv_nsec = POLL_NS};
        ck_assert_msg(weft_clock_now_ns() < until_ns, "the lead is not idle");
        (void)nanosleep(&pause, NULL);
    }
}

/* -- routers ----------------------------------------------------------------
 */

static bool take(void *arg, const weft_event *event)
{
    kit_router *const r = arg;
    if (!atomic_load(&r->closed) && weft_router_take_event(r->router, event))
        return true;
    (void)atomic_fetch_add(&r->n_refused, 1);
    return false;
}

static void changed(void *arg)
{
    kit_router *const r = arg;
    (void)sem_post(&r->changed);
}

static bool can_serve(void *arg, char *reason, size_t bytes)
{
    const kit_router *const r = arg;
    return r->fleet == NULL ||
           weft_fleet_takes_requests(r->fleet, reason, bytes);
}

static void make_router(kit_router *r)
{
    const weft_router_options o = {
        .max_seqs = KIT_SEQS,
        .max_queue = KIT_QUEUE,
        .limits = {.vocab_size = KIT_VOCAB,
                   .max_context = KIT_CONTEXT,
                   .temperature = 1.0F,
                   .top_p = 1.0F,
                   .repetition_penalty = 1.0F},
        .memory_bytes_max = 64 << 20,
        .can_serve = can_serve,
        .can_serve_arg = r,
    };
    OK(weft_router_create(&o, &r->router, &err));
}

static void make_fleet(kit_router *r, int32_t n_groups)
{
    const weft_fleet_options o = {
        .pulse = r->k->pulse,
        .coming_ns = 1, /* who is not there is refused at once */
        .jobs_max = KIT_SEQS + KIT_QUEUE,
        .vocab_size = KIT_VOCAB,
        .take = take,
        .take_arg = r,
        .changed = changed,
        .changed_arg = r,
    };
    weft_fleet_lead leads[KIT_LEADS] = {0};
    OK(weft_fleet_start(&o, &r->fleet, &err));
    for (int32_t i = 0; i < n_groups; i++) {
        leads[i].group = (uint32_t)i;
        (void)snprintf(leads[i].peer.id, sizeof leads[i].peer.id, "lead-%d", i);
    }
    OK(weft_fleet_want(r->fleet, leads, n_groups, &err));
}

kit_router *fleet_kit_router_open(kit *k, int32_t n_groups)
{
    kit_router *const r = weft_mem_new(1, sizeof *r);
    r->k = k;
    (void)sem_init(&r->changed, 0, 0);
    make_router(r);
    if (n_groups > 0) {
        make_fleet(r, n_groups);
    } else {
        r->direct =
            make_engine(k, (weft_event_sink){.take = take, .arg = r}, NULL);
        OK(weft_engine_start(r->direct, &err));
    }
    OK(weft_router_start(r->router,
                         n_groups > 0 ? weft_fleet_lead_ops(r->fleet)
                                      : weft_service_lead(r->direct),
                         &err));
    return r;
}

void fleet_kit_router_close(kit_router *r)
{
    weft_router_stop(r->router);
    weft_fleet_stop(r->fleet);
    if (r->direct != NULL) weft_engine_stop(r->direct);
    weft_router_destroy(r->router);
    weft_fleet_destroy(r->fleet);
    weft_engine_destroy(r->direct);
    (void)sem_destroy(&r->changed);
    weft_mem_free(r);
}

void fleet_kit_wait_state(kit_router *r, uint32_t group,
                          bool (*is)(const weft_group_state *state))
{
    for (;;) {
        weft_group_state states[KIT_LEADS];
        const int32_t n = weft_fleet_get_states(r->fleet, states, KIT_LEADS);
        for (int32_t i = 0; i < n; i++)
            if (states[i].group == group && is(&states[i])) return;
        wait_for(&r->changed);
    }
}

static bool is_connected(const weft_group_state *state)
{
    return state->connected;
}

void fleet_kit_connect(kit_router *r, int32_t at)
{
    const weft_link_options near = {.limits = {.body_bytes_max = 1 << 20},
                                    .name = "lead"};
    const weft_link_options far = {.limits = {.body_bytes_max = 1 << 20},
                                   .name = "router"};
    weft_link *ours = NULL, *theirs = NULL;
    OK(weft_link_create_local(&near, &far, &ours, &theirs, &err));
    OK(weft_front_add_link(r->k->leads[at].front, theirs, &err));
    OK(weft_fleet_add_link(r->fleet, (uint32_t)at, ours, &err));
    fleet_kit_wait_state(r, (uint32_t)at, is_connected);
}

/* -- clients ----------------------------------------------------------------
 */

static void heard_chunk(void *arg, const weft_stream_chunk *chunk)
{
    kit_client *const c = arg;
    for (int32_t i = 0; i < chunk->n_ids; i++) {
        if (chunk->logprobs.n > 0)
            c->logprobs[c->n_ids] = chunk->logprobs.values[i];
        c->ids[c->n_ids++] = chunk->ids[i];
        (void)sem_post(&c->told);
    }
}

static void heard_complete(void *arg, const weft_stream_complete *done)
{
    kit_client *const c = arg;
    c->n_ends++;
    c->end = done->end;
    ck_assert_int_eq(done->n_ids, c->n_ids);
    c->n_prompt_logprobs = done->prompt_logprobs.n;
    for (int32_t i = 0; i < c->n_prompt_logprobs; i++)
        c->prompt_logprobs[i] = done->prompt_logprobs.values[i];
    (void)sem_post(&c->told);
    (void)sem_post(&c->ended);
}

static void heard_fail(void *arg, weft_status status, const char *text,
                       int32_t retry_after_ms)
{
    kit_client *const c = arg;
    (void)retry_after_ms;
    c->n_ends++;
    c->status = status;
    (void)snprintf(c->why, sizeof c->why, "%s", text);
    (void)sem_post(&c->told);
    (void)sem_post(&c->ended);
}

static const weft_client_ops CLIENT = {heard_chunk, heard_complete, heard_fail};

void fleet_kit_client_init(kit_client *c, int32_t salt, uint32_t max_tokens)
{
    int32_t ids[64];
    const uint32_t n_prompt = 5 + (uint32_t)salt * 3 % 40;
    memset(c, 0, sizeof *c);
    (void)sem_init(&c->told, 0, 0);
    (void)sem_init(&c->ended, 0, 0);
    synth_prompt(ids, 64);
    for (int32_t i = 0; i < 64; i++)
        c->prompt[i] = (uint32_t)((ids[i] + salt * (i + 1)) % KIT_VOCAB);
    c->request = (weft_request){
        .has_ids = true,
        .ids = c->prompt,
        .n_ids = n_prompt,
        .stream = true,
        .deadline_ns = UINT64_MAX,
        .seed = {true, (uint64_t)salt},
        .temperature = {true, salt % 2 == 0 ? 0.0F : 0.9F},
        .max_tokens = {true, max_tokens},
        .logprobs = {true, 2},
        .prompt_logprobs = {salt % 3 == 0, 0},
    };
}

void fleet_kit_client_deinit(kit_client *c)
{
    (void)sem_destroy(&c->told);
    (void)sem_destroy(&c->ended);
}

weft_status fleet_kit_ask(kit_router *r, kit_client *c)
{
    int32_t retry_after_ms = 0;
    weft_err err = {0};
    const weft_status st = weft_router_generate(
        r->router, &c->request, &CLIENT, c, &c->handle, &retry_after_ms, &err);
    if (st != WEFT_OK) (void)snprintf(c->why, sizeof c->why, "%s", err.text);
    if (st == WEFT_UNAVAILABLE) ck_assert_int_gt(retry_after_ms, 0);
    return st;
}

void fleet_kit_wait_tokens(kit_client *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) wait_for(&c->told);
}

void fleet_kit_wait_end(kit_client *c)
{
    wait_for(&c->ended);
    ck_assert_int_eq(c->n_ends, 1);
}

void fleet_kit_expect_same(const kit_client *c, const kit_client *known)
{
    ck_assert_msg(c->status == WEFT_OK, "%s: %s", weft_status_name(c->status),
                  c->why);
    ck_assert_int_eq(c->n_ids, known->n_ids);
    ck_assert_int_eq((int)c->end, (int)known->end);
    const size_t n = (size_t)known->n_ids;
    ck_assert_mem_eq(c->ids, known->ids, n * sizeof c->ids[0]);
    ck_assert_mem_eq(c->logprobs, known->logprobs, n * sizeof c->logprobs[0]);
    ck_assert_int_eq(c->n_prompt_logprobs, known->n_prompt_logprobs);
    ck_assert_mem_eq(c->prompt_logprobs, known->prompt_logprobs,
                     (size_t)c->n_prompt_logprobs *
                         sizeof c->prompt_logprobs[0]);
}

void fleet_kit_know(kit_client *known, int32_t n, uint32_t max_tokens)
{
    kit *const k = fleet_kit_open();
    kit_router *const r = fleet_kit_router_open(k, 0);
    for (int32_t i = 0; i < n; i++) {
        fleet_kit_client_init(&known[i], i, max_tokens);
        ck_assert_int_eq(fleet_kit_ask(r, &known[i]), WEFT_OK);
    }
    for (int32_t i = 0; i < n; i++) {
        fleet_kit_wait_end(&known[i]);
        ck_assert_int_eq(known[i].n_ids, (int32_t)max_tokens);
        fleet_kit_client_deinit(&known[i]);
    }
    fleet_kit_router_close(r);
    fleet_kit_close(k);
}
