#include "shard/model/config_fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/str.h"

/* How much of a value or name from a file an error text shows. */
enum { SHOWN_BYTES = 60 };

static void no_remark(void *arg, const char *key, const char *reason)
{
    (void)arg;
    (void)key;
    (void)reason;
}

static const char *shown(const char *name, char out[SHOWN_BYTES])
{
    return weft_text_line(name, out, SHOWN_BYTES);
}

static void show(const json_t *value, char text[SHOWN_BYTES])
{
    memset(text, 0, SHOWN_BYTES); /* a dump that is cut leaves a hole */
    if (json_is_string(value)) {
        char line[SHOWN_BYTES - 2];
        (void)snprintf(
            text, SHOWN_BYTES, "\"%s\"",
            weft_text_line(json_string_value(value), line, sizeof line));
    } else {
        const size_t n =
            json_dumpb(value, text, SHOWN_BYTES - 4,
                       JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
        if (n > SHOWN_BYTES - 4) (void)snprintf(text + strlen(text), 4, "...");
    }
}

weft_status weft_fields_refuse(const weft_fields *fields, const char *key,
                               const json_t *value, const char *what,
                               weft_err *err)
{
    char told[SHOWN_BYTES] = "", name[SHOWN_BYTES];
    if (value != NULL) show(value, told);
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s%s%s%s: %s", fields->where,
                     shown(key, name), value != NULL ? " is " : "", told, what);
}

weft_status weft_fields_no_memory(const weft_fields *fields, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "%sno memory to read it",
                     fields->where);
}

static weft_status note_keys(weft_fields *fields, json_t *object, weft_err *err)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(object, key, value)
    {
        if (json_object_set(fields->left, key, value) != 0)
            return weft_fields_no_memory(fields, err);
    }
    return WEFT_OK;
}

weft_status weft_fields_init(weft_fields *fields, const char *where,
                             json_t *inner, json_t *outer,
                             weft_remark_fn remark, void *arg, weft_err *err)
{
    *fields = (weft_fields){.inner = inner,
                            .outer = outer,
                            .remark = remark != NULL ? remark : no_remark,
                            .arg = arg};
    (void)snprintf(fields->where, sizeof fields->where, "%s", where);
    fields->left = json_object();
    if (fields->left == NULL) return weft_fields_no_memory(fields, err);
    weft_status st = WEFT_OK;
    if (outer != NULL) st = note_keys(fields, outer, err);
    if (st == WEFT_OK) st = note_keys(fields, inner, err);
    if (st != WEFT_OK) weft_fields_deinit(fields);
    return st;
}

weft_status weft_fields_init_nested(weft_fields *fields,
                                    const weft_fields *parent, const char *key,
                                    json_t *value, weft_err *err)
{
    char where[sizeof fields->where + SHOWN_BYTES], name[SHOWN_BYTES];
    (void)snprintf(where, sizeof where, "%s%s.", parent->where,
                   shown(key, name));
    if (!json_is_object(value))
        return weft_fields_refuse(parent, key, value, "not an object", err);
    return weft_fields_init(fields, where, value, NULL, parent->remark,
                            parent->arg, err);
}

void weft_fields_deinit(weft_fields *fields)
{
    json_decref(fields->left);
    *fields = (weft_fields){.left = NULL};
}

/* NULL: absent. JSON's null counts as a value here. */
static json_t *look_up(const weft_fields *fields, const char *key)
{
    json_t *const value = json_object_get(fields->inner, key);
    if (value != NULL || fields->outer == NULL) return value;
    return json_object_get(fields->outer, key);
}

json_t *weft_fields_get(weft_fields *fields, const char *key)
{
    json_t *const value = look_up(fields, key);
    if (value == NULL) return NULL;
    (void)json_object_del(fields->left, key); /* fails if already read: fine */
    return json_is_null(value) ? NULL : value;
}

bool weft_fields_is_null(const weft_fields *fields, const char *key)
{
    return json_is_null(look_up(fields, key));
}

bool weft_fields_has(const weft_fields *fields, const char *key)
{
    const json_t *const value = look_up(fields, key);
    return value != NULL && !json_is_null(value);
}

bool weft_json_is_int(const json_t *value, int64_t min, int64_t max,
                      int64_t *value_out)
{
    int64_t found = 0;
    if (json_is_integer(value)) {
        found = json_integer_value(value);
    } else if (json_is_real(value)) {
        const double real = json_real_value(value);
        if (!(fabs(real) <= 9007199254740992.0) || real != trunc(real))
            return false;
        found = (int64_t)real;
    } else {
        return false;
    }
    if (found < min || found > max) return false;
    *value_out = found;
    return true;
}

