#include "tests/support/fake_service.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/str.h"

enum {
    TOP_MAX = 512,
    PROMPT_BYTES = 64,
    WAIT_S = 60,
};

struct job {
    struct job *next;
    weft_call *call;
    uint64_t id, due_ns, pause_ns;
    int32_t made, wanted;
    int32_t n_top; /* -1: no logprobs */
    bool holds, stays, cancelled;
    weft_buf text;
    int32_t *ids;
};

struct weft_fake_service {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool stopping, draining, let_go;
    struct job *jobs;
    weft_fake_counts counts;
};

static void lock(weft_fake_service *f)
{
    WEFT_ASSERT(pthread_mutex_lock(&f->lock) == 0);
}

static void unlock(weft_fake_service *f)
{
    WEFT_ASSERT(pthread_cond_broadcast(&f->changed) == 0);
    WEFT_ASSERT(pthread_mutex_unlock(&f->lock) == 0);
}

static void free_job(struct job *job)
{
    weft_buf_deinit(&job->text);
    weft_mem_free(job->ids);
    weft_mem_free(job);
}

/* --- the thread: one token of one job ------------------------------------ */

static void send_token(struct job *job)
{
    char text[16];
    float values[TOP_MAX] = {0};
    int32_t ids[TOP_MAX] = {0};
    const int32_t token = job->made;
    const float logprob = -0.5F;
    const int n = snprintf(text, sizeof text, "%d ", token);
    WEFT_ASSERT(weft_buf_add(&job->text, text, (size_t)n, NULL) == WEFT_OK);
    job->ids[job->made++] = token;
    weft_chunk chunk = {
        .ids = &token,
        .n_ids = 1,
        .text = {text, (size_t)n},
        .prompt_tokens = 3,
        .completion_tokens = (uint32_t)job->made,
    };
    if (job->n_top >= 0)
        chunk.logprobs = (weft_logprobs){
            .n_tokens = 1,
            .values = &logprob,
            .ids = &token,
            .n_top = job->n_top > 0 ? &job->n_top : NULL,
            .top_values = values,
            .top_ids = ids,
        };
    weft_call_send_chunk(job->call, &chunk);
}

static void complete(struct job *job)
{
    const weft_complete done = {
        .ids = job->ids,
        .n_ids = (size_t)job->made,
        .text = {job->text.data, job->text.n},
        .finish_reason = {"length", 6},
        .prompt_tokens = 3,
        .completion_tokens = (uint32_t)job->made,
    };
    weft_call_complete(job->call, &done);
}

/* Lock held. Takes the job out of the list. */
static void unlink_job(weft_fake_service *f, struct job *job)
{
    struct job **at = &f->jobs;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
}

/* The job that has something to do, or NULL and when there will be one. */
static struct job *due_job(weft_fake_service *f, uint64_t now_ns,
                           uint64_t *next_ns_out)
{
    for (struct job *job = f->jobs; job != NULL; job = job->next) {
        if (job->cancelled) return job;
        if (job->holds && !f->let_go) continue;
        if (job->stays && job->made == job->wanted) continue;
        if (job->due_ns <= now_ns) return job;
        if (job->due_ns < *next_ns_out) *next_ns_out = job->due_ns;
    }
    return NULL;
}

/* Lock held; given up while the call is used, as a router would. */
static void work(weft_fake_service *f, struct job *job, uint64_t now_ns)
{
    if (!job->cancelled && job->made < job->wanted) {
        /* To the end of the list, so that all have their turn. */
        unlink_job(f, job);
        struct job **at = &f->jobs;
        while (*at != NULL) at = &(*at)->next;
        job->next = NULL;
        *at = job;
        job->due_ns = now_ns + job->pause_ns;
        f->counts.tokens++;
        unlock(f);
        send_token(job);
        lock(f);
        return;
    }
    unlink_job(f, job);
    unlock(f);
    const bool cancelled = job->cancelled;
    if (cancelled)
        weft_call_release(job->call);
    else
        complete(job);
    free_job(job);
    lock(f);
    f->counts.live--;
    if (!cancelled) f->counts.completed++;
    WEFT_ASSERT(pthread_cond_broadcast(&f->changed) == 0);
}

