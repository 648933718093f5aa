#include "node/cluster/shown.h"

#include <string.h>

#include "node/base/mem.h"

void weft_shown_deinit(weft_shown *s)
{
    weft_mem_free(s->members);
    weft_mem_free(s->next);
    *s = (weft_shown){0};
}

static int compare(const weft_member *a, const weft_member *b)
{
    if (a->role != b->role) return a->role < b->role ? -1 : 1;
    return strcmp(a->id, b->id);
}

/* Whether those who are told need to know. Which epoch each has seen changes
 * with every epoch for everybody, and is nobody's business but policy's. */
static bool differs(const weft_member *a, const weft_member *b)
{
    return a->state != b->state || a->incarnation != b->incarnation ||
           strcmp(a->address, b->address) != 0 || a->group != b->group ||
           a->stage != b->stage || a->n_stages != b->n_stages ||
           a->config_hash != b->config_hash ||
           a->weights_hash != b->weights_hash ||
           strcmp(a->identity, b->identity) != 0 ||
           strcmp(a->device, b->device) != 0 ||
           strcmp(a->release, b->release) != 0 ||
           a->capacity_bytes != b->capacity_bytes ||
           a->expert_bytes != b->expert_bytes || a->kv_bytes != b->kv_bytes;
}

static void tell(weft_shown *s, const weft_member *m, weft_shown_change change)
{
    s->changed = true;
    if (s->tell != NULL) s->tell(s->arg, m, change);
}

static void tell_both(weft_shown *s, const weft_member *before,
                      const weft_member *after)
{
    if (before->incarnation != after->incarnation) {
        tell(s, before, WEFT_SHOWN_LEFT);
        tell(s, after, WEFT_SHOWN_JOINED);
    } else if (before->state != after->state) {
        tell(s, after,
             after->state == WEFT_MEMBER_LOST    ? WEFT_SHOWN_LOST
             : before->state == WEFT_MEMBER_LOST ? WEFT_SHOWN_BACK
                                                 : WEFT_SHOWN_STATE);
    } else if (differs(before, after)) {
        s->changed = true;
    }
}

static weft_status make_room(weft_shown *s, int32_t n, weft_err *err)
{
    if (n <= s->next_room) return WEFT_OK;
    weft_member *grown = weft_mem_resize(s->next, (size_t)n, sizeof *s->next);
    if (grown == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d members", n);
    s->next = grown;
    s->next_room = n;
    return WEFT_OK;
}

static weft_member taken(const weft_roster *roster, const weft_member *from)
{
    weft_member m = *from;
    if (weft_roster_is_suspect(roster, from)) m.state = WEFT_MEMBER_LOST;
    return m;
}

/* Both lists are in one order; the merged one is in s->next. */
static int32_t merge(weft_shown *s, const weft_roster *roster,
                     const weft_member *now, int32_t n_now, bool holds)
{
    int32_t i = 0, k = 0, n = 0;
    while (i < s->n || k < n_now) {
        const int order = i == s->n    ? 1
                          : k == n_now ? -1
                                       : compare(&s->members[i], &now[k]);
        if (order < 0) {
            if (holds)
                s->next[n++] = s->members[i];
            else
                tell(s, &s->members[i], WEFT_SHOWN_LEFT);
            i++;
            continue;
        }
        s->next[n] = taken(roster, &now[k++]);
        if (order > 0)
            tell(s, &s->next[n], WEFT_SHOWN_JOINED);
        else
            tell_both(s, &s->members[i++], &s->next[n]);
        n++;
    }
    return n;
}

static bool keeps(weft_shown *s, bool is_well, uint64_t now_ns)
{
    if (!is_well) {
        if (s->been_well) s->hold_until_ns = UINT64_MAX;
    } else if (s->hold_until_ns == UINT64_MAX) {
        s->hold_until_ns = now_ns + s->hold_ns;
    }
    s->been_well |= is_well;
    return now_ns < s->hold_until_ns;
}

weft_status weft_shown_update(weft_shown *s, const weft_roster *roster,
                              bool is_well, uint64_t now_ns, bool *changed_out,
                              uint64_t *next_ns_out, weft_err *err)
{
    const weft_member *now;
    const int32_t n_now = weft_roster_members(roster, &now);
    WEFT_TRY(make_room(s, s->n + n_now, err));
    const bool holds = keeps(s, is_well, now_ns);
    s->changed = false;
    const int32_t n = merge(s, roster, now, n_now, holds);
    weft_member *const before = s->members;
    const int32_t before_room = s->room;
    s->members = s->next;
    s->room = s->next_room;
    s->n = n;
    s->next = before;
    s->next_room = before_room;
    *changed_out = s->changed;
    *next_ns_out = holds ? s->hold_until_ns : UINT64_MAX;
    return WEFT_OK;
}
