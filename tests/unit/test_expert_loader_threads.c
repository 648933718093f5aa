/* The loading thread of an expert shard: what placements give it is held and
 * told, what none gives it any more goes. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/app/expert_loader.h"
#include "node/base/clock.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

static const uint64_t PATIENCE_NS = 20000000000U;

typedef struct desk {
    char dir[64];
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
    weft_expert_loader *loader;
    weft_placement_shape shape;
    pthread_mutex_t lock;
    pthread_cond_t told;
    uint64_t epoch; /* last told */
    int32_t n_told;
    bool failed;
    char text[160];
} desk;

static void loaded(void *arg, uint64_t epoch, int64_t bytes, const char *text)
{
    desk *const d = arg;
    (void)bytes;
    (void)pthread_mutex_lock(&d->lock);
    d->epoch = epoch;
    d->n_told++;
    d->failed = text != NULL;
    (void)snprintf(d->text, sizeof d->text, "%s", text == NULL ? "" : text);
    (void)pthread_cond_signal(&d->told);
    (void)pthread_mutex_unlock(&d->lock);
}

static void open_desk(desk *d, int64_t budget_bytes)
{
    memset(d, 0, sizeof *d);
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->told, NULL);
    synth_folder_make(d->dir);
    synth_case_write(d->dir, "T02", NULL, NULL);
    OK(weft_model_config_read(d->dir, NULL, NULL, &d->config, &err));
    OK(weft_checkpoint_open(d->dir, &d->config, WEFT_EXACT, NULL, NULL,
                            &d->checkpoint, &err));
    OK(weft_expert_store_create(&d->config, d->checkpoint, budget_bytes,
                                &d->store, &err));
    d->shape = (weft_placement_shape){.n_layer = d->config.n_layer,
                                      .n_expert = d->config.n_expert,
                                      .moe = d->config.moe};
    const weft_expert_loader_options options = {
        .store = d->store, .id = "me", .loaded = loaded, .arg = d};
    OK(weft_expert_loader_start(&options, &d->loader, &err));
}

static void close_desk(desk *d)
{
    weft_expert_loader_stop(d->loader);
    weft_expert_store_destroy(d->store);
    weft_checkpoint_close(d->checkpoint);
    synth_folder_remove(d->dir);
    (void)pthread_cond_destroy(&d->told);
    (void)pthread_mutex_destroy(&d->lock);
}

/* Of the members "me" and n_others more, with the epoch given. */
static weft_placement *place(const desk *d, int32_t n_others, uint64_t epoch)
{
    weft_placement *p = NULL;
    weft_placement_member members[8] = {0};
    for (int32_t i = 0; i <= n_others; i++) {
        (void)snprintf(members[i].id, sizeof members[i].id, "%s%d",
                       i == 0 ? "me" : "other", i);
        if (i == 0) members[i].id[2] = '\0';
        members[i].incarnation = 1;
    }
    OK(weft_placement_make(&d->shape, members, n_others + 1, 1, NULL, NULL, &p,
                           &err));
    p->epoch = epoch;
    return p;
}

static void prepare(desk *d, const weft_placement *p)
{
    OK(weft_expert_loader_prepare(d->loader, p, &err));
}

static void wait_told(desk *d, uint64_t epoch)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(PATIENCE_NS / 1000000000U);
    (void)pthread_mutex_lock(&d->lock);
    while (d->epoch != epoch)
        ck_assert_int_eq(pthread_cond_timedwait(&d->told, &d->lock, &until), 0);
    (void)pthread_mutex_unlock(&d->lock);
}

/* What prepare asks for, with its end. */
static void load(desk *d, const weft_placement *p)
{
    prepare(d, p);
    wait_told(d, p->epoch);
}

static void load_and_commit(desk *d, const weft_placement *p)
{
    load(d, p);
    weft_expert_loader_commit(d->loader, p->epoch);
}

/* Whether just what `a` or `b` gives us is held. */
static bool holds_just(const desk *d, const weft_placement *a,
                       const weft_placement *b)
{
    const int32_t in_a = weft_placement_find(a, "me", 0);
    const int32_t in_b = weft_placement_find(b, "me", 0);
    for (int32_t l = 0; l < d->config.n_layer; l++)
        for (int32_t e = 0; e < d->config.n_expert; e++) {
            const bool given = weft_placement_owns(a, in_a, l, e) ||
                               weft_placement_owns(b, in_b, l, e);
            if (weft_expert_store_holds(d->store, l, e) != given) return false;
        }
    return true;
}

static void wait_holds_just(const desk *d, const weft_placement *a,
                            const weft_placement *b)
{
    const uint64_t until_ns = weft_clock_now_ns() + PATIENCE_NS;
    while (!holds_just(d, a, b)) {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
}

START_TEST(what_is_given_is_held_and_told)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const p = place(&d, 1, 7);
    ck_assert_int_gt(weft_placement_count(p, 0), 0);
    load(&d, p);
    ck_assert(!d.failed);
    ck_assert(holds_just(&d, p, p));
    weft_placement_destroy(p);
    close_desk(&d);
}
END_TEST

