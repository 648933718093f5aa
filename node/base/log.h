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

#endif
