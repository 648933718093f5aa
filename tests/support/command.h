/* command.h - a command of the program, run in this process as a shell would
 * run it: a line in, an exit code and two texts out.
 *
 * Test support: whatever fails ends the program with a message. Standard output
 * and error of the process are diverted meanwhile, so one at a time.
 */
#ifndef WEFT_TESTS_SUPPORT_COMMAND_H
#define WEFT_TESTS_SUPPORT_COMMAND_H

enum { COMMAND_TEXT_BYTES = 16384 };

typedef struct command_seen {
    int code;
    char out[COMMAND_TEXT_BYTES], err[COMMAND_TEXT_BYTES]; /* cut, if longer */
} command_seen;

/* Words are parted by bars: "generate|--ids|1 2". Of generate, status, eval and
 * check. out_path: where standard output goes; NULL: to what is given back. */
command_seen command_run(const char *line, const char *out_path);

#endif
