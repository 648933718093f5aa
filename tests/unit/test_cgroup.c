/* What a control group leaves to a process: memory and CPU time. */
#include <string.h>

#include "node/app/cgroup.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

static char folder[64];

static void put(const char *name, const char *text)
{
    synth_file_write(folder, name, text, (int64_t)strlen(text));
}

static int64_t room(bool v2)
{
    int64_t bytes = -1;
    ck_assert(weft_cgroup_memory_room(folder, v2, &bytes));
    return bytes;
}

/* A checkpoint that lies in the page cache is charged to the group; the second
 * start in a container must not find itself out of memory for that. */
START_TEST(file_cache_counts_as_room)
{
    synth_folder_make(folder);
    put("memory.max", "1000000\n");
    put("memory.current", "900000\n");
    ck_assert_int_eq(room(true), 100000);
    put("memory.stat", "anon 50000\nfile 850000\ninactive_file 700000\n"
                       "active_file 120000\nunevictable 30000\n");
    ck_assert_int_eq(room(true), 920000);
    put("memory.limit_in_bytes", "1000000\n");
    put("memory.usage_in_bytes", "900000\n");
    put("memory.stat", "inactive_file 1\nactive_file 2\n"
                       "total_inactive_file 300000\n"
                       "total_active_file 100000\n");
    ck_assert_int_eq(room(false), 500000);
    synth_folder_remove(folder);
}
END_TEST

START_TEST(numbers_that_make_no_sense_give_no_room_away)
{
    synth_folder_make(folder);
    put("memory.max", "1000000\n");
    put("memory.current", "2000000\n");
    ck_assert_int_eq(room(true), 0);
    put("memory.stat", "inactive_file 9223372036854775807\n"
                       "active_file 9223372036854775807\n");
    ck_assert_int_eq(room(true), 1000000);
    put("memory.stat", "inactive_file -5\nactive_file many\n");
    ck_assert_int_eq(room(true), 0);
    synth_folder_remove(folder);
}
END_TEST

START_TEST(no_limit)
{
    int64_t bytes = -1;
    synth_folder_make(folder);
    ck_assert(!weft_cgroup_memory_room(folder, true, &bytes));
    put("memory.max", "max\n");
    put("memory.current", "900000\n");
    ck_assert(!weft_cgroup_memory_room(folder, true, &bytes));
    ck_assert(!weft_cgroup_memory_room("/no/such/group", false, &bytes));
    ck_assert_int_eq(bytes, -1);
    synth_folder_remove(folder);
}
END_TEST

static int32_t cpus(bool v2)
{
    int32_t n = -1;
    return weft_cgroup_cpus(folder, v2, &n) ? n : 0;
}

/* Begun parts of a core count as one; 0: no limit. */
START_TEST(cpu_quotas)
{
    static const struct {
        const char *line;
        int32_t cpus;
    } cases[] = {
        {"400000 100000\n", 4},
        {"450000 100000\n", 5},
        {"5000 100000\n", 1},
        {"max 100000\n", 0},
        {"400000\n", 0},
        {"0 100000\n", 0},
        {"400000 0\n", 0},
        {"-1 100000\n", 0},
        {"\n", 0},
        {"9223372036854775807 1\n", 0},
    };
    synth_folder_make(folder);
    ck_assert_int_eq(cpus(true), 0);
    ck_assert_int_eq(cpus(false), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("cpu.max", cases[i].line);
        ck_assert_msg(cpus(true) == cases[i].cpus, "%s", cases[i].line);
    }
    put("cpu.cfs_quota_us", "-1\n");
    put("cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(cpus(false), 0);
    put("cpu.cfs_quota_us", "250000\n");
    ck_assert_int_eq(cpus(false), 3);
    synth_folder_remove(folder);
}
END_TEST

static void count_folder(void *arg, const char *name, bool v2)
{
    (void)v2;
    (*(int *)arg)++;
    ck_assert_int_eq(strncmp(name, "/sys/fs/cgroup", 14), 0);
}

/* Whatever this machine has: the walk ends, at the mount. */
START_TEST(own_groups)
{
    int n = 0;
    weft_cgroup_each("memory", count_folder, &n);
    weft_cgroup_each("no such controller", count_folder, &n);
    ck_assert_int_lt(n, 1000);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        file_cache_counts_as_room,
        numbers_that_make_no_sense_give_no_room_away,
        no_limit,
        cpu_quotas,
        own_groups,
    };
    return WEFT_SUITE_RUN("app/cgroup", tests);
}
