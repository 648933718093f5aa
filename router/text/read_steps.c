/* The pipeline around the model: normalizer, pre_tokenizer, post_processor,
 * decoder. Each is a step with a "type", or a Sequence of steps; a Sequence in
 * a Sequence is flattened to a fixed depth. */
#include <stdio.h>
#include <string.h>

#include "router/text/json_read.h"
#include "router/text/read_internal.h"

enum { SEQUENCE_DEPTH_MAX = 4 };

/* GPT-2's words, in ByteLevel's own pattern. */
static const char WORDS[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                            "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef weft_status (*step_fn)(weft_tokenizer *t, json_t *step,
                               const char *where, const char *type,
                               weft_err *err);

/* A kind of step: its section of the file, the key under which its Sequence
 * lists members, and what reads a single one. */
typedef struct section {
    const char *name, *members;
    step_fn read;
} section;

static weft_status walk(const section *s, weft_tokenizer *t, json_t *step,
                        const char *where, int depth, weft_err *err)
{
    const char *type = NULL;
    WEFT_TRY(weft_json_type(step, where, &type, err));
    if (strcmp(type, "Sequence") != 0)
        return s->read(t, step, where, type, err);
    if (depth == SEQUENCE_DEPTH_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: Sequence in Sequence, more than %d deep", where,
                         SEQUENCE_DEPTH_MAX);
    const char *const keys[] = {"type", s->members, NULL};
    json_t *members = NULL;
    WEFT_TRY(weft_json_only(step, where, keys, err));
    WEFT_TRY(weft_json_array(step, where, s->members, &members, err));
    for (size_t i = 0; i < json_array_size(members); i++) {
        char inner[WEFT_JSON_WHERE_BYTES];
        (void)snprintf(inner, sizeof inner, "%s[%zu]", where, i);
        WEFT_TRY(walk(s, t, json_array_get(members, i), inner, depth + 1, err));
    }
    return WEFT_OK;
}

static weft_status read_section(const section *s, weft_tokenizer *t,
                                const json_t *root, weft_err *err)
{
    json_t *const step = json_object_get(root, s->name);
    if (step == NULL || json_is_null(step)) return WEFT_OK;
    return walk(s, t, step, s->name, 0, err);
}

static weft_status unknown(const char *where, const char *type, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s: type \"%s\" is not supported", where,
                     weft_json_quote(type).text);
}

static weft_status read_normal_form(weft_tokenizer *t, json_t *step,
                                    const char *where, const char *type,
                                    weft_err *err)
{
    static const char *const keys[] = {"type", NULL};
    if (strcmp(type, "NFC") != 0) return unknown(where, type, err);
    t->nfc = true;
    return weft_json_only(step, where, keys, err);
}

weft_status weft_read_normalizer(weft_tokenizer *t, const json_t *root,
                                 weft_err *err)
{
    static const section normalizer = {"normalizer", "normalizers",
                                       read_normal_form};
    return read_section(&normalizer, t, root, err);
}

static weft_status add_split(weft_tokenizer *t, const char *where,
                             weft_split split, weft_err *err)
{
    weft_pretokenizer *const p = &t->pretokenizer;
    if (p->n_splits == WEFT_SPLITS_MAX) {
        weft_pattern_destroy(split.pattern);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: more than %d splits",
                         where, WEFT_SPLITS_MAX);
    }
    p->splits[p->n_splits++] = split;
    return WEFT_OK;
}

