/* bench_engine - decode and prefill of a whole model through the engine.
 *
 *   bench_engine MODEL_DIR [exact|bf16] [THREADS]
 *
 * One JSON line a case: machine, model, profile, CPU path, median step, tokens
 * a second; for decodes the bytes that a step must touch (weights once, the
 * experts that a batch is expected to choose, cached rows) and that figure over
 * time as a share of the machine's read bandwidth, measured here in the same
 * run. The last line is peak resident memory against what was planned; more
 * than 1.05 of that is the one thing that makes the program fail.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "node/base/str.h"
#include "shard/step/engine.h"

enum {
    STEPS_MAX = 8192,
    BATCH_MAX = 8,
    DECODE_PROMPT = 16,
    DECODE_TOKENS = 48,
    PREFILL_SHORT = 256,
    PREFILL_LONG = 2048,
    PREFILL_REPEATS = 5,
    READ_UNITS = 64,
    READ_ROUNDS = 5,
};

static const size_t READ_BYTES = (size_t)1 << 30;
static const double PEAK_MAX = 1.05; /* of what was planned: a promise */

typedef struct bench {
    weft_model_config config;
    weft_model *model;
    weft_engine_options options;
    weft_engine *engine;
    weft_ring *events;
    uint64_t step_ns[STEPS_MAX]; /* written by the engine's thread */
    int32_t step_rows[STEPS_MAX];
    int32_t n_steps;
    double read_bytes_per_s;
    char machine[128];
} bench;

_Noreturn static void die(const weft_err *err)
{
    (void)fprintf(stderr, "bench_engine: %s\n", err->text);
    exit(1);
}

/* -- the machine ----------------------------------------------------------- */

typedef struct reading {
    const uint64_t *words;
    size_t n;
    uint64_t sums[READ_UNITS][8];
} reading;

static void read_unit(void *arg, int32_t unit, int32_t thread)
{
    (void)thread;
    reading *const r = arg;
    const size_t each = r->n / READ_UNITS;
    const uint64_t *const w = r->words + (size_t)unit * each;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 32 <= each; i += 32)
        for (size_t j = 0; j < 32; j++) s[j % 8] += w[i + j];
    memcpy(r->sums[unit], s, sizeof s);
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The best of some rounds: the machine's limit, not its average. */
static double measure_read(int32_t n_threads)
{
    weft_err err = {0};
    weft_threads *threads = NULL;
    if (weft_threads_create(n_threads, &threads, &err) != WEFT_OK) die(&err);
    uint64_t *const words = weft_mem_new_aligned(64, READ_BYTES);
    if (words == NULL) {
        (void)fprintf(stderr, "bench_engine: no memory\n");
        exit(1);
    }
    memset(words, 1, READ_BYTES);
    reading *const r = weft_mem_new(1, sizeof *r);
    r->words = words;
    r->n = READ_BYTES / sizeof *words;
    uint64_t best = UINT64_MAX;
    for (int32_t i = 0; i < READ_ROUNDS; i++) {
        const uint64_t begin = weft_clock_now_ns();
        weft_threads_run(threads, READ_UNITS, read_unit, r);
        const uint64_t took = weft_clock_now_ns() - begin;
        if (took < best) best = took;
    }
    volatile uint64_t sink = 0;
    for (int32_t u = 0; u < READ_UNITS; u++) sink += r->sums[u][0];
    (void)sink;
    weft_mem_free(r);
    weft_mem_free(words);
    weft_threads_destroy(threads);
    return (double)READ_BYTES / ((double)best * 1e-9);
}

/* In a child, so that the probe's memory is not in this process's peak. */
static double measure_read_apart(int32_t n_threads)
{
    int ends[2];
    double rate = 0.0;
    if (pipe(ends) != 0) return 0.0;
    const pid_t child = fork();
    if (child == 0) {
        rate = measure_read(n_threads);
        _exit(write(ends[1], &rate, sizeof rate) == sizeof rate ? 0 : 1);
    }
    (void)close(ends[1]);
    if (child < 0 || read(ends[0], &rate, sizeof rate) != sizeof rate)
        rate = 0.0;
    (void)close(ends[0]);
    if (child > 0) (void)waitpid(child, NULL, 0);
    return rate;
}

