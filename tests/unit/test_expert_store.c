/* The experts that a shard holds: loaded, counted, refused, let go. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/expert/store.h"
#include "shard/load/tensors.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

typedef struct desk {
    char dir[64];
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
} desk;

static desk open_desk(const synth_options *options, int64_t budget_bytes)
{
    desk d;
    memset(&d, 0, sizeof d);
    synth_folder_make(d.dir);
    synth_case_write(d.dir, "T02", NULL, options);
    OK(weft_model_config_read(d.dir, NULL, NULL, &d.config, &err));
    OK(weft_checkpoint_open(d.dir, &d.config, WEFT_EXACT, NULL, NULL,
                            &d.checkpoint, &err));
    OK(weft_expert_store_create(&d.config, d.checkpoint, budget_bytes, &d.store,
                                &err));
    return d;
}

static void close_desk(desk *d)
{
    weft_expert_store_destroy(d->store);
    weft_checkpoint_close(d->checkpoint);
    synth_folder_remove(d->dir);
}

static weft_expert_store_stats stats_of(const desk *d)
{
    weft_expert_store_stats stats;
    weft_expert_store_get_stats(d->store, &stats);
    return stats;
}

static bool same_matrix(const weft_matrix *a, const weft_matrix *b)
{
    return a->dtype == b->dtype && a->n_out == b->n_out && a->n_in == b->n_in &&
           memcmp(a->data, b->data,
                  weft_matrix_bytes(a->dtype, a->n_out, a->n_in)) == 0;
}

START_TEST(what_is_held_is_what_a_whole_model_has)
{
    desk d = open_desk(NULL, 0);
    weft_model *model = NULL;
    OK(weft_model_load(d.checkpoint, NULL, NULL, &model, &err));
    const weft_layer_weights *const layers = weft_model_weights(model)->layers;
    const int32_t last = d.config.n_layer - 1;
    int64_t n = 0;
    weft_expert_store_quiesce(d.store, false);
    for (int32_t l = 0; l < d.config.n_layer; l++) {
        ck_assert((weft_expert_store_bytes_of(d.store, l) > 0) ==
                  d.config.moe[l]);
        for (int32_t e = 0; d.config.moe[l] && e < d.config.n_expert; e++) {
            uint64_t hash = 0, again = 0;
            ck_assert(!weft_expert_store_holds(d.store, l, e));
            ck_assert_ptr_null(weft_expert_store_get(d.store, l, e));
            OK(weft_expert_store_load(d.store, l, e, &hash, &err));
            ck_assert(weft_expert_store_holds(d.store, l, e));
            const weft_mlp_weights *const w =
                weft_expert_store_get(d.store, l, e);
            ck_assert(same_matrix(&w->gate, &layers[l].experts[e].gate));
            ck_assert(same_matrix(&w->up, &layers[l].experts[e].up));
            ck_assert(same_matrix(&w->down, &layers[l].experts[e].down));
            /* A second time nothing is read. */
            const int64_t read = stats_of(&d).loaded_bytes;
            OK(weft_expert_store_load(d.store, l, e, &again, &err));
            ck_assert(again == hash);
            ck_assert_int_eq(stats_of(&d).loaded_bytes, read);
            n++;
        }
    }
    const weft_expert_store_stats stats = stats_of(&d);
    ck_assert_int_eq(stats.n_experts, n);
    ck_assert_int_eq(stats.n_loaded, n);
    ck_assert_int_eq(stats.used_bytes,
                     n * weft_expert_store_bytes_of(d.store, last));
    /* BF16: three matrices of hidden by width. */
    ck_assert_int_eq(stats.loaded_bytes, n * 6 * d.config.hidden_size *
                                             d.config.moe_intermediate_size);
    weft_expert_store_quiesce(d.store, true);
    weft_model_destroy(model);
    close_desk(&d);
}
END_TEST

START_TEST(what_is_dropped_is_free)
{
    desk d = open_desk(NULL, 0);
    const int32_t l = d.config.n_layer - 1;
    uint64_t first = 0, second = 0, other = 0;
    const long live = weft_mem_live();
    OK(weft_expert_store_load(d.store, l, 2, &first, &err));
    /* The buffer that experts are read through stays. */
    const long live_after = weft_mem_live();
    weft_expert_store_drop(d.store, l, 2);
    ck_assert_int_eq(weft_mem_live(), live_after - 1);
    ck_assert_int_eq(weft_mem_live(), live + 1);
    ck_assert(!weft_expert_store_holds(d.store, l, 2));
    weft_expert_store_drop(d.store, l, 2); /* not there: nothing */
    weft_expert_store_drop(d.store, -1, 0);
    weft_expert_store_drop(d.store, l, d.config.n_expert);
    weft_expert_store_stats stats = stats_of(&d);
    ck_assert_int_eq(stats.n_experts, 0);
    ck_assert_int_eq(stats.used_bytes, 0);
    ck_assert_int_eq(stats.n_dropped, 1);
    OK(weft_expert_store_load(d.store, l, 2, &second, &err));
    OK(weft_expert_store_load(d.store, l, 3, &other, &err));
    ck_assert(first == second && other != first);
    stats = stats_of(&d);
    ck_assert_int_eq(stats.n_loaded, 3);
    ck_assert_int_eq(stats.n_experts, 2);
    close_desk(&d);
}
END_TEST

