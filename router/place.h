/* place.h - which group takes a job, and whether a job that was on groups that
 * broke may be tried once more: pure policy of the fleet.
 *
 * Order of choice among groups that can compute, are not draining and have
 * room: one with a free seat in its batch before one without; then the fewest
 * tokens that are still to be computed; then the fewest jobs; then the lowest
 * number. So two who know the same choose the same.
 *
 * A job may be what breaks groups (a defect that its tokens hit). What tells it
 * from its company is that no group gives it a token: so breaks are counted
 * from its last token on, and while there is such a suspicion it is tried with
 * no other suspect beside it.
 *
 * Pure: no clock, thread or I/O. Threads: any.
 */
#ifndef WEFT_ROUTER_PLACE_H
#define WEFT_ROUTER_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_NO_GROUP = -1 };

typedef struct weft_place_group {
    uint32_t number;
    bool usable;             /* connected, whole, not draining, not full */
    bool suspect;            /* a job that may break groups is on it */
    int32_t seats, jobs_max; /* sequences in its batch; jobs it holds at most */
    int32_t n_jobs;          /* that it has */
    int64_t n_tokens;        /* that they have still to compute */
} weft_place_group;

/* The index of the group that takes the next job; WEFT_NO_GROUP: none can.
 * `suspect`: the job may be what breaks groups. */
int32_t weft_place_choose(const weft_place_group *groups, int32_t n,
                          bool suspect);

/* What a job has seen of groups that broke. {0} to begin. */
typedef struct weft_place_tries {
    int32_t in_a_row; /* without a token between */
    int32_t all;
} weft_place_tries;

/* The group that had the job broke. false: it is not to be tried again, since
 * tries_max groups in a row broke before they gave it a token, or many more
 * broke at all. */
bool weft_place_broke(weft_place_tries *tries, int32_t tries_max);
static inline void weft_place_progressed(weft_place_tries *tries)
{
    tries->in_a_row = 0;
}
static inline bool weft_place_is_suspect(const weft_place_tries *tries)
{
    return tries->in_a_row > 0;
}

#endif
