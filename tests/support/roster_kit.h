/* roster_kit.h - a store that answers at once and one roster that sees all of
 * it, for tests of what acts on rosters. Each step can be taken by hand.
 */
#ifndef WEFT_TESTS_SUPPORT_ROSTER_KIT_H
#define WEFT_TESTS_SUPPORT_ROSTER_KIT_H

#include "node/base/str.h"
#include "node/cluster/agent.h"
#include "node/cluster/controller.h"
#include "node/cluster/values.h"

enum { KIT_KEYS_MAX = 256, KIT_LAYERS = 3, KIT_EXPERTS = 8 };

typedef struct kit_key {
    char key[WEFT_KEY_BYTES];
    weft_buf value;
    int64_t revision;
    char owner[WEFT_ID_BYTES]; /* whose lease it ends with; "": nobody's */
} kit_key;

typedef struct kit {
    kit_key keys[KIT_KEYS_MAX];
    int32_t n;
    int64_t revision;
    weft_placement_shape shape;
    weft_roster *roster;
    bool is_deaf; /* the roster is told nothing */
} kit;

kit *kit_create(void);
void kit_destroy(kit *k);

/* Writes and removals by hand; the roster is told. */
void kit_put(kit *k, const char *key, const void *value, size_t n);
void kit_put_buf(kit *k, const char *key, weft_buf *value); /* ends value */
void kit_remove(kit *k, const char *key);
bool kit_has(const kit *k, const char *key);
int32_t kit_count(const kit *k, const char *prefix);
/* All that is there, as a listing, in the order given by a seed. */
void kit_list(kit *k, uint64_t seed);
/* Everything goes, and revisions start anew; the roster gets a listing. */
void kit_wipe(kit *k);
/* Does it, if the compares hold; *event_out is its result. */
void kit_submit(kit *k, const weft_txn *txn, const char *owner,
                weft_registry_event *event_out);
void kit_end_lease(kit *k, const char *owner);

/* Values. */
weft_member kit_member(weft_role role, const char *id, uint64_t incarnation,
                       weft_member_state state);
void kit_put_member(kit *k, const weft_member *member);
void kit_put_experts(kit *k, const char *id, uint64_t incarnation,
                     weft_member_state state);
void kit_put_lead(kit *k, const char *id, int32_t group);
void kit_put_number(kit *k, const char *key, uint64_t number);
void kit_put_placement(kit *k, const weft_placement *placement);
void kit_put_ack(kit *k, uint64_t epoch, const char *id, uint64_t incarnation,
                 uint64_t hash, const char *failure);
void kit_put_switched(kit *k, uint64_t epoch, uint32_t group,
                      uint64_t incarnation);
void kit_put_suspicion(kit *k, const char *id, uint64_t incarnation,
                       const char *reporter);
/* A placement of `epoch` on experts e0 ... e(n-1) of incarnation 1. */
weft_placement *kit_placement(const kit *k, uint64_t epoch, int32_t n);

#endif
