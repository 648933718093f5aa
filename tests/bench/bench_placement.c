/* bench_placement - what a change of epoch costs at fleet size.
 *
 *   bench_placement
 *
 * 256 expert shards, 46 layers (one dense) of 256 experts, owners 1 and 2,
 * experts chosen by Zipf's law, another order in each layer. One JSON line a
 * change: median time of a plan, of its encoding and decoding, bytes moved
 * against the least that the guarantees allow, the load of the busiest shard
 * over the mean before and after. The last lines are turns of a controller over
 * the whole roster (with 64 groups) when nothing has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "node/cluster/controller.h"
#include "node/cluster/values.h"

enum {
    SHARDS = 256,
    GROUPS = 64,
    LAYERS = 46,
    EXPERTS = 256,
    REPEATS = 7,
    EXPERT_BYTES = 3 * 5120 * 1536, /* FP8, dots3's width */
};

static bool moe[LAYERS];
static int64_t bytes[LAYERS];
static float load[LAYERS * EXPERTS];
static const weft_placement_shape shape = {
    .n_layer = LAYERS, .n_expert = EXPERTS, .moe = moe, .expert_bytes = bytes};

static void must(weft_status st, const weft_err *err)
{
    if (st == WEFT_OK) return;
    (void)fprintf(stderr, "bench_placement: %s\n", err->text);
    exit(1);
}

static void fill(void)
{
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t order[EXPERTS];
        moe[l] = l > 0;
        bytes[l] = EXPERT_BYTES;
        for (int32_t e = 0; e < EXPERTS; e++) order[e] = e;
        for (int32_t e = EXPERTS - 1; e > 0; e--) {
            const int32_t other =
                (int32_t)(weft_rng_u64((uint64_t)l, (uint64_t)e) %
                          ((uint64_t)e + 1));
            const int32_t had = order[e];
            order[e] = order[other];
            order[other] = had;
        }
        for (int32_t e = 0; e < EXPERTS; e++)
            load[l * EXPERTS + e] = 1000.0F / (float)(order[e] + 1);
    }
}

static void name(weft_placement_member *m, int32_t i)
{
    *m = (weft_placement_member){.incarnation = 1};
    (void)snprintf(m->id, sizeof m->id, "experts-%d", i);
    (void)snprintf(m->address, sizeof m->address, "10.0.%d.%d:7001", i / 256,
                   i % 256);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double median_ms(uint64_t ns[REPEATS])
{
    qsort(ns, REPEATS, sizeof *ns, by_value);
    const int32_t middle = REPEATS / 2;
    return (double)ns[middle] / 1e6;
}

/* From `before` (NULL: nothing) to the members given; a line; the placement. */
static weft_placement *change(const char *what,
                              const weft_placement_member *members, int32_t n,
                              int32_t replicas, const weft_placement *before,
                              const float *seen)
{
    uint64_t make_ns[REPEATS], code_ns[REPEATS];
    weft_placement *p = NULL, *again = NULL;
    weft_buf value = {0};
    weft_err err = {0};
    for (int32_t i = 0; i < REPEATS; i++) {
        weft_placement_destroy(p);
        uint64_t from = weft_clock_now_ns();
        must(weft_placement_make(&shape, members, n, replicas, before, seen, &p,
                                 &err),
             &err);
        make_ns[i] = weft_clock_now_ns() - from;
        p->epoch = 1;
        from = weft_clock_now_ns();
        must(weft_placement_encode(p, &value, &err), &err);
        must(weft_placement_decode(&shape, (weft_span){value.data, value.n},
                                   &again, &err),
             &err);
        code_ns[i] = weft_clock_now_ns() - from;
        weft_placement_destroy(again);
    }
    weft_placement_moves was = {.imbalance = 0}, is;
    if (before != NULL)
        weft_placement_compare(&shape, NULL, before, load, &was);
    weft_placement_compare(&shape, before, p, load, &is);
    printf("{\"bench\":\"placement\",\"change\":\"%s\",\"replicas\":%d,"
           "\"shards\":%d,\"plan_ms\":%.3f,\"code_ms\":%.3f,"
           "\"value_bytes\":%zu,\"moved_bytes\":%lld,\"least_bytes\":%lld,"
           "\"imbalance_before\":%.3f,\"imbalance_after\":%.3f}\n",
           what, replicas, n, median_ms(make_ns), median_ms(code_ns), value.n,
           (long long)is.gained_bytes, (long long)is.gained_least,
           was.imbalance, is.imbalance);
    (void)fflush(stdout);
    weft_buf_deinit(&value);
    return p;
}

static void changes(int32_t replicas)
{
    static weft_placement_member members[SHARDS];
    for (int32_t i = 0; i < SHARDS; i++) name(&members[i], i);
    weft_placement *p =
        change("first", members, SHARDS - 1, replicas, NULL, NULL);
    weft_placement *q = change("one joins", members, SHARDS, replicas, p, NULL);
    weft_placement_destroy(p);
    p = change("one leaves", members + 1, SHARDS - 1, replicas, q, NULL);
    weft_placement_destroy(p);
    p = change("one comes again", members, SHARDS, replicas, q, NULL);
    weft_placement_destroy(p);
    p = change("half leave", members, SHARDS / 2, replicas, q, NULL);
    weft_placement_destroy(q);
    q = change("and return", members, SHARDS, replicas, p, NULL);
    weft_placement_destroy(p);
    p = change("load is seen", members, SHARDS, replicas, q, load);
    weft_placement_destroy(q);
    q = change("nothing", members, SHARDS, replicas, p, load);
    weft_placement_destroy(p);
    weft_placement_destroy(q);
    p = change("first, load known", members, SHARDS, replicas, NULL, load);
    weft_placement_destroy(p);
}

/* -- turns ----------------------------------------------------------------- */

static int64_t revision;

static void put(weft_roster *roster, const char *key, weft_buf *value)
{
    const weft_registry_event event = {.kind = WEFT_REGISTRY_PUT,
                                       .key = key,
                                       .value = {value->data, value->n},
                                       .revision = ++revision};
    (void)weft_roster_apply(roster, &event);
}

static void put_member(weft_roster *roster, weft_role role, int32_t i)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    weft_err err = {0};
    weft_member m = {.role = role,
                     .state = WEFT_MEMBER_SERVING,
                     .incarnation = 1,
                     .config_hash = 1,
                     .weights_hash = 1,
                     .group = role == WEFT_ROLE_LAYERS ? i : 0,
                     .n_stages = role == WEFT_ROLE_LAYERS};
    (void)snprintf(m.id, sizeof m.id, "%s-%d", weft_role_name(role), i);
    (void)snprintf(m.address, sizeof m.address, "10.0.%d.%d:7001", i / 256,
                   i % 256);
    must(weft_member_encode(&m, &value, &err), &err);
    put(roster, weft_key_of_member(role, m.id, key), &value);
    weft_buf_deinit(&value);
}

