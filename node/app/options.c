#include "node/app/options.h"

#include <string.h>

#include "node/app/flags.h"
#include "node/base/check.h"
#include "node/base/str.h"

enum {
    SHOWN_BYTES = 80, /* of a bad value, in a message */
    NAME_BYTES = 64,
};

/* Where a value came from, for messages. */
typedef struct source {
    const weft_flag_row *row;
    const char *env_name; /* NULL: the command line */
} source;

static const char *shown(const char *value, char out[SHOWN_BYTES])
{
    return weft_text_line(value, out, SHOWN_BYTES);
}

static weft_status bad_value(const source *from, const char *value,
                             weft_err *err, const char *wanted)
{
    char text[SHOWN_BYTES];
    if (from->env_name != NULL)
        return WEFT_FAIL(
            err, WEFT_INVALID_ARGUMENT, "--%s (from %s) is \"%s\"; it takes %s",
            from->row->name, from->env_name, shown(value, text), wanted);
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "--%s is \"%s\"; it takes %s",
                     from->row->name, shown(value, text), wanted);
}

/* Whether `word` is one of "a|b|c". The word in the table comes back, so that
 * the caller's text need not live on. */
static bool in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; at != NULL && n > 0;) {
        const size_t item = strcspn(at, "|");
        if (item == n && memcmp(at, word, n) == 0) return true;
        at = at[item] == '|' ? at + item + 1 : NULL;
    }
    return false;
}

static weft_status parse_choice(const source *from, const char *value,
                                const char **field, weft_err *err)
{
    const weft_flag_row *const row = from->row;
    if (in_list(row->not_built, value))
        return WEFT_FAIL(err, WEFT_UNIMPLEMENTED,
                         "--%s %s is not built; it takes %s", row->name, value,
                         row->choices);
    if (!in_list(row->choices, value))
        return bad_value(from, value, err, row->choices);
    *field = value;
    return WEFT_OK;
}

static weft_status parse_count(const source *from, const char *value,
                               int32_t *field, weft_err *err)
{
    const weft_flag_row *const row = from->row;
    int64_t count = 0;
    if (!weft_parse_i64(value, row->min, row->max, &count)) {
        char wanted[NAME_BYTES];
        (void)snprintf(wanted, sizeof wanted,
                       "a whole number from %lld to %lld", (long long)row->min,
                       (long long)row->max);
        return bad_value(from, value, err, wanted);
    }
    *field = (int32_t)count;
    return WEFT_OK;
}

static weft_status parse_size(const source *from, const char *value,
                              int64_t *field, weft_err *err)
{
    uint64_t bytes = 0;
    if (!weft_parse_bytes(value, &bytes) || bytes < (uint64_t)from->row->min ||
        bytes > (uint64_t)from->row->max)
        return bad_value(from, value, err,
                         "bytes above 0, as digits with or without K, M, G "
                         "or T");
    *field = (int64_t)bytes;
    return WEFT_OK;
}

static weft_status parse_address(const source *from, const char *value,
                                 weft_flag_address *field, weft_err *err)
{
    const weft_flag_row *const row = from->row;
    weft_flag_address address = {.text = value};
    address.off = row->choices != NULL && strcmp(value, "off") == 0;
    if (!address.off &&
        (weft_address_parse(value, &address.at, NULL) != WEFT_OK ||
         address.at.port < row->min))
        return bad_value(from, value, err,
                         row->choices != NULL
                             ? "HOST:PORT (port up to 65535) or off"
                             : "HOST:PORT (port up to 65535)");
    *field = address;
    return WEFT_OK;
}

/* Part of keys in a shared store, and of log lines. */
static weft_status parse_name(const source *from, const char *value,
                              const char **field, weft_err *err)
{
    enum { LONGEST = 63 };
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t n = strspn(value, allowed);
    if (n == 0 || n > LONGEST || value[n] != '\0')
        return bad_value(from, value, err,
                         "1 to 63 letters, digits, points, underscores and "
                         "dashes");
    *field = value;
    return WEFT_OK;
}

static weft_status parse_switch(const source *from, const char *value,
                                bool *field, weft_err *err)
{
    if (!in_list("true|false", value))
        return bad_value(from, value, err, "no value, true or false");
    *field = value[0] == 't';
    return WEFT_OK;
}

static weft_status add_stop(const source *from, const char *value,
                            weft_options *o, weft_err *err)
{
    if (value[0] == '\0') return bad_value(from, value, err, "some text");
    if (o->n_stops == WEFT_STOPS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--%s is given more than %d times", from->row->name,
                         WEFT_STOPS_MAX);
    o->stops[o->n_stops++] = value;
    return WEFT_OK;
}

