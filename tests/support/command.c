#include "tests/support/command.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/app/commands.h"

enum { ARGS_MAX = 24, LINE_BYTES = 4096 };

static const char *no_environment(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return NULL;
}

/* Let `fd` go to `path` (NULL: a file without name); returns what it was. */
static int divert(int fd, const char *path)
{
    const int was = dup(fd);
    FILE *const to = path != NULL ? fopen(path, "w") : tmpfile();
    ck_assert(was >= 0 && to != NULL);
    ck_assert_int_eq(dup2(fileno(to), fd), fd);
    ck_assert_int_eq(fclose(to), 0);
    return was;
}

static void restore(int fd, int was, char text[COMMAND_TEXT_BYTES])
{
    const ssize_t n = pread(fd, text, COMMAND_TEXT_BYTES - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    ck_assert_int_eq(dup2(was, fd), fd);
    (void)close(was);
}

static int dispatch(const weft_options *o)
{
    switch ((int)o->command) {
    case WEFT_COMMAND_GENERATE: return weft_command_generate(o);
    case WEFT_COMMAND_STATUS: return weft_command_status(o);
    case WEFT_COMMAND_EVAL: return weft_command_eval(o);
    case WEFT_COMMAND_CHECK: return weft_command_check(o);
    default: ck_abort_msg("a command that is not run here");
    }
    return -1;
}

command_seen command_run(const char *line, const char *out_path)
{
    static char program[] = "weft";
    char copied[LINE_BYTES];
    char *argv[ARGS_MAX] = {program};
    int argc = 1;
    ck_assert_uint_lt(strlen(line), sizeof copied);
    memcpy(copied, line, strlen(line) + 1);
    for (char *at = copied; at != NULL;) {
        char *const bar = strchr(at, '|');
        if (bar != NULL) *bar = '\0';
        ck_assert_int_lt(argc, ARGS_MAX);
        argv[argc++] = at;
        at = bar != NULL ? bar + 1 : NULL;
    }
    weft_options o;
    weft_err err = {0};
    ck_assert_msg(weft_options_parse(argc, argv, no_environment, NULL, &o,
                                     &err) == WEFT_OK,
                  "%s", err.text);
    command_seen s = {0};
    (void)fflush(stdout);
    const int out = divert(STDOUT_FILENO, out_path);
    const int told = divert(STDERR_FILENO, NULL);
    s.code = dispatch(&o);
    /* As the end of a program would; what then fails nobody hears. */
    (void)fflush(stdout);
    clearerr(stdout);
    restore(STDOUT_FILENO, out, s.out);
    restore(STDERR_FILENO, told, s.err);
    return s;
}
