/* config_fields.h - reading a JSON object that must be understood whole.
 *
 * A reader that takes keys out of an object by name and type, and at the end
 * refuses what nobody asked for: so a key of a checkpoint is used, or ignored
 * with a reason, or the load fails and names it. JSON's null is the same as an
 * absent key wherever a field has a default (model-spec 1.1).
 *
 * Not a JSON parser (that is jansson) and not for requests.
 * Threads: one owner. Errors are INVALID_ARGUMENT and name file and key.
 */
#ifndef WEFT_SHARD_MODEL_CONFIG_FIELDS_H
#define WEFT_SHARD_MODEL_CONFIG_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"
#include "shard/model/config.h"

/* A fallback that means: the key must be there. */
#define WEFT_REQUIRED      INT32_MIN
#define WEFT_REQUIRED_REAL (-1e300)

typedef struct weft_fields {
    char where[128];       /* "config.json: " or "config.json: rope_scaling." */
    json_t *inner;         /* borrowed; a key is looked up here first */
    json_t *outer;         /* borrowed; then here; NULL: there is no wrapper */
    json_t *left;          /* names that nobody has asked for; ours */
    weft_remark_fn remark; /* never NULL */
    void *arg;
} weft_fields;

/* Begin on `inner` (an object), with `outer` as its wrapper or NULL. Both must
 * live until deinit. `remark` may be NULL. */
WEFT_MUST_CHECK weft_status weft_fields_init(weft_fields *fields,
                                             const char *where, json_t *inner,
                                             json_t *outer,
                                             weft_remark_fn remark, void *arg,
                                             weft_err *err);
/* Begin on the object `value`, found under `key` of `parent`. */
WEFT_MUST_CHECK weft_status weft_fields_init_nested(weft_fields *fields,
                                                    const weft_fields *parent,
                                                    const char *key,
                                                    json_t *value,
                                                    weft_err *err);
void weft_fields_deinit(weft_fields *fields); /* {0} is fine */

/* The value of `key`, which counts as read from here on; NULL if it is absent
 * or null. Borrowed. */
json_t *weft_fields_get(weft_fields *fields, const char *key);
/* Whether the key is there and says null. Does not count as reading. */
bool weft_fields_is_null(const weft_fields *fields, const char *key);
bool weft_fields_has(const weft_fields *fields, const char *key);

/* An integer in [min, max]. A number such as 4.0 will do, text will not. */
typedef struct weft_int_field {
    const char *key, *alias; /* alias: another name of it, or NULL */
    int32_t *out;
    int32_t min, max;
    int32_t fallback; /* where absent or null, or WEFT_REQUIRED */
    bool tell;        /* remark when the fallback is taken */
} weft_int_field;
WEFT_MUST_CHECK weft_status weft_fields_ints(weft_fields *fields,
                                             const weft_int_field *list,
                                             size_t n, weft_err *err);

/* A finite number in [min, max]. */
typedef struct weft_real_field {
    const char *key;
    double *out;
    double min, max;
    double fallback; /* or WEFT_REQUIRED_REAL */
    bool tell;
} weft_real_field;
WEFT_MUST_CHECK weft_status weft_fields_real(weft_fields *fields,
                                             const weft_real_field *field,
                                             weft_err *err);

WEFT_MUST_CHECK weft_status weft_fields_bool(weft_fields *fields,
                                             const char *key, bool fallback,
                                             bool *out, weft_err *err);

/* One of the texts in `names` (NULL ends the list); its place goes to *out.
 * fallback: the place that holds where the key is absent. */
WEFT_MUST_CHECK weft_status weft_fields_choice(weft_fields *fields,
                                               const char *key,
                                               const char *const *names,
                                               int32_t fallback, int32_t *out,
                                               weft_err *err);

/* Refuse: "WHEREkey is VALUE: what". `value` may be NULL (not shown). */
weft_status weft_fields_refuse(const weft_fields *fields, const char *key,
                               const json_t *value, const char *what,
                               weft_err *err);
weft_status weft_fields_no_memory(const weft_fields *fields, weft_err *err);

/* Whether `value` is an integer (4.0 included) in [min, max]. */
bool weft_json_is_int(const json_t *value, int64_t min, int64_t max,
                      int64_t *value_out);

/* Tell every key that was not read and is listed as ignored (key NULL ends the
 * list); refuse the first other one, unless it is null. */
typedef struct weft_ignored_key {
    const char *key, *reason;
} weft_ignored_key;
WEFT_MUST_CHECK weft_status weft_fields_finish(weft_fields *fields,
                                               const weft_ignored_key *ignored,
                                               weft_err *err);

#endif
