#include "node/base/check.h"
#include "node/base/clock.h"
#include "tests/support/registry_memory.h"
#include "tests/support/registry_suite.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static memory_store *store;

static void begin(void)
{
    store = memory_store_create(false);
}

static void end(void)
{
    memory_store_destroy(store);
}

static weft_registry *open_handle(uint64_t lease_ns, uint64_t relist_ns)
{
    const memory_options options = {.lease_ns = lease_ns,
                                    .relist_ns = relist_ns};
    return memory_store_open(store, &options);
}

static uint64_t moment(void)
{
    memory_store_advance(store, 10 * MS);
    return memory_store_now(store);
}

static void away(void)
{
    memory_store_set_away(store, true);
}

static void back(void)
{
    memory_store_set_away(store, false);
}

static void back_empty(void)
{
    memory_store_wipe(store);
    back();
}

static void compact(void)
{
    memory_store_compact(store);
}

static const registry_world world = {begin, end,  open_handle, moment,
                                     away,  back, back_empty,  compact};

/* --- faults, which only this one has ------------------------------------- */

static seen s[2];

#define UNTIL(condition) SEEN_UNTIL(&world, s, 2, condition)

static void begin_two(void)
{
    begin();
    for (int i = 0; i < 2; i++) seen_begin(&s[i], open_handle(0, 0));
    UNTIL(s[0].lease == WEFT_OK && s[1].lease == WEFT_OK);
}

static void end_two(void)
{
    for (int i = 0; i < 2; i++)
        if (s[i].registry != NULL) seen_end(&s[i]);
    end();
}

START_TEST(lost_events_are_healed_by_a_listing)
{
    memory_registry_set_faults(s[1].registry,
                               &(memory_faults){.lose_events = 1});
    seen_put(&s[0], "a", "1", false, -1);
    seen_put(&s[0], "b", "1", false, -1);
    UNTIL(seen_find(&s[1], "b") != NULL);
    ck_assert_ptr_null(seen_find(&s[1], "a"));
    UNTIL(seen_find(&s[1], "a") != NULL);
    ck_assert_int_eq(s[1].n_listings, 2);
}
END_TEST

START_TEST(repeated_and_late_events)
{
    memory_registry_set_faults(
        s[1].registry,
        &(memory_faults){.repeat_events = 1, .delay_ns = 500 * MS});
    seen_put(&s[0], "a", "1", false, -1);
    const uint64_t begun = memory_store_now(store);
    UNTIL(seen_find(&s[1], "a") != NULL);
    ck_assert_uint_ge(memory_store_now(store) - begun, 500 * MS);
    ck_assert_int_eq(s[1].n_puts, 2);
}
END_TEST

START_TEST(partition_of_one_handle)
{
    seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(seen_find(&s[1], "members/a") != NULL);
    memory_registry_set_faults(s[0].registry,
                               &(memory_faults){.partitioned = true});
    UNTIL(s[0].link == WEFT_UNAVAILABLE && s[0].lease == WEFT_UNAVAILABLE);
    UNTIL(seen_find(&s[1], "members/a") == NULL);
    ck_assert_int_eq(s[1].link, WEFT_OK);
    ck_assert_ptr_nonnull(seen_find(&s[0], "members/a"));
    memory_registry_set_faults(s[0].registry, &(memory_faults){0});
    UNTIL(s[0].lease == WEFT_OK && seen_find(&s[0], "members/a") == NULL);
}
END_TEST

START_TEST(result_that_is_lost)
{
    memory_registry_set_faults(
        s[0].registry, &(memory_faults){.lose_results = 1, .refuse_txns = 1});
    const int32_t a = seen_put(&s[0], "a", "1", false, 0);
    const int32_t b = seen_put(&s[0], "b", "1", false, 0);
    const int32_t c = seen_put(&s[0], "b", "2", false, 0);
    UNTIL(s[0].done[a] && s[0].done[b] && s[0].done[c]);
    ck_assert_int_eq(s[0].results[a], WEFT_UNAVAILABLE); /* did not happen */
    ck_assert_int_eq(s[0].results[b], WEFT_UNAVAILABLE); /* did */
    ck_assert_int_eq(s[0].results[c], WEFT_FAILED_PRECONDITION);
    UNTIL(seen_has(&s[1], "b", "1"));
    ck_assert_ptr_null(seen_find(&s[1], "a"));
}
END_TEST

START_TEST(owner_that_died_is_missed_after_its_lease)
{
    seen_put(&s[0], "members/a", "x", true, -1);
    UNTIL(seen_find(&s[1], "members/a") != NULL);
    memory_registry_kill(s[0].registry);
    seen_forget(&s[0]);
    const uint64_t begun = memory_store_now(store);
    UNTIL(seen_find(&s[1], "members/a") == NULL);
    ck_assert_uint_ge(memory_store_now(store) - begun, 3000 * MS);
    ck_assert_uint_le(memory_store_now(store) - begun, 5100 * MS);
}
END_TEST

static void add(TCase *tests)
{
    registry_suite_add(tests, &world);
}

static void add_faults(TCase *tests)
{
    const TTest *const faults[] = {
        lost_events_are_healed_by_a_listing,
        repeated_and_late_events,
        partition_of_one_handle,
        result_that_is_lost,
        owner_that_died_is_missed_after_its_lease,
    };
    tcase_add_checked_fixture(tests, begin_two, end_two);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        tcase_add_test(tests, faults[i]);
}

int main(void)
{
    const int kept = weft_suite_run_added("registry in memory", add);
    const int faulty = weft_suite_run_added("faults of a registry", add_faults);
    return kept != 0 ? kept : faulty;
}
