/* One thread serves experts while another loads and drops them. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/rng.h"
#include "shard/expert/store.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

enum { EXPERTS_MAX = 64, N_CHANGES = 400 };

typedef struct scene {
    char dir[64];
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
    int32_t layer;
    uint64_t want[EXPERTS_MAX]; /* of the matrices of each expert */

    atomic_bool stop;
    atomic_int stage; /* of the tests that go step by step */
    _Atomic int64_t n_found, n_rounds, n_away;
} scene;

static uint64_t hash_of(const weft_mlp_weights *w)
{
    const weft_matrix *const parts[] = {&w->gate, &w->up, &w->down};
    uint64_t hash = WEFT_FNV_START;
    for (int i = 0; i < 3; i++)
        hash = weft_hash_fnv(hash, parts[i]->data,
                             weft_matrix_bytes(parts[i]->dtype, parts[i]->n_out,
                                               parts[i]->n_in));
    return hash;
}

static void open_scene(scene *s)
{
    memset(s, 0, sizeof *s);
    synth_folder_make(s->dir);
    synth_case_write(s->dir, "T02", NULL, NULL);
    OK(weft_model_config_read(s->dir, NULL, NULL, &s->config, &err));
    OK(weft_checkpoint_open(s->dir, &s->config, WEFT_EXACT, NULL, NULL,
                            &s->checkpoint, &err));
    OK(weft_expert_store_create(&s->config, s->checkpoint, 0, &s->store, &err));
    s->layer = s->config.n_layer - 1;
    ck_assert_int_le(s->config.n_expert, EXPERTS_MAX);
    weft_expert_store_quiesce(s->store, false);
    for (int32_t e = 0; e < s->config.n_expert; e++) {
        uint64_t hash = 0;
        OK(weft_expert_store_load(s->store, s->layer, e, &hash, &err));
        s->want[e] = hash_of(weft_expert_store_get(s->store, s->layer, e));
    }
    weft_expert_store_quiesce(s->store, true);
    for (int32_t e = 0; e < s->config.n_expert; e += 2)
        weft_expert_store_drop(s->store, s->layer, e);
}

static void close_scene(scene *s)
{
    weft_expert_store_destroy(s->store);
    weft_checkpoint_close(s->checkpoint);
    synth_folder_remove(s->dir);
}

/* A round: get some, read them whole, pass; now and then be away. */
static void *serve(void *arg)
{
    scene *const s = arg;
    uint64_t seed = 1;
    weft_expert_store_quiesce(s->store, false);
    while (!atomic_load(&s->stop)) {
        const weft_mlp_weights *got[4];
        int32_t which[4];
        for (int i = 0; i < 4; i++) {
            seed = weft_rng_u64(seed, (uint64_t)i);
            which[i] = (int32_t)(seed % (uint64_t)s->config.n_expert);
            got[i] = weft_expert_store_get(s->store, s->layer, which[i]);
        }
        for (int i = 0; i < 4; i++) {
            if (got[i] == NULL) continue;
            ck_assert(hash_of(got[i]) == s->want[which[i]]);
            atomic_fetch_add(&s->n_found, 1);
        }
        if (seed % 8 == 0) {
            weft_expert_store_quiesce(s->store, true);
            atomic_fetch_add(&s->n_away, 1);
            (void)sched_yield();
        }
        weft_expert_store_quiesce(s->store, false);
        atomic_fetch_add(&s->n_rounds, 1);
    }
    weft_expert_store_quiesce(s->store, true);
    return NULL;
}

START_TEST(experts_come_and_go_while_they_serve)
{
    scene s;
    pthread_t thread;
    uint64_t seed = 7;
    open_scene(&s);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &s), 0);
    /* Changes go on until enough was served between them. */
    for (int32_t i = 0; i < N_CHANGES || atomic_load(&s.n_found) < N_CHANGES ||
                        atomic_load(&s.n_away) < 10;
         i++) {
        uint64_t hash = 0;
        seed = weft_rng_u64(seed, (uint64_t)i);
        const int32_t e = (int32_t)(seed % (uint64_t)s.config.n_expert);
        if (weft_expert_store_holds(s.store, s.layer, e))
            weft_expert_store_drop(s.store, s.layer, e);
        else
            OK(weft_expert_store_load(s.store, s.layer, e, &hash, &err));
    }
    atomic_store(&s.stop, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    close_scene(&s);
}
END_TEST

static void wait_for_stage(scene *s, int stage)
{
    while (atomic_load(&s->stage) < stage) (void)sched_yield();
}

static void *drop_one(void *arg)
{
    scene *const s = arg;
    atomic_store(&s->stage, 1);
    weft_expert_store_drop(s->store, s->layer, 1);
    atomic_store(&s->stage, 2);
    return NULL;
}

/* The expert is out of the table at once, and whole until the next pass;
 * whether that is a next batch or going away. */
START_TEST(drop_waits_for_whoever_serves)
{
    scene s;
    pthread_t thread;
    open_scene(&s);
    weft_expert_store_quiesce(s.store, false);
    const weft_mlp_weights *const w =
        weft_expert_store_get(s.store, s.layer, 1);
    ck_assert_ptr_nonnull(w);
    ck_assert_int_eq(pthread_create(&thread, NULL, drop_one, &s), 0);
    wait_for_stage(&s, 1);
    while (weft_expert_store_get(s.store, s.layer, 1) != NULL)
        (void)sched_yield();
    for (int i = 0; i < 1000; i++) (void)sched_yield();
    ck_assert_int_eq(atomic_load(&s.stage), 1);
    ck_assert(hash_of(w) == s.want[1]);
    weft_expert_store_quiesce(s.store, _i == 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(atomic_load(&s.stage), 2);
    weft_expert_store_quiesce(s.store, true);
    /* Nobody serves: at once. */
    weft_expert_store_drop(s.store, s.layer, 3);
    ck_assert(!weft_expert_store_holds(s.store, s.layer, 3));
    close_scene(&s);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, experts_come_and_go_while_they_serve);
    tcase_add_loop_test(tests, drop_waits_for_whoever_serves, 0, 2);
}

int main(void)
{
    return weft_suite_run_added("expert/store_threads", add_tests);
}
