/* Files that change while they are watched. */
#include "node/base/file_watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/suite.h"

static const uint64_t SECOND = 1000000000U;

static char folder[64], one[96], other[96];

static void write_text(const char *path, const char *text)
{
    FILE *const file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void make_files(void)
{
    (void)snprintf(folder, sizeof folder, "%s/weft-watch-XXXXXX", P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(one, sizeof one, "%s/one", folder);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    write_text(one, "1");
    write_text(other, "2");
}

static void remove_files(void)
{
    (void)unlink(one);
    (void)unlink(other);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void touch(int seconds, int ns)
{
    struct stat was;
    ck_assert_int_eq(stat(other, &was), 0);
    struct timespec times[2] = {was.st_atim, was.st_mtim};
    times[1].tv_sec += seconds;
    times[1].tv_nsec ^= ns;
    ck_assert_int_eq(utimensat(AT_FDCWD, other, times, 0), 0);
}

static void touch_second(void)
{
    touch(1, 0);
}

static void touch_ns(void)
{
    touch(0, 1);
}

static void grow(void)
{
    struct stat was;
    ck_assert_int_eq(stat(other, &was), 0);
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    write_text(other, "22");
    ck_assert_int_eq(utimensat(AT_FDCWD, other, times, 0), 0);
}

/* Same size and same time. */
static void replace(void)
{
    char fresh[96];
    struct stat was;
    (void)snprintf(fresh, sizeof fresh, "%s/fresh", folder);
    write_text(fresh, "33");
    ck_assert_int_eq(stat(other, &was), 0);
    const struct timespec times[2] = {was.st_atim, was.st_mtim};
    ck_assert_int_eq(utimensat(AT_FDCWD, fresh, times, 0), 0);
    ck_assert_int_eq(rename(fresh, other), 0);
}

static void lose(void)
{
    ck_assert_int_eq(unlink(other), 0);
}

/* Each kind of change is told once, and not before its second is over. */
START_TEST(a_change_is_told_once)
{
    void (*const changes[])(void) = {touch_second, touch_ns, grow, replace,
                                     lose};
    uint64_t now = 1;
    weft_file_watch watch = {.paths = {one, NULL, other}};
    weft_file_watch_begin(&watch, now);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        now += SECOND;
        ck_assert(!weft_file_watch_look(&watch, now));
        changes[i]();
        ck_assert(!weft_file_watch_look(&watch, now + SECOND - 1));
        now += SECOND;
        ck_assert_msg(weft_file_watch_look(&watch, now), "change %zu", i);
    }
    write_text(other, "2");
    ck_assert(weft_file_watch_look(&watch, now + SECOND));
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_checked_fixture(tests, make_files, remove_files);
    tcase_add_test(tests, a_change_is_told_once);
}

int main(void)
{
    return weft_suite_run_added("file_watch", add);
}
