/* shown.h - the members as the rest of the process is told of them.
 *
 * What the registry says, but for one thing: a store that was away, or has lost
 * its keys, has lost everybody's, and nobody has gone. So while we are not well
 * (it does not answer, our lease is lost, our own key is missing), and for
 * `hold_ns` after, members that are missing are kept as they were; who is still
 * missing then has gone. A departure alone changes nothing about us.
 *
 * Suspected members are shown as LOST.
 *
 * Pure: time is an argument. Threads: one owner.
 */
#ifndef WEFT_NODE_CLUSTER_SHOWN_H
#define WEFT_NODE_CLUSTER_SHOWN_H

#include "node/cluster/roster.h"

typedef enum weft_shown_change {
    WEFT_SHOWN_JOINED,
    WEFT_SHOWN_LEFT,
    WEFT_SHOWN_LOST, /* suspected */
    WEFT_SHOWN_BACK, /* suspected no more */
    WEFT_SHOWN_STATE,
} weft_shown_change;

typedef void (*weft_shown_fn)(void *arg, const weft_member *member,
                              weft_shown_change change);

typedef struct weft_shown {
    weft_member *members; /* [n], in order of (role, id) */
    int32_t n, room;
    weft_member *next; /* being made */
    int32_t next_room;
    weft_shown_fn tell; /* each change; may be NULL */
    void *arg;
    uint64_t hold_ns, hold_until_ns; /* UINT64_MAX: not well */
    bool been_well;                  /* ever */
    bool changed;                    /* by the update under way */
} weft_shown;

/* {0} with hold_ns, tell and arg is an empty one. */
void weft_shown_deinit(weft_shown *shown);

/* Takes over what the roster says; is_well: as above. Each change is told.
 * *next_ns_out: when to ask again although nothing has happened.
 * RESOURCE_EXHAUSTED: memory; then nothing has changed. */
WEFT_MUST_CHECK weft_status weft_shown_update(
    weft_shown *shown, const weft_roster *roster, bool is_well, uint64_t now_ns,
    bool *changed_out, uint64_t *next_ns_out, weft_err *err);

#endif
