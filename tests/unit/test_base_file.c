#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/file.h"
#include "node/base/mem.h"
#include "tests/support/suite.h"

static char folder[256];
static char path[300];

static void make_file(const char *bytes, size_t n)
{
    (void)snprintf(folder, sizeof folder, "%s/weft-file-XXXXXX", P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/data", folder);
    FILE *const file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_file(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

static void expect_fail(const char *name, size_t bytes_max, weft_status want,
                        const char *words)
{
    weft_buf buf = {0};
    weft_err err = {0};
    ck_assert_int_eq(weft_buf_add(&buf, "keep", 4, NULL), WEFT_OK);
    ck_assert_int_eq(weft_file_read_all(name, bytes_max, &buf, &err), want);
    ck_assert_msg(strstr(err.text, name) != NULL, "%s", err.text);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
    ck_assert_str_eq(buf.data, "keep");
    ck_assert_uint_eq(buf.n, 4);
    weft_buf_deinit(&buf);
}

START_TEST(reads_all_sizes)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 200001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i];
        char *const bytes = weft_mem_new(n + 1, 1);
        for (size_t k = 0; k < n; k++) bytes[k] = (char)(k * 7 % 251);
        make_file(bytes, n);
        weft_buf buf = {0};
        ck_assert_int_eq(weft_file_read_all(path, n, &buf, NULL), WEFT_OK);
        ck_assert_uint_eq(buf.n, n);
        ck_assert_mem_eq(buf.data, bytes, n + 1); /* the NUL too */
        weft_buf_deinit(&buf);
        if (n > 0) expect_fail(path, n - 1, WEFT_DATA_LOSS, "limit");
        remove_file();
        weft_mem_free(bytes);
    }
}
END_TEST

START_TEST(names_what_is_wrong)
{
    make_file("x", 1);
    expect_fail(folder, 10, WEFT_INVALID_ARGUMENT, "directory");
    expect_fail("/dev/null", 10, WEFT_INVALID_ARGUMENT, "regular");
    char missing[400];
    (void)snprintf(missing, sizeof missing, "%s/none", folder);
    expect_fail(missing, 10, WEFT_NOT_FOUND, "No such file");
    (void)snprintf(missing, sizeof missing, "%s/deeper", path);
    expect_fail(missing, 10, WEFT_NOT_FOUND, "Not a directory");
    char fifo[400];
    (void)snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    expect_fail(fifo, 10, WEFT_INVALID_ARGUMENT, "regular"); /* no hang */
    (void)unlink(fifo);
    char loop[400];
    (void)snprintf(loop, sizeof loop, "%s/loop", folder);
    ck_assert_int_eq(symlink("loop", loop), 0);
    expect_fail(loop, 10, WEFT_UNAVAILABLE, "symbolic links");
    (void)unlink(loop);
    remove_file();
}
END_TEST

/* Such files say size 0, so the limit must hold for what is read. */
START_TEST(files_of_unknown_size)
{
    weft_buf buf = {0};
    ck_assert_int_eq(
        weft_file_read_all("/proc/self/status", 1U << 20, &buf, NULL), WEFT_OK);
    ck_assert_uint_gt(buf.n, 100);
    weft_buf_deinit(&buf);
    expect_fail("/proc/self/status", 100, WEFT_DATA_LOSS, "limit");
}
END_TEST

/* Also after a part was read: the buffer is as it was, the file is named. */
START_TEST(each_allocation_may_fail)
{
    static char bytes[300000];
    memset(bytes, 'b', sizeof bytes);
    make_file(bytes, sizeof bytes);
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    for (long n = 0; st != WEFT_OK; n++) {
        weft_buf buf = {0};
        weft_err err = {0};
        ck_assert_int_eq(weft_buf_add(&buf, "keep", 4, NULL), WEFT_OK);
        weft_mem_fail_after(n);
        st = weft_file_read_all(path, sizeof bytes, &buf, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) {
            ck_assert_int_gt(n, 2);
            ck_assert_uint_eq(buf.n, 4 + sizeof bytes);
        } else {
            ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
            ck_assert_ptr_nonnull(strstr(err.text, path));
            ck_assert_uint_eq(buf.n, 4);
            ck_assert_str_eq(buf.data, "keep");
        }
        weft_buf_deinit(&buf);
    }
    remove_file();
}
END_TEST

/* Address 0 of this process: opens, and cannot be read. */
START_TEST(a_read_may_fail)
{
    expect_fail("/proc/self/mem", 10, WEFT_UNAVAILABLE, "error");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {reads_all_sizes, names_what_is_wrong,
                                  files_of_unknown_size,
                                  each_allocation_may_fail, a_read_may_fail};
    return WEFT_SUITE_RUN("base/file", tests);
}
