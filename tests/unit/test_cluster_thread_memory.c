#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/cluster_suite.h"
#include "tests/support/expect.h"
#include "tests/support/registry_memory.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

static memory_store *store;

static void begin(void)
{
    store = memory_store_create(true);
}

static void end(void)
{
    memory_store_destroy(store);
}

static weft_registry *open_for(uint64_t lease_ns)
{
    const memory_options options = {.lease_ns = lease_ns, .call_ns = 200 * MS};
    return memory_store_open(store, &options);
}

/* Time is the machine's, which may be busy: no lease lapses. */
static weft_registry *open_handle(void)
{
    return open_for(60000 * MS);
}

static weft_registry *open_short(void)
{
    return open_for(3000 * MS);
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

static const party_world world = {.begin = begin,
                                  .end = end,
                                  .open = open_handle,
                                  .away = away,
                                  .back = back};
static const party_world leaving = {.begin = begin,
                                    .end = end,
                                    .open = open_short,
                                    .away = away,
                                    .back = back,
                                    .back_empty = back_empty};

/* Threads of a process that ends may still say something. */
START_TEST(who_has_left_is_told_in_vain)
{
    static const bool moe[] = {true};
    uint64_t incarnation = 0;
    weft_cluster *cluster = NULL;
    weft_cluster_view view = {0};
    begin();
    const weft_cluster_options options = {
        .registry = open_handle(),
        .shape = {.n_layer = 1, .n_expert = 4, .moe = moe},
        .replicas = 1,
        .self = {.id = "e",
                 .role = WEFT_ROLE_EXPERTS,
                 .state = WEFT_MEMBER_JOINING,
                 .address = "127.0.0.1:1"}};
    OK(weft_cluster_start(&options, &cluster, &err));
    OK(weft_cluster_wait_registered(cluster, weft_clock_now_ns() + 20000 * MS,
                                    &incarnation, &err));
    weft_cluster_leave(cluster);
    weft_cluster_set_state(cluster, WEFT_MEMBER_DRAINING);
    weft_cluster_loaded(cluster, 1, 0, "not any more");
    weft_cluster_switched(cluster, 1);
    weft_cluster_suspect(cluster, "f", 1, true);
    ck_assert(!weft_cluster_is_emptied(cluster));
    OK(weft_cluster_get_view(cluster, &view, &err));
    weft_cluster_view_deinit(&view);
    weft_cluster_leave(cluster);
    weft_cluster_stop(cluster);
    end();
}
END_TEST

/* Each allocation of its making fails once. */
START_TEST(start_without_memory)
{
    static const bool moe[] = {true};
    const weft_placement_shape shape = {
        .n_layer = 1, .n_expert = 4, .moe = moe};
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    long n = 0;
    begin();
    for (; st != WEFT_OK; n++) {
        weft_cluster *cluster = NULL;
        weft_err err = {0};
        weft_cluster_options options = {
            .registry = open_handle(),
            .shape = shape,
            .replicas = 1,
            .controls = true,
            .self = {.id = "r", .role = WEFT_ROLE_ROUTER}};
        weft_mem_fail_after(n);
        st = weft_cluster_start(&options, &cluster, &err);
        weft_mem_fail_after(-1);
        ck_assert_msg(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED, "%s: %s",
                      weft_status_name(st), err.text);
        ck_assert(st == WEFT_OK || err.text[0] != '\0');
        weft_cluster_stop(cluster);
    }
    ck_assert_int_gt(n, 3);
    end();
}
END_TEST

/* Whoever wants to write hears that it could not, and tries again. */
START_TEST(start_on_a_registry_that_is_full)
{
    static const bool moe[] = {true};
    uint64_t incarnation = 0;
    weft_cluster *cluster = NULL;
    begin();
    weft_cluster_options options = {
        .registry = open_handle(),
        .shape = {.n_layer = 1, .n_expert = 4, .moe = moe},
        .self = {.id = "lead",
                 .role = WEFT_ROLE_LAYERS,
                 .state = WEFT_MEMBER_SERVING,
                 .n_stages = 1}};
    memory_registry_set_faults(options.registry, &(memory_faults){.full = 3});
    OK(weft_cluster_start(&options, &cluster, &err));
    OK(weft_cluster_wait_registered(cluster, party_stop_time(), &incarnation,
                                    &err));
    weft_cluster_stop(cluster);
    end();
}
END_TEST

static void add_memory(TCase *tests)
{
    tcase_add_test(tests, start_on_a_registry_that_is_full);
    tcase_add_test(tests, start_without_memory);
    tcase_add_test(tests, who_has_left_is_told_in_vain);
}

static void add(TCase *tests)
{
    cluster_suite_add(tests, &world);
}

static void add_away(TCase *tests)
{
    cluster_suite_add_away(tests, &leaving);
}

int main(void)
{
    const int whole =
        weft_suite_run_added("a cluster on a registry in memory", add);
    const int away =
        weft_suite_run_added("a cluster whose registry is lost", add_away);
    const int start = weft_suite_run_added("its beginning", add_memory);
    return whole != 0 ? whole : away != 0 ? away : start;
}
