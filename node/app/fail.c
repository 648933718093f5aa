#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "node/app/commands.h"
#include "node/base/str.h"

int weft_fail_with(weft_exit code, const weft_err *err)
{
    /* A name from a checkpoint or a file may hold anything; what is told stays
     * one line. */
    char line[WEFT_ERR_TEXT_BYTES];
    (void)fprintf(stderr, "weft: %s\n",
                  weft_text_line(err->text, line, sizeof line));
    return (int)code;
}

int weft_output_end(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return WEFT_EXIT_DONE;
    weft_err err = {0};
    (void)WEFT_FAIL(&err, WEFT_UNAVAILABLE, "the output cannot be written: %s",
                    errno != 0 ? strerror(errno) : "an earlier part failed");
    return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
}
