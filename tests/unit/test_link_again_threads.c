/* Peers that cannot be dialled for a while, for want of a descriptor: nobody
 * else waits for that, and who wants them asks again. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "shard/step/stages_internal.h"
#include "tests/support/chain.h"
#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"
#define MS    UINT64_C(1000000)

static const uint64_t WAIT_NS = 20000 * MS;

/* So many of the next eventfds cannot be had: each dialled peer takes one. */
static atomic_int n_refused;

int eventfd(unsigned count, int flags)
{
    int left = atomic_load(&n_refused);
    while (left > 0)
        if (atomic_compare_exchange_weak(&n_refused, &left, left - 1)) {
            errno = EMFILE;
            return -1;
        }
    return (int)syscall(SYS_eventfd2, count, flags);
}

typedef struct scene {
    kit_taken taken;
    weft_link_server *server; /* of "a" */
    weft_peers *peers;
    weft_peer a;
} scene;

static weft_peer peer_at(const char *id, const char *address)
{
    weft_peer peer = {.incarnation = 0};
    (void)snprintf(peer.id, sizeof peer.id, "%s", id);
    (void)snprintf(peer.address, sizeof peer.address, "%s", address);
    return peer;
}

static void open_scene(scene *s)
{
    const weft_hello a = kit_hello("a"), own = kit_hello("own");
    *s = (scene){.taken = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    const weft_link_server_options o = kit_server_options(&a, &s->taken);
    s->server = kit_server(&o);
    s->a = peer_at("a", weft_link_server_address(s->server));
    const weft_peers_options options = {
        .own = &own, .link = kit_options(), .peers_max = 3};
    OK(weft_peers_create(&options, &s->peers, &err));
}

static void close_scene(scene *s)
{
    weft_peers_destroy(s->peers);
    weft_link_server_stop(s->server);
    kit_close_taken(&s->taken);
}

static void expect_refused(weft_status st, const weft_err *told)
{
    ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(told->text, "no descriptor to dial") != NULL, "%s",
                  told->text);
}

START_TEST(nobody_else_waits)
{
    scene s;
    weft_err told = {0};
    open_scene(&s);
    const weft_peer wanted[] = {peer_at("first", "127.0.0.1:1"), s.a};
    atomic_store(&n_refused, 1);
    expect_refused(weft_peers_want(s.peers, wanted, 2, &told), &told);
    ck_assert_msg(strstr(told.text, "dial first") != NULL, "%s", told.text);
    kit_wait_taken(&s.taken, 1);
    close_scene(&s);
}
END_TEST

/* Twice it cannot be had; meanwhile nobody asks all the time. */
START_TEST(a_lead_asks_again)
{
    scene s;
    weft_err told = {0};
    weft_stages *stages = NULL;
    open_scene(&s);
    const weft_stages_options o = {
        .n_stages = 2, .group = CHAIN_GROUP, .peers = s.peers};
    OK(weft_stages_create(&o, &stages, &err));
    const uint64_t began_ns = weft_clock_now_ns();
    atomic_store(&n_refused, 2);
    expect_refused(weft_stages_want(stages, &s.a, &told), &told);
    while (kit_count_taken(&s.taken) == 0) {
        weft_stages_turn(stages);
        ck_assert(weft_clock_now_ns() < began_ns + WAIT_NS);
        weft_stages_idle(stages, weft_clock_now_ns() + 10 * MS);
    }
    ck_assert_int_eq(atomic_load(&n_refused), 0);
    ck_assert_uint_ge(weft_clock_now_ns() - began_ns, 2 * WEFT_PEERS_AGAIN_NS);
    weft_stages_destroy(stages);
    close_scene(&s);
}
END_TEST

START_TEST(a_stage_asks_again)
{
    scene s;
    weft_err told = {0};
    weft_stage *stage = NULL;
    weft_model_config config;
    harness h = harness_open(MODEL, WEFT_EXACT);
    open_scene(&s);
    OK(weft_partition_cut(&h.config, 3, 1, &config, &err));
    const weft_stage_options o = {.config = &config,
                                  .weights = weft_model_weights(h.model),
                                  .engine = {.kv_bytes = 1 << 20,
                                             .page_tokens = 4,
                                             .chunk_tokens = 16,
                                             .max_seqs = 1,
                                             .max_context = 64,
                                             .threads = 1,
                                             .profile = WEFT_EXACT,
                                             .ops = harness_ops(NULL)},
                                  .stage = 1,
                                  .n_stages = 3,
                                  .group = CHAIN_GROUP,
                                  .peers = s.peers};
    OK(weft_stage_start(&o, &stage, &err));
    const uint64_t began_ns = weft_clock_now_ns();
    atomic_store(&n_refused, 2);
    expect_refused(weft_stage_want(stage, &s.a, &told), &told);
    kit_wait_taken(&s.taken, 1);
    ck_assert_uint_ge(weft_clock_now_ns() - began_ns, 2 * WEFT_PEERS_AGAIN_NS);
    weft_stage_stop(stage);
    close_scene(&s);
    harness_close(&h);
}
END_TEST

START_TEST(an_exchange_asks_again)
{
    const pool_options options = {.n_shards = 2, .tcp = true};
    pool_heard heard = {0};
    weft_exchange *exchange = NULL;
    weft_exchange_state state = {.whole = false};
    pool *const p = pool_open(MODEL, WEFT_EXACT, &options);
    weft_peers *const peers = pool_peers(p, &exchange);
    const weft_exchange_options base = {.peers = peers};
    exchange = pool_exchange(p, &base, &heard);
    weft_expert_map *const map = pool_map(p, 1, 1, 3, 0);
    weft_exchange_set_map(exchange, map);
    weft_expert_map_release(map);
    const weft_experts experts = weft_exchange_experts(exchange);
    const uint64_t began_ns = weft_clock_now_ns();
    atomic_store(&n_refused, 3); /* both, and one of them again */
    while (!state.whole) {
        experts.idle(experts.arg, weft_clock_now_ns() + 10 * MS);
        weft_exchange_get_state(exchange, &state);
        ck_assert(weft_clock_now_ns() < began_ns + WAIT_NS);
    }
    ck_assert_int_eq(atomic_load(&n_refused), 0);
    ck_assert_uint_ge(weft_clock_now_ns() - began_ns, 2 * WEFT_PEERS_AGAIN_NS);
    weft_peers_stop(peers);
    weft_exchange_destroy(exchange);
    weft_peers_destroy(peers);
    pool_close(p);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {nobody_else_waits, a_lead_asks_again,
                                  a_stage_asks_again, an_exchange_asks_again};
    return WEFT_SUITE_RUN("peers again", tests);
}
