#include "tests/support/crowd.h"

#include <check.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"

#define OK(call)                                                               \
    do {                                                                       \
        weft_err err = {0};                                                    \
        const weft_status st = (call);                                         \
        ck_assert_msg(st == WEFT_OK, "%s: %s", weft_status_name(st),           \
                      err.text);                                               \
    } while (0)

static const uint64_t WAIT_NS = 120ULL * 1000 * 1000 * 1000;

crowd_job crowd_make(const int32_t *prompt, int32_t n_prompt, int32_t n_new)
{
    crowd_job j = {.prompt = prompt, .n_prompt = n_prompt, .n_new = n_new};
    j.tokens = weft_mem_new((size_t)(n_prompt + n_new), sizeof *j.tokens);
    j.logprobs = weft_mem_new((size_t)n_new, sizeof *j.logprobs);
    memcpy(j.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    j.n_tokens = n_prompt;
    return j;
}

void crowd_free(crowd_job *job)
{
    weft_mem_free(job->tokens);
    weft_mem_free(job->logprobs);
}

static weft_kv_layout layout_of(const harness *h, const harness_run *run)
{
    weft_kv_layout layout;
    OK(weft_kv_layout_make(
        &h->config, h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
        run->page_tokens > 0 ? run->page_tokens : 64, &layout, &err));
    return layout;
}

int64_t crowd_bytes(const harness *h, const crowd_job *job,
                    const harness_run *run)
{
    const weft_kv_layout layout = layout_of(h, run);
    int64_t slabs = 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (h->config.n_kind[k] == 0) continue;
        const int64_t pages =
            weft_kv_pages_for(&h->config, &layout, (weft_kind)k,
                              (int64_t)job->n_prompt + job->n_new,
                              run->chunk_tokens > 0 ? run->chunk_tokens : 512);
        slabs += (pages + layout.slab_pages[k] - 1) / layout.slab_pages[k];
    }
    return slabs * layout.slab_bytes;
}

static bool keep_event(void *ring, const weft_event *event)
{
    return weft_ring_push(ring, event);
}

static weft_job job_of(const crowd_job *c, uint64_t handle)
{
    return (weft_job){
        .handle = handle,
        .age = handle,
        .deadline_ns = c->timeout_ns == 0 ? UINT64_MAX
                                          : weft_clock_now_ns() + c->timeout_ns,
        .tokens = c->tokens,
        .n_prompt = c->n_prompt,
        .n_tokens = c->n_tokens,
        .max_tokens = c->n_new,
        .sampling = {.temperature = c->temperature,
                     .top_p = 1.0F,
                     .repetition_penalty = 1.0F,
                     .seed = c->seed},
        .logprobs = 0,
        .prompt_logprobs = -1,
    };
}

static void take_token(crowd_job *c, const weft_event *event)
{
    ck_assert_msg(event->position == c->n_tokens,
                  "token for position %d, expected %d", event->position,
                  c->n_tokens);
    ck_assert_int_lt(c->n_tokens, c->n_prompt + c->n_new);
    c->logprobs[c->n_tokens - c->n_prompt] = event->logprob;
    c->tokens[c->n_tokens++] = event->token;
}

/* Returns whether the job is over. */
static bool take_event(weft_engine *engine, crowd_job *c, weft_job *job,
                       const weft_event *event)
{
    if (event->kind == WEFT_EVENT_TOKEN) take_token(c, event);
    if (event->finish == WEFT_FINISH_NONE) {
        if (event->kind == WEFT_EVENT_TOKEN && c->cancel_after > 0 &&
            c->n_tokens - c->n_prompt == c->cancel_after)
            OK(weft_engine_cancel(engine, event->handle));
        return false;
    }
    if (event->finish == WEFT_FINISH_PREEMPTED) {
        c->n_preempted++;
        const uint64_t deadline_ns = job->deadline_ns;
        *job = job_of(c, event->handle);
        job->deadline_ns = deadline_ns;
        OK(weft_engine_submit(engine, job));
        return false;
    }
    c->finish = event->finish;
    c->status = event->status;
    c->n_last_events++;
    return true;
}

static void wait_until_unused(weft_engine *engine)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_engine_load load;
    do {
        ck_assert(weft_clock_now_ns() < deadline_ns);
        weft_engine_get_load(engine, &load);
    } while (!load.idle || load.sched.n_running + load.sched.n_waiting > 0);
    ck_assert_int_eq(load.kv.pages_used[WEFT_FULL], 0);
    ck_assert_int_eq(load.kv.pages_used[WEFT_WINDOW], 0);
    ck_assert_int_eq(load.kv.slabs, load.kv.slabs_free);
}

int32_t crowd_run(const harness *h, crowd_job *jobs, int32_t n,
                  const harness_run *run, int32_t max_seqs)
{
    int32_t longest = 0;
    int64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t tokens = jobs[i].n_prompt + jobs[i].n_new;
        if (tokens > longest) longest = tokens;
        bytes += crowd_bytes(h, &jobs[i], run);
    }
    const weft_kv_layout layout = layout_of(h, run);
    const weft_engine_options options = {
        .kv_bytes =
            run->kv_bytes > 0 ? run->kv_bytes : bytes + 2 * layout.slab_bytes,
        .page_tokens = layout.page_tokens,
        .chunk_tokens = run->chunk_tokens > 0 ? run->chunk_tokens : 512,
        .max_seqs = max_seqs,
        .max_waiting = n,
        .max_context = longest + 1,
        .threads = run->threads > 0 ? run->threads : 1,
        .profile = h->profile,
        .ops = harness_ops(run->cpu_path),
    };
    weft_ring *ring = NULL;
    weft_engine *engine = NULL;
    OK(weft_ring_create(sizeof(weft_event), 16, &ring, &err));
    OK(weft_engine_create(&h->config, weft_model_weights(h->model), &options,
                          (weft_event_sink){.take = keep_event, .arg = ring},
                          NULL, NULL, &engine, &err));
    weft_job *const submitted = weft_mem_new((size_t)n, sizeof *submitted);
    OK(weft_engine_start(engine, &err));
    for (int32_t i = 0; i < n; i++) {
        submitted[i] = job_of(&jobs[i], (uint64_t)i);
        OK(weft_engine_submit(engine, &submitted[i]));
    }
    int32_t left = n, n_preempted = 0;
    while (left > 0) {
        weft_event event;
        weft_ring_wait(ring, weft_clock_now_ns() + WAIT_NS);
        ck_assert_msg(weft_ring_pop(ring, &event), "%d jobs never ended", left);
        weft_mem_free(event.top);
        left -= take_event(engine, &jobs[event.handle],
                           &submitted[event.handle], &event);
    }
    for (int32_t i = 0; i < n; i++) n_preempted += jobs[i].n_preempted;
    wait_until_unused(engine);
    weft_event event;
    ck_assert_msg(!weft_ring_pop(ring, &event), "an event after the last one");
    weft_engine_destroy(engine);
    weft_ring_destroy(ring);
    weft_mem_free(submitted);
    return n_preempted;
}
