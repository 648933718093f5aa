#include <signal.h>

#include "tests/support/cluster_suite.h"
#include "tests/support/etcd_server.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static etcd_server etcd;

static void begin(void)
{
    etcd_prepare(&etcd, 1);
    etcd_start(&etcd, 0);
    etcd_wait_healthy(&etcd, 0);
}

static void end(void)
{
    etcd_end(&etcd);
}

static weft_registry *open_for(uint64_t lease_s)
{
    weft_registry *registry = NULL;
    const weft_etcd_options options = {.endpoints = etcd.endpoints,
                                       .cluster = "test",
                                       .lease_ns =
                                           lease_s * UINT64_C(1000000000)};
    OK(weft_registry_create_etcd(&options, &registry, &err));
    return registry;
}

/* The machine may be busy: no lease lapses. */
static weft_registry *open_handle(void)
{
    return open_for(60);
}

static weft_registry *open_short(void)
{
    return open_for(3);
}

static void away(void)
{
    etcd_kill(&etcd, 0);
}

static void back(void)
{
    etcd_start(&etcd, 0);
}

static void back_empty(void)
{
    etcd_empty(&etcd, 0);
    back();
}

static const party_world world = {.begin = begin,
                                  .end = end,
                                  .open = open_handle,
                                  .away = away,
                                  .back = back};
static const party_world killed = {.begin = begin,
                                   .end = end,
                                   .open = open_short,
                                   .away = away,
                                   .back = back,
                                   .back_empty = back_empty};

/* Alive and silent, with its connections. */
static void freeze(void)
{
    etcd_signal(&etcd, 0, SIGSTOP);
}

static void thaw(void)
{
    etcd_signal(&etcd, 0, SIGCONT);
}

static void replace(void)
{
    etcd_kill(&etcd, 0);
    back_empty();
}

static const party_world frozen = {.begin = begin,
                                   .end = end,
                                   .open = open_short,
                                   .away = freeze,
                                   .back = thaw,
                                   .back_empty = replace};

static void add_killed(TCase *tests)
{
    cluster_suite_add_away(tests, &killed);
}

static void add_frozen(TCase *tests)
{
    cluster_suite_add_away(tests, &frozen);
}

static void add(TCase *tests)
{
    cluster_suite_add(tests, &world);
}

int main(void)
{
    if (!etcd_is_here()) return 77;
    const int whole = weft_suite_run_added("a cluster on etcd", add);
    const int lost =
        weft_suite_run_added("a cluster whose etcd is lost", add_killed);
    const int still =
        weft_suite_run_added("a cluster whose etcd stands still", add_frozen);
    return whole != 0 ? whole : lost != 0 ? lost : still;
}
