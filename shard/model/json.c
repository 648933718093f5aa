#include "shard/model/json.h"

#include <stdbool.h>

/* The parser says nothing at all where an allocation fails midway. */
static bool is_memory(const json_error_t *why)
{
    return json_error_code(why) == json_error_out_of_memory ||
           why->text[0] == '\0';
}

weft_status weft_json_read(const char *what, const char *bytes, size_t n,
                           json_t **out, weft_err *err)
{
    json_error_t why = {.text = ""};
    json_t *const root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL && is_memory(&why))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%s: no memory to read its JSON", what);
    if (root == NULL) {
        /* The parser quotes the file; an error is one printable line. */
        for (char *c = why.text; *c != '\0'; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: not JSON at line %d, byte %d: %.120s", what,
                         why.line, why.position, why.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return WEFT_FAIL(err, WEFT_DATA_LOSS, "%s: not a JSON object", what);
    }
    *out = root;
    return WEFT_OK;
}