static weft_status read_behavior(const json_t *step, const char *where,
                                 weft_split_behavior *behavior_out,
                                 weft_err *err)
{
    static const char *const names[] = {
        [WEFT_SPLIT_ISOLATED] = "Isolated",
        [WEFT_SPLIT_REMOVED] = "Removed",
        [WEFT_SPLIT_CONTIGUOUS] = "Contiguous",
        [WEFT_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [WEFT_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext"};
    const char *name = NULL;
    WEFT_TRY(weft_json_string(step, where, "behavior", &name, err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *behavior_out = (weft_split_behavior)i;
        return WEFT_OK;
    }
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s: behavior \"%s\" is not supported", where,
                     weft_json_quote(name).text);
}

static weft_status read_split(weft_tokenizer *t, json_t *step,
                              const char *where, weft_err *err)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert",
                                       NULL};
    WEFT_TRY(weft_json_only(step, where, keys, err));
    weft_split split = {0};
    WEFT_TRY(read_behavior(step, where, &split.behavior, err));
    WEFT_TRY(weft_json_bool(step, where, "invert", false, &split.invert, err));
    json_t *const pattern = json_object_get(step, "pattern");
    const json_t *const regex = json_object_get(pattern, "Regex");
    const json_t *const string = json_object_get(pattern, "String");
    const json_t *const text = regex != NULL ? regex : string;
    if (json_object_size(pattern) != 1 || !json_is_string(text))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s.pattern: neither {\"Regex\": ...} nor "
                         "{\"String\": ...}",
                         where);
    const weft_status st =
        weft_pattern_create(json_string_value(text), json_string_length(text),
                            regex == NULL, &split.pattern, err);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "%s", where);
    return add_split(t, where, split, err);
}

static weft_status read_digits(weft_tokenizer *t, json_t *step,
                               const char *where, weft_err *err)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    static const char numeric[] = "\\p{N}";
    bool each = false;
    WEFT_TRY(weft_json_only(step, where, keys, err));
    WEFT_TRY(
        weft_json_bool(step, where, "individual_digits", false, &each, err));
    weft_split split = {.behavior =
                            each ? WEFT_SPLIT_ISOLATED : WEFT_SPLIT_CONTIGUOUS};
    WEFT_TRY(weft_pattern_create(numeric, sizeof numeric - 1, false,
                                 &split.pattern, err));
    return add_split(t, where, split, err);
}

static const char *const BYTE_LEVEL_KEYS[] = {
    "type", "add_prefix_space", "trim_offsets", "use_regex", NULL};

static weft_status read_byte_level(weft_tokenizer *t, json_t *step,
                                   const char *where, weft_err *err)
{
    bool use_regex = true;
    weft_pretokenizer *const p = &t->pretokenizer;
    WEFT_TRY(weft_json_only(step, where, BYTE_LEVEL_KEYS, err));
    WEFT_TRY(weft_json_bool(step, where, "add_prefix_space", true,
                            &p->add_prefix_space, err));
    WEFT_TRY(weft_json_bool(step, where, "use_regex", true, &use_regex, err));
    t->byte_level = true;
    if (!use_regex) return WEFT_OK;
    return weft_pattern_create(WORDS, sizeof WORDS - 1, false, &p->words, err);
}

static weft_status read_pretokenizer_step(weft_tokenizer *t, json_t *step,
                                          const char *where, const char *type,
                                          weft_err *err)
{
    if (t->byte_level)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: \"%s\" after ByteLevel is not supported", where,
                         weft_json_quote(type).text);
    if (strcmp(type, "Split") == 0) return read_split(t, step, where, err);
    if (strcmp(type, "Digits") == 0) return read_digits(t, step, where, err);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(t, step, where, err);
    return unknown(where, type, err);
}

weft_status weft_read_pretokenizer(weft_tokenizer *t, const json_t *root,
                                   weft_err *err)
{
    static const section pretokenizer = {"pre_tokenizer", "pretokenizers",
                                         read_pretokenizer_step};
    WEFT_TRY(read_section(&pretokenizer, t, root, err));
    if (!t->byte_level)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "pre_tokenizer: no ByteLevel; only byte-level "
                         "tokenizers are supported");
    return WEFT_OK;
}

