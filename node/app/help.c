#include <string.h>

#include "kernels/ops.h"
#include "node/app/backend.h"
#include "node/app/flags.h"

enum { NAME_BYTES = 64, WIDTH = 34 };

void weft_help_print(FILE *out)
{
    (void)fprintf(out, "usage: weft COMMAND [--flag value]...\n\ncommands:\n");
    for (int c = 0; c < WEFT_COMMANDS; c++) {
        const weft_command_row *const row = &weft_command_rows[c];
        (void)fprintf(out, "  %-10s %s%s\n", row->name, row->help,
                      row->not_built != NULL ? " (not built)" : "");
    }
    (void)fprintf(
        out,
        "\nweft help COMMAND lists the flags of one. Every flag can also be "
        "set as\nWEFT_FLAG_NAME in the environment, a switch as true or false; "
        "the command\nline wins.\n"
        "Exit codes: 0 done, 1 internal error, 2 usage, 3 checkpoint refused,\n"
        "4 resource missing, 5 cannot be reached, 6 the server answered with "
        "an error.\n");
}

/* "a|b|c (b)" and the like: what the flag takes, and its default. */
static void print_flag(FILE *out, const weft_flag_row *row)
{
    char left[NAME_BYTES];
    char env[NAME_BYTES];
    weft_flag_env_name(row->name, env, sizeof env);
    (void)snprintf(left, sizeof left, "--%s%s%s", row->name,
                   row->value != NULL ? " " : "",
                   row->value != NULL ? row->value : "");
    (void)fprintf(out, "  %-*s %s", WIDTH - 8, left, row->help);
    if (row->kind == WEFT_KIND_CHOICE) (void)fprintf(out, ": %s", row->choices);
    const char *const preset = row->shown != NULL ? row->shown : row->preset;
    if (preset != NULL) (void)fprintf(out, " (%s)", preset);
    if (row->not_built != NULL)
        (void)fprintf(out, "; not built: %s", row->not_built);
    (void)fprintf(out, " [%s]\n", env);
}

weft_status weft_help_print_command(FILE *out, const char *name, weft_err *err)
{
    const weft_command command = weft_command_find(name);
    if (command == WEFT_COMMANDS)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "unknown command %.64s; weft help lists the commands",
                         name);
    const weft_command_row *const row = &weft_command_rows[command];
    if (row->not_built != NULL)
        return WEFT_FAIL(err, WEFT_UNIMPLEMENTED, "%s is not built; %s",
                         row->name, row->not_built);
    (void)fprintf(out, "usage: weft %s%s%s\n\n%s\n", row->name,
                  row->usage[0] != '\0' ? " " : "", row->usage, row->help);
    bool any = false;
    for (int f = 0; f < WEFT_FLAGS; f++) {
        if ((weft_flag_rows[f].commands >> command & 1U) == 0) continue;
        if (!any)
            (void)fprintf(out, "\nflags, with (default) and [variable]:\n");
        any = true;
        print_flag(out, &weft_flag_rows[f]);
    }
    return WEFT_OK;
}

void weft_version_print(FILE *out)
{
    (void)fprintf(out, "weft %s\ncommit %s\ncpu paths", weft_version_text(),
                  weft_version_commit());
    for (int32_t i = 0;; i++) {
        const weft_ops *const ops = weft_ops_cpu_nth(i);
        if (ops == NULL) break;
        (void)fprintf(out, " %s", ops->name);
    }
    const char *names[3] = {NULL};
    const int32_t n = weft_backend_names(names);
    (void)fprintf(out, "\nbackends");
    for (int32_t i = 0; i < n; i++) (void)fprintf(out, " %s", names[i]);
    (void)fprintf(out, "\n");
#ifdef WEFT_FAILPOINTS
    (void)fprintf(out, "failpoints yes\n");
#endif
}
