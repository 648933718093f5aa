/* The weights of a stage, rank by rank: what is measured is what is loaded, by
 * each into its own memory, and progress is of all as one. */
#include <stdlib.h>
#include <string.h>

#include "node/app/model_open.h"
#include "node/app/rank_weights.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

enum { N_RANKS = 2 };

/* -- memories that count -------------------------------------------------- */

struct weft_device {
    int64_t held_bytes;
};

static struct weft_device devices[N_RANKS];
static const weft_device *bound;
static int32_t n_uploads;

static weft_status alloc(weft_device *device, int64_t bytes, void **at_out,
                         weft_err *err)
{
    (void)err;
    device->held_bytes += bytes;
    *at_out = malloc((size_t)bytes);
    ck_assert_ptr_nonnull(*at_out);
    return WEFT_OK;
}

static void release(weft_device *device, void *at)
{
    if (at != NULL) device->held_bytes = 0;
    free(at);
}

static weft_status bind_thread(weft_device *device, weft_err *err)
{
    (void)err;
    bound = device;
    return WEFT_OK;
}

static void upload(void *to, const void *from, int64_t bytes)
{
    n_uploads++;
    /* To a block of the device that is bound: nobody else has one before it. */
    ck_assert_ptr_nonnull(bound);
    ck_assert_int_gt(bound->held_bytes, 0);
    memcpy(to, from, (size_t)bytes);
}

static void fill(void *to, int byte, int64_t bytes)
{
    memset(to, byte, (size_t)bytes);
}

static weft_status sync(weft_err *err)
{
    (void)err;
    return WEFT_OK;
}

static const weft_device_api fake = {.abi = WEFT_DEVICE_ABI,
                                     .name = "fake",
                                     .identity = "fake-1",
                                     .alloc = alloc,
                                     .free = release,
                                     .bind = bind_thread,
                                     .upload = upload,
                                     .fill = fill,
                                     .sync = sync};

static weft_backend of_fakes(void)
{
    static char library;
    weft_backend b = {.opened = &library, .n_ranks = N_RANKS};
    b.memory = (weft_memory){.api = &fake, .device = &devices[0]};
    b.others[0] = (weft_memory){.api = &fake, .device = &devices[1]};
    return b;
}

/* -- a model -------------------------------------------------------------- */

typedef struct opened {
    char dir[64];
    weft_opened model;
    weft_part_of_model whole;
} opened;

/* Layers of both kinds, dense and with experts. */
static opened open_model(const char *more)
{
    opened o = {0};
    synth_folder_make(o.dir);
    synth_case_write(o.dir, "T02", more, NULL);
    OK(weft_model_open(o.dir, WEFT_EXACT, NULL, NULL, &o.model, &err));
    o.whole = weft_model_whole(&o.model.config);
    return o;
}

static void close_model(opened *o)
{
    weft_model_close(&o->model);
    synth_folder_remove(o->dir);
}

typedef struct heard {
    int64_t done_bytes, total_bytes;
    int32_t n;
} heard;

static void hear(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    heard *const h = arg;
    ck_assert_int_ge(done_bytes, h->done_bytes);
    ck_assert_int_le(done_bytes, total_bytes);
    if (h->n > 0) ck_assert_int_eq(total_bytes, h->total_bytes);
    *h = (heard){done_bytes, total_bytes, h->n + 1};
}

/* -- tests ---------------------------------------------------------------- */

START_TEST(one_rank_is_the_whole_model)
{
    opened o = open_model(NULL);
    const weft_backend cpu = {.n_ranks = 1};
    const weft_checkpoint_stats before =
        *weft_checkpoint_get_stats(o.model.checkpoint);
    weft_rank_sizes sizes;
    weft_rank_weights w;
    OK(weft_rank_weights_measure(o.model.checkpoint, &cpu, &o.whole, &sizes,
                                 &err));
    ck_assert_int_eq(sizes.host_bytes, before.resident_bytes);
    ck_assert_int_eq(sizes.file_bytes, before.file_bytes);
    ck_assert_int_eq(sizes.staging_bytes, before.staging_bytes);
    ck_assert_int_eq(sizes.device_bytes[0], 0);
    OK(weft_rank_weights_load(o.model.checkpoint, &cpu, &o.whole, NULL, NULL,
                              &w, &err));
    ck_assert_ptr_nonnull(weft_rank_weights_first(&w)->embed);
    ck_assert_ptr_null(w.models[1]);
    ck_assert_ptr_null(w.others[0].weights);
    weft_rank_weights_destroy(&w);
    close_model(&o);
}
END_TEST

