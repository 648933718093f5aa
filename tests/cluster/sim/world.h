/* world.h - what the files of the simulation share. */
#ifndef WEFT_TESTS_CLUSTER_SIM_WORLD_H
#define WEFT_TESTS_CLUSTER_SIM_WORLD_H

#include "node/cluster/agent.h"
#include "node/cluster/controller.h"
#include "node/cluster/values.h"
#include "tests/cluster/sim/sim.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

enum {
    ROUTERS = 2,
    LEADS = 2,
    EXPERTS = 5,
    NODES = ROUTERS + LEADS + EXPERTS,
    STORE = NODES, /* the other end of links to the store */
    LAYERS = 3,
    N_EXPERT = 8,
    SLOTS = 2, /* experts that a row is sent to */
    KEYS_MAX = 160,
    REQUESTS_MAX = 48,
    TOKENS_MAX = 24,
    ROWS_MAX = 4, /* requests of one step */
    MAPS_MAX = 8,
    LEASE_S = 5,
    LEASES_MAX = 64,
};

/* Bytes that many events share. */
struct blob {
    int32_t refs;
    size_t n;
    char data[];
};

enum event_kind {
    EV_POLL,       /* a process looks at its roster */
    EV_CLIENT,     /* its client of the store does what is due */
    EV_TO_STORE,   /* a call arrives */
    EV_FROM_STORE, /* its answer arrives */
    EV_WATCH,      /* a change arrives */
    EV_LOADED,     /* an expert shard has loaded */
    EV_DISPATCH,   /* rows arrive at an expert shard */
    EV_ANSWER,     /* and at the lead */
    EV_TICK,       /* a lead looks at its links and its step */
    EV_FAULT,      /* number 0: another; else: one ends */
    EV_REQUEST,
    EV_START, /* a process starts */
};

enum call_kind { CALL_LEASE, CALL_KEEP, CALL_LIST, CALL_TXN };

struct call {
    enum call_kind kind;
    uint64_t number; /* of the client */
    uint64_t sent_ns;
    int64_t lease;
    weft_txn txn;
    struct blob *values[WEFT_TXN_WRITES_MAX];
    /* The answer. */
    weft_status status;
    int64_t revision;
    struct change *list; /* [n_list] */
    int32_t n_list;
};

struct change {
    bool removed;
    char key[WEFT_KEY_BYTES];
    struct blob *value;
    int64_t revision;
};

/* What a question or an answer is about. */
struct name {
    uint64_t epoch, step, attempt;
    int32_t group, layer;
};

struct pair {
    int32_t row, slot, expert;
    uint64_t value; /* the row; then the answer */
};

struct rows {
    struct name name;
    int32_t from; /* node */
    uint32_t from_gen;
    bool rejected;
    int32_t n;
    struct pair pairs[ROWS_MAX * SLOTS];
};

struct event {
    uint64_t at, order;
    enum event_kind kind;
    int32_t node;
    uint32_t gen; /* of the process that it is for; 0: any */
    uint64_t number;
    void *data;
};

struct store_key {
    struct change is;
    int64_t lease; /* 0: none */
    int32_t by;    /* node that wrote it */
    uint64_t since_ns;
};

struct lease {
    int64_t id;
    uint64_t until_ns;
};

struct store {
    struct store_key keys[KEYS_MAX];
    int32_t n;
    int64_t revision, last_lease;
    struct lease leases[LEASES_MAX];
    bool is_away;
    bool watches[NODES];
    uint64_t stream[NODES];
    uint64_t last_told[NODES];
};

/* A process's client of the store. */
struct client {
    uint64_t calls; /* numbers given */
    int64_t lease;
    uint64_t lease_until;
    bool is_linked;
    uint64_t heard_ns, list_ns;
    uint64_t stream; /* of the listing whose changes are taken */
    bool must_list, is_listing;
    uint64_t listing;                      /* call */
    uint64_t txn_call, txn_tag, txn_until; /* under way; 0: none */
    bool of_controller;
};

struct held {
    bool is, is_wrong;
};

struct peer {
    bool connected;
    uint64_t incarnation;
    uint64_t broken_ns; /* since when it cannot be reached; 0: it can */
    uint64_t dial_ns;   /* not before */
    bool suspected;
};

struct node {
    int32_t index;
    weft_role role;
    char id[WEFT_ID_BYTES];
    uint32_t gen; /* of the process; counts up */
    bool alive, drains;
    uint64_t paused_until;
    weft_roster *roster;
    weft_agent *agent;
    weft_controller *controller;
    struct client client;
    uint64_t poll_at;
    uint64_t told_epoch, told_hash;

