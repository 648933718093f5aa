/* What computes is what was asked for, or is refused by name. */
#include <string.h>

#include "node/app/backend.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(the_cpu_needs_nothing)
{
    weft_backend b;
    const weft_options cpu = {.backend = "cpu", .expert_shards = 1};
    OK(weft_backend_open(&cpu, &b, &err));
    ck_assert_ptr_null(b.opened);
    weft_engine_options engine = {.threads = 3};
    weft_backend_apply(&b, &engine);
    ck_assert_int_eq(engine.threads, 3);
    ck_assert_ptr_null(engine.memory);
    weft_backend_close(&b);
}
END_TEST

START_TEST(what_is_named_must_be_there)
{
    weft_backend b;
    weft_err why = {0};
    const weft_options cuda = {.backend = "cuda", .expert_shards = 1};
    ck_assert_int_eq(weft_backend_open(&cuda, &b, &why), WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(why.text, "libweft_cuda.so"));
    ck_assert_ptr_null(b.opened);
    const weft_options many = {
        .backend = "cuda", .stages = 8, .expert_shards = 64};
    ck_assert_int_eq(weft_backend_open(&many, &b, &why), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why.text, "--expert-shards 64"));
}
END_TEST

/* -- ranks ---------------------------------------------------------------- */

static const int64_t MIB = INT64_C(1) << 20;

/* A device that can be asked what it is, and nothing else. */
struct weft_device {
    weft_device_info info;
    int32_t n_closed;
};

static void get_info(weft_device *device, weft_device_info *out)
{
    *out = device->info;
}

static void close_device(weft_device *device)
{
    device->n_closed++;
}

static const weft_device_api fake = {.abi = WEFT_DEVICE_ABI,
                                     .name = "fake",
                                     .identity = "fake-7",
                                     .get_info = get_info,
                                     .close = close_device};
enum { N_FAKES = 3 };
static struct weft_device fakes[N_FAKES];

static weft_backend of_fakes(int32_t n_ranks)
{
    static char library;
    weft_backend b = {.opened = &library, .n_ranks = n_ranks};
    for (int32_t r = 0; r < N_FAKES; r++) {
        fakes[r] = (struct weft_device){.info = {.name = "chip",
                                                 .index = r,
                                                 .n_devices = N_FAKES,
                                                 .sm = 90,
                                                 .total_bytes = 8192 * MIB,
                                                 .free_bytes = 6400 * MIB}};
        const weft_memory memory = {.api = &fake, .device = &fakes[r]};
        if (r == 0)
            b.memory = memory;
        else
            b.others[r - 1] = memory;
    }
    b.info = fakes[0].info;
    return b;
}

START_TEST(a_degree_is_part_of_what_decides_bits)
{
    static const char *const wanted[][3] = {
        {"cpu", "fake-7.sm90.exact", "fake:0 chip"},
        {"cpu.tp2", "fake-7.sm90.exact.tp2", "fake:0-1 chip"},
        {"cpu.tp3", "fake-7.sm90.exact.tp3", "fake:0-2 chip"},
    };
    char text[WEFT_IDENTITY_BYTES];
    for (int32_t n = 1; n <= N_FAKES; n++) {
        const weft_backend cpu = {.n_ranks = n}, devices = of_fakes(n);
        weft_backend_identity(&cpu, WEFT_EXACT, text);
        ck_assert_str_eq(text, wanted[n - 1][0]);
        weft_backend_identity(&devices, WEFT_EXACT, text);
        ck_assert_str_eq(text, wanted[n - 1][1]);
        weft_backend_device(&devices, text, sizeof text);
        ck_assert_str_eq(text, wanted[n - 1][2]);
        weft_backend_device(&cpu, text, sizeof text);
        ck_assert_str_eq(text, "cpu");
    }
    /* The most there can be still has its end. */
    weft_backend b = of_fakes(8);
    const weft_device_api odd = {
        .identity = "a-name-of-a-backend-that-goes-on-and-on-and-on"};
    b.memory.api = &odd;
    weft_backend_identity(&b, WEFT_EXACT, text);
    ck_assert_ptr_nonnull(strstr(text, ".sm90.exact.tp8"));
}
END_TEST

