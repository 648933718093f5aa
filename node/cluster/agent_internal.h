/* agent_internal.h - what the files of agent.h share. */
#ifndef WEFT_NODE_CLUSTER_AGENT_INTERNAL_H
#define WEFT_NODE_CLUSTER_AGENT_INTERNAL_H

#include "node/base/str.h"
#include "node/cluster/agent.h"
#include "node/cluster/values.h"

enum {
    WEFT_SUSPECTS_MAX = 64, /* at once, by one reporter */
    WEFT_PREPARED_MAX = 16, /* epochs that are remembered as prepared */
};

/* An epoch whose placement was handed out to be loaded. */
typedef struct weft_prepared {
    uint64_t epoch, hash;
    bool loaded, failed;
    int64_t bytes;
    char text[160];
} weft_prepared;

typedef struct weft_suspect {
    char id[WEFT_ID_BYTES];
    uint64_t incarnation;
    bool active; /* else: kept for its count */
    int32_t times;
    uint64_t without_ns; /* since when an epoch does without it; 0: none does */
} weft_suspect;

struct weft_agent {
    weft_member self;
    uint64_t incarnation_min;
    bool has_incarnation; /* our key has been written at least once */
    bool is_synced;       /* the roster has had a listing */
    bool has_lease;
    bool fenced;
    char fenced_text[160];

    uint64_t tag;
    bool writing, registering;
    uint64_t tried;       /* incarnation of the registration under way */
    int64_t own_revision; /* of the last transaction that happened */
    int64_t wait_seen;
    uint64_t wait_until_ns;

    uint64_t told_epoch, told_hash; /* committed */
    uint64_t told_retired;
    uint64_t switched;
    weft_prepared prepared[WEFT_PREPARED_MAX];
    int32_t n_prepared;
    weft_suspect suspects[WEFT_SUSPECTS_MAX];
    int32_t n_suspects;

    weft_buf value;
};

/* One write each, if it is due. */
bool weft_agent_write_self(weft_agent *a, const weft_roster *roster,
                           weft_txn *txn);
bool weft_agent_write_ack(weft_agent *a, const weft_roster *roster,
                          weft_txn *txn);
bool weft_agent_write_switched(weft_agent *a, const weft_roster *roster,
                               weft_txn *txn);
bool weft_agent_write_suspicions(weft_agent *a, const weft_roster *roster,
                                 weft_txn *txn);
/* Forgets those that are over; *next_ns: when the next one is. */
void weft_agent_age_suspects(weft_agent *a, const weft_roster *roster,
                             uint64_t now_ns, uint64_t *next_ns);
weft_prepared *weft_agent_prepared(weft_agent *a, uint64_t epoch);

#endif
