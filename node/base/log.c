#include "node/base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Below PIPE_BUF, so that a line to a pipe stays whole. */
enum { LINE_BYTES = 2048 };

static atomic_int level_max = WEFT_LOG_INFO;

void weft_log_set_level(weft_log_level level)
{
    atomic_store_explicit(&level_max, (int)level, memory_order_relaxed);
}

static const char *level_name(weft_log_level level)
{
    switch (level) {
    case WEFT_LOG_ERROR: return "error";
    case WEFT_LOG_WARN: return "warn";
    case WEFT_LOG_INFO: return "info";
    case WEFT_LOG_DEBUG: return "debug";
    }
    return "unknown";
}

/* Bytes used after adding `added` (what snprintf returned) to `used`, within
 * what fits before the newline. */
static size_t advance(size_t used, int added)
{
    const size_t room = LINE_BYTES - 1 - used;
    if (added <= 0) return used;
    return used + ((size_t)added < room ? (size_t)added : room - 1);
}

static size_t put_head(char *line, weft_log_level level, const char *module,
                       const char *event)
{
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    const size_t used = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    return advance(used, snprintf(line + used, LINE_BYTES - 1 - used,
                                  ".%03ldZ %s %s %s", now.tv_nsec / 1000000,
                                  level_name(level), module, event));
}

void weft_log(weft_log_level level, const char *module, const char *event,
              const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed))
        return;
    char line[LINE_BYTES];
    size_t used = put_head(line, level, module, event);
    const size_t head = used;
    if (used < LINE_BYTES - 2) line[used++] = ' ';
    va_list args;
    va_start(args, format);
    used = advance(used,
                   vsnprintf(line + used, LINE_BYTES - 1 - used, format, args));
    va_end(args);
    if (used == head + 1) used = head; /* no keys, so no blank */
    /* A value from outside must not be able to forge a line. */
    for (size_t i = 0; i < used; i++) {
        const unsigned char c = (unsigned char)line[i];
        if (c < ' ' || c == 0x7F) line[i] = '?';
    }
    line[used] = '\n';
    const ssize_t written = write(STDERR_FILENO, line, used + 1);
    (void)written; /* nobody is left to tell */
}

bool weft_log_pace_pass(weft_log_pace *pace, uint64_t now_ns,
                        uint64_t *left_out)
{
    static const uint64_t second_ns = 1000000000U;
    if (pace->n_lines == 0 || now_ns - pace->began_ns >= second_ns) {
        pace->began_ns = now_ns;
        pace->n_lines = 0;
    }
    *left_out = pace->left_out;
    if (pace->n_lines == WEFT_LOG_PACE_LINES) {
        pace->left_out++;
        return false;
    }
    pace->n_lines++;
    pace->left_out = 0;
    return true;
}