/* Parse `value` into the field of the row. */
static weft_status set_flag(const source *from, const char *value,
                            weft_options *o, weft_err *err)
{
    void *const field = (char *)o + from->row->offset;
    switch (from->row->kind) {
    case WEFT_KIND_TEXT:
        if (value[0] == '\0') return bad_value(from, value, err, "some text");
        *(const char **)field = value;
        return WEFT_OK;
    case WEFT_KIND_NAME: return parse_name(from, value, field, err);
    case WEFT_KIND_TEXTS: return add_stop(from, value, o, err);
    case WEFT_KIND_SIZE: return parse_size(from, value, field, err);
    case WEFT_KIND_COUNT: return parse_count(from, value, field, err);
    case WEFT_KIND_U64:
        if (!weft_parse_u64(value, field))
            return bad_value(from, value, err,
                             "a whole number from 0 to 2^64 - 1");
        return WEFT_OK;
    case WEFT_KIND_REAL:
        if (!weft_parse_f64(value, field))
            return bad_value(from, value, err, "a decimal number");
        return WEFT_OK;
    case WEFT_KIND_CHOICE: return parse_choice(from, value, field, err);
    case WEFT_KIND_ADDRESS: return parse_address(from, value, field, err);
    case WEFT_KIND_SWITCH: return parse_switch(from, value, field, err);
    }
    return WEFT_FAIL(err, WEFT_INTERNAL, "--%s has no kind", from->row->name);
}

/* The command's flag of that name; NULL: it has none. */
static const weft_flag_row *find_flag(weft_command command, const char *name,
                                      size_t n)
{
    for (int f = 0; f < WEFT_FLAGS; f++) {
        const weft_flag_row *const row = &weft_flag_rows[f];
        if ((row->commands >> command & 1U) != 0 && strlen(row->name) == n &&
            memcmp(row->name, name, n) == 0)
            return row;
    }
    return NULL;
}

static bool *given_of(weft_options *o, const weft_flag_row *row)
{
    return &o->given[row - weft_flag_rows];
}

/* argv[*at] is a flag: take it and its value, and move *at past both. */
static weft_status take_flag(int argc, char **argv, int *at, weft_options *o,
                             weft_err *err)
{
    char text[SHOWN_BYTES];
    const char *const name = argv[*at] + 2;
    const size_t n = strcspn(name, "=");
    const weft_flag_row *const row = find_flag(o->command, name, n);
    if (strncmp(argv[*at], "--", 2) != 0 || row == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "unknown flag %s; weft help %s lists its flags",
                         shown(argv[*at], text),
                         weft_command_rows[o->command].name);
    const char *value = name[n] == '=' ? name + n + 1 : NULL;
    *at += 1;
    if (value == NULL && row->kind == WEFT_KIND_SWITCH) value = "true";
    if (value == NULL) {
        if (*at == argc || strncmp(argv[*at], "--", 2) == 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "--%s needs a value: --%s %s", row->name,
                             row->name, row->value);
        value = argv[(*at)++];
    }
    if (*given_of(o, row) && row->kind != WEFT_KIND_TEXTS)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "--%s is given twice",
                         row->name);
    *given_of(o, row) = true;
    return set_flag(&(source){.row = row}, value, o, err);
}

static weft_status take_word(char *word, weft_options *o, weft_err *err)
{
    char text[SHOWN_BYTES];
    const weft_command_row *const row = &weft_command_rows[o->command];
    if (!row->words)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "unexpected word \"%s\": %s takes flags only",
                         shown(word, text), row->name);
    o->words[o->n_words++] = word;
    return WEFT_OK;
}

static weft_status take_line(int argc, char **argv, weft_options *o,
                             weft_err *err)
{
    bool flags = true;
    for (int at = 2; at < argc;) {
        if (flags && strcmp(argv[at], "--") == 0) {
            flags = false;
            at++;
        } else if (flags && argv[at][0] == '-' && argv[at][1] != '\0') {
            WEFT_TRY(take_flag(argc, argv, &at, o, err));
        } else {
            WEFT_TRY(take_word(argv[at++], o, err));
        }
    }
    return WEFT_OK;
}

static weft_status take_environment(weft_env_fn env, void *env_arg,
                                    weft_options *o, weft_err *err)
{
    for (int f = 0; f < WEFT_FLAGS; f++) {
        const weft_flag_row *const row = &weft_flag_rows[f];
        if ((row->commands >> o->command & 1U) == 0) continue;
        if (*given_of(o, row)) continue;
        char name[NAME_BYTES];
        weft_flag_env_name(row->name, name, sizeof name);
        const char *const value = env(env_arg, name);
        if (value == NULL) continue;
        *given_of(o, row) = true;
        WEFT_TRY(
            set_flag(&(source){.row = row, .env_name = name}, value, o, err));
    }
    return WEFT_OK;
}

