/* main.c - the program `weft`: parse the line, run the command. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/app/commands.h"
#include "node/base/failpoint.h"

static const char *from_environment(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

static int help(const weft_options *options)
{
    if (options->n_words == 0) {
        weft_help_print(stdout);
        return weft_output_end();
    }
    weft_err err = {0};
    if (weft_help_print_command(stdout, options->words[0], &err) != WEFT_OK)
        return weft_fail_with(WEFT_EXIT_USAGE, &err);
    return weft_output_end();
}

static int version(const weft_options *options)
{
    (void)options;
    weft_version_print(stdout);
    return weft_output_end();
}

int main(int argc, char **argv)
{
    static int (*const run[WEFT_COMMANDS])(const weft_options *) = {
        [WEFT_COMMAND_SERVE] = weft_command_serve,
        [WEFT_COMMAND_GENERATE] = weft_command_generate,
        [WEFT_COMMAND_EVAL] = weft_command_eval,
        [WEFT_COMMAND_CHECK] = weft_command_check,
        [WEFT_COMMAND_PLAN] = weft_command_plan,
        [WEFT_COMMAND_STATUS] = weft_command_status,
        [WEFT_COMMAND_ROUTER] = weft_command_router,
        [WEFT_COMMAND_SHARD] = weft_command_shard,
        [WEFT_COMMAND_HELP] = help,
        [WEFT_COMMAND_VERSION] = version,
    };
    weft_options options = {0};
    weft_err err = {0};
    /* A reader of our output that has left is a failed write, with an exit code
     * that says so, not the death of the program. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (weft_options_parse(argc, argv, from_environment, NULL, &options,
                           &err) != WEFT_OK)
        return weft_fail_with(WEFT_EXIT_USAGE, &err);
#ifdef WEFT_FAILPOINTS
    const char *const failpoints = getenv("WEFT_FAILPOINTS");
    if (weft_failpoints_set(failpoints == NULL ? "" : failpoints, &err) !=
        WEFT_OK)
        return weft_fail_with(WEFT_EXIT_USAGE, &err);
#endif
    weft_log_set_level(options.log_level);
    return run[options.command](&options);
}