static void *run(void *arg)
{
    weft_fake_service *f = arg;
    lock(f);
    while (!f->stopping) {
        const uint64_t now_ns = weft_clock_now_ns();
        uint64_t next_ns = now_ns + 1000000000U;
        struct job *job = due_job(f, now_ns, &next_ns);
        if (job != NULL) {
            work(f, job, now_ns);
            continue;
        }
        const struct timespec until = {
            .tv_sec = (time_t)(next_ns / 1000000000U),
            .tv_nsec = (long)(next_ns % 1000000000U)};
        (void)pthread_cond_timedwait(&f->changed, &f->lock, &until);
    }
    unlock(f);
    return NULL;
}

/* --- ops ----------------------------------------------------------------- */

static bool is(weft_span text, const char *word)
{
    return text.n == strlen(word) && memcmp(text.data, word, text.n) == 0;
}

static void generate(void *arg, weft_call *call,
                     const weft_generate_request *request)
{
    weft_fake_service *f = arg;
    const bool is_text = request->prompt == WEFT_PROMPT_TEXT;
    lock(f);
    f->counts.started++;
    f->counts.last_deadline_ns = weft_call_deadline_ns(call);
    const bool draining = f->draining;
    unlock(f);
    if (draining || (is_text && is(request->text, "fail"))) {
        weft_call_fail(call, WEFT_UNAVAILABLE, "draining,\n\xff try again",
                       1500);
        return;
    }
    if (is_text && is(request->text, "internal")) {
        weft_call_fail(call, WEFT_INTERNAL, "a defect", -1);
        return;
    }
    struct job *job = weft_mem_new(1, sizeof *job);
    WEFT_ASSERT(job != NULL);
    const weft_sampling_params *p = &request->sampling;
    job->call = call;
    job->id = weft_call_id(call);
    job->holds = is_text && is(request->text, "hold");
    job->stays = is_text && is(request->text, "stay");
    job->wanted = p->max_tokens.set ? (int32_t)p->max_tokens.value : 16;
    if (job->holds) job->wanted = 1;
    job->n_top = p->logprobs.set ? (int32_t)p->logprobs.value : -1;
    job->pause_ns = (uint64_t)request->priority * 1000000U;
    job->ids = weft_mem_new((size_t)job->wanted + 1, sizeof *job->ids);
    WEFT_ASSERT(job->ids != NULL);
    lock(f);
    f->counts.live++;
    job->next = f->jobs;
    f->jobs = job;
    f->counts.blocks_at_start = weft_mem_live();
    unlock(f);
}

static void cancel(void *arg, uint64_t call_id, weft_status why)
{
    weft_fake_service *f = arg;
    lock(f);
    f->counts.cancelled++;
    f->counts.last_why = why;
    for (struct job *job = f->jobs; job != NULL; job = job->next)
        if (job->id == call_id) job->cancelled = true;
    unlock(f);
}

static void tokenize(void *arg, weft_call *call,
                     const weft_tokenize_request *request)
{
    (void)arg;
    int32_t ids[PROMPT_BYTES];
    const size_t n =
        request->text.n < PROMPT_BYTES ? request->text.n : PROMPT_BYTES;
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)request->text.data[i];
    weft_call_reply_tokens(call, ids, n);
}

static void detokenize(void *arg, weft_call *call,
                       const weft_detokenize_request *request)
{
    (void)arg;
    char text[PROMPT_BYTES];
    const size_t n =
        request->n_ids < PROMPT_BYTES ? request->n_ids : PROMPT_BYTES;
    for (size_t i = 0; i < n; i++) text[i] = (char)request->ids[i];
    weft_call_reply_text(call, (weft_span){text, n});
}

