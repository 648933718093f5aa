/* Named places: what is set happens, there, and as often as it says. */
#include <check.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(errors_happen_there_and_when_told)
{
    OK(weft_failpoints_set("experts.mid_load=error@2;layers.mid_step=error",
                           &err));
    ck_assert(!weft_failpoint_pass("experts.mid_load"));
    ck_assert(weft_failpoint_pass("experts.mid_load"));
    ck_assert(!weft_failpoint_pass("experts.mid_load"));
    ck_assert(!weft_failpoint_pass("experts.after_load"));
    ck_assert(weft_failpoint_pass("layers.mid_step"));
    ck_assert(weft_failpoint_pass("layers.mid_step"));
    OK(weft_failpoints_set("", &err));
    ck_assert(!weft_failpoint_pass("layers.mid_step"));
}
END_TEST

START_TEST(a_place_may_be_named_twice)
{
    OK(weft_failpoints_set("experts.mid_load=error@1;experts.mid_load=error@3",
                           &err));
    ck_assert(weft_failpoint_pass("experts.mid_load"));
    ck_assert(!weft_failpoint_pass("experts.mid_load"));
    ck_assert(weft_failpoint_pass("experts.mid_load"));
}
END_TEST

START_TEST(sleeps)
{
    const uint64_t from_ns = weft_clock_now_ns();
    OK(weft_failpoints_set("front.before_events=sleep:20@1", &err));
    ck_assert(!weft_failpoint_pass("front.before_events"));
    ck_assert_uint_ge(weft_clock_now_ns() - from_ns, 20000000U);
}
END_TEST

/* What becomes of a child that passes the place. */
static int pass_in_child(const char *text)
{
    int status = 0;
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        weft_err err = {0};
        if (weft_failpoints_set(text, &err) != WEFT_OK) _exit(1);
        (void)weft_failpoint_pass("lead.after_switch");
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        int after = 0;
        ck_assert_int_eq(kill(child, SIGCONT), 0);
        ck_assert_int_eq(waitpid(child, &after, 0), child);
        ck_assert(WIFEXITED(after) && WEXITSTATUS(after) == 0);
    }
    return status;
}

START_TEST(kills_and_stops)
{
    const int killed = pass_in_child("lead.after_switch=abort");
    ck_assert(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
    const int stopped = pass_in_child("lead.after_switch=stop");
    ck_assert(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP);
    const int passed = pass_in_child("lead.after_switch=abort@2");
    ck_assert(WIFEXITED(passed) && WEXITSTATUS(passed) == 0);
}
END_TEST

START_TEST(bad_entries_are_refused_by_name)
{
    static const struct bad {
        const char *text, *names;
    } bads[] = {
        {"experts.mid_load", "experts.mid_load"},
        {"experts.mid_loaf=abort", "experts.mid_loaf"},
        {"experts.mid_load=die", "die"},
        {"experts.mid_load=sleep", "sleep"},
        {"experts.mid_load=sleep:x", "sleep:x"},
        {"experts.mid_load=sleep:-1", "sleep:-1"},
        {"experts.mid_load=abort@0", "@0"},
        {"experts.mid_load=abort@", "@"},
        {"front.before_events=error;=abort", "\"\""},
    };
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        weft_err err = {0};
        ck_assert_int_eq(weft_failpoints_set(bads[i].text, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, bads[i].names) != NULL, "%s: %s",
                      bads[i].text, err.text);
    }
    ck_assert(!weft_failpoint_pass("front.before_events"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        errors_happen_there_and_when_told,
        a_place_may_be_named_twice,
        sleeps,
        kills_and_stops,
        bad_entries_are_refused_by_name,
    };
    return WEFT_SUITE_RUN("failpoint", tests);
}
