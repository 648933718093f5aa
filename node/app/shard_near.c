/* Rows of a shard's links from device to device (shard/link/near.h). */
#include <inttypes.h>

#include "node/app/shard.h"
#include "node/base/log.h"
#include "shard/expert/body.h"

/* Each has two comms. */
enum { LINKS_MAX = WEFT_COMM_DEVICE_MAX / 2 };
/* Of the device's memory: little beside weights and KV pages. */
enum { SHARE = 32 };

static int32_t links_max(const weft_backend *backend,
                         const weft_near_options *near)
{
    const int64_t share = weft_backend_free_bytes(backend) / SHARE;
    const int64_t n = share / weft_near_link_bytes(near);
    return n < 1 ? 1 : n > LINKS_MAX ? LINKS_MAX : (int32_t)n;
}

void weft_shard_open_near(weft_shard *s)
{
    weft_err err = {0};
    const bool experts = s->options->role == WEFT_ROLE_EXPERTS;
    const weft_frame_limits asked = weft_dispatch_limits(&s->config);
    const weft_frame_limits answered = weft_answer_limits(&s->config);
    weft_near_options near = {.memory = &s->backend.memory,
                              .in = experts ? asked : answered,
                              .out = experts ? answered : asked};
    if (s->backend.opened == NULL || s->config.n_expert == 0) return;
    near.links_max = links_max(&s->backend, &near);
    const weft_status st =
        s->options->link_rows_near
            ? weft_near_create(&near, &s->near, &err)
            : WEFT_FAIL(&err, WEFT_CANCELLED, "--link-rows tcp");
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_INFO, "shard", "rows", "rows tcp why \"%s\"",
                 err.text);
    else
        weft_log(WEFT_LOG_INFO, "shard", "rows",
                 "rows near links_max %d device_bytes %" PRId64, near.links_max,
                 near.links_max * weft_near_link_bytes(&near));
}

weft_status weft_shard_print_near(const weft_shard *s, weft_buf *out,
                                  weft_err *err)
{
    return weft_buf_printf(
        out, err,
        "# HELP weft_near_links Links whose rows go from device to device.\n"
        "# TYPE weft_near_links gauge\n"
        "weft_near_links %d\n",
        weft_near_count(s->near));
}