static void name_machine(char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "unknown");
    FILE *const f = fopen("/proc/cpuinfo", "re");
    if (f == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *const colon = strchr(line, ':');
        if (colon == NULL) continue;
        (void)snprintf(out, bytes, "%.*s", (int)strcspn(colon + 2, "\n"),
                       colon + 2);
        break;
    }
    (void)fclose(f);
}

static int64_t peak_bytes(void)
{
    FILE *const f = fopen("/proc/self/status", "re");
    if (f == NULL) return 0;
    char line[256];
    int64_t kib = 0;
    while (kib == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtoll(line + 6, NULL, 10);
    (void)fclose(f);
    return kib * 1024;
}

/* -- bytes a step touches ---------------------------------------------------
 */

static double bytes_of(const weft_matrix *m)
{
    return m->data == NULL
               ? 0.0
               : (double)weft_matrix_bytes(m->dtype, m->n_out, m->n_in);
}

static double mlp_bytes(const weft_mlp_weights *w)
{
    return bytes_of(&w->gate) + bytes_of(&w->up) + bytes_of(&w->down);
}

/* Experts that `batch` tokens are expected to choose, if they choose evenly. */
static double experts_chosen(const weft_model_config *c, int32_t batch)
{
    const double miss = 1.0 - (double)c->top_k / c->n_expert;
    return c->n_expert * (1.0 - pow(miss, batch));
}

static double layer_bytes(const bench *b, const weft_layer_weights *w,
                          int32_t layer, int32_t batch)
{
    const weft_model_config *const c = &b->config;
    const weft_geometry *const g = &c->geometry[c->kind[layer]];
    double bytes = bytes_of(&w->q_a) + bytes_of(&w->q_b) + bytes_of(&w->kv_a) +
                   bytes_of(&w->o) + bytes_of(&w->g) + bytes_of(&w->index_q) +
                   bytes_of(&w->index_k) + bytes_of(&w->index_w) +
                   mlp_bytes(&w->mlp) + bytes_of(&w->router);
    for (int32_t h = 0; h < g->n_head; h++)
        bytes += bytes_of(&w->k_up[h]) + bytes_of(&w->v_up[h]);
    if (w->experts != NULL)
        bytes += experts_chosen(c, batch) * mlp_bytes(&w->experts[0]);
    return bytes;
}

static double step_bytes(const bench *b, int32_t batch, double context)
{
    const weft_weights *const w = weft_model_weights(b->model);
    double bytes = bytes_of(&w->lm_head);
    for (int32_t l = 0; l < b->config.n_layer; l++)
        bytes += layer_bytes(b, &w->layers[l], l, batch);
    const weft_kv_layout *const kv = weft_engine_layout(b->engine);
    const double window =
        b->config.window > 0 ? fmin(context, b->config.window) : context;
    bytes += batch * (context * (double)kv->token_bytes[WEFT_FULL] +
                      window * (double)kv->token_bytes[WEFT_WINDOW]);
    return bytes;
}

/* -- runs --------------------------------------------------------------------
 */

static bool keep_event(void *ring, const weft_event *event)
{
    return weft_ring_push(ring, event);
}

static void keep_step(void *arg, uint64_t step_ns, int32_t n_rows)
{
    bench *const b = arg;
    if (b->n_steps == STEPS_MAX) return;
    b->step_ns[b->n_steps] = step_ns;
    b->step_rows[b->n_steps++] = n_rows;
}

/* `batch` jobs at once; returns when all have ended, steps kept. */
static void run_jobs(bench *b, int32_t batch, int32_t n_prompt, int32_t n_new,
                     int32_t salt)
{
    static weft_job jobs[BATCH_MAX];
    int32_t *ids[BATCH_MAX];
    weft_engine_load load;
    weft_engine_get_load(b->engine, &load);
    const uint64_t steps_before = load.n_steps;
    b->n_steps = 0;
    for (int32_t j = 0; j < batch; j++) {
        ids[j] = weft_mem_new((size_t)n_prompt, sizeof *ids[j]);
        for (int64_t i = 0; i < n_prompt; i++)
            ids[j][i] = (int32_t)((i * 7919 + (int64_t)j * 104729 +
                                   (int64_t)salt * 31) %
                                  b->config.vocab_size);
        jobs[j] = (weft_job){
            .handle = (uint64_t)j + 1,
            .age = (uint64_t)j,
            .deadline_ns = UINT64_MAX,
            .tokens = ids[j],
            .n_prompt = n_prompt,
            .n_tokens = n_prompt,
            .max_tokens = n_new,
            .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
            .logprobs = -1,
            .prompt_logprobs = -1,
        };
        while (weft_engine_submit(b->engine, &jobs[j]) != WEFT_OK) {
        }
    }
    for (int32_t left = batch; left > 0;) {
        weft_event event;
        weft_ring_wait(b->events, UINT64_MAX);
        while (weft_ring_pop(b->events, &event)) {
            if (event.finish == WEFT_FINISH_NONE) continue;
            if (event.finish != WEFT_FINISH_LENGTH) {
                (void)fprintf(stderr, "bench_engine: %s\n", event.text);
                exit(1);
            }
            left--;
        }
    }
    /* The last event comes from inside a step: wait until that has been kept.
     * Idle alone may be what was told before the first step. */
    do weft_engine_get_load(b->engine, &load);
    while (!load.idle || load.n_steps == steps_before);
    for (int32_t j = 0; j < batch; j++) weft_mem_free(ids[j]);
}

static void print_head(const bench *b, const char *name)
{
    printf("{\"bench\":\"%s\",\"machine\":\"%s\",\"threads\":%d,\"model\":"
           "\"%s hidden %d, %d layers, %d experts, top %d\",\"profile\":\"%s\","
           "\"path\":\"%s\",",
           name, b->machine, b->options.threads, b->config.model_type,
           b->config.hidden_size, b->config.n_layer, b->config.n_expert,
           b->config.top_k, b->options.profile == WEFT_EXACT ? "exact" : "bf16",
           b->options.ops->name);
}

static double decile_ns(const uint64_t *sorted, int32_t n, int32_t tenths)
{
    const int32_t at = n * tenths / 10;
    return (double)sorted[at];
}

static double decode(bench *b, int32_t batch)
{
    run_jobs(b, batch, DECODE_PROMPT, DECODE_TOKENS, batch);
    uint64_t times[STEPS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_steps; i++)
        if (b->step_rows[i] == batch) times[n++] = b->step_ns[i];
    if (n == 0) return 0.0;
    qsort(times, (size_t)n, sizeof *times, by_time);
    const double median_s = decile_ns(times, n, 5) * 1e-9;
    const double bytes =
        step_bytes(b, batch, DECODE_PROMPT + (double)DECODE_TOKENS / 2);
    print_head(b, "decode");
    printf("\"batch\":%d,\"steps\":%d,\"median_ms\":%.3f,\"p10_ms\":%.3f,"
           "\"p90_ms\":%.3f,\"tokens_per_s\":%.2f,\"bytes\":%.0f,"
           "\"bytes_per_s\":%.4g,\"read_bytes_per_s\":%.4g,"
           "\"share_of_read\":%.3f}\n",
           batch, n, median_s * 1e3, decile_ns(times, n, 1) * 1e-6,
           decile_ns(times, n, 9) * 1e-6, batch / median_s, bytes,
           bytes / median_s, b->read_bytes_per_s,
           bytes / median_s / b->read_bytes_per_s);
    return 1.0 / median_s;
}

static void prefill(bench *b, int32_t n_prompt, double decode_rate)
{
    uint64_t times[PREFILL_REPEATS];
    for (int32_t i = 0; i < PREFILL_REPEATS; i++) {
        run_jobs(b, 1, n_prompt, 1, i);
        times[i] = 0;
        for (int32_t s = 0; s < b->n_steps; s++) times[i] += b->step_ns[s];
    }
    qsort(times, PREFILL_REPEATS, sizeof *times, by_time);
    const double median_s = decile_ns(times, PREFILL_REPEATS, 5) * 1e-9;
    print_head(b, "prefill");
    printf("\"tokens\":%d,\"chunk\":%d,\"repeats\":%d,\"median_ms\":%.3f,"
           "\"tokens_per_s\":%.2f,\"over_decode\":%.2f}\n",
           n_prompt, b->options.chunk_tokens, PREFILL_REPEATS, median_s * 1e3,
           n_prompt / median_s, n_prompt / median_s / decode_rate);
}

/* The pool that the largest case fills: then peak memory is the plan's or it is
 * wrong. */
static int64_t pool_bytes(const bench *b)
{
    weft_kv_layout layout;
    weft_err err = {0};
    const weft_dtype dtype =
        b->options.profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16;
    if (weft_kv_layout_make(&b->config, dtype, b->options.page_tokens, &layout,
                            &err) != WEFT_OK)
        die(&err);
    int64_t slabs = 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (b->config.n_kind[k] == 0) continue;
        const weft_kind kind = (weft_kind)k;
        const int32_t chunk = b->options.chunk_tokens;
        const int64_t one = weft_kv_pages_for(&b->config, &layout, kind,
                                              PREFILL_LONG + 2, chunk);
        const int64_t all =
            BATCH_MAX * weft_kv_pages_for(&b->config, &layout, kind,
                                          DECODE_PROMPT + DECODE_TOKENS, chunk);
        slabs += (one > all ? one : all) / layout.slab_pages[k] + 2;
    }
    return slabs * layout.slab_bytes;
}

