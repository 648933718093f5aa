/* log.h - one line per event, on stderr: `time level module event key value
 * ...`
 *
 * Lower-case stable event words; keys before values, a space between; a value
 * with spaces is quoted. Text of prompts is never logged. Levels by
 * consequence: error (a request failed for a reason of ours, or a resource is
 * lost), warn (degraded and self-healing), info (changes of state), debug (per
 * request). Never per token.
 *
 * Threads: any; a line is written with one write. The level is set at start.
 */
#ifndef WEFT_NODE_BASE_LOG_H
#define WEFT_NODE_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

typedef enum weft_log_level {
    WEFT_LOG_ERROR,
    WEFT_LOG_WARN,
    WEFT_LOG_INFO,
    WEFT_LOG_DEBUG,
} weft_log_level;

void weft_log_set_level(weft_log_level level);

/* `format` makes the keys and values: "listen %s threads %d". May be "". */
void weft_log(weft_log_level level, const char *module, const char *event,
              const char *format, ...) WEFT_PRINTF(4, 5);

/* What others can bring about as often as they like is written at most
 * WEFT_LOG_PACE_LINES times a second; the next line after that says how many
 * were left out. Zeroed: nothing written yet. Threads: one owner. */
enum { WEFT_LOG_PACE_LINES = 8 };
typedef struct weft_log_pace {
    uint64_t began_ns; /* of the second that counts */
    int32_t n_lines;   /* in it */
    uint64_t left_out;
} weft_log_pace;
/* Whether the line is to be written. *left_out: lines since the last that were
 * not. */
bool weft_log_pace_pass(weft_log_pace *pace, uint64_t now_ns,
                        uint64_t *left_out);

#endif
