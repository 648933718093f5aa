/* flags.h - the rows behind options.h; for options.c and help.c alone. */
#ifndef WEFT_NODE_APP_FLAGS_H
#define WEFT_NODE_APP_FLAGS_H

#include <stddef.h>

#include "node/app/options.h"

typedef enum weft_flag_kind {
    WEFT_KIND_TEXT,    /* const char *; not empty */
    WEFT_KIND_NAME,    /* const char *; [A-Za-z0-9._-]{1,63} */
    WEFT_KIND_TEXTS,   /* may be repeated: options.stops */
    WEFT_KIND_SIZE,    /* int64_t, bytes */
    WEFT_KIND_COUNT,   /* int32_t in [min, max] */
    WEFT_KIND_U64,     /* uint64_t */
    WEFT_KIND_REAL,    /* double, finite */
    WEFT_KIND_CHOICE,  /* const char *, one of the words of `choices` */
    WEFT_KIND_ADDRESS, /* weft_flag_address; port 0 if min is 0 */
    WEFT_KIND_SWITCH,  /* bool */
} weft_flag_kind;

typedef struct weft_flag_row {
    const char *name;
    uint32_t commands; /* bit c: command c has it */
    weft_flag_kind kind;
    size_t offset;         /* of the field in weft_options */
    const char *value;     /* how help shows the value: "DIR"; NULL: none */
    const char *preset;    /* the default as text; NULL: zero, or not set */
    const char *shown;     /* the default as help tells it, if not `preset` */
    const char *choices;   /* CHOICE: "a|b|c"; ADDRESS: "off" if it may be */
    const char *not_built; /* CHOICE: known words that are refused, "c|d" */
    int64_t min, max;      /* COUNT, SIZE, ADDRESS */
    const char *help;
} weft_flag_row;

typedef struct weft_command_row {
    const char *name;
    const char *usage;     /* what follows the name */
    const char *help;      /* one line */
    const char *not_built; /* not NULL: why it is refused */
    bool words;            /* takes words that are no flags */
    weft_flag needed[3];   /* that must be given */
    int32_t n_needed;
} weft_command_row;

extern const weft_flag_row weft_flag_rows[WEFT_FLAGS];
extern const weft_command_row weft_command_rows[WEFT_COMMANDS];

/* WEFT_COMMANDS: no such command. */
weft_command weft_command_find(const char *name);

/* What flags of router and shard say together: INVALID_ARGUMENT names the one
 * that contradicts. */
WEFT_MUST_CHECK weft_status weft_options_check_cluster(const weft_options *o,
                                                       weft_err *err);

/* "page-tokens" to "WEFT_PAGE_TOKENS". */
void weft_flag_env_name(const char *flag, char *name_out, size_t n);

#endif
