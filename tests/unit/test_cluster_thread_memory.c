#include "tests/support/cluster_suite.h"
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

static weft_registry *open_handle(void)
{
    const memory_options options = {.lease_ns = 1000 * MS, .call_ns = 200 * MS};
    return memory_store_open(store, &options);
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
                                  .back = back,
                                  .back_empty = back_empty};

static void add(TCase *tests)
{
    cluster_suite_add(tests, &world);
}

int main(void)
{
    return weft_suite_run_added("a cluster on a registry in memory", add);
}