START_TEST(the_budget_is_kept)
{
    desk d = open_desk(NULL, 0);
    const int32_t l = d.config.n_layer - 1;
    const int64_t one = weft_expert_store_bytes_of(d.store, l);
    close_desk(&d);
    d = open_desk(NULL, 3 * one - 1);
    uint64_t hash = 0;
    weft_err err = {0};
    char text[64];
    for (int32_t e = 0; e < 2; e++)
        ck_assert_int_eq(weft_expert_store_load(d.store, l, e, &hash, &err),
                         WEFT_OK);
    const weft_expert_store_stats before = stats_of(&d);
    ck_assert_int_eq(before.budget_bytes, 3 * one - 1);
    ck_assert_int_eq(weft_expert_store_load(d.store, l, 2, &hash, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    const int64_t said[] = {one, one - 1, 3 * one - 1};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(text, sizeof text, " %lld", (long long)said[i]);
        ck_assert_msg(strstr(err.text, text) != NULL, "%s: no%s", err.text,
                      text);
    }
    const weft_expert_store_stats after = stats_of(&d);
    ck_assert(memcmp(&before, &after, sizeof before) == 0);
    ck_assert(!weft_expert_store_holds(d.store, l, 2));
    weft_expert_store_drop(d.store, l, 0);
    ck_assert_int_eq(weft_expert_store_load(d.store, l, 2, &hash, &err),
                     WEFT_OK);
    close_desk(&d);
}
END_TEST

START_TEST(a_machine_without_memory_is_told)
{
    desk d = open_desk(NULL, 0);
    const int32_t l = d.config.n_layer - 1;
    uint64_t hash = 0;
    weft_err err = {0};
    int n_failed = 0;
    for (long room = 0; room < 10; room++) {
        const long live = weft_mem_live();
        weft_mem_fail_after(room);
        const weft_status st =
            weft_expert_store_load(d.store, l, 0, &hash, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        n_failed++;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_ptr_nonnull(strstr(err.text, "memory"));
        ck_assert_int_eq(weft_mem_live(), live);
        ck_assert(!weft_expert_store_holds(d.store, l, 0));
        ck_assert_int_eq(stats_of(&d).used_bytes, 0);
    }
    ck_assert_int_eq(n_failed, 2); /* the block, and what it is read through */
    weft_expert_store_destroy(d.store);
    for (long room = 0; room < 3; room++) {
        weft_mem_fail_after(room);
        const weft_status st = weft_expert_store_create(&d.config, d.checkpoint,
                                                        0, &d.store, &err);
        weft_mem_fail_after(-1);
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
    }
    d.store = NULL;
    close_desk(&d);
}
END_TEST

START_TEST(no_such_expert_is_refused)
{
    desk d = open_desk(NULL, 0);
    const int32_t l = d.config.n_layer - 1, n = d.config.n_expert;
    const int32_t wrong[][2] = {{-1, 0},
                                {l + 1, 0},
                                {l, -1},
                                {l, n},
                                {INT32_MAX, INT32_MAX},
                                {INT32_MIN, INT32_MIN},
                                {0, 0}};
    uint64_t hash = 0;
    weft_err err = {0};
    ck_assert(!d.config.moe[0]);
    weft_expert_store_quiesce(d.store, false);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(weft_expert_store_load(d.store, wrong[i][0],
                                                wrong[i][1], &hash, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert(!weft_expert_store_holds(d.store, wrong[i][0], wrong[i][1]));
        ck_assert_ptr_null(
            weft_expert_store_get(d.store, wrong[i][0], wrong[i][1]));
    }
    ck_assert_int_eq(weft_expert_store_bytes_of(d.store, -1), 0);
    ck_assert_int_eq(weft_expert_store_bytes_of(d.store, l + 1), 0);
    weft_model_config dense = d.config;
    dense.n_expert = 0;
    weft_expert_store *none = NULL;
    ck_assert_int_eq(
        weft_expert_store_create(&dense, d.checkpoint, 0, &none, &err),
        WEFT_INVALID_ARGUMENT);
    close_desk(&d);
}
END_TEST

/* A NaN code into the file. */
static void spoil(const desk *d, int32_t layer, const char *name)
{
    char path[128];
    weft_tensor_set set = {0};
    (void)snprintf(path, sizeof path, "%s/" WEFT_SINGLE_FILE, d->dir);
    OK(weft_tensor_set_open(d->dir, NULL, NULL, &set, &err));
    FILE *const file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    (void)snprintf(path, sizeof path, "model.layers.%d.mlp.%s.weight", layer,
                   name);
    const weft_tensor *const t = weft_tensor_set_find(&set, path);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(fseek(file, (long)t->offset + 5, SEEK_SET), 0);
    ck_assert_int_eq(fputc(0x7f, file), 0x7f);
    ck_assert_int_eq(fclose(file), 0);
    weft_tensor_set_deinit(&set);
}

/* It is not taken, and others are. */
START_TEST(a_damaged_expert_is_not_taken)
{
    const synth_options options = {.f8 = true};
    desk d = open_desk(&options, 0);
    const int32_t l = d.config.n_layer - 1;
    uint64_t hash = 0;
    weft_err err = {0};
    spoil(&d, l, "experts.1.up_proj");
    ck_assert_int_eq(weft_expert_store_load(d.store, l, 1, &hash, &err),
                     WEFT_DATA_LOSS);
    ck_assert_msg(strstr(err.text, "experts.1.up_proj") != NULL, "%s",
                  err.text);
    ck_assert(!weft_expert_store_holds(d.store, l, 1));
    ck_assert_int_eq(stats_of(&d).used_bytes, 0);
    ck_assert_int_eq(weft_expert_store_load(d.store, l, 0, &hash, &err),
                     WEFT_OK);
    close_desk(&d);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_is_held_is_what_a_whole_model_has,
        what_is_dropped_is_free,
        the_budget_is_kept,
        a_machine_without_memory_is_told,
        no_such_expert_is_refused,
        a_damaged_expert_is_not_taken,
    };
    return WEFT_SUITE_RUN("expert/store", tests);
}
