#include "router/place.h"

/* Breaks of one job in all, for each that is allowed in a row: a job that kills
 * every group with its second token ends too. */
enum { ALL_FOR_ONE = 16 };

static bool takes(const weft_place_group *group, bool suspect)
{
    return group->usable && group->n_jobs < group->jobs_max &&
           !(suspect && group->suspect);
}

static bool is_better(const weft_place_group *a, const weft_place_group *b)
{
    const bool a_seat = a->n_jobs < a->seats, b_seat = b->n_jobs < b->seats;
    if (a_seat != b_seat) return a_seat;
    if (a->n_tokens != b->n_tokens) return a->n_tokens < b->n_tokens;
    if (a->n_jobs != b->n_jobs) return a->n_jobs < b->n_jobs;
    return a->number < b->number;
}

int32_t weft_place_choose(const weft_place_group *groups, int32_t n,
                          bool suspect)
{
    int32_t best = WEFT_NO_GROUP;
    for (int32_t i = 0; i < n; i++) {
        if (!takes(&groups[i], suspect)) continue;
        if (best == WEFT_NO_GROUP || is_better(&groups[i], &groups[best]))
            best = i;
    }
    return best;
}

bool weft_place_broke(weft_place_tries *tries, int32_t tries_max)
{
    tries->in_a_row++;
    tries->all++;
    return tries->in_a_row < tries_max &&
           tries->all < (int64_t)tries_max * ALL_FOR_ONE;
}
