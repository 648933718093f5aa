/* roster.h - what the registry says, as plain data: members, epochs, who has
 * acknowledged and switched, who suspects whom.
 *
 * Keys, below the prefix of the cluster:
 *   members/ROLE/ID          member       leased by it
 *   controller               id           leased by the elected router
 *   epoch/current            number       the committed epoch
 *   epoch/retired            number       epochs up to it hold nobody's weights
 *   epoch/N/placement        placement    before N is committed, never changed
 *   epoch/N/ack/ID           ack          leased: "I hold what N gives me"
 *   epoch/N/switched/GROUP/INCARNATION    leased: "my steps are of N from now"
 *   suspects/ID/REPORTER     suspicion    leased by the reporter
 *
 * Applying an event that was applied before changes nothing (changes below the
 * revision of the last listing or change are old ones); a listing replaces what
 * is known; values that cannot be read are left out and counted, with the
 * last reason. A placement is taken only whole, and checked against the model.
 *
 * Values are protobuf messages (proto/cluster.proto), decoded strictly.
 *
 * Pure: no clock, thread or I/O. Threads: one owner.
 */
#ifndef WEFT_NODE_CLUSTER_ROSTER_H
#define WEFT_NODE_CLUSTER_ROSTER_H

#include "node/cluster/placement.h"
#include "node/cluster/registry.h"
#include "shard/link/hello.h"

typedef enum weft_member_state {
    WEFT_MEMBER_JOINING = 1, /* registered; of experts: holds nothing yet */
    WEFT_MEMBER_SERVING,
    WEFT_MEMBER_DRAINING, /* wants to go: to be emptied first */
    WEFT_MEMBER_LOST,     /* never stored: how a suspected one is shown */
} weft_member_state;

const char *weft_member_state_name(weft_member_state state);

typedef struct weft_member {
    char id[WEFT_ID_BYTES];
    weft_role role;
    weft_member_state state;
    char address[WEFT_ADDRESS_BYTES]; /* link; a router: gRPC */
    uint64_t incarnation;
    int32_t group, stage, n_stages; /* of layers */
    uint64_t config_hash, weights_hash;
    char release[WEFT_RELEASE_BYTES];
    char identity[WEFT_IDENTITY_BYTES];
    char device[64];
    int64_t capacity_bytes; /* of experts: for weights; 0: no limit told */
    /* Of experts: of one routed expert, the largest; 0: not told. Whoever plans
     * may not have read the weights. */
    int64_t expert_bytes;
    int64_t kv_bytes;     /* of layers */
    uint64_t epoch;       /* the highest that it has seen committed */
    int64_t mod_revision; /* of its key; not stored */
} weft_member;

typedef struct weft_suspicion {
    char id[WEFT_ID_BYTES], reporter[WEFT_ID_BYTES];
    uint64_t incarnation; /* of the suspect */
} weft_suspicion;

typedef struct weft_ack {
    uint64_t epoch;
    char id[WEFT_ID_BYTES];
    uint64_t incarnation, placement_hash;
    bool failed; /* could not load; text says why */
    char text[160];
    int64_t loaded_bytes; /* read for this epoch */
} weft_ack;

typedef struct weft_switched {
    uint64_t epoch;
    uint32_t group;
    uint64_t incarnation; /* of the lead */
} weft_switched;

typedef struct weft_roster weft_roster;

/* The model's shape, which placements are held against. */
WEFT_MUST_CHECK weft_status weft_roster_create(
    const weft_placement_shape *shape, weft_roster **roster_out, weft_err *err);
void weft_roster_destroy(weft_roster *roster); /* NULL is fine */

/* true: something that is told here has changed (not inside a listing: then at
 * its end). RELIST_*, PUT and DELETE are taken, others ignored. */
bool weft_roster_apply(weft_roster *roster, const weft_registry_event *event);

/* Members in order of (role, id); borrowed until the next apply. */
int32_t weft_roster_members(const weft_roster *roster,
                            const weft_member **members_out);
const weft_member *weft_roster_find(const weft_roster *roster, weft_role role,
                                    const char *id);
/* Suspected in its present incarnation, by anybody. */
bool weft_roster_is_suspect(const weft_roster *roster,
                            const weft_member *member);

/* 0: none committed. */
uint64_t weft_roster_epoch(const weft_roster *roster, int64_t *revision_out);
uint64_t weft_roster_retired(const weft_roster *roster);
/* NULL: not there (or not readable). Borrowed until the next apply. */
const weft_placement *weft_roster_placement(const weft_roster *roster,
                                            uint64_t epoch);
/* The highest number that any key or member names. */
uint64_t weft_roster_epoch_max(const weft_roster *roster);
/* The numbers that keys below epoch/ have, each once, at most max of them. */
int32_t weft_roster_epochs(const weft_roster *roster, uint64_t *epochs_out,
                           int32_t max);
/* The revision of the last listing or change that was told. */
int64_t weft_roster_seen(const weft_roster *roster);
/* The mod revision of a key, readable or not; 0: it is not there. */
int64_t weft_roster_revision(const weft_roster *roster, const char *key);
int32_t weft_roster_acks(const weft_roster *roster, const weft_ack **acks_out);
int32_t weft_roster_switched(const weft_roster *roster,
                             const weft_switched **switched_out);
int32_t weft_roster_suspicions(const weft_roster *roster,
                               const weft_suspicion **suspicions_out);
/* "" : nobody. */
const char *weft_roster_controller(const weft_roster *roster,
                                   int64_t *revision_out);
uint64_t weft_roster_n_unreadable(const weft_roster *roster,
                                  const char **last_reason_out);

#endif
