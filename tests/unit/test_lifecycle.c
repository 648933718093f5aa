/* What a signal does before the process serves, in a process of its own. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/app/lifecycle.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static void start_for_ever(int stderr_fd)
{
    if (dup2(stderr_fd, STDERR_FILENO) < 0) _exit(90);
    weft_err err = {0};
    if (weft_lifecycle_begin(&err) != WEFT_OK) _exit(91);
    (void)kill(getpid(), SIGTERM);
    for (;;) (void)pause();
}

START_TEST(a_signal_while_starting_is_told)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) start_for_ever(ends[1]);
    (void)close(ends[1]);

    char told[1024] = "";
    size_t n = 0;
    ssize_t got;
    while ((got = read(ends[0], told + n, sizeof told - 1 - n)) > 0)
        n += (size_t)got;
    (void)close(ends[0]);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_msg(strstr(told, "info lifecycle stopped signal 15") != NULL,
                  "\"%s\"", told);
    ck_assert_ptr_eq(strchr(told, '\n'), told + n - 1);
}
END_TEST

/* A part that fails before the ready line: the process must not stay. */
START_TEST(a_drain_while_starting_comes_once_it_serves)
{
    OK(weft_lifecycle_begin(&err));
    weft_lifecycle_drain("a part has failed");
    weft_lifecycle_set_serving();
    weft_lifecycle_wait_for_drain(); /* else: the test's time is up */
    weft_lifecycle_end();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_signal_while_starting_is_told,
                                  a_drain_while_starting_comes_once_it_serves};
    return WEFT_SUITE_RUN("app/lifecycle", tests);
}
