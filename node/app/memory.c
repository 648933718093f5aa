#include "node/app/memory.h"

#include <stdio.h>
#include <string.h>

#include "node/base/str.h"

enum { LINE_BYTES = 512, PATH_BYTES = 1024 };

static const int64_t MIB = 1024 * 1024;

static weft_status meminfo(int64_t *bytes_out, weft_err *err)
{
    FILE *const f = fopen("/proc/meminfo", "re");
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "/proc/meminfo: cannot open");
    char line[LINE_BYTES];
    weft_status st = WEFT_UNAVAILABLE;
    while (st != WEFT_OK && fgets(line, sizeof line, f) != NULL) {
        long long kib = 0;
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1) continue;
        *bytes_out = kib * 1024;
        st = WEFT_OK;
    }
    (void)fclose(f);
    if (st == WEFT_OK) return st;
    return WEFT_FAIL(err, st, "/proc/meminfo: no MemAvailable");
}

/* A file of one number; "max" and anything else give false: no limit. */
static bool read_number(const char *folder, const char *name,
                        int64_t *value_out)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const f = fopen(path, "re");
    if (f == NULL) return false;
    char line[LINE_BYTES] = "";
    const bool got = fgets(line, sizeof line, f) != NULL;
    (void)fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return got && weft_parse_i64(line, 0, INT64_MAX, value_out);
}

/* Bytes of page cache on the group's lists of file pages. Version 1 tells those
 * of the group itself beside those of all below it (total_...), which is what
 * its limit counts. */
static int64_t file_cache(const char *folder, bool v2)
{
    static const char *const names[2][2] = {
        {"total_inactive_file ", "total_active_file "},
        {"inactive_file ", "active_file "}};
    char path[PATH_BYTES], line[LINE_BYTES];
    int64_t sum = 0;
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *const f = fopen(path, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        for (int i = 0; i < 2; i++) {
            const char *const name = names[v2][i];
            int64_t bytes = 0;
            if (strncmp(line, name, strlen(name)) == 0 &&
                weft_parse_i64(line + strlen(name), 0, INT64_MAX - sum, &bytes))
                sum += bytes;
        }
    }
    (void)fclose(f);
    return sum;
}

bool weft_memory_group_room(const char *folder, bool v2, int64_t *room_out)
{
    int64_t most = 0, used = 0;
    if (!read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes",
                     &most) ||
        !read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes",
                     &used))
        return false;
    const int64_t cache = file_cache(folder, v2);
    used -= cache < used ? cache : used;
    *room_out = most > used ? most - used : 0;
    return true;
}

/* The least room of a folder and its parents up to the mount: a limit may be
 * set at any of them. */
static void limit_by_groups(char *folder, size_t mount_bytes, bool v2,
                            int64_t *bytes_io)
{
    for (;;) {
        int64_t room = 0;
        if (weft_memory_group_room(folder, v2, &room) && room < *bytes_io)
            *bytes_io = room;
        char *const slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= mount_bytes) return;
        *slash = '\0';
    }
}

static void limit_by_cgroups(int64_t *bytes_io)
{
    FILE *const f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return;
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *const first = strchr(line, ':');
        char *const second = first == NULL ? NULL : strchr(first + 1, ':');
        if (second == NULL) continue;
        *second = '\0';
        const char *const controllers = first + 1;
        const bool v2 = controllers[0] == '\0';
        if (!v2 && strstr(controllers, "memory") == NULL) continue;
        const char *const mount =
            v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        char folder[PATH_BYTES];
        const char *const path = second + 1;
        (void)snprintf(folder, sizeof folder, "%s%s", mount,
                       strcmp(path, "/") == 0 ? "" : path);
        limit_by_groups(folder, strlen(mount), v2, bytes_io);
    }
    (void)fclose(f);
}

weft_status weft_memory_available(int64_t *bytes_out, weft_err *err)
{
    int64_t bytes = 0;
    WEFT_TRY(meminfo(&bytes, err));
    limit_by_cgroups(&bytes);
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

weft_status weft_memory_plan_make(const weft_model_config *config,
                                  const weft_engine_options *options,
                                  int64_t kv_bytes, int64_t weights_bytes,
                                  weft_memory_plan *plan_out, weft_err *err)
{
    weft_memory_plan p = {
        .weights_bytes = weights_bytes,
        .overhead_bytes = weft_engine_overhead_bytes(config, options),
        .kv_given = kv_bytes > 0,
    };
    WEFT_TRY(weft_memory_available(&p.available_bytes, err));
    p.reserve_bytes = p.available_bytes / 16;
    if (p.reserve_bytes < 256 * MIB) p.reserve_bytes = 256 * MIB;
    const int64_t need = p.weights_bytes + p.overhead_bytes;
    if (need > p.available_bytes)
        return WEFT_FAIL(
            err, WEFT_RESOURCE_EXHAUSTED,
            "memory: weights %lld and step buffers %lld bytes are needed, %lld "
            "are available",
            (long long)p.weights_bytes, (long long)p.overhead_bytes,
            (long long)p.available_bytes);
    const int64_t left = p.available_bytes - need;
    if (p.kv_given && kv_bytes > left)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "kv-bytes: %lld bytes are asked for, %lld are left "
                         "beside weights and step buffers",
                         (long long)kv_bytes, (long long)left);
    int64_t useful = 0;
    WEFT_TRY(weft_memory_useful_kv(config, options, &useful, err));
    p.kv_bytes = left > p.reserve_bytes ? left - p.reserve_bytes : 0;
    if (p.kv_bytes > useful) p.kv_bytes = useful;
    if (p.kv_given) p.kv_bytes = kv_bytes;
    *plan_out = p;
    return WEFT_OK;
}
