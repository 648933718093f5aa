/* How much memory a process may still take, by its control group. */
#include <string.h>

#include "node/app/memory.h"
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
    ck_assert(weft_memory_group_room(folder, v2, &bytes));
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
    ck_assert(!weft_memory_group_room(folder, true, &bytes));
    put("memory.max", "max\n");
    put("memory.current", "900000\n");
    ck_assert(!weft_memory_group_room(folder, true, &bytes));
    ck_assert(!weft_memory_group_room("/no/such/group", false, &bytes));
    ck_assert_int_eq(bytes, -1);
    synth_folder_remove(folder);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        file_cache_counts_as_room,
        numbers_that_make_no_sense_give_no_room_away,
        no_limit,
    };
    return WEFT_SUITE_RUN("app/memory", tests);
}
