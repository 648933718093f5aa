/* agent.h - what a member does about the cluster: pure policy of every process.
 *
 *   every      keeps its own member key: a higher incarnation than any before
 *              it under that id, by compare-and-swap; again (with the same)
 *              after the lease or the store was lost; ends when another
 *              incarnation has taken it
 *   experts    planned placement that names it -> load what it gains -> ack,
 *              with the placement's hash; retired epoch -> let go of what no
 *              later one gives it, once the committed one is loaded
 *   every      committed epoch -> the placement, each once, never a lower one
 *   layers     a lead says when it has switched; suspicions of expert shards
 *              are written, and withdrawn: when told, when the suspect is not a
 *              member any more, or some time after the committed epoch has done
 *              without it (so that it can come again; twice as long each time)
 *
 * Acts on the whole roster at every turn, never on the event, so a lost or
 * repeated event changes nothing. Whatever it writes beside its own key is
 * written only while that key is its own.
 *
 * Pure: time is an argument; what is to be done is told by weft_agent_turn.
 * Threads: one owner.
 */
#ifndef WEFT_NODE_CLUSTER_AGENT_H
#define WEFT_NODE_CLUSTER_AGENT_H

#include "node/cluster/roster.h"

typedef struct weft_agent weft_agent;

/* `self`: what is registered; its incarnation is found here, and is at least
 * the one given (a clock's, since the registry forgets those who have gone).
 * Copied. INVALID_ARGUMENT: the id. */
WEFT_MUST_CHECK weft_status weft_agent_create(const weft_member *self,
                                              weft_agent **agent_out,
                                              weft_err *err);
void weft_agent_destroy(weft_agent *agent); /* NULL is fine */

void weft_agent_take(weft_agent *agent, const weft_registry_event *event,
                     uint64_t now_ns);

/* What it wants done beside writing. At most one of each in a turn. */
typedef struct weft_agent_wants {
    bool write;      /* txn_out is to be submitted */
    bool registered; /* its key is there and its own */
    bool fenced; /* another incarnation has its id: stop; `text`. For good */
    /* Experts: load everything this placement gives `self`, then
     * weft_agent_loaded. Told once for each epoch. */
    const weft_placement *prepare;
    /* The committed placement, each once. */
    const weft_placement *commit;
    /* Experts: epochs up to it are over: drop what no placement that is planned
     * or committed gives `self`. */
    uint64_t retired;                 /* 0: nothing new */
    uint64_t epoch_first, epoch_last; /* experts: epochs to answer for */
    bool emptied; /* experts, draining: nothing is expected of it any more */
    char text[160];
    uint64_t next_ns;
} weft_agent_wants;

void weft_agent_turn(weft_agent *agent, const weft_roster *roster,
                     uint64_t now_ns, weft_txn *txn_out,
                     weft_agent_wants *wants_out);

/* DRAINING is for good: threads that still say SERVING are not heard. */
void weft_agent_set_state(weft_agent *agent, weft_member_state state);
void weft_agent_set_address(weft_agent *agent, const char *address);
/* Loading for `epoch` has ended; text NULL: everything is held. */
void weft_agent_loaded(weft_agent *agent, uint64_t epoch, int64_t loaded_bytes,
                       const char *text);
/* A lead's steps are of this epoch from now on. */
void weft_agent_switched(weft_agent *agent, uint64_t epoch);
/* Of an expert shard; of layers alone, others are not heard. */
void weft_agent_suspect(weft_agent *agent, const char *id, uint64_t incarnation,
                        bool suspected);
const weft_member *weft_agent_self(const weft_agent *agent);

#endif
