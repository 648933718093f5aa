#include "node/app/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/app/cgroup.h"

enum { LINE_BYTES = 512 };

static const int64_t MIB = INT64_C(1) << 20;

static weft_status meminfo(int64_t *bytes_out, weft_err *err)
{
    FILE *const f = fopen("/proc/meminfo", "re");
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "/proc/meminfo: cannot open");
    static const char name[] = "MemAvailable:";
    char line[LINE_BYTES];
    weft_status st = WEFT_UNAVAILABLE;
    while (st != WEFT_OK && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, name, sizeof name - 1) != 0) continue;
        const long long kib = strtoll(line + sizeof name - 1, NULL, 10);
        if (kib < 1 || kib > INT64_MAX / 1024) break;
        *bytes_out = kib * 1024;
        st = WEFT_OK;
    }
    (void)fclose(f);
    if (st == WEFT_OK) return st;
    return WEFT_FAIL(err, st, "/proc/meminfo: no MemAvailable");
}

static void take_room(void *arg, const char *folder, bool v2)
{
    int64_t *const bytes = arg;
    int64_t room = 0;
    if (weft_cgroup_memory_room(folder, v2, &room) && room < *bytes)
        *bytes = room;
}

weft_status weft_memory_available(int64_t *bytes_out, weft_err *err)
{
    int64_t bytes = 0;
    WEFT_TRY(meminfo(&bytes, err));
    weft_cgroup_each("memory", take_room, &bytes);
    *bytes_out = bytes;
    return WEFT_OK;
}

weft_status weft_memory_useful_kv(const weft_model_config *config,
                                  const weft_engine_options *o,
                                  int64_t *bytes_out, weft_err *err)
{
    int64_t slabs = 0;
    weft_kv_layout layout;
    WEFT_TRY(weft_engine_kv_layout(config, o, &layout, err));
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (config->n_kind[k] == 0) continue;
        const int64_t pages = weft_kv_pages_for(
            config, &layout, (weft_kind)k, o->max_context, o->chunk_tokens);
        const int64_t per_slab = layout.slab_pages[k];
        slabs += (pages * o->max_seqs + per_slab - 1) / per_slab + 1;
    }
    *bytes_out = slabs * layout.slab_bytes;
    return WEFT_OK;
}

weft_status weft_memory_check_pool(const weft_model_config *config,
                                   const weft_engine_options *options,
                                   int64_t kv_bytes, weft_err *err)
{
    weft_kv_layout layout;
    weft_kv_pool *pool = NULL;
    WEFT_TRY(weft_engine_kv_layout(config, options, &layout, err));
    const weft_status st = weft_kv_pool_create(&layout, kv_bytes, &pool, err);
    weft_kv_pool_destroy(pool);
    return st == WEFT_OK ? st : WEFT_WRAP(err, st, "kv-bytes");
}

static int32_t copies_of(const weft_engine_options *options)
{
    return options->memory == NULL && options->n_ranks > 1 ? options->n_ranks
                                                           : 1;
}

static weft_status refuse_kv(int64_t kv_bytes, int64_t left, int32_t copies,
                             weft_err *err)
{
    char each[40] = "";
    if (copies > 1)
        (void)snprintf(each, sizeof each, " for each of %d ranks", copies);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "kv-bytes: %lld bytes are asked for, %lld are left%s "
                     "beside weights, step buffers, requests and a reserve",
                     (long long)kv_bytes, (long long)left, each);
}

weft_status weft_memory_plan_within(const weft_model_config *config,
                                    const weft_engine_options *options,
                                    int64_t available_bytes, int64_t kv_bytes,
                                    int64_t weights_bytes,
                                    weft_memory_plan *plan_out, weft_err *err)
{
    weft_memory_plan p = {
        .available_bytes = available_bytes,
        .weights_bytes = weights_bytes,
        .overhead_bytes = weft_engine_overhead_bytes(config, options),
        .requests_bytes = available_bytes / 16,
        .reserve_bytes = available_bytes / 16,
        .kv_copies = copies_of(options),
        .kv_given = kv_bytes > 0,
    };
    if (p.reserve_bytes < 256 * MIB) p.reserve_bytes = 256 * MIB;
    if (p.requests_bytes < WEFT_REQUESTS_BYTES_MIN)
        p.requests_bytes = WEFT_REQUESTS_BYTES_MIN;
    if (p.requests_bytes > WEFT_REQUESTS_BYTES_MAX)
        p.requests_bytes = WEFT_REQUESTS_BYTES_MAX;
    const int64_t need =
        p.weights_bytes + p.overhead_bytes + p.requests_bytes + p.reserve_bytes;
    if (need > available_bytes)
        return WEFT_FAIL(
            err, WEFT_RESOURCE_EXHAUSTED,
            "memory: weights %lld, step buffers %lld, requests %lld and a "
            "reserve of %lld bytes are needed, %lld are available",
            (long long)p.weights_bytes, (long long)p.overhead_bytes,
            (long long)p.requests_bytes, (long long)p.reserve_bytes,
            (long long)available_bytes);
    const int64_t left = (available_bytes - need) / p.kv_copies;
    if (p.kv_given && kv_bytes > left)
        return refuse_kv(kv_bytes, left, p.kv_copies, err);
    int64_t useful = 0;
    WEFT_TRY(weft_memory_useful_kv(config, options, &useful, err));
    p.kv_bytes = p.kv_given ? kv_bytes : left < useful ? left : useful;
    WEFT_TRY(weft_memory_check_pool(config, options, p.kv_bytes, err));
    *plan_out = p;
    return WEFT_OK;
}

weft_status weft_memory_plan_make(const weft_model_config *config,
                                  const weft_engine_options *options,
                                  int64_t kv_bytes, int64_t weights_bytes,
                                  weft_memory_plan *plan_out, weft_err *err)
{
    int64_t available_bytes = 0;
    WEFT_TRY(weft_memory_available(&available_bytes, err));
    return weft_memory_plan_within(config, options, available_bytes, kv_bytes,
                                   weights_bytes, plan_out, err);
}
