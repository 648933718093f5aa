/* A prompt far longer than window, top-k and the pool's slabs, while eight
 * streams go on: they keep getting their tokens, all tokens are those of each
 * job alone, and window pages stay within their bound.
 *
 * WEFT_LONG_TOKENS sets the length; a build with assertions, which may carry
 * sanitizers, takes a shorter one by itself. */
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/str.h"
#include "tests/support/bytes.h"
#include "tests/support/crowd.h"
#include "tests/support/suite.h"
#include "tests/support/synth.h"

enum {
    WINDOW = 65,
    VOCAB = 97,
    N_STREAMS = 8,
    LONG = N_STREAMS, /* its number among the jobs */
    LONG_NEW = 12,
    CHUNK = 256,
    PAGE = 32,
    LENGTH_MAX = 32000,
#ifdef NDEBUG
    LENGTH_USUAL = 20000,
#else
    LENGTH_USUAL = 8000,
#endif
};

static const char SMALL[] =
    "{\"hidden_size\":32,\"intermediate_size\":32,\"moe_intermediate_size\":16,"
    "\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"num_hidden_layers\":3,"
    "\"layer_types\":[\"full_attention\",\"sliding_attention\","
    "\"sliding_attention\"],\"num_attention_heads\":2,\"q_lora_rank\":16,"
    "\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":8,"
    "\"v_head_dim\":8,\"swa_num_attention_heads\":2,\"swa_q_lora_rank\":16,"
    "\"swa_kv_lora_rank\":24,\"swa_qk_nope_head_dim\":8,"
    "\"swa_qk_rope_head_dim\":8,\"swa_v_head_dim\":8,\"swa_head_dim\":16,"
    "\"sliding_window_size\":65,\"index_n_heads\":2,\"index_head_dim\":16,"
    "\"index_topk\":64,\"max_position_embeddings\":32768}";

static int32_t length_of_prompt(void)
{
    const char *const text = getenv("WEFT_LONG_TOKENS");
    int64_t n = LENGTH_USUAL;
    ck_assert(text == NULL ||
              weft_parse_i64(text, (int64_t)4 * CHUNK, LENGTH_MAX, &n));
    return (int32_t)n;
}

/* -- what is seen -----------------------------------------------------------
 */

typedef struct witness {
    bool submitted, first_came; /* of the long prompt */
    int32_t between[N_STREAMS]; /* tokens of a stream between the two */
    int64_t window_pages_max, full_pages_max; /* engine's thread */
    int64_t n_loads;
} witness;

static void see_submit(void *arg, int32_t job)
{
    witness *const w = arg;
    if (job == LONG) w->submitted = true;
}

static void see_event(void *arg, const weft_event *event)
{
    witness *const w = arg;
    if (event->kind != WEFT_EVENT_TOKEN) return;
    if (event->handle == LONG)
        w->first_came = true;
    else if (w->submitted && !w->first_came)
        w->between[event->handle]++;
}

static void see_load(void *arg, const weft_engine_load *load)
{
    witness *const w = arg;
    const int64_t window = load->kv.pages_used[WEFT_WINDOW];
    const int64_t full = load->kv.pages_used[WEFT_FULL];
    if (window > w->window_pages_max) w->window_pages_max = window;
    if (full > w->full_pages_max) w->full_pages_max = full;
    w->n_loads++;
}

static crowd_watch watch_of(witness *w)
{
    return (crowd_watch){.arg = w,
                         .on_event = see_event,
                         .on_submit = see_submit,
                         .on_load = see_load};
}

static int64_t pages_of(int64_t tokens, int32_t page)
{
    return (tokens + page - 1) / page;
}

/* ceil((W - 1 + chunk) / page) + 1: design 5, one sequence. */
static int64_t window_bound(int32_t chunk, int32_t page)
{
    return pages_of(WINDOW - 1 + chunk, page) + 1;
}

/* -- the model and the jobs --------------------------------------------------
 */

static harness open_small(void)
{
    char dir[64];
    synth_folder_make(dir);
    char *const config = synth_config("dots3", SMALL);
    const synth_options plain = {0};
    synth_write(dir, config, &plain);
    weft_mem_free(config);
    harness h = harness_open(dir, WEFT_EXACT);
    synth_folder_remove(dir);
    return h;
}

static int32_t *make_prompt(int32_t n, int32_t salt)
{
    int32_t *const ids = weft_mem_new((size_t)n, sizeof *ids);
    uint32_t state = 12345U + (uint32_t)salt;
    for (int32_t i = 0; i < n; i++) {
        state = state * 1664525U + 1013904223U;
        ids[i] = (int32_t)((state >> 16) % VOCAB);
    }
    return ids;
}