START_TEST(the_cpu_has_as_many_ranks_as_are_asked_for)
{
    weft_backend b;
    const weft_options cpu = {.backend = "cpu", .tensor_parallel = 3};
    OK(weft_backend_open(&cpu, &b, &err));
    ck_assert_int_eq(b.n_ranks, 3);
    for (int32_t r = 0; r < 3; r++)
        ck_assert(weft_memory_is_host(weft_backend_memory(&b, r)));
    weft_backend_close(&b);
}
END_TEST

static weft_model_config small_config(void)
{
    weft_model_config c = {
        .vocab_size = 100,
        .hidden_size = 64,
        .n_layer = 1,
        .end_layer = 1,
        .max_context = 1 << 20,
        .intermediate_size = 64,
    };
    c.n_kind[WEFT_FULL] = 1;
    c.geometry[WEFT_FULL] = (weft_geometry){.n_head = 6,
                                            .q_lora_rank = 16,
                                            .kv_lora_rank = 32,
                                            .qk_nope_head_dim = 16,
                                            .qk_rope_head_dim = 16,
                                            .v_head_dim = 16};
    return c;
}

typedef struct planned {
    weft_status status;
    int64_t kv_bytes;
    weft_err err;
} planned;

/* With 100, 101 and 102 MiB of weights on ranks 0, 1 and 2. */
static planned plan(const weft_backend *b, int64_t kv_bytes)
{
    const weft_model_config config = small_config();
    const int64_t weights[] = {100 * MIB, 101 * MIB, 102 * MIB};
    weft_engine_options engine = {.page_tokens = 64,
                                  .chunk_tokens = 64,
                                  .max_seqs = 64,
                                  .max_waiting = 64,
                                  .max_context = 1 << 20,
                                  .threads = 1,
                                  .profile = WEFT_EXACT};
    planned p = {0};
    weft_backend_apply(b, &engine);
    engine.n_ranks = N_FAKES; /* what its buffers are for */
    p.status = weft_backend_plan(b, &config, &engine, kv_bytes, weights, 0,
                                 &p.kv_bytes, &p.err);
    return p;
}

START_TEST(the_device_with_the_least_room_decides)
{
    weft_backend b = of_fakes(3);
    const planned same = plan(&b, 0);
    ck_assert_int_eq(same.status, WEFT_OK);
    fakes[1].info.free_bytes -= 64 * MIB;
    const planned less = plan(&b, 0);
    ck_assert_int_eq(less.status, WEFT_OK);
    /* 63 MiB less beside 1 MiB less of weights than on the third. */
    ck_assert_int_eq(same.kv_bytes - less.kv_bytes, 62 * MIB);
    /* Only what takes part counts. */
    b.n_ranks = 1;
    const planned alone = plan(&b, 0);
    ck_assert_int_eq(alone.kv_bytes - same.kv_bytes, 2 * MIB);
    b.n_ranks = 3;
    ck_assert_int_eq(plan(&b, less.kv_bytes).status, WEFT_OK);
    const planned more = plan(&b, less.kv_bytes + 1);
    ck_assert_int_eq(more.status, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(more.err.text, "device 1: weights 105906176") != NULL,
                  "%s", more.err.text);
}
END_TEST

START_TEST(every_device_is_closed_once)
{
    weft_backend b = of_fakes(3);
    b.opened = NULL; /* no library of the loader's */
    weft_backend_close(&b);
    for (int32_t r = 0; r < N_FAKES; r++)
        ck_assert_int_eq(fakes[r].n_closed, 1);
    ck_assert_int_eq(b.n_ranks, 0);
    weft_backend_close(&b);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_cpu_needs_nothing,
        what_is_named_must_be_there,
        a_degree_is_part_of_what_decides_bits,
        the_cpu_has_as_many_ranks_as_are_asked_for,
        the_device_with_the_least_room_decides,
        every_device_is_closed_once,
    };
    return WEFT_SUITE_RUN("backend", tests);
}