static void abort_requests(void *arg, weft_call *call,
                           const weft_abort_request *request)
{
    (void)arg;
    weft_call_reply_aborted(call, (uint32_t)request->n_request_ids);
}

static void get_model(void *arg, weft_call *call)
{
    (void)arg;
    static const int32_t eos[] = {7, 9};
    const weft_model_info model = {
        .name = {"fake", 4},
        .model_type = {"dots3_note", 10},
        .weights_hash = {"00ff", 4},
        .vocab_size = 256,
        .max_context = 4096,
        .eos_ids = eos,
        .n_eos_ids = 2,
    };
    weft_call_reply_model(call, &model);
}

static void get_load(void *arg, weft_call *call)
{
    weft_fake_service *f = arg;
    const weft_load_info load = {
        .running = (uint32_t)weft_fake_read(f).live,
        .kv_bytes_total = UINT64_C(1) << 40,
        .pages_used = {{"full", 5}, {"window", 0}},
        .n_kinds = 2,
    };
    weft_call_reply_load(call, &load);
}

static void generate_ended(void *arg, weft_status status)
{
    weft_fake_service *f = arg;
    lock(f);
    f->counts.ended++;
    f->counts.last_ended = status;
    unlock(f);
}

const weft_service_ops weft_fake_ops = {
    .generate = generate,
    .tokenize = tokenize,
    .detokenize = detokenize,
    .abort = abort_requests,
    .get_model = get_model,
    .get_load = get_load,
    .cancel = cancel,
    .generate_ended = generate_ended,
};

/* --- for tests ----------------------------------------------------------- */

weft_fake_service *weft_fake_create(void)
{
    weft_fake_service *f = weft_mem_new(1, sizeof *f);
    WEFT_ASSERT(f != NULL);
    pthread_condattr_t clock;
    WEFT_ASSERT(pthread_condattr_init(&clock) == 0);
    WEFT_ASSERT(pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0);
    WEFT_ASSERT(pthread_mutex_init(&f->lock, NULL) == 0);
    WEFT_ASSERT(pthread_cond_init(&f->changed, &clock) == 0);
    WEFT_ASSERT(pthread_condattr_destroy(&clock) == 0);
    WEFT_ASSERT(pthread_create(&f->thread, NULL, run, f) == 0);
    return f;
}

void weft_fake_destroy(weft_fake_service *f)
{
    lock(f);
    f->stopping = true;
    unlock(f);
    WEFT_ASSERT(pthread_join(f->thread, NULL) == 0);
    WEFT_ASSERT(f->jobs == NULL); /* the server waits for every call */
    WEFT_ASSERT(pthread_cond_destroy(&f->changed) == 0);
    WEFT_ASSERT(pthread_mutex_destroy(&f->lock) == 0);
    weft_mem_free(f);
}

weft_fake_counts weft_fake_read(weft_fake_service *f)
{
    lock(f);
    const weft_fake_counts counts = f->counts;
    unlock(f);
    return counts;
}

bool weft_fake_wait(weft_fake_service *f,
                    bool (*good)(const weft_fake_counts *counts, int value),
                    int value)
{
    struct timespec until;
    WEFT_ASSERT(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += WAIT_S;
    int waited = 0;
    lock(f);
    bool is_good = good(&f->counts, value);
    while (!is_good && waited == 0) {
        waited = pthread_cond_timedwait(&f->changed, &f->lock, &until);
        is_good = good(&f->counts, value);
    }
    unlock(f);
    return is_good;
}

void weft_fake_drain(weft_fake_service *f)
{
    lock(f);
    f->draining = true;
    unlock(f);
}

void weft_fake_let_go(weft_fake_service *f)
{
    lock(f);
    f->let_go = true;
    unlock(f);
}
