#include <stdarg.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/cluster/sim/world.h"

enum {
    FAULTS_S = 25, /* how long faults come */
    END_S = 700,   /* by when everything must be as it should */
};

static const bool moe[LAYERS] = {true, false, true};

const char *sim_mutation_name(enum sim_mutation mutation)
{
    static const char *const names[SIM_MUTATIONS] = {
        "none",         "late-answer",    "double-epoch",  "retire-early",
        "stuck-plan",   "lost-event",     "ack-unchecked", "suspect-forever",
        "epoch-reused", "no-incarnation", "switch-in-step"};
    return names[mutation];
}

uint64_t draw(struct world *w, uint64_t below)
{
    return weft_rng_u64(w->seed, w->draws++) % below;
}

bool chance(struct world *w, uint32_t percent_of_ten)
{
    return draw(w, 1000) < percent_of_ten;
}

/* Mostly short, now and then long enough to overtake a good deal. */
uint64_t delay(struct world *w)
{
    if (!w->calm && chance(w, 15)) return 1 * MS + draw(w, 400 * MS);
    return 200000 + draw(w, 2 * MS);
}

void fail(struct world *w, const char *format, ...)
{
    va_list args;
    if (w->report.failure[0] != '\0') return;
    va_start(args, format);
    (void)vsnprintf(w->report.failure, sizeof w->report.failure, format, args);
    va_end(args);
    w->report.at_ns = w->now;
}

void trace(struct world *w, const char *format, ...)
{
    va_list args;
    if (w->trace == NULL) return;
    (void)fprintf(w->trace, "%9.4f  ", (double)w->now / 1e9);
    va_start(args, format);
    (void)vfprintf(w->trace, format, args);
    va_end(args);
    (void)fputc('\n', w->trace);
}

struct blob *blob_make(const char *data, size_t n)
{
    struct blob *blob = weft_mem_new(1, sizeof *blob + n);
    WEFT_ASSERT(blob != NULL);
    blob->refs = 1;
    blob->n = n;
    if (n > 0) memcpy(blob->data, data, n);
    return blob;
}

struct blob *blob_ref(struct blob *blob)
{
    if (blob != NULL) blob->refs++;
    return blob;
}

void blob_drop(struct blob *blob)
{
    if (blob != NULL && --blob->refs == 0) weft_mem_free(blob);
}

/* -- the order of things --------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void swap(struct event *a, struct event *b)
{
    const struct event had = *a;
    *a = *b;
    *b = had;
}

void post(struct world *w, uint64_t at, enum event_kind kind, int32_t node,
          uint32_t gen, uint64_t number, void *data)
{
    if (w->n_heap == w->heap_max) {
        w->heap_max = w->heap_max > 0 ? 2 * w->heap_max : 256;
        w->heap =
            weft_mem_resize(w->heap, (size_t)w->heap_max, sizeof *w->heap);
        WEFT_ASSERT(w->heap != NULL);
    }
    int32_t i = w->n_heap++;
    w->heap[i] = (struct event){.at = at > w->now ? at : w->now,
                                .order = ++w->order,
                                .kind = kind,
                                .node = node,
                                .gen = gen,
                                .number = number,
                                .data = data};
    for (; i > 0 && is_before(&w->heap[i], &w->heap[(i - 1) / 2]);
         i = (i - 1) / 2)
        swap(&w->heap[i], &w->heap[(i - 1) / 2]);
}

static struct event take(struct world *w)
{
    const struct event first = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    for (int32_t i = 0;;) {
        int32_t least = i;
        for (int32_t k = 2 * i + 1; k <= 2 * i + 2 && k < w->n_heap; k++)
            if (is_before(&w->heap[k], &w->heap[least])) least = k;
        if (least == i) return first;
        swap(&w->heap[i], &w->heap[least]);
        i = least;
    }
}

static void drop_data(const struct event *e)
{
    if (e->kind == EV_TO_STORE || e->kind == EV_FROM_STORE) {
        call_destroy(e->data);
    } else if (e->kind == EV_WATCH) {
        blob_drop(((struct change *)e->data)->value);
        weft_mem_free(e->data);
    } else {
        weft_mem_free(e->data);
    }
}

static void deliver(struct world *w, const struct event *e, struct node *n)
{
    switch (e->kind) {
    case EV_POLL: process_poll(w, n); break;
    case EV_CLIENT: client_run(w, n, e->number != 0); break;
    case EV_FROM_STORE: client_answer(w, n, e->data); break;
    case EV_WATCH: client_watch(w, n, e->number, e->data); break;
    case EV_LOADED: experts_loaded(w, n, e->number); break;
    case EV_DISPATCH: experts_dispatch(w, n, e->data); break;
    case EV_ANSWER: lead_answer(w, n, e->data); break;
    case EV_TICK: lead_tick(w, n, e->number != 0); break;
    default: break;
    }
}

static void handle(struct world *w, struct event e)
{
    switch (e.kind) {
    case EV_FAULT: fault_next(w, e.number); return;
    case EV_REQUEST: requests_add(w); return;
    case EV_TO_STORE: store_call(w, e.node, e.data); return;
    default: break;
    }
    WEFT_ASSERT(e.node >= 0); /* the rest are of a node */
    struct node *const n = &w->nodes[e.node];
    if (e.kind == EV_START) {
        if (!n->alive) process_start(w, n);
        return;
    }
    if (!n->alive || (e.gen != 0 && e.gen != n->gen)) {
        drop_data(&e);
        return;
    }
    if (n->paused_until > w->now) { /* it comes to it later */
        post(w, n->paused_until + draw(w, MS), e.kind, e.node, e.gen, e.number,
             e.data);
        return;
    }
    deliver(w, &e, n);
    if (e.kind != EV_FROM_STORE) drop_data(&e);
}