static weft_status read_int(const weft_fields *fields, const char *key,
                            const json_t *value, const weft_int_field *field,
                            weft_err *err)
{
    int64_t found = 0;
    if (!weft_json_is_int(value, INT64_MIN, INT64_MAX, &found))
        return weft_fields_refuse(fields, key, value, "not an integer", err);
    if (found < field->min || found > field->max) {
        char what[64];
        (void)snprintf(what, sizeof what, "must be %ld to %ld",
                       (long)field->min, (long)field->max);
        return weft_fields_refuse(fields, key, value, what, err);
    }
    *field->out = (int32_t)found;
    return WEFT_OK;
}

static weft_status read_int_field(weft_fields *fields,
                                  const weft_int_field *field, weft_err *err)
{
    const json_t *const value = weft_fields_get(fields, field->key);
    const json_t *const other =
        field->alias != NULL ? weft_fields_get(fields, field->alias) : NULL;
    if (value != NULL)
        WEFT_TRY(read_int(fields, field->key, value, field, err));
    if (other != NULL) {
        const int32_t first = *field->out;
        WEFT_TRY(read_int(fields, field->alias, other, field, err));
        if (value != NULL && *field->out != first)
            return weft_fields_refuse(fields, field->alias, other,
                                      "another name of it says otherwise", err);
    }
    if (value != NULL || other != NULL) return WEFT_OK;
    if (field->fallback == WEFT_REQUIRED)
        return weft_fields_refuse(fields, field->key, NULL,
                                  "required, but absent or null", err);
    *field->out = field->fallback;
    if (field->tell) {
        char reason[64];
        (void)snprintf(reason, sizeof reason, "absent: %ld is taken",
                       (long)field->fallback);
        fields->remark(fields->arg, field->key, reason);
    }
    return WEFT_OK;
}

weft_status weft_fields_ints(weft_fields *fields, const weft_int_field *list,
                             size_t n, weft_err *err)
{
    for (size_t i = 0; i < n; i++)
        WEFT_TRY(read_int_field(fields, &list[i], err));
    return WEFT_OK;
}

weft_status weft_fields_real(weft_fields *fields, const weft_real_field *field,
                             weft_err *err)
{
    const json_t *const value = weft_fields_get(fields, field->key);
    if (value == NULL) {
        if (field->fallback == WEFT_REQUIRED_REAL)
            return weft_fields_refuse(fields, field->key, NULL,
                                      "required, but absent or null", err);
        *field->out = field->fallback;
        if (!field->tell) return WEFT_OK;
        char reason[64];
        (void)snprintf(reason, sizeof reason, "absent: %g is taken",
                       field->fallback);
        fields->remark(fields->arg, field->key, reason);
        return WEFT_OK;
    }
    if (!json_is_number(value))
        return weft_fields_refuse(fields, field->key, value, "not a number",
                                  err);
    const double found = json_number_value(value);
    if (!(found >= field->min && found <= field->max)) {
        char what[64];
        (void)snprintf(what, sizeof what, "must be %g to %g", field->min,
                       field->max);
        return weft_fields_refuse(fields, field->key, value, what, err);
    }
    *field->out = found;
    return WEFT_OK;
}

weft_status weft_fields_bool(weft_fields *fields, const char *key,
                             bool fallback, bool *out, weft_err *err)
{
    const json_t *const value = weft_fields_get(fields, key);
    if (value != NULL && !json_is_boolean(value))
        return weft_fields_refuse(fields, key, value, "must be true or false",
                                  err);
    *out = value != NULL ? json_is_true(value) : fallback;
    return WEFT_OK;
}

weft_status weft_fields_choice(weft_fields *fields, const char *key,
                               const char *const *names, int32_t fallback,
                               int32_t *out, weft_err *err)
{
    const json_t *const value = weft_fields_get(fields, key);
    if (value == NULL) {
        *out = fallback;
        return WEFT_OK;
    }
    char known[128] = "known:";
    const char *const text = json_string_value(value);
    for (int32_t i = 0; names[i] != NULL; i++) {
        if (text != NULL && strcmp(text, names[i]) == 0) {
            *out = i;
            return WEFT_OK;
        }
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, " %s", names[i]);
    }
    return weft_fields_refuse(fields, key, value, known, err);
}

static const char *reason_to_ignore(const weft_ignored_key *ignored,
                                    const char *key)
{
    for (; ignored != NULL && ignored->key != NULL; ignored++)
        if (strcmp(ignored->key, key) == 0) return ignored->reason;
    return NULL;
}

weft_status weft_fields_finish(weft_fields *fields,
                               const weft_ignored_key *ignored, weft_err *err)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(fields->left, key, value)
    {
        const char *reason = reason_to_ignore(ignored, key);
        if (reason == NULL && json_is_null(value))
            reason = "unknown, but null: the same as absent";
        if (reason == NULL)
            return weft_fields_refuse(fields, key, value, "unknown key", err);
        char name[SHOWN_BYTES];
        fields->remark(fields->arg, shown(key, name), reason);
    }
    return WEFT_OK;
}