START_TEST(an_epoch_that_is_over_is_let_go)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const alone = place(&d, 0, 1);
    weft_placement *const three = place(&d, 2, 2);
    load_and_commit(&d, alone);
    load(&d, three);
    ck_assert(holds_just(&d, alone, three)); /* committed: still needed */
    weft_expert_loader_commit(d.loader, 2);
    weft_expert_loader_retire(d.loader, 1);
    wait_holds_just(&d, three, three);
    ck_assert_int_gt(weft_placement_count(alone, 0),
                     weft_placement_count(three, 0));
    weft_placement_destroy(alone);
    weft_placement_destroy(three);
    close_desk(&d);
}
END_TEST

START_TEST(a_plan_that_was_rolled_back_is_let_go)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const three = place(&d, 2, 1);
    weft_placement *const alone = place(&d, 0, 2);
    weft_placement *const again = place(&d, 2, 3);
    load_and_commit(&d, three);
    load(&d, alone);
    load(&d, again);
    /* 2 never was committed, but might have been. */
    ck_assert(holds_just(&d, alone, alone));
    weft_expert_loader_commit(d.loader, 3);
    wait_holds_just(&d, three, again);
    weft_placement_destroy(three);
    weft_placement_destroy(alone);
    weft_placement_destroy(again);
    close_desk(&d);
}
END_TEST

/* Whoever joins and dies, again and again, takes nothing from what is served.
 */
START_TEST(plans_that_come_to_nothing_cost_nothing)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const alone = place(&d, 0, 1);
    load_and_commit(&d, alone);
    for (uint64_t epoch = 2; epoch < 60; epoch++) {
        weft_placement *const three = place(&d, 2, epoch);
        load(&d, three);
        ck_assert_msg(holds_just(&d, alone, alone), "epoch %d", (int)epoch);
        weft_placement_destroy(three);
    }
    weft_placement_destroy(alone);
    close_desk(&d);
}
END_TEST

/* A listing may tell of a committed and a planned one at once. */
START_TEST(two_at_once_are_both_loaded)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const three = place(&d, 2, 1);
    weft_placement *const two = place(&d, 1, 2);
    (void)pthread_mutex_lock(&d.lock); /* the first waits with its telling */
    prepare(&d, three);
    prepare(&d, two);
    (void)pthread_mutex_unlock(&d.lock);
    wait_told(&d, 2);
    ck_assert_int_eq(d.n_told, 2);
    ck_assert(holds_just(&d, three, two));
    weft_placement_destroy(three);
    weft_placement_destroy(two);
    close_desk(&d);
}
END_TEST

/* What a plan left behind that was rolled back does not stand in the way. */
START_TEST(room_is_made_for_what_comes_later)
{
    desk d;
    open_desk(&d, 0);
    const int64_t one =
        weft_expert_store_bytes_of(d.store, d.config.n_layer - 1);
    close_desk(&d);
    weft_placement *three = place(&d, 2, 1);
    open_desk(&d, one * (weft_placement_count(three, 0) + 2));
    weft_placement_destroy(three);
    three = place(&d, 2, 1);
    weft_placement *const other = place(&d, 2, 2);
    for (int32_t l = 0; l < other->n_layer; l++)
        for (int32_t e = 0; e < other->n_expert; e++) {
            const int64_t expert = (int64_t)l * other->n_expert + e;
            uint16_t *const owner = &other->owners[expert * other->n_replicas];
            if (*owner == 0 || *owner == 1) *owner = (uint16_t)(1 - *owner);
        }
    load(&d, three);
    load(&d, other);
    ck_assert_msg(!d.failed, "%s", d.text);
    ck_assert(holds_just(&d, other, other));
    weft_placement_destroy(three);
    weft_placement_destroy(other);
    close_desk(&d);
}
END_TEST

START_TEST(what_finds_no_room_is_told_with_its_reason)
{
    desk d;
    open_desk(&d, 1);
    weft_placement *const p = place(&d, 1, 5);
    load(&d, p);
    ck_assert(d.failed);
    ck_assert_msg(strstr(d.text, "budget") != NULL ||
                      strstr(d.text, "bytes") != NULL,
                  "%s", d.text);
    weft_placement_destroy(p);
    close_desk(&d);
}
END_TEST

START_TEST(a_placement_without_us_takes_everything)
{
    desk d;
    open_desk(&d, 0);
    weft_placement *const alone = place(&d, 0, 1);
    weft_placement *const others = place(&d, 2, 2);
    load_and_commit(&d, alone);
    weft_expert_loader_retire(d.loader, 1);
    (void)snprintf(others->members[0].id, sizeof others->members[0].id, "he");
    const uint64_t until_ns = weft_clock_now_ns() + PATIENCE_NS;
    weft_expert_store_stats stats = {.n_experts = 1};
    while (stats.n_experts > 0) {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        weft_expert_store_get_stats(d.store, &stats);
    }
    load(&d, others);
    ck_assert(!d.failed);
    weft_expert_store_get_stats(d.store, &stats);
    ck_assert_int_eq(stats.n_experts, 0);
    weft_placement_destroy(alone);
    weft_placement_destroy(others);
    close_desk(&d);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_is_given_is_held_and_told,
        an_epoch_that_is_over_is_let_go,
        a_plan_that_was_rolled_back_is_let_go,
        plans_that_come_to_nothing_cost_nothing,
        two_at_once_are_both_loaded,
        room_is_made_for_what_comes_later,
        what_finds_no_room_is_told_with_its_reason,
        a_placement_without_us_takes_everything,
    };
    return WEFT_SUITE_RUN("expert_loader", tests);
}