static int32_t chunks_of(int32_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

/* Streams that go on for longer than the prompt takes. */
static void make_jobs(crowd_job jobs[N_STREAMS + 1], int32_t n)
{
    for (int32_t i = 0; i < N_STREAMS; i++) {
        int32_t *const ids = make_prompt(20 + 7 * i, i);
        jobs[i] = crowd_make(ids, 20 + 7 * i, chunks_of(n) + 40 + i);
        jobs[i].temperature = i % 2 == 0 ? 0.0F : 1.0F;
        jobs[i].seed = 7U + (uint64_t)i;
        weft_mem_free(ids);
    }
    int32_t *const ids = make_prompt(n, LONG);
    jobs[LONG] = crowd_make(ids, n, LONG_NEW);
    weft_mem_free(ids);
}

static void expect_as_alone(const crowd_job *a, const crowd_job *b, int32_t i)
{
    ck_assert_int_eq(b->n_last_events, 1);
    ck_assert_int_eq(b->finish, WEFT_FINISH_LENGTH);
    ck_assert_int_eq(a->n_tokens, b->n_tokens);
    for (int32_t t = a->n_prompt; t < a->n_tokens; t++)
        ck_assert_msg(a->tokens[t] == b->tokens[t],
                      "job %d: token %d is %d, alone %d", i, t - a->n_prompt,
                      b->tokens[t], a->tokens[t]);
    ck_assert_mem_eq(a->logprobs, b->logprobs,
                     (size_t)a->n_new * sizeof *a->logprobs);
}

/* Another chunk and page than in company, and a pool of exactly what the
 * formulas say; after each step no more window pages than its keys lie in. */
static void run_long_alone(const harness *h, crowd_job *job, int32_t n)
{
    const int32_t chunk = 500, page = 64;
    harness_run run = {
        .chunk_tokens = chunk, .page_tokens = page, .threads = 2};
    run.kv_bytes = crowd_bytes(h, job, &run);
    witness w = {0};
    const crowd_watch watch = {.arg = &w, .on_load = see_load};
    ck_assert_int_eq(crowd_run_watched(h, job, 1, &run, 1, &watch), 0);
    ck_assert_int_ge(w.n_loads, n / chunk);
    ck_assert_int_ge(w.full_pages_max, pages_of(n, page));
    ck_assert_int_ge(w.window_pages_max, 1);
    ck_assert_int_le(w.window_pages_max, window_bound(chunk, page));
    ck_assert_int_le(w.window_pages_max, pages_of(WINDOW - 1, page) + 1);
}

START_TEST(eight_streams_flow_beside_a_long_prompt)
{
    const int32_t n = length_of_prompt();
    harness h = open_small();
    crowd_job alone[N_STREAMS + 1], jobs[N_STREAMS + 1];
    make_jobs(alone, n);
    make_jobs(jobs, n);
    const harness_run plain = {.threads = 1};
    for (int32_t i = 0; i < N_STREAMS; i++)
        (void)crowd_run(&h, &alone[i], 1, &plain, 1);
    run_long_alone(&h, &alone[LONG], n);

    const harness_run run = {
        .chunk_tokens = CHUNK, .page_tokens = PAGE, .threads = 2};
    jobs[LONG].late = true;
    witness w = {0};
    const crowd_watch watch = watch_of(&w);
    ck_assert_int_eq(
        crowd_run_watched(&h, jobs, N_STREAMS + 1, &run, N_STREAMS + 1, &watch),
        0);
    ck_assert(w.first_came);
    for (int32_t i = 0; i < N_STREAMS; i++)
        ck_assert_msg(w.between[i] >= chunks_of(n) - 2,
                      "stream %d got %d tokens while the prompt of %d chunks "
                      "was computed",
                      i, w.between[i], chunks_of(n));
    ck_assert_int_ge(w.full_pages_max, pages_of(n, PAGE));
    ck_assert_int_le(w.window_pages_max,
                     (N_STREAMS + 1) * window_bound(CHUNK, PAGE));
    ck_assert_int_le(w.window_pages_max,
                     (N_STREAMS + 1) * (pages_of(WINDOW - 1, PAGE) + 1));
    for (int32_t i = 0; i <= N_STREAMS; i++) {
        expect_as_alone(&alone[i], &jobs[i], i);
        crowd_free(&alone[i]);
        crowd_free(&jobs[i]);
    }
    harness_close(&h);
}
END_TEST

/* Company and chunks aside, the numbers themselves: the plain loops know no
 * blocks of keys. */
START_TEST(long_rows_are_those_of_the_plain_loops)
{
    const int32_t n = 1100; /* the plain loops are slow */
    harness h = open_small();
    int32_t *const ids = make_prompt(n, 3);
    const harness_run fast = {.chunk_tokens = 200, .page_tokens = PAGE};
    const harness_run plain = {.cpu_path = "reference", .chunk_tokens = 333};
    float *const a = harness_logits(&h, ids, n, &fast);
    float *const b = harness_logits(&h, ids, n, &plain);
    for (int32_t r = 0; r < n; r++)
        ck_assert_msg(same_bytes(a + (int64_t)r * VOCAB, b + (int64_t)r * VOCAB,
                                 VOCAB * sizeof *a),
                      "logits of position %d differ", r);
    weft_mem_free(a);
    weft_mem_free(b);
    weft_mem_free(ids);
    harness_close(&h);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        eight_streams_flow_beside_a_long_prompt,
        long_rows_are_those_of_the_plain_loops,
    };
    return WEFT_SUITE_RUN("long", tests);
}
