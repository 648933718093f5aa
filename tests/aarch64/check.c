#include "tests/aarch64/check.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TESTS_MAX = 256, WHY_MAX = 2048 };

typedef struct item {
    const TTest *test;
    int first, end;
} item;

struct TCase {
    const char *name;
    double seconds;
    void (*before)(void), (*after)(void);
    item items[TESTS_MAX];
    int n_item;
};
struct Suite {
    const char *name;
};
struct SRunner {
    int n_run, n_failure, n_error;
};

/* What the process of a test leaves for the runner; in shared memory. */
typedef struct verdict {
    enum { BEGUN, PASSED, FAILED } state;
    int line;
    char file[256], why[WHY_MAX];
} verdict;

static Suite the_suite;
static TCase the_group;
static SRunner the_runner;
static verdict *shared;

static _Noreturn void misused(const char *what)
{
    fprintf(stderr, "tests/aarch64/check.c: %s\n", what);
    abort();
}

Suite *suite_create(const char *name)
{
    if (the_suite.name != NULL) misused("a second suite");
    the_suite.name = name;
    return &the_suite;
}

TCase *tcase_create(const char *name)
{
    if (the_group.name != NULL) misused("a second group");
    the_group.name = name;
    the_group.seconds = 4.0;
    return &the_group;
}

void suite_add_tcase(Suite *suite, TCase *group)
{
    if (suite != &the_suite || group != &the_group) misused("not a group");
}

void tcase_set_timeout(TCase *group, double seconds)
{
    group->seconds = seconds;
}

void tcase_add_checked_fixture(TCase *group, void (*before)(void),
                               void (*after)(void))
{
    if (group->before != NULL || group->after != NULL)
        misused("a second fixture");
    group->before = before;
    group->after = after;
}

void tcase_add_test(TCase *group, const TTest *test)
{
    tcase_add_loop_test(group, test, 0, 1);
}

void tcase_add_loop_test(TCase *group, const TTest *test, int first, int end)
{
    if (group->n_item == TESTS_MAX) misused("too many tests");
    group->items[group->n_item++] = (item){test, first, end};
}

SRunner *srunner_create(Suite *suite)
{
    if (suite != &the_suite) misused("not the suite");
    return &the_runner;
}

void weft_check_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(shared->why, sizeof(shared->why), format, args);
    va_end(args);
    (void)snprintf(shared->file, sizeof(shared->file), "%s", file);
    shared->line = line;
    shared->state = FAILED;
    _exit(EXIT_FAILURE);
}

static _Noreturn void be_the_test(const TTest *test, int turn)
{
    alarm((unsigned)ceil(the_group.seconds));
    if (the_group.before != NULL) the_group.before();
    test->body(turn);
    if (the_group.after != NULL) the_group.after();
    fflush(NULL);
    shared->state = PASSED;
    _exit(EXIT_SUCCESS);
}

/* Wait for the test and count it. */
static void judge(SRunner *runner, pid_t pid, const TTest *test, int turn)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) misused("waitpid failed");
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
    if (shared->state == PASSED && clean) return;
    if (shared->state == FAILED) {
        runner->n_failure++;
        printf("%s:%d:F:%s:%s:%d: %s\n", shared->file, shared->line,
               the_group.name, test->name, turn, shared->why);
        return;
    }
    runner->n_error++;
    printf("%s:%d:E:%s:%s:%d: ended early, %s %d\n", test->file, test->line,
           the_group.name, test->name, turn,
           WIFSIGNALED(status) ? "by signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void srunner_run_all(SRunner *runner, enum print_output how)
{
    (void)how;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) misused("no shared memory");
    for (int i = 0; i < the_group.n_item; i++) {
        const item *const at = &the_group.items[i];
        for (int turn = at->first; turn < at->end; turn++) {
            memset(shared, 0, sizeof(*shared));
            fflush(NULL);
            const pid_t pid = fork();
            if (pid < 0) misused("fork failed");
            if (pid == 0) be_the_test(at->test, turn);
            runner->n_run++;
            judge(runner, pid, at->test, turn);
        }
    }
    const int bad = runner->n_failure + runner->n_error;
    printf("%d%%: Checks: %d, Failures: %d, Errors: %d\n",
           runner->n_run > 0 ? 100 * (runner->n_run - bad) / runner->n_run : 0,
           runner->n_run, runner->n_failure, runner->n_error);
}

int srunner_ntests_failed(SRunner *runner)
{
    if (runner->n_run == 0) return 1;
    return runner->n_failure + runner->n_error;
}

int srunner_ntests_run(SRunner *runner)
{
    return runner->n_run;
}

void srunner_free(SRunner *runner)
{
    (void)runner;
    munmap(shared, sizeof(*shared));
}
