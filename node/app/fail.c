#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "node/app/commands.h"

int weft_fail_with(weft_exit code, const weft_err *err)
{
    /* A name from a checkpoint or a file may hold anything; what is told stays
     * one line. */
    char line[WEFT_ERR_TEXT_BYTES];
    size_t n = 0;
    for (; err->text[n] != '\0' && n + 1 < sizeof line; n++) {
        const unsigned char c = (unsigned char)err->text[n];
        line[n] = (char)(c < 0x20 || c == 0x7F ? '?' : err->text[n]);
    }
    line[n] = '\0';
    (void)fprintf(stderr, "weft: %s\n", line);
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