/* The ids of special token `name`, as post_processor.special_tokens has it. */
static weft_status template_ids(const weft_tokenizer *t, const json_t *step,
                                const char *where, const char *name,
                                weft_ids *ids, weft_err *err)
{
    const json_t *const specials = json_object_get(step, "special_tokens");
    const json_t *const entry = json_object_get(specials, name);
    const json_t *const list = json_object_get(entry, "ids");
    if (!json_is_array(list))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s.special_tokens: no \"ids\" for \"%s\"", where,
                         weft_json_quote(name).text);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *const value = json_array_get(list, i);
        const json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= t->n_ids ||
            !weft_tokenizer_has(t, (int32_t)id))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s.special_tokens: \"%s\" has id %lld, which "
                             "is no token",
                             where, weft_json_quote(name).text, (long long)id);
        const int32_t one = (int32_t)id;
        WEFT_TRY(weft_ids_add(ids, &one, 1, err));
    }
    return WEFT_OK;
}

/* Ids before the text and after it, of one template. */
static weft_status read_template(const weft_tokenizer *t, const json_t *step,
                                 const char *where, weft_ids sides[2],
                                 weft_err *err)
{
    json_t *parts = NULL;
    bool text_seen = false;
    WEFT_TRY(weft_json_array(step, where, "single", &parts, err));
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *const part = json_array_get(parts, i);
        const json_t *const special = json_object_get(part, "SpecialToken");
        const json_t *const text = json_object_get(part, "Sequence");
        const char *const id = json_string_value(
            json_object_get(special != NULL ? special : text, "id"));
        if (id == NULL)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s.single[%zu]: neither a SpecialToken nor a "
                             "Sequence with an \"id\"",
                             where, i);
        if (special != NULL) {
            WEFT_TRY(template_ids(t, step, where, id, &sides[text_seen ? 1 : 0],
                                  err));
            continue;
        }
        if (text_seen || strcmp(id, "A") != 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s.single: Sequence \"%s\"; only \"A\", once, "
                             "is supported",
                             where, weft_json_quote(id).text);
        text_seen = true;
    }
    if (!text_seen)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s.single: no Sequence \"A\"", where);
    return WEFT_OK;
}

static weft_status read_post_step(weft_tokenizer *t, json_t *step,
                                  const char *where, const char *type,
                                  weft_err *err)
{
    static const char *const keys[] = {"type", "single", "pair",
                                       "special_tokens", NULL};
    if (strcmp(type, "ByteLevel") == 0) /* trims offsets, adds nothing */
        return weft_json_only(step, where, BYTE_LEVEL_KEYS, err);
    if (strcmp(type, "TemplateProcessing") != 0)
        return unknown(where, type, err);
    WEFT_TRY(weft_json_only(step, where, keys, err));
    /* A later template goes around what the earlier ones have made. */
    weft_ids sides[2] = {{0}, {0}};
    weft_status st = read_template(t, step, where, sides, err);
    if (st == WEFT_OK)
        st = weft_ids_add(&sides[0], t->front.data, t->front.n, err);
    if (st == WEFT_OK)
        st = weft_ids_add(&t->after, sides[1].data, sides[1].n, err);
    if (st == WEFT_OK) {
        const weft_ids front = t->front;
        t->front = sides[0];
        sides[0] = front;
    }
    weft_ids_deinit(&sides[0]);
    weft_ids_deinit(&sides[1]);
    return st;
}

weft_status weft_read_post_processor(weft_tokenizer *t, const json_t *root,
                                     weft_err *err)
{
    static const section post_processor = {"post_processor", "processors",
                                           read_post_step};
    return read_section(&post_processor, t, root, err);
}

weft_status weft_read_decoder(const json_t *root, weft_err *err)
{
    json_t *const step = json_object_get(root, "decoder");
    const char *type = NULL;
    WEFT_TRY(weft_json_type(step, "decoder", &type, err));
    if (strcmp(type, "ByteLevel") != 0) return unknown("decoder", type, err);
    return weft_json_only(step, "decoder", BYTE_LEVEL_KEYS, err);
}
