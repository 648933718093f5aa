/* server_internal.h - what the listening side remembers: whom it refused, and
 * who has been here. For shard/link alone.
 *
 * Threads: the server's.
 */
#ifndef WEFT_SHARD_LINK_SERVER_INTERNAL_H
#define WEFT_SHARD_LINK_SERVER_INTERNAL_H

#include "shard/link/hello.h"

typedef enum weft_refusal {
    WEFT_REFUSAL_GARBAGE, /* what came is no frame, or is cut */
    WEFT_REFUSAL_TLS,
    WEFT_REFUSAL_HELLO, /* who does not fit */
    WEFT_REFUSAL_LATE,
    WEFT_REFUSAL_PENDING,
    WEFT_REFUSAL_RESOURCES,
    WEFT_REFUSAL_KINDS,
} weft_refusal;

/* Log lines of refusals: for each kind one a second, and then how many were
 * left out. */
typedef struct weft_refusals {
    struct {
        uint64_t told_ns; /* 0: never */
        uint64_t left_out;
    } kinds[WEFT_REFUSAL_KINDS];
} weft_refusals;

void weft_refusals_say(weft_refusals *refusals, weft_refusal kind,
                       const char *from, const char *why);
/* When tell_rest has something to say; UINT64_MAX: it has not. */
uint64_t weft_refusals_next(const weft_refusals *refusals);
void weft_refusals_tell_rest(weft_refusals *refusals, uint64_t now_ns);

/* The last incarnation of each id; of the ids that came last, if there are
 * more than fit. */
enum { WEFT_INCARNATIONS = 512 };
typedef struct weft_incarnations {
    struct {
        char id[WEFT_ID_BYTES];
        uint64_t incarnation, used;
    } ids[WEFT_INCARNATIONS];
    uint64_t clock;
} weft_incarnations;

/* FAILED_PRECONDITION: an older one than was here before; names both. */
WEFT_MUST_CHECK weft_status weft_incarnations_check(
    const weft_incarnations *incarnations, const char *own_id,
    const weft_hello *peer, weft_err *err);
void weft_incarnations_note(weft_incarnations *incarnations,
                            const weft_hello *peer);

#endif