/* Defaults go through the same parser as values, so a row cannot hold one that
 * a user could not give; --decode-from's "no" is the exception. Where two
 * commands have a flag of the same name and field, the command's own holds. */
static void set_defaults_of(weft_options *o, bool own)
{
    for (int f = 0; f < WEFT_FLAGS; f++) {
        const weft_flag_row *const row = &weft_flag_rows[f];
        if (row->preset == NULL || f == WEFT_FLAG_DECODE_FROM) continue;
        if (((row->commands >> o->command & 1U) != 0) != own) continue;
        weft_err err = {0};
        const weft_status st =
            set_flag(&(source){.row = row}, row->preset, o, &err);
        WEFT_ASSERT(st == WEFT_OK);
    }
}

static void set_defaults(weft_options *o)
{
    set_defaults_of(o, false);
    set_defaults_of(o, true);
    o->decode_from = -1;
}

static weft_status check_inside(const weft_options *o, weft_err *err)
{
    const bool inside =
        o->command == WEFT_COMMAND_SERVE || o->command == WEFT_COMMAND_EVAL;
    const bool staged = o->stages > 1;
    if (!inside || o->tensor_parallel == 1 ||
        (!staged && o->expert_shards == 1))
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_UNIMPLEMENTED,
                     "--tensor-parallel %d with --%s %d in one process is not "
                     "built; weft shard takes it",
                     o->tensor_parallel, staged ? "stages" : "expert-shards",
                     staged ? o->stages : o->expert_shards);
}

static weft_status check_needed(const weft_options *o, weft_err *err)
{
    const weft_command_row *const row = &weft_command_rows[o->command];
    for (int32_t i = 0; i < row->n_needed; i++) {
        const weft_flag_row *const flag = &weft_flag_rows[row->needed[i]];
        if (!o->given[row->needed[i]])
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "--%s is missing: --%s %s", flag->name, flag->name,
                             flag->value);
    }
    if (o->command == WEFT_COMMAND_EVAL &&
        (o->text == NULL) == (o->ids_file == NULL))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "one of --ids FILE and --text FILE is needed, and "
                         "only one");
    if (o->command == WEFT_COMMAND_HELP && o->n_words > 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "help takes one command");
    WEFT_TRY(check_inside(o, err));
    return weft_options_check_cluster(o, err);
}

static weft_log_level log_level_of(const char *name)
{
    if (strcmp(name, "error") == 0) return WEFT_LOG_ERROR;
    if (strcmp(name, "warn") == 0) return WEFT_LOG_WARN;
    if (strcmp(name, "debug") == 0) return WEFT_LOG_DEBUG;
    return WEFT_LOG_INFO;
}

static void derive(weft_options *o)
{
    o->profile =
        strcmp(o->profile_name, "exact") == 0 ? WEFT_EXACT : WEFT_PROFILE_BF16;
    o->link_rows_near = strcmp(o->link_rows, "auto") == 0;
    o->neutral_defaults = strcmp(o->generation_defaults, "neutral") == 0;
    o->log_level = log_level_of(o->log_level_name);
    o->role = WEFT_ROLE_ROUTER;
    if (o->role_name != NULL)
        o->role = strcmp(o->role_name, "layers") == 0 ? WEFT_ROLE_LAYERS
                                                      : WEFT_ROLE_EXPERTS;
}

static weft_status find_command(int argc, char **argv, weft_options *o,
                                weft_err *err)
{
    char text[SHOWN_BYTES];
    if (argc < 2)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a command is needed; weft help lists them");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    o->command = weft_command_find(name);
    if (o->command == WEFT_COMMANDS)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "unknown command %s; weft help lists the commands",
                         shown(name, text));
    const weft_command_row *const row = &weft_command_rows[o->command];
    if (row->not_built != NULL)
        return WEFT_FAIL(err, WEFT_UNIMPLEMENTED, "%s is not built; %s",
                         row->name, row->not_built);
    return WEFT_OK;
}

weft_status weft_options_parse(int argc, char **argv, weft_env_fn env,
                               void *env_arg, weft_options *options_out,
                               weft_err *err)
{
    weft_options o = {0};
    WEFT_TRY(find_command(argc, argv, &o, err));
    set_defaults(&o);
    o.words = argv + 1;
    weft_status st = take_line(argc, argv, &o, err);
    if (st == WEFT_OK) st = take_environment(env, env_arg, &o, err);
    if (st == WEFT_OK) st = check_needed(&o, err);
    if (st != WEFT_OK)
        return WEFT_WRAP(err, st, "%s", weft_command_rows[o.command].name);
    derive(&o);
    *options_out = o;
    return WEFT_OK;
}

bool weft_options_given(const weft_options *options, weft_flag flag)
{
    return options->given[flag];
}
