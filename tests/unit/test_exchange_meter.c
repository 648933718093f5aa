/* What a layer shard counts of its exchange: sums, bounded labels, the busiest
 * experts; and what an expert shard tells of itself. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "node/obs/exchange.h"
#include "node/obs/expert_print.h"
#include "shard/expert/recent.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { LAYERS = 3, EXPERTS = 16 };

static weft_exchange_meter *meter;
static weft_exchange_counts counts;

static void open_meter(void)
{
    OK(weft_exchange_meter_create(LAYERS, EXPERTS, &meter, &err));
}

static bool has_line(const weft_buf *text, const char *line)
{
    const char *const at = strstr(text->data, line);
    return at != NULL && (at == text->data || at[-1] == '\n') &&
           at[strlen(line)] == '\n';
}

START_TEST(sums_and_buckets)
{
    open_meter();
    weft_exchange_meter_get(meter, &counts);
    ck_assert(counts.pairs == 0 && counts.imbalance == 0 && counts.n_top == 0);
    weft_exchange_meter_exchanged(meter, "a", 400000, 100);
    weft_exchange_meter_exchanged(meter, "b", 600000, 20);
    weft_exchange_meter_exchanged(meter, "a", UINT64_C(400000000000), 3);
    weft_exchange_meter_get(meter, &counts);
    ck_assert_uint_eq(counts.bytes, 123);
    ck_assert_uint_eq(counts.sum_ns, UINT64_C(400001000000));
    ck_assert_uint_eq(counts.buckets[0], 1);
    ck_assert_uint_eq(counts.buckets[1], 1);
    ck_assert_uint_eq(counts.buckets[WEFT_HISTOGRAM_BUCKETS - 1], 1);
    weft_exchange_meter_destroy(meter);
}
END_TEST

/* Against a plain count and a sort by hand. */
START_TEST(the_busiest_experts)
{
    static uint64_t asked[LAYERS][EXPERTS];
    open_meter();
    memset(asked, 0, sizeof asked);
    for (uint64_t i = 0; i < 4000; i++) {
        const uint64_t r = weft_rng_u64(7, i);
        const int32_t layer = (int32_t)(r % LAYERS);
        const int32_t e[] = {(int32_t)(r >> 8 & 15), (int32_t)(r >> 16 & 7)};
        weft_exchange_meter_routed(meter, layer, e, 2);
        asked[layer][e[0]]++;
        asked[layer][e[1]]++;
    }
    weft_exchange_meter_get(meter, &counts);
    ck_assert_uint_eq(counts.pairs, 8000);
    ck_assert_int_eq(counts.n_top, WEFT_TOP_EXPERTS);
    double worst = 0;
    for (int32_t l = 0; l < LAYERS; l++) {
        uint64_t sum = 0, most = 0;
        for (int32_t e = 0; e < EXPERTS; e++) {
            sum += asked[l][e];
            if (asked[l][e] > most) most = asked[l][e];
        }
        const double imbalance = (double)most * EXPERTS / (double)sum;
        if (imbalance > worst) worst = imbalance;
    }
    ck_assert_double_eq_tol((double)counts.imbalance, worst, 1e-5);
    for (int32_t i = 0; i < WEFT_TOP_EXPERTS; i++) {
        const weft_expert_share *const t = &counts.top[i];
        ck_assert_uint_eq(t->pairs, asked[t->layer][t->expert]);
        asked[t->layer][t->expert] = 0;
        for (int32_t at = 0; at < LAYERS * EXPERTS; at++)
            ck_assert_uint_le(asked[at / EXPERTS][at % EXPERTS], t->pairs);
    }
    weft_exchange_meter_destroy(meter);
}
END_TEST

START_TEST(two_shards_add_up)
{
    weft_exchange_counts a = {.pairs = 10,
                              .bytes = 1,
                              .sum_ns = 5,
                              .imbalance = 1.5F,
                              .n_top = 2,
                              .top = {{0, 1, 6}, {0, 2, 4}}};
    const weft_exchange_counts b = {.pairs = 20,
                                    .bytes = 2,
                                    .sum_ns = 6,
                                    .imbalance = 1.25F,
                                    .n_top = 2,
                                    .top = {{1, 1, 12}, {0, 2, 8}}};
    a.buckets[3] = 2;
    weft_exchange_counts_add(&a, &b);
    ck_assert(a.pairs == 30 && a.bytes == 3 && a.sum_ns == 11 &&
              a.imbalance == 1.5F && a.buckets[3] == 2 && a.n_top == 3);
    static const weft_expert_share wanted[] = {
        {0, 2, 12}, {1, 1, 12}, {0, 1, 6}};
    uint64_t sum = 0;
    for (int32_t i = 0; i < 3; i++) {
        bool found = false;
        for (int32_t k = 0; k < 3; k++)
            found = found || (a.top[i].layer == wanted[k].layer &&
                              a.top[i].expert == wanted[k].expert &&
                              a.top[i].pairs == wanted[k].pairs);
        ck_assert(found && (i == 0 || a.top[i].pairs <= a.top[i - 1].pairs));
        sum += a.top[i].pairs;
    }
    ck_assert_uint_eq(sum, 30);
}
END_TEST

