#include "node/app/start.h"

#include <sys/resource.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/log.h"
#include "node/base/str.h"

weft_status weft_start_raise_descriptors(weft_err *err)
{
    enum { DESCRIPTORS_MIN = 32, DESCRIPTORS_WANTED = 65536 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return WEFT_OK;
    if (limit.rlim_max < DESCRIPTORS_MIN)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "file descriptors: at least %d are needed, the limit "
                         "(ulimit -n) is %llu",
                         DESCRIPTORS_MIN, (unsigned long long)limit.rlim_max);
    const rlim_t wanted = limit.rlim_max < DESCRIPTORS_WANTED
                              ? limit.rlim_max
                              : DESCRIPTORS_WANTED;
    if (limit.rlim_cur < wanted) limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        weft_log(WEFT_LOG_WARN, "start", "descriptors", "limit %llu",
                 (unsigned long long)limit.rlim_cur);
    return WEFT_OK;
}

weft_status weft_start_check_port(const char *flag,
                                  const weft_flag_address *address,
                                  weft_err *err)
{
    int fd = -1;
    uint16_t port = 0;
    if (address->off) return WEFT_OK;
    const weft_status st = weft_address_listen(&address->at, &fd, &port, err);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "%s", flag);
    (void)close(fd);
    return WEFT_OK;
}

void weft_start_remark(void *arg, const char *key, const char *reason)
{
    weft_buf *const names = arg;
    weft_log(WEFT_LOG_DEBUG, "model", "ignored", "name \"%s\" reason \"%s\"",
             key, reason);
    const char *const comma = names->n > 0 ? ", " : "";
    if (weft_buf_printf(names, NULL, "%s%s", comma, key) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "model", "ignored", "name \"%s\"", key);
}