static void begin(struct world *w)
{
    w->shape = (weft_placement_shape){
        .n_layer = LAYERS, .n_expert = N_EXPERT, .moe = moe};
    w->now = 1000 * S;
    w->store.revision = 1;
    for (int32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];
        n->index = i;
        const int32_t k = i < ROUTERS           ? i
                          : i < ROUTERS + LEADS ? i - ROUTERS
                                                : i - ROUTERS - LEADS;
        n->role = i < ROUTERS           ? WEFT_ROLE_ROUTER
                  : i < ROUTERS + LEADS ? WEFT_ROLE_LAYERS
                                        : WEFT_ROLE_EXPERTS;
        (void)snprintf(n->id, sizeof n->id, "%c%d", "?rle"[n->role], k);
        if (n->role != WEFT_ROLE_EXPERTS || k < 3 || chance(w, 500))
            post(w, w->now + draw(w, 2 * S), EV_START, i, 0, 0, NULL);
    }
    for (int32_t i = 0; i < 24; i++)
        post(w, w->now + 1 * S + draw(w, (FAULTS_S + 2) * S), EV_REQUEST, -1, 0,
             0, NULL);
    post(w, w->now + 3 * S, EV_FAULT, -1, 0, 0, NULL);
}

static void end(struct world *w)
{
    for (int32_t i = 0; i < NODES; i++)
        if (w->nodes[i].alive) process_end(w, &w->nodes[i]);
    while (w->n_heap > 0) {
        const struct event e = take(w);
        drop_data(&e);
    }
    weft_mem_free(w->heap);
    for (int32_t i = 0; i < w->store.n; i++)
        blob_drop(w->store.keys[i].is.value);
}

void sim_run(uint64_t seed, enum sim_mutation mutation, FILE *trace_to,
             sim_report *report_out)
{
    struct world *w = weft_mem_new(1, sizeof *w);
    WEFT_ASSERT(w != NULL);
    w->seed = seed;
    w->mutation = mutation;
    w->trace = trace_to;
    begin(w);
    const uint64_t start = w->now;
    while (w->n_heap > 0 && w->report.failure[0] == '\0') {
        const struct event e = take(w);
        w->now = e.at;
        w->report.n_events++;
        if (!w->calm && w->now > start + FAULTS_S * S) fault_calm(w);
        store_expire(w);
        handle(w, e);
        const char *reason = w->calm ? converge_reason(w) : "";
        if (reason != NULL) w->converged_ns = 0;
        if (reason == NULL && w->converged_ns == 0) w->converged_ns = w->now;
        if (w->converged_ns != 0 && w->now > w->converged_ns + 3 * S) break;
        if (w->now > start + END_S * S) {
            fail(w, "%d s after the last fault: %s", END_S - FAULTS_S, reason);
            break;
        }
    }
    check_end(w);
    w->report.n_requests = w->n_requests;
    end(w);
    *report_out = w->report;
    weft_mem_free(w);
}
