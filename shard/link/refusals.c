#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "shard/link/server_internal.h"

#define LINE_NS UINT64_C(1000000000) /* between two lines of one kind */

static const char *kind_name(weft_refusal kind)
{
    switch (kind) {
    case WEFT_REFUSAL_GARBAGE: return "garbage";
    case WEFT_REFUSAL_TLS: return "tls";
    case WEFT_REFUSAL_HELLO: return "hello";
    case WEFT_REFUSAL_LATE: return "late";
    case WEFT_REFUSAL_PENDING: return "pending";
    case WEFT_REFUSAL_RESOURCES: return "resources";
    case WEFT_REFUSAL_KINDS: break;
    }
    return "unknown";
}

void weft_refusals_say(weft_refusals *refusals, weft_refusal kind,
                       const char *from, const char *why)
{
    const uint64_t now = weft_clock_now_ns();
    char text[WEFT_ERR_TEXT_BYTES];
    uint64_t *const left_out = &refusals->kinds[kind].left_out;
    uint64_t *const told_ns = &refusals->kinds[kind].told_ns;
    if (*told_ns != 0 && now - *told_ns < LINE_NS) {
        (*left_out)++;
        return;
    }
    (void)snprintf(text, sizeof text, "%s", why);
    for (char *at = text; (at = strchr(at, '"')) != NULL;) *at = '\'';
    weft_log(WEFT_LOG_WARN, "link", "refused",
             "kind %s from %s reason \"%s\" left_out %llu", kind_name(kind),
             from, text, (unsigned long long)*left_out);
    *left_out = 0;
    *told_ns = now;
}

uint64_t weft_refusals_next(const weft_refusals *refusals)
{
    uint64_t next = UINT64_MAX;
    for (int kind = 0; kind < WEFT_REFUSAL_KINDS; kind++) {
        const uint64_t due = refusals->kinds[kind].told_ns + LINE_NS;
        if (refusals->kinds[kind].left_out > 0 && due < next) next = due;
    }
    return next;
}

void weft_refusals_tell_rest(weft_refusals *refusals, uint64_t now_ns)
{
    for (int kind = 0; kind < WEFT_REFUSAL_KINDS; kind++) {
        uint64_t *const left_out = &refusals->kinds[kind].left_out;
        uint64_t *const told_ns = &refusals->kinds[kind].told_ns;
        if (*left_out == 0 || now_ns - *told_ns < LINE_NS) continue;
        weft_log(WEFT_LOG_WARN, "link", "refused", "kind %s left_out %llu",
                 kind_name((weft_refusal)kind), (unsigned long long)*left_out);
        *left_out = 0;
        *told_ns = now_ns;
    }
}

weft_status weft_incarnations_check(const weft_incarnations *incarnations,
                                    const char *own_id, const weft_hello *peer,
                                    weft_err *err)
{
    for (int i = 0; i < WEFT_INCARNATIONS; i++) {
        const uint64_t known = incarnations->ids[i].incarnation;
        if (strcmp(incarnations->ids[i].id, peer->id) != 0 ||
            peer->incarnation >= known)
            continue;
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "%s is of incarnation %llu, and %s has talked to "
                         "incarnation %llu of it",
                         peer->id, (unsigned long long)peer->incarnation,
                         own_id, (unsigned long long)known);
    }
    return WEFT_OK;
}

void weft_incarnations_note(weft_incarnations *incarnations,
                            const weft_hello *peer)
{
    int at = 0;
    for (int i = 0; i < WEFT_INCARNATIONS; i++) {
        if (strcmp(incarnations->ids[i].id, peer->id) == 0) {
            at = i;
            break;
        }
        if (incarnations->ids[i].used < incarnations->ids[at].used) at = i;
    }
    (void)snprintf(incarnations->ids[at].id, WEFT_ID_BYTES, "%s", peer->id);
    incarnations->ids[at].incarnation = peer->incarnation;
    incarnations->ids[at].used = ++incarnations->clock;
}