static int64_t open_engine(bench *b, const char *dir)
{
    weft_err err = {0};
    weft_checkpoint *checkpoint = NULL;
    if (weft_model_config_read(dir, NULL, NULL, &b->config, &err) != WEFT_OK ||
        weft_checkpoint_open(dir, &b->config, b->options.profile, NULL, NULL,
                             &checkpoint, &err) != WEFT_OK)
        die(&err);
    const int64_t weights =
        weft_checkpoint_get_stats(checkpoint)->resident_bytes;
    b->options.kv_bytes = pool_bytes(b);
    const uint64_t begin = weft_clock_now_ns();
    if (weft_model_load(checkpoint, NULL, NULL, &b->model, &err) != WEFT_OK)
        die(&err);
    const double load_s = (double)(weft_clock_now_ns() - begin) * 1e-9;
    weft_checkpoint_close(checkpoint);
    const weft_event_sink sink = {.take = keep_event, .arg = b->events};
    if (weft_engine_create(&b->config, weft_model_weights(b->model),
                           &b->options, sink, keep_step, b, &b->engine,
                           &err) != WEFT_OK ||
        weft_engine_start(b->engine, &err) != WEFT_OK)
        die(&err);
    print_head(b, "load");
    printf("\"bytes\":%lld,\"seconds\":%.3f,\"bytes_per_s\":%.4g}\n",
           (long long)weights, load_s, (double)weights / load_s);
    return weights;
}