START_TEST(ranks_of_the_cpu_share_its_memory)
{
    opened o = open_model(NULL);
    const weft_backend cpu = {.n_ranks = N_RANKS};
    weft_rank_sizes sizes;
    weft_rank_weights w;
    heard h = {0};
    const int64_t alone =
        weft_checkpoint_get_stats(o.model.checkpoint)->resident_bytes;
    OK(weft_rank_weights_measure(o.model.checkpoint, &cpu, &o.whole, &sizes,
                                 &err));
    /* What is not cut is there twice. */
    ck_assert_int_gt(sizes.host_bytes, alone);
    ck_assert_int_lt(sizes.host_bytes, 2 * alone);
    const int64_t read = weft_checkpoint_read_bytes(o.model.checkpoint);
    OK(weft_rank_weights_load(o.model.checkpoint, &cpu, &o.whole, hear, &h, &w,
                              &err));
    ck_assert_int_eq(weft_checkpoint_read_bytes(o.model.checkpoint) - read,
                     sizes.file_bytes);
    ck_assert_int_eq(h.total_bytes, sizes.file_bytes);
    ck_assert_int_eq(h.done_bytes, h.total_bytes);
    ck_assert_int_ge(h.n, N_RANKS);
    const weft_weights *const first = weft_rank_weights_first(&w);
    const weft_weights *const other = w.others[0].weights;
    ck_assert_ptr_null(w.others[0].memory);
    ck_assert_ptr_nonnull(first->embed);
    ck_assert_ptr_nonnull(first->lm_head.data);
    ck_assert_ptr_null(other->embed);
    ck_assert_ptr_null(other->lm_head.data);
    for (int32_t l = 0; l < o.model.config.n_layer; l++) {
        const weft_geometry *const g =
            &o.model.config.geometry[o.model.config.kind[l]];
        const int32_t head = g->qk_nope_head_dim + g->qk_rope_head_dim;
        const weft_layer_weights *const a = &first->layers[l];
        const weft_layer_weights *const b = &other->layers[l];
        ck_assert_int_eq(a->q_b.n_out, (int64_t)(g->n_head / N_RANKS) * head);
        ck_assert_int_eq(b->q_b.n_out, a->q_b.n_out);
        ck_assert(memcmp(a->q_b.data, b->q_b.data, 64) != 0);
        ck_assert_int_eq(b->kv_a.n_out, a->kv_a.n_out);
    }
    weft_rank_weights_destroy(&w);
    close_model(&o);
}
END_TEST

START_TEST(each_rank_loads_into_its_own_memory)
{
    opened o = open_model(NULL);
    const weft_backend b = of_fakes();
    weft_rank_sizes sizes;
    weft_rank_weights w;
    bound = &devices[0];
    OK(weft_rank_weights_load(o.model.checkpoint, &b, &o.whole, NULL, NULL, &w,
                              &err));
    ck_assert_ptr_eq(bound, &devices[0]);
    ck_assert_int_gt(n_uploads, 0);
    OK(weft_rank_weights_measure(o.model.checkpoint, &b, &o.whole, &sizes,
                                 &err));
    for (int32_t r = 0; r < N_RANKS; r++) {
        ck_assert_int_gt(sizes.device_bytes[r], 0);
        ck_assert_int_eq(devices[r].held_bytes, sizes.device_bytes[r]);
    }
    /* The head. */
    ck_assert_int_gt(sizes.device_bytes[0], sizes.device_bytes[1]);
    ck_assert_ptr_eq(w.others[0].memory, weft_backend_memory(&b, 1));
    ck_assert_ptr_eq(weft_checkpoint_memory(o.model.checkpoint).device,
                     &devices[0]);
    weft_rank_weights_destroy(&w);
    for (int32_t r = 0; r < N_RANKS; r++)
        ck_assert_int_eq(devices[r].held_bytes, 0);
    close_model(&o);
}
END_TEST

START_TEST(ranks_share_the_threads)
{
    static const int32_t cases[][3] = {
        {5, 1, 5}, {5, 2, 2}, {8, 4, 2}, {3, 4, 1}, {1, 8, 1}};
    const weft_model_config config = {.max_context = 100};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const weft_options o = {.cpu_path = "auto",
                                .threads = cases[i][0],
                                .tensor_parallel = cases[i][1]};
        weft_engine_options e;
        OK(weft_model_engine_options(&o, &config, &e, &err));
        ck_assert_int_eq(e.threads, cases[i][2]);
        ck_assert_int_eq(e.n_ranks, cases[i][1]);
    }
}
END_TEST

START_TEST(a_model_that_cannot_be_cut_is_refused_by_name)
{
    opened o = open_model(NULL);
    const weft_backend cpu = {.n_ranks = 7};
    weft_rank_sizes sizes;
    weft_rank_weights w;
    weft_err why = {0};
    ck_assert_int_eq(weft_rank_weights_measure(o.model.checkpoint, &cpu,
                                               &o.whole, &sizes, &why),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(why.text, "--tensor-parallel 7: ") != NULL, "%s",
                  why.text);
    ck_assert_int_eq(weft_rank_weights_load(o.model.checkpoint, &cpu, &o.whole,
                                            NULL, NULL, &w, &why),
                     WEFT_INVALID_ARGUMENT);
    weft_rank_weights_destroy(&w);
    close_model(&o);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        one_rank_is_the_whole_model,
        ranks_of_the_cpu_share_its_memory,
        each_rank_loads_into_its_own_memory,
        ranks_share_the_threads,
        a_model_that_cannot_be_cut_is_refused_by_name,
    };
    return WEFT_SUITE_RUN("rank_weights", tests);
}