    /* Expert shards. */
    struct held held[LAYERS][N_EXPERT];
    weft_placement *kept[MAPS_MAX];
    int32_t n_kept;
    uint64_t first, last; /* epochs that are answered for */

    /* Leads. */
    weft_placement *maps[MAPS_MAX]; /* rising epochs */
    int32_t n_maps;
    struct peer peers[EXPERTS];
    uint64_t epoch; /* of its steps; 0: none yet */
    uint64_t steps, attempts;
    bool stepping;
    struct name now; /* what is waited for */
    uint64_t asked_ns, retry_ns;
    uint64_t hidden[ROWS_MAX];
    int32_t rows[ROWS_MAX]; /* requests */
    int32_t n_rows;
    struct pair pairs[ROWS_MAX * SLOTS];
    int32_t owner[ROWS_MAX * SLOTS]; /* who owes it; -1: it is there */
    uint64_t attempt[ROWS_MAX * SLOTS];
    uint64_t step_epoch;
    int32_t n_pairs, n_owed;
    weft_placement *map; /* of the step; a copy */
};

struct request {
    uint64_t seed;
    int32_t n_tokens, wanted;
    uint64_t tokens[TOKENS_MAX];
    int32_t lead; /* node */
    uint32_t lead_gen;
};

struct world {
    uint64_t seed, draws, now;
    enum sim_mutation mutation;
    FILE *trace;
    sim_report report;
    struct event *heap;
    int32_t n_heap, heap_max;
    uint64_t order;
    struct store store;
    struct node nodes[NODES];
    struct request requests[REQUESTS_MAX];
    int32_t n_requests;
    bool cut[NODES + 1][NODES + 1]; /* one way */
    bool calm;                      /* faults are over */
    uint64_t calm_ns, converged_ns, looked_ns;
    const char *reason;
    weft_placement_shape shape;
};

/* world.c */
uint64_t draw(struct world *w, uint64_t below);
bool chance(struct world *w, uint32_t percent_of_ten); /* of 1000 */
uint64_t delay(struct world *w);
void post(struct world *w, uint64_t at, enum event_kind kind, int32_t node,
          uint32_t gen, uint64_t number, void *data);
void fail(struct world *w, const char *format, ...) WEFT_PRINTF(2, 3);
void trace(struct world *w, const char *format, ...) WEFT_PRINTF(2, 3);
struct blob *blob_make(const char *data, size_t n);
struct blob *blob_ref(struct blob *blob);
void blob_drop(struct blob *blob);

/* store.c */
void store_call(struct world *w, int32_t node, struct call *call);
void store_wipe(struct world *w);
void store_expire(struct world *w);
void store_set_away(struct world *w, bool away);
const struct store_key *store_find(const struct world *w, const char *key);
void call_destroy(struct call *call);

/* client.c */
void client_run(struct world *w, struct node *n, bool once);
void client_answer(struct world *w, struct node *n, struct call *call);
void client_watch(struct world *w, struct node *n, uint64_t stream,
                  const struct change *change);
void client_submit(struct world *w, struct node *n, const weft_txn *txn,
                   bool of_controller);
void client_tell(struct world *w, struct node *n,
                 const weft_registry_event *event);
/* A client that has lost its stream finds out. */
void client_break(struct world *w, struct node *n);

/* process.c */
void process_start(struct world *w, struct node *n);
void process_end(struct world *w, struct node *n);
void process_poll(struct world *w, struct node *n);
void process_wake(struct world *w, struct node *n);
void experts_loaded(struct world *w, struct node *n, uint64_t epoch);
void experts_dispatch(struct world *w, struct node *n, struct rows *rows);
uint64_t toy_expert(int32_t layer, int32_t expert, uint64_t row);
int32_t toy_choice(int32_t layer, int32_t slot, uint64_t row);

/* lead.c */
void lead_tick(struct world *w, struct node *n, bool once);
void lead_answer(struct world *w, struct node *n, const struct rows *rows);
void lead_map(struct world *w, struct node *n, const weft_placement *map);
void requests_add(struct world *w);
bool requests_done(const struct world *w);

/* check.c */
void check_commit(struct world *w, int32_t by, uint64_t epoch,
                  const struct change *placement);
void check_retired(struct world *w, int32_t by, uint64_t retired);
void check_end(struct world *w);
const char *converge_reason(struct world *w);

/* faults.c */
void fault_next(struct world *w, uint64_t number);
void fault_calm(struct world *w);

#endif
