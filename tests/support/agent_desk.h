/* agent_desk.h - an agent over a roster made by hand, in virtual time. */
#ifndef WEFT_TESTS_SUPPORT_AGENT_DESK_H
#define WEFT_TESTS_SUPPORT_AGENT_DESK_H

#include "tests/support/roster_kit.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

struct agent_desk {
    kit *k;
    weft_agent *a;
    uint64_t now;
    char owner[WEFT_ID_BYTES];
    weft_agent_wants w; /* of the last turn */
    /* What was told, over all turns. */
    uint64_t prepared, committed, retired;
    int32_t n_prepared, n_committed, n_writes;
};

/* With a lease and a listing; nothing is run. */
struct agent_desk agent_desk_of(kit *k, const weft_member *self);
/* Registered. */
struct agent_desk agent_desk_experts(kit *k, const char *id);
struct agent_desk agent_desk_lead(kit *k, const char *id); /* of group 3 */
void agent_desk_end(struct agent_desk *d);
void agent_desk_finish(struct agent_desk *d); /* and its kit */

void agent_desk_take(struct agent_desk *d, weft_registry_event_kind kind,
                     weft_status st);
/* One turn; whether another may do something. */
bool agent_desk_step(struct agent_desk *d);
void agent_desk_run(struct agent_desk *d);
void agent_desk_wait(struct agent_desk *d, uint64_t ns);

/* The member of an expert shard; NULL: none. */
const weft_member *agent_desk_member(const kit *k, const char *id);
void agent_desk_plan(kit *k, uint64_t epoch, int32_t n); /* e0 ... e(n-1) */
void agent_desk_commit(kit *k, uint64_t epoch);
/* Both. */
void agent_desk_move(kit *k, uint64_t epoch, int32_t n);

#endif