int main(int argc, char **argv)
{
    int64_t threads = 2;
    if (argc < 2 ||
        (argc > 3 && !weft_parse_i64(argv[3], 1, INT32_MAX, &threads))) {
        (void)fprintf(stderr,
                      "usage: bench_engine MODEL_DIR [exact|bf16] [THREADS]\n");
        return 2;
    }
    static bench b;
    weft_err err = {0};
    b.options = (weft_engine_options){
        .page_tokens = 64,
        .chunk_tokens = 512,
        .max_seqs = BATCH_MAX,
        .max_waiting = BATCH_MAX,
        .max_context = 4096,
        .threads = (int32_t)threads,
        .profile = argc > 2 && strcmp(argv[2], "exact") == 0
                       ? WEFT_EXACT
                       : WEFT_PROFILE_BF16,
    };
    if (weft_ops_cpu("auto", &b.options.ops, &err) != WEFT_OK ||
        weft_ring_create(sizeof(weft_event), 4096, &b.events, &err) != WEFT_OK)
        die(&err);
    name_machine(b.machine, sizeof b.machine);
    b.read_bytes_per_s = measure_read_apart(b.options.threads);
    const int64_t weights = open_engine(&b, argv[1]);
    const double rate = decode(&b, 1);
    (void)decode(&b, BATCH_MAX);
    prefill(&b, PREFILL_SHORT, rate);
    prefill(&b, PREFILL_LONG, rate);
    const int64_t overhead = weft_engine_overhead_bytes(&b.config, &b.options);
    const int64_t peak = peak_bytes();
    const int64_t planned = weights + b.options.kv_bytes + overhead;
    print_head(&b, "memory");
    printf("\"weights\":%lld,\"kv\":%lld,\"overhead\":%lld,\"peak\":%lld,"
           "\"peak_over_planned\":%.4f}\n",
           (long long)weights, (long long)b.options.kv_bytes,
           (long long)overhead, (long long)peak,
           (double)peak / (double)planned);
    weft_engine_destroy(b.engine);
    weft_ring_destroy(b.events);
    weft_model_destroy(b.model);
    if ((double)peak <= PEAK_MAX * (double)planned) return 0;
    (void)fprintf(stderr,
                  "bench_engine: peak memory %lld bytes is above %.2f of the "
                  "%lld planned\n",
                  (long long)peak, PEAK_MAX, (long long)planned);
    return 1;
}