static void turns(void)
{
    weft_err err = {0};
    weft_roster *roster = NULL;
    weft_controller *controller = NULL;
    const weft_controller_options options = {
        .shape = &shape, .id = "router-0", .replicas = 1};
    must(weft_roster_create(&shape, &roster, &err), &err);
    must(weft_controller_create(&options, &controller, &err), &err);
    uint64_t from = weft_clock_now_ns();
    for (int32_t i = 0; i < SHARDS; i++)
        put_member(roster, WEFT_ROLE_EXPERTS, i);
    for (int32_t i = 0; i < GROUPS; i++)
        put_member(roster, WEFT_ROLE_LAYERS, i);
    const double fill_ms = (double)(weft_clock_now_ns() - from) / 1e6;
    weft_registry_event event = {.kind = WEFT_REGISTRY_LEASE};
    weft_controller_take(controller, &event, 1);
    uint64_t now = 1000000000000, next, ns[REPEATS];
    weft_txn txn;
    if (weft_controller_turn(controller, roster, now, &txn, &next)) {
        weft_buf value = {0};
        must(weft_holder_encode("router-0", &value, &err), &err);
        put(roster, WEFT_KEY_TEXT_CONTROLLER, &value);
        weft_buf_deinit(&value);
        event = (weft_registry_event){
            .kind = WEFT_REGISTRY_TXN, .tag = txn.tag, .revision = revision};
        weft_controller_take(controller, &event, now);
    }
    (void)weft_controller_turn(controller, roster, now, &txn, &next);
    now += 1000000000;
    from = weft_clock_now_ns();
    const bool planned =
        weft_controller_turn(controller, roster, now, &txn, &next);
    const double plan_ms = (double)(weft_clock_now_ns() - from) / 1e6;
    for (int32_t i = 0; i < REPEATS; i++) {
        from = weft_clock_now_ns();
        (void)weft_controller_turn(controller, roster, now, &txn, &next);
        ns[i] = weft_clock_now_ns() - from;
    }
    printf("{\"bench\":\"controller\",\"shards\":%d,\"groups\":%d,"
           "\"fill_ms\":%.3f,\"planned\":%s,\"plan_turn_ms\":%.3f,"
           "\"idle_turn_ms\":%.4f}\n",
           SHARDS, GROUPS, fill_ms, planned ? "true" : "false", plan_ms,
           median_ms(ns));
    weft_controller_destroy(controller);
    weft_roster_destroy(roster);
}

int main(void)
{
    fill();
    changes(1);
    changes(2);
    turns();
    return 0;
}
