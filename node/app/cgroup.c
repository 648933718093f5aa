#include "node/app/cgroup.h"

#include <stdio.h>
#include <string.h>

#include "node/base/str.h"

enum { LINE_BYTES = 512, PATH_BYTES = 1024 };

/* The first line of a file, without its end. */
static bool read_line(const char *folder, const char *name,
                      char line[LINE_BYTES])
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const f = fopen(path, "re");
    if (f == NULL) return false;
    const bool got = fgets(line, LINE_BYTES, f) != NULL;
    (void)fclose(f);
    if (got) line[strcspn(line, "\n")] = '\0';
    return got;
}

/* A file of one number; "max" and anything else give false: no limit. */
static bool read_number(const char *folder, const char *name,
                        int64_t *value_out)
{
    char line[LINE_BYTES];
    return read_line(folder, name, line) &&
           weft_parse_i64(line, 0, INT64_MAX, value_out);
}

/* -- memory --------------------------------------------------------------- */

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

bool weft_cgroup_memory_room(const char *folder, bool v2, int64_t *room_out)
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

/* -- CPU time ------------------------------------------------------------- */

/* Version 2 has both in one line, "QUOTA PERIOD". */
static bool read_quota(const char *folder, bool v2, int64_t *quota_out,
                       int64_t *period_out)
{
    char line[LINE_BYTES];
    if (!v2)
        return read_number(folder, "cpu.cfs_quota_us", quota_out) &&
               read_number(folder, "cpu.cfs_period_us", period_out);
    if (!read_line(folder, "cpu.max", line)) return false;
    char *const blank = strchr(line, ' ');
    if (blank == NULL) return false;
    *blank = '\0';
    return weft_parse_i64(line, 0, INT64_MAX, quota_out) &&
           weft_parse_i64(blank + 1, 0, INT64_MAX, period_out);
}

bool weft_cgroup_cpus(const char *folder, bool v2, int32_t *cpus_out)
{
    int64_t quota = 0, period = 0;
    if (!read_quota(folder, v2, &quota, &period) || quota < 1 || period < 1)
        return false;
    const int64_t cpus = quota / period + (quota % period != 0);
    if (cpus > INT32_MAX) return false;
    *cpus_out = (int32_t)cpus;
    return true;
}

/* -- the process's groups ------------------------------------------------- */

/* Whether "cpu,cpuacct" has "cpu". */
static bool lists(const char *controllers, const char *controller)
{
    const size_t n = strlen(controller);
    for (const char *at = controllers; at != NULL;) {
        const size_t item = strcspn(at, ",");
        if (item == n && memcmp(at, controller, n) == 0) return true;
        at = at[item] == ',' ? at + item + 1 : NULL;
    }
    return false;
}

/* A folder and its parents up to the mount. */
static void walk_up(char *folder, size_t mount_bytes, bool v2,
                    void (*each)(void *arg, const char *folder, bool v2),
                    void *arg)
{
    for (;;) {
        each(arg, folder, v2);
        char *const slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= mount_bytes) return;
        *slash = '\0';
    }
}

void weft_cgroup_each(const char *controller,
                      void (*each)(void *arg, const char *folder, bool v2),
                      void *arg)
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
        const bool v2 = first[1] == '\0';
        if (!v2 && !lists(first + 1, controller)) continue;
        char mount[64], folder[PATH_BYTES];
        (void)snprintf(mount, sizeof mount, "/sys/fs/cgroup%s%.32s",
                       v2 ? "" : "/", v2 ? "" : controller);
        (void)snprintf(folder, sizeof folder, "%s%s", mount,
                       strcmp(second + 1, "/") == 0 ? "" : second + 1);
        walk_up(folder, strlen(mount), v2, each, arg);
    }
    (void)fclose(f);
}
