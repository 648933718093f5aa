/* commands.h - one function for each command that is built.
 *
 * Each runs to its end and returns an exit code (exit.h). It has told on
 * stderr, in one line whose last part names the thing, what went wrong.
 * Threads: called by main, once, before any thread is started.
 */
#ifndef WEFT_NODE_APP_COMMANDS_H
#define WEFT_NODE_APP_COMMANDS_H

#include "node/app/exit.h"
#include "node/app/options.h"

int weft_command_serve(const weft_options *options);
int weft_command_generate(const weft_options *options);
int weft_command_eval(const weft_options *options);
int weft_command_check(const weft_options *options);
int weft_command_status(const weft_options *options);
int weft_command_router(const weft_options *options);
int weft_command_shard(const weft_options *options);
int weft_command_plan(const weft_options *options);

/* Whether all that was printed on stdout has arrived: WEFT_EXIT_DONE, or, told
 * on stderr, WEFT_EXIT_RESOURCE. The last thing a command does that prints. */
int weft_output_end(void);

/* "weft: TEXT" on stderr, as one line; returns `code`, so that a command ends
 * with `return weft_fail_with(...)`. */
int weft_fail_with(weft_exit code, const weft_err *err);

#endif
