#include "router/text/json_read.h"

#include <string.h>

#include "node/base/str.h"

weft_status weft_json_parse(const char *json, size_t n, json_t **root_out,
                            weft_err *err)
{
    json_error_t at = {0};
    json_t *const root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &at);
    if (root == NULL)
        return WEFT_FAIL(err,
                         json_error_code(&at) == json_error_out_of_memory
                             ? WEFT_RESOURCE_EXHAUSTED
                             : WEFT_INVALID_ARGUMENT,
                         "line %d, column %d: %s", at.line, at.column,
                         weft_json_quote(at.text).text);
    if (!json_is_object(root)) {
        const char *const kind = weft_json_kind(root);
        json_decref(root);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s, not an object", kind);
    }
    *root_out = root;
    return WEFT_OK;
}

const char *weft_json_kind(const json_t *value)
{
    if (value == NULL) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

weft_quoted weft_json_quote(const char *text)
{
    weft_quoted quoted;
    size_t n = strlen(text);
    const bool cut = n > WEFT_JSON_QUOTED_BYTES;
    if (cut) {
        bool broken = false;
        n = weft_utf8_prefix(text, WEFT_JSON_QUOTED_BYTES, &broken);
    }
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        quoted.text[i] = text[i];
        if (c < 0x20 || c == 0x7F) quoted.text[i] = '?';
    }
    memcpy(quoted.text + n, cut ? "..." : "", cut ? 4 : 1);
    return quoted;
}

weft_status weft_json_only(json_t *object, const char *where,
                           const char *const *keys, weft_err *err)
{
    for (void *it = json_object_iter(object); it != NULL;
         it = json_object_iter_next(object, it)) {
        const char *const key = json_object_iter_key(it);
        size_t i = 0;
        while (keys[i] != NULL && strcmp(keys[i], key) != 0) i++;
        if (keys[i] == NULL)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s: key \"%s\" is not known", where,
                             weft_json_quote(key).text);
    }
    return WEFT_OK;
}

static weft_status wrong_kind(const char *where, const char *key,
                              const json_t *value, const char *wanted,
                              weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s.%s: %s, not %s", where,
                     key, weft_json_kind(value), wanted);
}

weft_status weft_json_bool(const json_t *object, const char *where,
                           const char *key, bool absent, bool *value_out,
                           weft_err *err)
{
    const json_t *const value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        *value_out = absent;
        return WEFT_OK;
    }
    if (!json_is_boolean(value))
        return wrong_kind(where, key, value, "true or false", err);
    *value_out = json_is_true(value);
    return WEFT_OK;
}

weft_status weft_json_string(const json_t *object, const char *where,
                             const char *key, const char **value_out,
                             weft_err *err)
{
    const json_t *const value = json_object_get(object, key);
    if (!json_is_string(value))
        return wrong_kind(where, key, value, "a string", err);
    *value_out = json_string_value(value);
    return WEFT_OK;
}

weft_status weft_json_array(const json_t *object, const char *where,
                            const char *key, json_t **value_out, weft_err *err)
{
    json_t *const value = json_object_get(object, key);
    if (!json_is_array(value))
        return wrong_kind(where, key, value, "an array", err);
    *value_out = value;
    return WEFT_OK;
}

weft_status weft_json_type(const json_t *step, const char *where,
                           const char **type_out, weft_err *err)
{
    if (!json_is_object(step))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: %s, not an object",
                         where, weft_json_kind(step));
    return weft_json_string(step, where, "type", type_out, err);
}
