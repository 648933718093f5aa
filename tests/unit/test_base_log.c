#include <pthread.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/base/log.h"
#include "tests/support/suite.h"

#define TIME_PATTERN                                                           \
    "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"        \
    "\\.[0-9]{3}Z "

static FILE *caught;
static int stderr_before;

static void catch_stderr(void)
{
    caught = tmpfile();
    ck_assert_ptr_nonnull(caught);
    (void)fflush(stderr);
    stderr_before = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(caught), STDERR_FILENO), 0);
}

/* What was written meanwhile; the number of bytes. */
static size_t release_stderr(char *text, size_t text_bytes)
{
    (void)dup2(stderr_before, STDERR_FILENO);
    (void)close(stderr_before);
    rewind(caught);
    const size_t n = fread(text, 1, text_bytes - 1, caught);
    text[n] = '\0';
    (void)fclose(caught);
    return n;
}

static bool matches(const char *text, const char *pattern)
{
    regex_t re;
    ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    const bool found = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

START_TEST(a_line_as_told)
{
    char text[4096];
    catch_stderr();
    weft_log(WEFT_LOG_INFO, "rpc", "listening", "address %s threads %d",
             "127.0.0.1:1", 4);
    (void)release_stderr(text, sizeof text);
    ck_assert_msg(matches(text, TIME_PATTERN "info rpc listening "
                                             "address 127\\.0\\.0\\.1:1 "
                                             "threads 4\n$"),
                  "%s", text);
}
END_TEST

START_TEST(no_keys_no_blank)
{
    char text[4096];
    catch_stderr();
    weft_log(WEFT_LOG_ERROR, "app", "stopped", "%s", "");
    weft_log(WEFT_LOG_WARN, "app", "draining", "");
    (void)release_stderr(text, sizeof text);
    ck_assert_msg(strstr(text, "error app stopped\n") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "warn app draining\n") != NULL, "%s", text);
}
END_TEST

START_TEST(levels_filter)
{
    static const weft_log_level levels[] = {WEFT_LOG_ERROR, WEFT_LOG_WARN,
                                            WEFT_LOG_INFO, WEFT_LOG_DEBUG};
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int most = 0; most < 4; most++) {
        char text[4096];
        catch_stderr();
        weft_log_set_level(levels[most]);
        for (int i = 0; i < 4; i++)
            weft_log(levels[i], "m", names[i], "k %d", i);
        (void)release_stderr(text, sizeof text);
        for (int i = 0; i < 4; i++) {
            char want[64];
            (void)snprintf(want, sizeof want, " %s m %s k %d\n", names[i],
                           names[i], i);
            ck_assert_int_eq(strstr(text, want) != NULL, i <= most);
        }
    }
}
END_TEST

START_TEST(values_cannot_forge_lines)
{
    char text[4096];
    catch_stderr();
    weft_log(WEFT_LOG_INFO, "m", "e", "k %s", "a\nb\rc\x1b[1m\x7f\tz \xC3\xA9");
    const size_t n = release_stderr(text, sizeof text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + n - 1);
    ck_assert_msg(strstr(text, "k a?b?c?[1m??z \xC3\xA9\n") != NULL, "%s",
                  text);
}
END_TEST

START_TEST(long_lines_are_cut)
{
    static char value[5000];
    memset(value, 'v', sizeof value - 1);
    for (size_t n = 1900; n < 2100; n++) {
        static char text[8192];
        catch_stderr();
        weft_log(WEFT_LOG_INFO, "m", "e", "k %.*s x", (int)n, value);
        const size_t got = release_stderr(text, sizeof text);
        ck_assert_uint_le(got, 2048);
        ck_assert_ptr_eq(strchr(text, '\n'), text + got - 1);
        if (n < 1950) ck_assert_str_eq(text + got - 3, " x\n");
    }
    static char text[8192];
    catch_stderr();
    weft_log(WEFT_LOG_INFO, value, "e", "k 1");
    const size_t got = release_stderr(text, sizeof text);
    ck_assert_uint_le(got, 2048);
    ck_assert_int_eq(text[got - 1], '\n');
}
END_TEST

enum { WRITERS = 4, LINES = 200, ALL_LINES = WRITERS * LINES };

static void *write_lines(void *arg)
{
    for (int i = 0; i < LINES; i++)
        weft_log(WEFT_LOG_INFO, "m", "e", "writer %d line %d end",
                 *(const int *)arg, i);
    return NULL;
}

START_TEST(lines_stay_whole_between_threads)
{
    static char text[ALL_LINES * 100];
    pthread_t writers[WRITERS];
    int numbers[WRITERS];
    catch_stderr();
    for (int i = 0; i < WRITERS; i++) {
        numbers[i] = i;
        (void)pthread_create(&writers[i], NULL, write_lines, &numbers[i]);
    }
    for (int i = 0; i < WRITERS; i++) (void)pthread_join(writers[i], NULL);
    (void)release_stderr(text, sizeof text);
    int n = 0;
    for (char *line = strtok(text, "\n"); line != NULL;
         line = strtok(NULL, "\n"), n++)
        ck_assert_msg(matches(line, TIME_PATTERN "info m e writer [0-3] line "
                                                 "[0-9]+ end$"),
                      "%s", line);
    ck_assert_int_eq(n, ALL_LINES);
}
END_TEST

START_TEST(a_flood_is_paced_and_counted)
{
    const uint64_t second = 1000000000U;
    weft_log_pace pace = {0};
    uint64_t left_out = 99, now = 5;
    for (int i = 0; i < WEFT_LOG_PACE_LINES; i++) {
        ck_assert(weft_log_pace_pass(&pace, now++, &left_out));
        ck_assert_uint_eq(left_out, 0);
    }
    for (int i = 0; i < 3; i++)
        ck_assert(!weft_log_pace_pass(&pace, now++, &left_out));
    ck_assert(!weft_log_pace_pass(&pace, 4 + second, &left_out));
    ck_assert(weft_log_pace_pass(&pace, 5 + second, &left_out));
    ck_assert_uint_eq(left_out, 4);
    for (int i = 1; i < WEFT_LOG_PACE_LINES; i++) {
        ck_assert(weft_log_pace_pass(&pace, 5 + second, &left_out));
        ck_assert_uint_eq(left_out, 0);
    }
    ck_assert(!weft_log_pace_pass(&pace, 6 + second, &left_out));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_line_as_told,
                                  no_keys_no_blank,
                                  levels_filter,
                                  values_cannot_forge_lines,
                                  long_lines_are_cut,
                                  lines_stay_whole_between_threads,
                                  a_flood_is_paced_and_counted};
    return WEFT_SUITE_RUN("base/log", tests);
}
