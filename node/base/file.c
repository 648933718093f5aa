#include "node/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 16 };

static weft_status check_kind(int fd, const char *path, size_t bytes_max,
                              weft_err *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s: %s", path,
                         strerror(errno));
    if (S_ISDIR(info.st_mode))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: is a directory, a file is wanted", path);
    if (!S_ISREG(info.st_mode))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: not a regular file",
                         path);
    if (info.st_size > 0 && (uint64_t)info.st_size > bytes_max)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: %lld bytes, the limit is %zu", path,
                         (long long)info.st_size, bytes_max);
    return WEFT_OK;
}

/* The size that fstat tells may be stale (or 0, in /proc), so the limit is
 * enforced on what is read. */
static weft_status read_rest(int fd, const char *path, size_t bytes_max,
                             weft_buf *buf, weft_err *err)
{
    char chunk[CHUNK_BYTES];
    size_t total = 0;
    for (;;) {
        const ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s: %s", path,
                             strerror(errno));
        if (got == 0) return weft_buf_add(buf, "", 0, err);
        if ((size_t)got > bytes_max - total)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: more than %zu bytes, the limit", path,
                             bytes_max);
        total += (size_t)got;
        const weft_status st = weft_buf_add(buf, chunk, (size_t)got, err);
        if (st != WEFT_OK) return WEFT_WRAP(err, st, "%s", path);
    }
}

weft_status weft_file_read_all(const char *path, size_t bytes_max,
                               weft_buf *buf, weft_err *err)
{
    /* O_NONBLOCK: opening a pipe must not wait for its other end. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return WEFT_FAIL(err,
                         errno == ENOENT || errno == ENOTDIR ? WEFT_NOT_FOUND
                                                             : WEFT_UNAVAILABLE,
                         "%s: %s", path, strerror(errno));
    const size_t before = buf->n;
    weft_status st = check_kind(fd, path, bytes_max, err);
    if (st == WEFT_OK) st = read_rest(fd, path, bytes_max, buf, err);
    (void)close(fd); /* read-only: nothing to lose */
    if (st != WEFT_OK && buf->n > before) {
        buf->n = before;
        buf->data[before] = '\0';
    }
    return st;
}