START_TEST(labels_are_bounded)
{
    char id[32];
    weft_buf text = {0};
    open_meter();
    for (int32_t i = 0; i < WEFT_METER_PEERS_MAX + 5; i++) {
        (void)snprintf(id, sizeof id, "experts-%d", i);
        weft_exchange_meter_exchanged(meter, id, 1000000000, 7);
    }
    weft_exchange_meter_exchanged(meter, "experts-3", 500000000, 1);
    const int32_t experts[] = {4, 4, 5};
    weft_exchange_meter_routed(meter, 2, experts, 3);
    weft_exchange_meter_get(meter, &counts);
    OK(weft_exchange_print(meter, &counts, &text, &err));
    ck_assert(
        has_line(&text, "weft_exchange_bytes_total{peer=\"experts-3\"} 8"));
    ck_assert(has_line(&text, "weft_exchange_bytes_total{peer=\"other\"} 35"));
    ck_assert(has_line(
        &text, "weft_exchange_peer_seconds_total{peer=\"experts-3\"} 1.5"));
    ck_assert(
        has_line(&text, "weft_expert_pairs_total{layer=\"2\",expert=\"4\"} 2"));
    ck_assert(has_line(&text, "weft_expert_imbalance 10.6667"));
    ck_assert_ptr_null(strstr(text.data, "experts-64\""));
    /* Without a meter: no peers. */
    weft_buf_clear(&text);
    OK(weft_exchange_print(NULL, &counts, &text, &err));
    ck_assert_ptr_null(strstr(text.data, "peer"));
    weft_buf_deinit(&text);
    weft_exchange_meter_destroy(meter);
}
END_TEST

START_TEST(an_id_cannot_break_a_line)
{
    weft_buf text = {0};
    open_meter();
    weft_exchange_meter_exchanged(meter, "a\"}\nweft_epoch 7\\", 1, 1);
    weft_exchange_meter_get(meter, &counts);
    OK(weft_exchange_print(meter, &counts, &text, &err));
    ck_assert(!has_line(&text, "weft_epoch 7"));
    ck_assert(has_line(&text,
                       "weft_exchange_bytes_total{peer=\"a}weft_epoch 7\"} 1"));
    weft_buf_deinit(&text);
    weft_exchange_meter_destroy(meter);
}
END_TEST

START_TEST(an_expert_shard)
{
    weft_buf text = {0};
    const weft_expert_server_stats server = {.questions = 9,
                                             .rejected = 2,
                                             .busy_ns = 3000000000,
                                             .idle_ns = 1000000000,
                                             .busy_share = 0.25,
                                             .wait_ns = 500000000,
                                             .n_waits = 7,
                                             .n_links = 3};
    const weft_expert_store_stats store = {
        .n_experts = 11, .used_bytes = 12, .loaded_bytes = 13};
    OK(weft_expert_print(&server, &store, &text, &err));
    static const char *const lines[] = {
        "weft_expert_questions_total 9",
        "weft_expert_rejected_total 2",
        "weft_expert_busy_ratio 0.25",
        "weft_expert_idle_seconds_total 1",
        "weft_expert_busy_seconds_total 3",
        "weft_expert_wait_seconds_sum 0.5",
        "weft_expert_wait_seconds_count 7",
        "weft_expert_links 3",
        "weft_experts_held 11",
        "weft_expert_bytes 12",
        "weft_expert_loaded_bytes_total 13",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(has_line(&text, lines[i]), "%s", lines[i]);
    weft_buf_deinit(&text);
}
END_TEST

/* Of a busy shard's share, after seconds in steps of a millisecond. */
static double recent(double share, bool busy, int32_t seconds)
{
    for (int32_t i = 0; i < 1000 * seconds; i++)
        share = weft_recent_share(share, busy, 1000000);
    return share;
}

START_TEST(a_recent_share_follows_the_load)
{
    ck_assert_double_eq(recent(0.0, false, 60), 0.0);
    /* 1 - 1/e after TAU, and the same way down. */
    ck_assert_double_eq_tol(recent(0.0, true, 30), 0.632, 0.001);
    ck_assert_double_eq_tol(recent(1.0, false, 30), 0.368, 0.001);
    ck_assert(recent(0.0, true, 300) > 0.999);
    ck_assert(recent(1.0, false, 300) < 0.001);
    /* Busy a quarter of each millisecond, for 86.4 s. */
    double share = 0.0;
    for (int32_t i = 0; i < 86400; i++) {
        share = weft_recent_share(share, true, 250000);
        share = weft_recent_share(share, false, 750000);
    }
    ck_assert_double_eq_tol(share, 0.25 * (1.0 - exp(-86.4 / 30.0)), 0.001);
    /* One long step is no more than all of it. */
    share = weft_recent_share(0.5, true, UINT64_C(3600000000000));
    ck_assert(share > 0.9 && share <= 1.0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        sums_and_buckets,
        the_busiest_experts,
        two_shards_add_up,
        labels_are_bounded,
        an_id_cannot_break_a_line,
        an_expert_shard,
        a_recent_share_follows_the_load,
    };
    return WEFT_SUITE_RUN("exchange_meter", tests);
}
