/* values.h - the keys and values of the registry, between bytes and plain C.
 *
 * Keys are below the prefix of the cluster (roster.h lists them). Values are
 * messages of proto/cluster.proto, decoded as bytes that anyone may have
 * written: form, sizes, ranges and names are checked; unknown fields are passed
 * over and not kept.
 *
 * Threads: any; nothing here is shared.
 * Errors of decode: INVALID_ARGUMENT: not such a value; names the field.
 * RESOURCE_EXHAUSTED: memory. On failure *out is left as it was.
 * Errors of encode: RESOURCE_EXHAUSTED: memory. INVALID_ARGUMENT: larger than
 * its limit in registry.h.
 */
#ifndef WEFT_NODE_CLUSTER_VALUES_H
#define WEFT_NODE_CLUSTER_VALUES_H

#include "node/base/str.h"
#include "node/cluster/roster.h"

/* What a member may say of one expert: sums over a model stay in range. */
#define WEFT_ONE_EXPERT_BYTES_MAX (UINT64_C(1) << 38)

enum {
    WEFT_VALUE_VERSION = 1,
    WEFT_GROUP_MAX = 1 << 20, /* group numbers are below this */
};
/* Epochs are below this, so that one more never wraps. */
#define WEFT_EPOCH_MAX (UINT64_C(1) << 62)

/* [A-Za-z0-9._-], 1 to 63: what may stand in a key. */
bool weft_id_is_valid(const char *id);

/* -- keys ------------------------------------------------------------------ */

typedef enum weft_key_kind {
    WEFT_KEY_UNKNOWN = 0,
    WEFT_KEY_MEMBER,     /* role, id */
    WEFT_KEY_CONTROLLER, /* */
    WEFT_KEY_CURRENT,    /* */
    WEFT_KEY_RETIRED,    /* */
    WEFT_KEY_PLACEMENT,  /* epoch */
    WEFT_KEY_ACK,        /* epoch, id */
    WEFT_KEY_SWITCHED,   /* epoch, group, incarnation */
    WEFT_KEY_SUSPECT,    /* id, reporter */
} weft_key_kind;

typedef struct weft_key {
    weft_key_kind kind;
    weft_role role;
    char id[WEFT_ID_BYTES], reporter[WEFT_ID_BYTES];
    uint64_t epoch, incarnation;
    uint32_t group;
} weft_key;

/* UNKNOWN for whatever is not exactly what weft_key_format writes. */
weft_key_kind weft_key_parse(const char *text, weft_key *key_out);
/* Of a known kind and valid names. Returns text_out. */
const char *weft_key_format(const weft_key *key, char text_out[WEFT_KEY_BYTES]);

/* Shorthands of it. */
const char *weft_key_of_member(weft_role role, const char *id,
                               char text_out[WEFT_KEY_BYTES]);
const char *weft_key_of_ack(uint64_t epoch, const char *id,
                            char text_out[WEFT_KEY_BYTES]);
const char *weft_key_of_switched(uint64_t epoch, uint32_t group,
                                 uint64_t incarnation,
                                 char text_out[WEFT_KEY_BYTES]);
const char *weft_key_of_suspect(const char *id, const char *reporter,
                                char text_out[WEFT_KEY_BYTES]);
const char *weft_key_of_placement(uint64_t epoch,
                                  char text_out[WEFT_KEY_BYTES]);
#define WEFT_KEY_TEXT_CONTROLLER "controller"
#define WEFT_KEY_TEXT_CURRENT    "epoch/current"
#define WEFT_KEY_TEXT_RETIRED    "epoch/retired"

/* -- values: encode replaces what is in `out` ------------------------------ */

WEFT_MUST_CHECK weft_status weft_member_encode(const weft_member *member,
                                               weft_buf *out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_member_decode(weft_span value,
                                               weft_member *out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_holder_encode(const char *id, weft_buf *out,
                                               weft_err *err);
WEFT_MUST_CHECK weft_status weft_holder_decode(weft_span value,
                                               char id_out[WEFT_ID_BYTES],
                                               weft_err *err);
WEFT_MUST_CHECK weft_status weft_number_encode(uint64_t number, weft_buf *out,
                                               weft_err *err);
WEFT_MUST_CHECK weft_status weft_number_decode(weft_span value, uint64_t *out,
                                               weft_err *err);
WEFT_MUST_CHECK weft_status weft_ack_encode(const weft_ack *ack, weft_buf *out,
                                            weft_err *err);
WEFT_MUST_CHECK weft_status weft_ack_decode(weft_span value, weft_ack *out,
                                            weft_err *err);
WEFT_MUST_CHECK weft_status weft_switched_encode(const weft_switched *switched,
                                                 weft_buf *out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_switched_decode(weft_span value,
                                                 weft_switched *out,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_suspicion_encode(
    const weft_suspicion *suspicion, weft_buf *out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_suspicion_decode(weft_span value,
                                                  weft_suspicion *out,
                                                  weft_err *err);
WEFT_MUST_CHECK weft_status weft_placement_encode(
    const weft_placement *placement, weft_buf *out, weft_err *err);
/* Checked against the shape: every routed expert has at least one owner, all
 * different, nobody else has any. */
WEFT_MUST_CHECK weft_status
weft_placement_decode(const weft_placement_shape *shape, weft_span value,
                      weft_placement **out, weft_err *err);

#endif
