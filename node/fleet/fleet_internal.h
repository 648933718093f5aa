/* fleet_internal.h - what the parts of the fleet share: fleet.c (its thread and
 * what other threads call), fleet_jobs.c (jobs that it holds), fleet_links.c
 * (one group's link).
 *
 * All of it belongs to the fleet's thread, but for what is said otherwise.
 */
#ifndef WEFT_NODE_FLEET_FLEET_INTERNAL_H
#define WEFT_NODE_FLEET_FLEET_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/ring.h"
#include "node/fleet/codec.h"
#include "node/fleet/fleet.h"
#include "router/journal.h"
#include "router/place.h"

enum { WEFT_NO_SLOT = -1 };

typedef enum weft_fleet_job_state {
    WEFT_FLEET_FREE,
    WEFT_FLEET_PENDING, /* waits for a group */
    WEFT_FLEET_SENT,    /* a group has it */
    WEFT_FLEET_ENDING,  /* its END is to be told */
} weft_fleet_job_state;

/* One place for each slot of handles (router/journal.h). What it has seen of
 * broken groups stays when the job comes again under the same handle. */
typedef struct weft_fleet_job {
    uint64_t handle; /* 0: none yet */
    weft_fleet_job_state state;
    const weft_job *job; /* borrowed until its last event is told */
    weft_place_tries tries;
    int32_t group;                    /* index; of SENT */
    int32_t first_position, position; /* of its first and next token; of SENT */
    int64_t n_tokens;                 /* still to be computed; of SENT */
    int32_t before, after;            /* in the list of its state or group */
    weft_finish finish;               /* of ENDING, like the next two */
    weft_status status;
    const char *text; /* static */
} weft_fleet_job;

typedef struct weft_fleet_list {
    int32_t first, last, n; /* first, last: WEFT_NO_SLOT if empty */
} weft_fleet_list;

typedef struct weft_fleet_group {
    weft_fleet_lead want;
    bool listed;              /* in the last weft_fleet_want */
    bool wanted;              /* that, or a link that lives */
    weft_link *link;          /* NULL: not connected */
    bool told;                /* a STATE has come over this link */
    uint64_t coming_until_ns; /* it is new, and may take so long */
    bool full; /* it gave a job back for want of room, and has not said
                  since that there is any */
    weft_group_state state;
    weft_fleet_list jobs;
    int64_t n_tokens;      /* of them */
    int32_t suspect;       /* slot of a job that may break groups */
    uint64_t looked_at_ns; /* since when its link has been looked after */
    /* An EVENTS frame that is not wholly taken; no further frame is asked for
     * until it is. */
    weft_unpack rest;
    uint32_t n_rest;
    bool has_held;
    weft_event held;
    weft_buf cancels; /* handles to be told to it, u64 each */
    uint64_t n_stray; /* events for jobs that it does not have */
} weft_fleet_group;

typedef struct weft_fleet_message {
    const weft_job *job; /* NULL: cancel */
    uint64_t handle;
} weft_fleet_message;

struct weft_fleet {
    weft_fleet_options options;
    weft_poller *poller;
    weft_ring *inbox;
    pthread_t thread;
    bool started;
    _Atomic bool stop;

    int32_t groups_max, n_groups;
    weft_fleet_group *groups;        /* [groups_max]; places stay theirs */
    weft_fleet_job *jobs;            /* [jobs_max], by slot */
    weft_fleet_list pending, ending; /* pending: by priority, then age */
    weft_place_group *places;        /* [groups_max]: a choice's view */
    unsigned char *frame;            /* of SUBMIT and CANCEL bodies */
    size_t frame_bytes;
    bool sink_full; /* in this turn */
    uint64_t turn_ns, looking_since_ns;

    pthread_mutex_t lock; /* of what follows; any thread */
    bool want_changed;
    weft_peers *peers; /* those of options, from the next turn on */
    weft_pulse *pulse;
    weft_fleet_lead *want; /* [groups_max] */
    int32_t n_want;
    weft_group_state *states; /* [groups_max], by number; as told to others */
    int32_t n_states;
    uint64_t coming_until_ns;   /* of those that do not serve yet, the last */
    uint64_t renewing_until_ns; /* of those that drained, the last */
    struct weft_fleet_brought {
        uint32_t group;
        weft_link *link;
    } * brought; /* [groups_max]: links that need no dialling */
    int32_t n_brought;
};

/* -- lists, by slot -------------------------------------------------------- */

void weft_fleet_list_init(weft_fleet_list *list);
void weft_fleet_list_push(weft_fleet *fleet, weft_fleet_list *list,
                          int32_t slot);
void weft_fleet_list_remove(weft_fleet *fleet, weft_fleet_list *list,
                            int32_t slot);

/* -- jobs ----------------------------------------------------------------- */

void weft_fleet_take_messages(weft_fleet *fleet);
/* Its turn comes by priority and age. */
void weft_fleet_wait_for_group(weft_fleet *fleet, int32_t slot);
/* The SENT job of that group; WEFT_NO_SLOT. */
int32_t weft_fleet_find_sent(const weft_fleet *fleet, uint64_t handle,
                             int32_t group);
/* Out of its group's hands. */
void weft_fleet_unsend(weft_fleet *fleet, int32_t slot);
/* It will be told an END. Not of a SENT job: unsend it first. */
void weft_fleet_end(weft_fleet *fleet, int32_t slot, weft_finish finish,
                    weft_status status, const char *text);
/* Its group broke: an END, for another try or for good. */
void weft_fleet_give_back(weft_fleet *fleet, int32_t slot);
/* Sends what waits, as far as there are groups for it. */
void weft_fleet_place(weft_fleet *fleet, uint64_t now_ns);
/* Tells ENDs until the sink is full. */
void weft_fleet_tell_ends(weft_fleet *fleet);

/* -- links ---------------------------------------------------------------- */

/* Of the group at `at`. */
void weft_fleet_connect(weft_fleet *fleet, int32_t at, weft_link *link,
                        uint64_t now_ns);
/* The link ends; its jobs are given back. Nothing without a link. */
void weft_fleet_break(weft_fleet *fleet, int32_t at, const char *why);
/* Takes what has come, sends cancels, judges silence. */
void weft_fleet_serve_group(weft_fleet *fleet, int32_t at, uint64_t now_ns);
/* Others see what is known of the groups. */
void weft_fleet_publish(weft_fleet *fleet);

#endif
